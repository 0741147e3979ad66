"""Where the files of bAbI are, in a folder or an archive, and which stories a split has."""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from longthink.errors import UserError
from longthink.tasks.babi_stories import Story, parse_stories
from longthink.tasks.base import Split
from longthink.tasks.downloads import Published, cache_folder, obtain
from longthink.tasks.reading import blocks, data_places

ADDRESS = "http://www.thespermwhale.com/jaseweston/babi/tasks_1-20_v1-2.tar.gz"
COPY = "https://s3.amazonaws.com/text-datasets/babi_tasks_1-20_v1-2.tar.gz"
# Size and checksum as Hugging Face's datasets noted them in 2021. Of Keras's copy, for when the official address is
# gone, neither is known: its stories are checked when they are read.
PUBLISHED = (
    Published(
        "tasks_1-20_v1-2.tar.gz",
        (ADDRESS,),
        size=15_719_851,
        checksum="sha256:0364ebde659f14d11bc21744516c5ec49d3d06cb692733f66680771244998898",
    ),
    Published("babi_tasks_1-20_v1-2.tar.gz", (COPY,)),
)
TASKS = 20
FOLDER = "babi"
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_MEMBER = re.compile(r"(?:^|/)(en|en-10k)/qa(\d+)_(?:[^/]*_)?(train|test)\.txt$")

Part: TypeAlias = Literal["train", "test"]
Stamp: TypeAlias = tuple[tuple[str, int, int], ...]


def read_stories(path: str | Path) -> list[Story]:
    """The stories of one file in the format of bAbI."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    return parse_stories(_decoded(path.read_bytes(), path.name), path.name)


def is_valid(story: Story) -> bool:
    """A tenth of all stories, by their words."""
    return zlib.crc32(b"".join(bytes(line.words) for line in story)) % 10 == 0


def find_data(folder: str) -> Path:
    """The folder that has en-10k in it, or an archive: where a person has put it, or the official one, downloaded."""
    names = [folder, "tasks_1-20_v1-2", "tasks_1-20_v1-2.tar.gz"] if folder == FOLDER else [folder]
    for path in (place / Path(name).expanduser() for place in data_places() for name in names):
        if path.is_file():
            return path
        for inner in (path, path / "tasks_1-20_v1-2", path / "babi"):
            if (inner / "en-10k").is_dir() or (inner / "en").is_dir():
                return inner
        archives = sorted(file for file in path.iterdir() if file.name.endswith(_ARCHIVES)) if path.is_dir() else []
        if archives:
            return archives[0]
    if folder == FOLDER:
        return _downloaded()
    raise UserError(
        f"There is no bAbI data in {folder[:200]!r}; unpack {ADDRESS} in ./data, or set the option folder to its place."
    )


def _downloaded() -> Path:
    """The first that can be had; where there is none, what is said of the official one."""
    kept = cache_folder() / "downloads"
    files = sorted(PUBLISHED, key=lambda file: not (kept / file.name).is_file())  # once fetched, never again
    said: list[UserError] = []
    for file in files:
        try:
            return obtain(file, kept)
        except UserError as error:
            said.append(error)
    raise said[0]


def stamp_of(root: Path) -> Stamp:
    """Changes when the data do."""
    files = sorted(root.glob("en*/qa*.txt")) if root.is_dir() else [root]
    return tuple((str(file), (about := file.stat()).st_mtime_ns, about.st_size) for file in files)


@lru_cache(maxsize=2)
def all_files(root: Path, stamp: Stamp) -> dict[tuple[str, int, str], Path | bytes]:
    """The files by variant, task and part; of an archive, what is in them."""
    if root.is_dir():
        return _members((file.relative_to(root).as_posix(), file) for file in root.glob("en*/qa*.txt"))
    try:
        with root.open("rb") as file:
            content = io.BytesIO(b"".join(blocks(file)))
        with tarfile.open(fileobj=content) as archive:
            inside = ((member.name, archive.extractfile(member)) for member in archive if _MEMBER.search(member.name))
            return _members((name, data.read()) for name, data in inside if data is not None)
    except (tarfile.TarError, EOFError, ValueError, OSError, zlib.error) as error:
        raise UserError(f"{root.name} is no archive that can be read ({error}); get {ADDRESS} again.") from error


def _members(named: Iterable[tuple[str, Path | bytes]]) -> dict[tuple[str, int, str], Path | bytes]:
    found = ((_MEMBER.search(name), content) for name, content in named)
    return {(match[1], int(match[2]), match[3]): content for match, content in found if match}


def check_task(task: int) -> None:
    if not 1 <= task <= TASKS:
        raise UserError(f"bAbI has the tasks 1 to {TASKS}; there is no task {task}.")


def _file_lines(root: Path, stamp: Stamp, variant: str, task: int, part: Part) -> tuple[str, list[str]]:
    """The name of a file and its lines; the file of en where this one is missing."""
    check_task(task)
    for choice in dict.fromkeys((variant, "en")):
        content = all_files(root, stamp).get((choice, task, part))
        if content is not None:
            name = f"{choice}/qa{task}_{part}"
            return name, _decoded(content if isinstance(content, bytes) else content.read_bytes(), name)
    raise UserError(f"{root.name} has no file {variant}/qa{task}_*_{part}.txt; get {ADDRESS}.")


def _decoded(content: bytes, name: str) -> list[str]:
    try:
        return content.decode().splitlines()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"Line {line} of {name} is not text; get {ADDRESS} again.") from error


@lru_cache(maxsize=2 * TASKS)
def parsed(root: Path, stamp: Stamp, variant: str, task: int, part: Part) -> list[Story]:
    name, lines = _file_lines(root, stamp, variant, task, part)
    return parse_stories(lines, name)


@lru_cache(maxsize=3 * TASKS)
def story_numbers(root: Path, stamp: Stamp, variant: str, task: int, split: Split, repeated: bool) -> np.ndarray:
    """Which stories of their file a split has."""
    tested = parsed(root, stamp, variant, task, "test")
    if split == "test":
        return np.arange(len(tested))
    known = set() if repeated else set(tested)
    trained = parsed(root, stamp, variant, task, "train")
    valid = split == "valid"
    return np.array([i for i, s in enumerate(trained) if is_valid(s) == valid and s not in known], np.int64)


@lru_cache(maxsize=4)
def raw_stories(root: Path, stamp: Stamp, variant: str, task: int, part: Part) -> list[list[str]]:
    """The lines of each story."""
    _, lines = _file_lines(root, stamp, variant, task, part)
    starts = [i for i, line in enumerate(lines) if re.match("1 ", line)]
    return [lines[start:stop] for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True)]
