"""Files that are written whole or not at all, and tensors that are never unpickled."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from longthink.errors import UserError


def finite(number: float) -> float | None:
    """For JSON, which has no NaN; to four digits."""
    return float(f"{number:.4g}") if math.isfinite(number) else None


def write_json(path: Path, data: Any) -> None:
    write_text(path, json.dumps(data, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    replace_file(path, lambda part: part.write_text(text))


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its permissions.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); delete it or take it from a backup.") from None


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Safetensors with a JSON document in its header."""
    dense = {name: t.detach().contiguous() for name, t in tensors.items()}
    replace_file(path, lambda part: save_file(dense, part, metadata={"about": json.dumps(about)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with _opened(path) as (file, about):
        # Copies, since these are views of the file on the disk, which may soon be replaced.
        return {name: file.get_tensor(name).clone() for name in file.keys()}, about  # noqa: SIM118


def read_about(path: Path) -> dict[str, Any]:
    """The document in the header alone."""
    with _opened(path) as (_, about):
        return about


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("about", "{}"))
            if not isinstance(about, dict):
                raise SafetensorError("its card is not a JSON object")
            yield file, about
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error}); check that it is a file you may read.") from None
    except (SafetensorError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it and train or download it again.") from None


@contextmanager
def explain_full_disk(path: Path) -> Iterator[None]:
    """Turn the system's error into a sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        reason = "the disk is full; free some space" if full else f"{error}; check the folder and its permissions"
        raise UserError(f"Could not write {path}: {reason}, then run the same command again.") from error


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Write beside the file, flush to the disk, then rename: a reader sees the old file or the new, never a part."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with explain_full_disk(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(part)
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
            mask = os.umask(0)
            os.umask(mask)
            part.chmod(0o666 & ~mask)  # safetensors makes its files private
            os.replace(part, path)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)
