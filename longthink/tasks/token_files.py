"""Tokens of a corpus on the disk: made once, mapped into memory, and made again where the file is damaged."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from longthink.errors import UserError
from longthink.tasks.corpora import Piece
from longthink.tasks.tokenisers import BOUNDARY, Tokeniser
from longthink.training.files import read_json, replace_file, write_json


@dataclass(frozen=True)
class About:
    """What is known of a token file."""

    tokens: int
    bytes: int
    """Of the text that they stand for."""
    lost: int
    """Further bytes, for which the vocabulary has no tokens."""
    documents: int
    kind: str
    """The numbers' type: uint8 or uint16."""
    checksum: int


def write_tokens(path: Path, pieces: Iterable[Piece], tokeniser: Tokeniser, source: str) -> About:
    """One file of numbers and one with what is known of it, each written whole or not at all; numbers first."""
    kind = tokeniser.encode(b"").dtype
    boundary = np.array([BOUNDARY], kind)
    tokens, size, lost, documents, checksum = 0, 0, 0, 0, 0

    def write(part: Path) -> None:
        nonlocal tokens, size, lost, documents, checksum
        with part.open("wb") as file:
            for piece in pieces:
                if b"\0" in piece.text:
                    raise UserError(f"{source} holds NUL bytes, so it is not text; choose another corpus.")
                numbers = tokeniser.encode(piece.text).astype(kind, copy=False)
                for data in (boundary, numbers) if piece.begins else (numbers,):
                    file.write(data.tobytes())
                    checksum = zlib.crc32(data.data, checksum)
                    tokens += len(data)
                missing = tokeniser.lost(piece.text, numbers)
                size, lost, documents = size + len(piece.text) - missing, lost + missing, documents + piece.begins

    replace_file(path, write)
    about = About(tokens, size, lost, documents, kind.name, checksum)
    write_json(_card(path), asdict(about))
    return about


def read_tokens(path: Path) -> tuple[np.ndarray, About] | None:
    """The mapped numbers; None where there is no file, or a damaged one that must be made again."""
    if not path.is_file() or not _card(path).is_file():
        return None
    status = path.stat()
    return _mapped(str(path), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=16)
def _mapped(path: str, size: int, changed: int) -> tuple[np.ndarray, About] | None:
    try:
        about = About(**read_json(_card(Path(path))))
        kind = np.dtype(about.kind)
    except (UserError, TypeError):
        return None
    if size != about.tokens * kind.itemsize:
        return None
    if about.tokens == 0:
        return np.empty(0, kind), about
    numbers = np.memmap(path, kind, mode="r")
    if zlib.crc32(numbers.data) != about.checksum:
        return None
    return numbers, about


def _card(path: Path) -> Path:
    return path.with_suffix(".json")
