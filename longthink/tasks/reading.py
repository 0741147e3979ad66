"""Lines of published data files, plain or compressed, with complaints that name the file and the line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from longthink.errors import UserError, lacking


def data_places() -> tuple[Path, ...]:
    """Where people put data: the current folder, ./data and $LONGTHINK_DATA."""
    return Path("."), Path("data"), Path(os.environ.get("LONGTHINK_DATA", "."))


def find_data(name: str) -> Path | None:
    """A published data file by name, plain or .zst, in one of these places."""
    candidates = (place / file for place in data_places() for file in (name, f"{name}.zst"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def data_file(name: str) -> Path:
    """``find_data``, or a sentence."""
    found = find_data(name)
    if found is not None:
        return found
    raise UserError(f"There is no data file {name}; put it into ./data or set LONGTHINK_DATA to its folder.")


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a text file, plain or zstd-compressed; a damaged one gives a sentence with the line."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} is a folder; name a file in it." if path.is_dir() else f"There is no file {path}.")
    number, rest = 0, b""
    with path.open("rb") as file:
        try:
            for block in blocks(file):
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    number += 1
                    yield line.decode().removesuffix("\r")
            if rest:
                number += 1
                yield rest.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"Line {number} of {path.name} is not text; get the file again.") from error
        except (EOFError, ValueError) as error:
            raise UserError(f"{path.name} is damaged after line {number} ({error}); get it again.") from error


def blocks(file: BinaryIO) -> Iterator[bytes]:
    """The bytes of a file, decompressed. EOFError where it is cut short, ValueError where it is damaged."""
    head = file.read(4)
    file.seek(0)
    blocks = iter(lambda: file.read(1 << 20), b"")
    if head != b"\x28\xb5\x2f\xfd":
        yield from blocks
        return
    try:
        import zstandard
    except ImportError as error:
        raise lacking("Reading .zst files needs zstandard", "data") from error
    new = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
    frame = new()
    for block in blocks:
        while block:
            frame = new() if frame.eof else frame
            try:
                yield frame.decompress(block)
            except zstandard.ZstdError as error:
                raise ValueError("its compressed data are corrupt") from error
            block = frame.unused_data if frame.eof else b""
    # A stream reader would end quietly here and pass off half a file as a whole one.
    if not frame.eof:
        raise EOFError("it is cut short")
