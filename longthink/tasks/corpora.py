"""Where texts come from: the sources of Python, and of what is installed with us, enwik8, WikiText-103, any text file,
any folder of them.

A corpus gives the texts of a split in pieces that end where a line ends. Folders are split by file, single files and
folders with too few files by place: 90% for training, then 5% to validate and 5% to test.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import platform
import sysconfig
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from longthink.errors import UserError
from longthink.tasks.base import SPLITS, Split
from longthink.tasks.downloads import Published, obtain
from longthink.tasks.reading import blocks

ENWIK8 = Published("enwik8.zip", ("https://mattmahoney.net/dc/enwik8.zip",), size=36_445_475)
ENWIK8_SHA1 = "57b8363b814821dc9d47aa4d41f58733519076b2"
"""Of the text itself, as its author publishes it (mattmahoney.net/dc/textdata.html)."""
ENWIK8_PLACES: dict[Split, tuple[int, int]] = {
    "train": (0, 90_000_000),
    "valid": (90_000_000, 95_000_000),
    "test": (95_000_000, 100_000_000),
}
WIKITEXT103 = Published(
    "wikitext-103-v1.zip",
    (
        "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-v1.zip",
        "https://wikitext.smerity.com/wikitext-103-v1.zip",
    ),
    checksum="md5:9ddaacaf6af0710eda8c456decff7832",
)
_SKIPPED = {"site-packages", "dist-packages", "__pycache__"}
_TESTS = ("test/*",)
"""Python's own, more than half of its sources, which many distributions leave out."""
PACKAGES = ("torch", "sympy", "networkx")
"""Whoever has us has these, for PyTorch needs the other two: some 70 MB of sources."""

_Roots = tuple[tuple[str, Path], ...]


class Piece(NamedTuple):
    """Some text, and whether a document begins with it."""

    text: bytes
    begins: bool


class Corpus(Protocol):
    """Texts in three splits."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Which of the texts that have this name; empty where there is one."""

    @property
    def verbatim(self) -> bool:
        """Every space counts."""

    def identity(self) -> str:
        """Changes when the texts do."""

    def pieces(self, split: Split) -> Iterator[Piece]: ...


def corpus(name: str, folder: Path) -> Corpus:
    """By name, or the file or folder of that path; what must be downloaded is kept in ``folder``."""
    version, stdlib = f"Python {platform.python_version()}", Path(sysconfig.get_paths()["stdlib"])
    if name == "python":
        return Folder("python", (("", stdlib),), "*.py", version, _TESTS)
    if name == "sources":
        roots = (("python/", stdlib), *((f"{package}/", _package(package)) for package in PACKAGES))
        versions = (f"{package} {importlib.metadata.version(package)}" for package in PACKAGES)
        return Folder("sources", roots, "*.py", ", ".join([version, *versions]), ("*/test/*", "*/tests/*"))
    if name == "enwik8":
        return Enwik8(folder)
    if name == "wikitext103":
        return WikiText103(folder)
    path = Path(name)
    if name and path.is_dir():  # Path("") is the current folder
        return Folder(str(path), (("", path),), "*", "")
    if path.is_file():
        return OneFile(path)
    raise UserError(
        f"There is no corpus {name!r}; choose python, sources, enwik8 or wikitext103, or name a file or a folder."
    )


def _package(name: str) -> Path:
    """Where an installed package lies; it is not imported."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise UserError(f"The corpus of sources needs those of {name}; install it, or choose the corpus python.")
    return Path(found.submodule_search_locations[0])


@dataclass(frozen=True)
class Folder:
    """Every text file below some folders, each a document; a hash of its path decides the split and the order. Where a
    split would get no file, all are cut as one text in that order."""

    name: str
    roots: _Roots
    """Each folder with what stands before the paths of its files."""
    pattern: str
    version: str
    without: tuple[str, ...] = ()
    """Patterns of paths that are left out."""
    verbatim: ClassVar[bool] = True

    def identity(self) -> str:
        listing = [file[1:] for file in _listing(self.roots, self.pattern, self.without)]
        # Token files are kept by this name: those of folders that used to be split by file must not be found again.
        cut_up = () if self._split_by_file() else ("cut as one text",)
        return hashlib.sha256(repr((self.version, listing, *cut_up)).encode()).hexdigest()

    def pieces(self, split: Split) -> Iterator[Piece]:
        texts = _texts(self.roots, self.pattern, self.without)
        if self._split_by_file():
            return (Piece(text, True) for name, text in texts if split_of(name) == split)
        return _cut_as_one([text for _, text in texts], split)

    def _split_by_file(self) -> bool:
        return _has_all_splits(self.roots, self.pattern, self.without)


def _cut_as_one(texts: list[bytes], split: Split) -> Iterator[Piece]:
    first, last = _part(b"".join(texts), split)
    for text in texts:
        part = text[max(0, first) : max(0, last)]
        if part:
            yield Piece(part, True)
        first, last = first - len(text), last - len(text)


def _texts(roots: _Roots, pattern: str, without: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """The path and the text of each file that has any."""
    for path, name, *_ in _listing(roots, pattern, without):
        try:
            text = path.read_bytes()
        except OSError:  # not for us to read
            continue
        if text and is_text(text):
            yield name, text


@lru_cache(maxsize=8)
def _has_all_splits(roots: _Roots, pattern: str, without: tuple[str, ...]) -> bool:
    """Does each split get a file? Read only until that is clear, and once a process."""
    found: set[Split] = set()
    for name, _ in _texts(roots, pattern, without):
        found.add(split_of(name))
        if len(found) == len(SPLITS):
            return True
    return False


@lru_cache(maxsize=8)
def _listing(roots: _Roots, pattern: str, without: tuple[str, ...]) -> tuple[tuple[Path, str, int, int], ...]:
    """Files with their paths below the folders, sizes and times of change; looked up once a process."""
    found = []
    for prefix, root in roots:
        for path in root.rglob(pattern):
            below = path.relative_to(root)
            name = prefix + below.as_posix()
            skipped = _SKIPPED & set(below.parts) or any(fnmatchcase(name, left_out) for left_out in without)
            if path.is_file() and not skipped and not any(part.startswith(".") for part in below.parts):
                found.append((path, name, path.stat().st_size, path.stat().st_mtime_ns))
    # In the order of their hashes, so that each stream reads files of all kinds.
    return tuple(sorted(found, key=lambda file: _digest(file[1])))


def split_of(name: str) -> Split:
    """The split of a file, from its path below the folder: one in twenty is valid and one in twenty test."""
    place = int.from_bytes(_digest(name)[-4:]) % 20
    return "valid" if place == 0 else "test" if place == 1 else "train"


def is_text(data: bytes) -> bool:
    """UTF-8 without NUL, which stands for the end of a document."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


@dataclass(frozen=True)
class OneFile:
    """A text file, plain or .zst, cut where a line ends beyond 90% and 95% of it."""

    path: Path
    version: ClassVar[str] = ""
    verbatim: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return str(self.path)

    def identity(self) -> str:
        status = self.path.stat()
        return hashlib.sha256(repr((str(self.path.resolve()), status.st_size, status.st_mtime_ns)).encode()).hexdigest()

    def pieces(self, split: Split) -> Iterator[Piece]:
        with _readable(self.path), self.path.open("rb") as file:
            text = b"".join(blocks(file))
        if b"\0" in text:
            raise UserError(f"{self.path} holds NUL bytes, which stand for the end of a document; name a text file.")
        if not is_text(text):
            raise UserError(f"{self.path} is not text in UTF-8; name a text file.")
        first, last = _part(text, split)
        if text[first:last]:
            yield Piece(text[first:last], True)


def _part(text: bytes, split: Split) -> tuple[int, int]:
    """Where the split of one text begins and ends."""
    ends = [0, cut(text, 0.9), cut(text, 0.95), len(text)]
    place = SPLITS.index(split)
    return ends[place], ends[place + 1]


def cut(text: bytes, fraction: float) -> int:
    """A place a little beyond this fraction where a line ends, or at least no character is cut in two."""
    mark = int(len(text) * fraction)
    newline = text.find(b"\n", mark, mark + len(text) // 50)
    if newline >= 0:
        return newline + 1
    while mark < len(text) and text[mark] & 0xC0 == 0x80:
        mark += 1
    return mark


@dataclass(frozen=True)
class Enwik8:
    """The first 100 million bytes of a Wikipedia: 90 for training, 5 to validate, 5 to test, as everybody does."""

    folder: Path
    name: str = "enwik8"
    version: ClassVar[str] = ""
    verbatim: ClassVar[bool] = True

    def identity(self) -> str:
        return ENWIK8_SHA1

    def pieces(self, split: Split) -> Iterator[Piece]:
        archive = obtain(ENWIK8, self.folder)
        begins = True
        for text in lines(self._part(archive, *ENWIK8_PLACES[split])):
            yield Piece(text, begins)
            begins = False

    def _part(self, archive: Path, first: int, last: int) -> Iterator[bytes]:
        place, digest = 0, hashlib.sha1(usedforsecurity=False)
        for block in _member(archive, "enwik8"):
            digest.update(block)
            yield block[max(0, first - place) : max(0, last - place)]
            place += len(block)
        if digest.hexdigest() != ENWIK8_SHA1:
            raise UserError(f"{archive} does not hold the published text; delete it and run the same command again.")


@dataclass(frozen=True)
class WikiText103:
    """Good and featured articles of Wikipedia, as tokenised by Merity et al. (2016), which is what was published on."""

    folder: Path
    name: str = "wikitext103"
    version: ClassVar[str] = ""
    verbatim: ClassVar[bool] = False  # words with a space before each; the published tokens do not have these

    def identity(self) -> str:
        return str(WIKITEXT103.checksum)

    def pieces(self, split: Split) -> Iterator[Piece]:
        archive = obtain(WIKITEXT103, self.folder)
        begins = True
        for line in lines(_member(archive, f"wikitext-103/wiki.{split}.tokens")):
            yield Piece(line, begins)
            begins = False


def lines(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces that end where a line ends, many lines at once."""
    rest = b""
    for part in parts:
        head, newline, tail = part.rpartition(b"\n")
        if newline:
            yield rest + head + newline
            rest = tail
        else:
            rest += part
    if rest:
        yield rest


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()


def _member(archive: Path, name: str) -> Iterator[bytes]:
    with _readable(archive), zipfile.ZipFile(archive) as file:
        if name not in file.namelist():
            raise UserError(f"{archive} does not hold {name}; delete it and run the same command again.")
        with file.open(name) as member:
            yield from iter(lambda: member.read(1 << 20), b"")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); get it again.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}).") from error
