"""Published files, fetched once, checked, and kept."""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from longthink.errors import UserError
from longthink.tasks.reading import find_data

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Published:
    """A file that others offer, with what is known about its content."""

    name: str
    addresses: Sequence[str]
    """The official one first, then the author's own copy."""
    size: int | None = None
    checksum: str | None = None
    """As in "md5:9ddaac..."."""


def cache_folder(folder: str | None = None) -> Path:
    """Where downloads and token files are kept: ``folder``, else $LONGTHINK_CACHE, else ~/.cache/longthink."""
    chosen = folder or os.environ.get("LONGTHINK_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "longthink"


def obtain(file: Published, folder: Path) -> Path:
    """The file: from where a person has put it (see ``find_data``), from the cache, or from its address."""
    given = find_data(file.name)
    if given is None:
        given = folder / file.name
        if not given.is_file():
            _fetch(file, given)
    problem = fault(file, given)
    if problem:
        raise UserError(f"{given} {problem}; delete it and run the same command again.")
    return given


def fault(file: Published, path: Path) -> str | None:
    """What is wrong with a copy, or None."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"has {size} bytes where {file.size} were published"
    if file.checksum is not None and checksum(path, file.checksum.partition(":")[0]) != file.checksum:
        return "is damaged (its checksum is not the published one)"
    return None


def checksum(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()}"


def _fetch(file: Published, path: Path) -> None:
    """Download into a part that a later call goes on with; the file itself appears only when it is whole and right."""
    part = path.with_name(f"{path.name}.part")
    reason = ""
    for address in file.addresses:
        print(f"downloading {address}", file=sys.stderr, flush=True)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _continue(address, part)
        except (OSError, ValueError) as error:  # URLError is an OSError
            reason = str(getattr(error, "reason", error))
            continue
        problem = fault(file, part)
        if problem is None:
            os.replace(part, path)
            return
        part.unlink()
        reason = f"what came {problem}"
    raise UserError(
        f"Could not download {file.addresses[0]} ({reason}); run the same command again, or get the file yourself and "
        f"put it into ./data or set LONGTHINK_DATA to its folder."
    )


def _continue(address: str, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing lies beyond what we have: it is whole, or it is not this file
            return
        raise
    with answer:
        goes_on = have > 0 and answer.status == 206  # a server that knows no ranges sends everything again
        expected = answer.headers.get("Content-Length")
        begin = have if goes_on else 0
        with part.open("ab" if goes_on else "wb") as out:
            while block := answer.read(_BLOCK):
                out.write(block)
            out.flush()
            os.fsync(out.fileno())
        if expected is not None and part.stat().st_size - begin != int(expected):
            raise ValueError("the connection broke")
