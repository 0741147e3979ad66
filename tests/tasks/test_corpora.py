"""Where texts come from: splits, downloads from a server of our own, damaged files."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longthink.errors import UserError
from longthink.tasks import corpora, task
from longthink.tasks.base import SPLITS
from longthink.tasks.corpora import Folder, OneFile, _listing, corpus, cut, is_text, lines, split_of
from longthink.tasks.downloads import Published, cache_folder, obtain

DATA = bytes(range(256)) * 300
VALID = ["16.txt", "35.txt", "50.txt", "65.txt", "70.txt", "71.txt"]
TEST = ["13.txt", "33.txt", "42.txt", "45.txt", "73.txt"]


@given(st.text(alphabet="ab\nß€😀", max_size=200), st.floats(0, 1))
def test_a_cut_parts_no_character(text: str, fraction: float) -> None:
    data = text.encode()
    place = cut(data, fraction)
    assert 0 <= place <= len(data)
    assert data[:place].decode() + data[place:].decode() == text


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"x", b"\n")), max_size=10))
def test_lines_lose_nothing(parts: list[bytes]) -> None:
    found = list(lines(iter(parts)))
    assert b"".join(found) == b"".join(parts)
    assert all(piece.endswith(b"\n") for piece in found[:-1])


def test_a_file_is_cut_where_lines_end(tmp_path: Path) -> None:
    path = tmp_path / "verses.txt"
    text = b"".join(b"line %d\n" % i for i in range(1000))
    path.write_bytes(text)
    whole = corpus(str(path), tmp_path)
    parts = {split: b"".join(piece.text for piece in whole.pieces(split)) for split in SPLITS}
    assert parts["train"] + parts["valid"] + parts["test"] == text
    assert all(part.endswith(b"\n") for part in parts.values())
    assert [round(100 * len(parts[split]) / len(text)) for split in SPLITS] == [90, 5, 5]
    assert [piece.begins for split in SPLITS for piece in whole.pieces(split)] == [True] * 3
    before = whole.identity()
    path.write_bytes(text + b"more\n")
    assert whole.identity() != before


def test_compressed_files_and_those_that_are_no_text(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    text = b"to be or not to be\n" * 50
    (tmp_path / "play.zst").write_bytes(zstandard.ZstdCompressor().compress(text))
    found = corpus(str(tmp_path / "play.zst"), tmp_path)
    assert b"".join(piece.text for split in SPLITS for piece in found.pieces(split)) == text
    (tmp_path / "half.zst").write_bytes(zstandard.ZstdCompressor().compress(text)[:-9])
    with pytest.raises(UserError, match=r"half\.zst is damaged"):
        list(OneFile(tmp_path / "half.zst").pieces("train"))
    (tmp_path / "picture").write_bytes(b"\x89PNG")
    with pytest.raises(UserError, match="not text in UTF-8"):
        list(OneFile(tmp_path / "picture").pieces("train"))
    (tmp_path / "strings").write_bytes(b"one\0two\0")
    with pytest.raises(UserError, match=r"strings holds NUL bytes, which stand for .*; name a text file\.$"):
        list(OneFile(tmp_path / "strings").pieces("train"))


def test_folders_are_split_by_path(tmp_path: Path) -> None:
    root = tmp_path / "books"
    names = [f"{i % 7}/{i}.txt" for i in range(400)]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"this is {name}\n")
    (root / "binary").write_bytes(b"\0\1")
    (root / "latin").write_bytes(b"\xe4")
    (root / ".hidden").write_text("no")
    found = corpus(str(root), tmp_path)
    texts = {split: [piece.text.decode() for piece in found.pieces(split)] for split in SPLITS}
    assert sorted(text for split in SPLITS for text in texts[split]) == sorted(f"this is {name}\n" for name in names)
    for split in SPLITS:
        assert all(split_of(text.split()[-1]) == split for text in texts[split])
    assert 340 < len(texts["train"]) < 380
    assert len(texts["valid"]) > 5 < len(texts["test"])
    assert texts["train"] != sorted(texts["train"])  # mixed, so that each stream sees all kinds


def test_the_split_of_a_path_is_for_ever() -> None:
    """Results rest on it."""
    names = [f"{i}.txt" for i in range(100)]
    assert [name for name in names if split_of(name) == "valid"] == VALID
    assert [name for name in names if split_of(name) == "test"] == TEST


@pytest.mark.parametrize("names", [["0.txt"], ["0.txt", "1.txt"], ["a/0.txt", "b/1.txt", "2.txt"], VALID[:1], TEST])
def test_folders_with_few_files_have_text_for_all_splits(names: list[str], tmp_path: Path) -> None:
    """None of the paths alone gives all three; texts are cut as one, in the same order, and nothing is in two."""
    root = tmp_path / "few"
    written = []
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        written += [f"{name}: line {i}\n" for i in range(100)]
        (root / name).write_text("".join(line for line in written if line.startswith(name)))
    (root / "binary").write_bytes(b"\0\1")
    found = corpus(str(root), tmp_path)
    texts = {split: [piece.text.decode() for piece in found.pieces(split)] for split in SPLITS}
    again = [line for split in SPLITS for text in texts[split] for line in text.splitlines(keepends=True)]
    assert sorted(again) == sorted(written)
    sizes = [sum(map(len, texts[split])) / len("".join(written)) for split in SPLITS]
    assert sizes == pytest.approx([0.9, 0.05, 0.05], abs=0.03)
    for split in SPLITS:
        assert all(len({line.split(":")[0] for line in text.splitlines()}) == 1 for text in texts[split])
        assert all(piece.begins for piece in found.pieces(split))  # no piece goes on with another file
    here = task("text", corpus=str(root), folder=str(tmp_path / "cache"))
    assert here.check(here.sample(3, 8, 0, "valid")).all()


def test_token_files_of_another_split_are_not_found_again(tmp_path: Path) -> None:
    """A folder that is cut up has another name than the same files had when they were split by path."""
    (tmp_path / "0.txt").write_text("line\n" * 100)
    found = corpus(str(tmp_path), tmp_path)
    assert isinstance(found, Folder)
    listing = [file[1:] for file in _listing(found.roots, found.pattern, found.without)]
    by_path = hashlib.sha256(repr(("", listing)).encode()).hexdigest()
    assert found.identity() != by_path
    library = corpus("python", tmp_path)
    assert isinstance(library, Folder)
    listing = [file[1:] for file in _listing(library.roots, library.pattern, library.without)]
    assert library.identity() == hashlib.sha256(repr((library.version, listing)).encode()).hexdigest()


def test_the_standard_library_is_there_without_a_download(tmp_path: Path) -> None:
    found = corpus("python", tmp_path)
    piece = next(found.pieces("valid"))
    assert piece.begins
    assert is_text(piece.text)
    assert found.identity() == corpus("python", tmp_path).identity()
    assert split_of("json/decoder.py") == "train"  # for ever: results rest on it
    with pytest.raises(UserError, match="choose python, sources, enwik8 or wikitext103"):
        corpus("pithon", tmp_path)


def test_the_sources_of_what_is_installed_with_us_are_a_larger_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = corpus("sources", tmp_path)
    assert found.version.startswith("Python 3.")
    assert f", torch {torch.__version__}, sympy " in found.version
    size = 0
    for piece in found.pieces("train"):
        assert is_text(piece.text)
        size += len(piece.text)
        if size > 1_000_000:
            break
    else:
        pytest.fail("PyTorch alone has more than this")
    files = [file[1] for file in _listing(found.roots, found.pattern, found.without)]  # type: ignore[attr-defined]
    assert {"torch/nn/modules/linear.py", "python/json/decoder.py", "sympy/core/add.py"} <= set(files)
    assert not [name for name in files if "/test/" in name or "/tests/" in name]
    monkeypatch.setattr(corpora, "PACKAGES", ("torch", "no_such_package"))
    with pytest.raises(UserError, match="needs those of no_such_package; install it"):
        corpus("sources", tmp_path)


class Server(BaseHTTPRequestHandler):
    """Gives DATA, in ranges too; /broken ends too early the first time, /stubborn knows no ranges."""

    asked: list[tuple[str, str | None]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        broken = self.path == "/broken" and not any(path == self.path for path, _ in self.asked)
        self.asked.append((self.path, wanted))
        if self.path == "/missing":
            self.send_error(404)
            return
        first = int(wanted[6:-1]) if wanted and self.path != "/stubborn" else 0
        if first >= len(DATA):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(DATA) - first))
        self.end_headers()
        self.wfile.write(DATA[first : 1000 if broken else None])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    Server.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def published(*addresses: str, checksum: str | None = None) -> Published:
    right = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
    return Published("data.bin", addresses, len(DATA), checksum or right)


def test_a_download_is_made_once(address: str, tmp_path: Path) -> None:
    for _ in range(2):
        path = obtain(published(f"{address}/file"), tmp_path / "new")
        assert path.read_bytes() == DATA
    assert Server.asked == [("/file", None)]
    assert [p.name for p in path.parent.iterdir()] == ["data.bin"]
    path.write_bytes(DATA[:-1])
    with pytest.raises(UserError, match="76799 bytes where 76800 were published; delete it"):
        obtain(published(f"{address}/file"), tmp_path / "new")


def test_a_broken_download_goes_on(address: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run the same command again, or get the file yourself"):
        obtain(published(f"{address}/broken"), tmp_path)
    assert not (tmp_path / "data.bin").exists()
    assert obtain(published(f"{address}/broken"), tmp_path).read_bytes() == DATA
    assert Server.asked == [("/broken", None), ("/broken", "bytes=1000-")]


@pytest.mark.parametrize("rest", [DATA[:500], DATA, DATA + b"too much"])
@pytest.mark.parametrize("way", ["file", "stubborn"])
def test_what_is_left_of_a_download_may_be_anything(rest: bytes, way: str, address: str, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(rest)
    try:
        assert obtain(published(f"{address}/{way}"), tmp_path).read_bytes() == DATA
    except UserError:  # the part was not a beginning of this file: it is gone, and the next call starts anew
        assert len(rest) > len(DATA)
        assert obtain(published(f"{address}/{way}"), tmp_path).read_bytes() == DATA


def test_a_second_address_helps_and_wrong_content_is_refused(address: str, tmp_path: Path) -> None:
    assert obtain(published(f"{address}/missing", f"{address}/file"), tmp_path).exists()
    with pytest.raises(UserError, match=r"checksum is not the published one.*LONGTHINK_DATA"):
        obtain(published(f"{address}/file", checksum="md5:00"), tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []
    with pytest.raises(UserError, match=r"Could not download http://127\.0\.0\.1:9/x"):
        obtain(published("http://127.0.0.1:9/x"), tmp_path / "third")


def test_files_that_a_person_has_put_there_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.bin").write_bytes(DATA)
    monkeypatch.setenv("LONGTHINK_DATA", str(tmp_path))
    assert obtain(published("http://127.0.0.1:9/x"), tmp_path / "cache") == tmp_path / "data.bin"
    monkeypatch.setenv("LONGTHINK_CACHE", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
    assert cache_folder("there") == Path("there")


def zipped(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name.replace("__", "/").replace("_DOT_", "."), data)
    return path


def test_enwik8_is_cut_at_its_published_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"".join(b"%07d\n" % i for i in range(300_000))  # longer than a block
    monkeypatch.setattr(corpora, "ENWIK8", Published("enwik8.zip", ()))
    monkeypatch.setattr(corpora, "ENWIK8_SHA1", hashlib.sha1(text).hexdigest())
    places = {"train": (0, 2_000_003), "valid": (2_000_003, 2_000_010), "test": (2_000_010, len(text))}
    monkeypatch.setattr(corpora, "ENWIK8_PLACES", places)
    zipped(tmp_path / "enwik8.zip", enwik8=text)
    found = corpus("enwik8", tmp_path)
    for split in SPLITS:
        first, last = places[split]
        pieces = list(found.pieces(split))
        assert b"".join(piece.text for piece in pieces) == text[first:last]
        assert [piece.begins for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    zipped(tmp_path / "enwik8.zip", enwik8=text[:-1])
    with pytest.raises(UserError, match="does not hold the published text"):
        list(found.pieces("train"))
    zipped(tmp_path / "enwik8.zip", other=text)
    with pytest.raises(UserError, match="does not hold enwik8"):
        list(found.pieces("train"))
    (tmp_path / "enwik8.zip").write_bytes(b"no archive")
    with pytest.raises(UserError, match="is damaged"):
        list(found.pieces("train"))


def test_wikitext_has_a_file_a_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {f"wikitext-103__wiki_DOT_{split}_DOT_tokens": f" = {split} =\n text\n".encode() for split in SPLITS}
    zipped(tmp_path / "wikitext-103-v1.zip", **members)
    monkeypatch.setattr(corpora, "WIKITEXT103", Published("wikitext-103-v1.zip", ()))
    found = corpus("wikitext103", tmp_path)
    for split in SPLITS:
        assert [piece.text for piece in found.pieces(split)] == [f" = {split} =\n text\n".encode()]


def test_published_addresses_and_sums() -> None:
    assert corpora.ENWIK8.addresses[0] == "https://mattmahoney.net/dc/enwik8.zip"
    assert max(last for _, last in corpora.ENWIK8_PLACES.values()) == 100_000_000
