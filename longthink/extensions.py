"""Tasks, models, recipes and studies of other people: files and modules that add themselves when they are imported.

In Python, ``import`` is all there is to it. On the command line they are named, ``longthink --with addition.py train
...``, and in the environment variable LONGTHINK_WITH for many commands; processes that a command starts read it too.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

from longthink.errors import UserError

VARIABLE = "LONGTHINK_WITH"


def name_extension(place: str) -> None:
    """A file, or a module as Python imports it, for this process and those that it starts."""
    if _is_file(place):
        place = str(Path(place).resolve())
    named = named_extensions()
    if place not in named:
        os.environ[VARIABLE] = os.pathsep.join([*named, place])


def import_extensions() -> None:
    for place in named_extensions():
        try:
            _import(place)
        except UserError:
            raise
        except Exception as error:  # whatever a file does when it is read
            text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
            raise UserError(f"{place} could not be imported ({text}); --debug shows where.") from error


def named_extensions() -> list[str]:
    return [place for place in os.environ.get(VARIABLE, "").split(os.pathsep) if place]


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place or os.sep in place


def _import(place: str) -> None:
    if not _is_file(place):
        _look_in(Path.cwd())
        import_module(place)
        return
    path = Path(place).resolve()
    if not (path.is_file() and path.suffix == ".py"):
        raise UserError(f"There is no Python file {place} to import; check the path.")
    _look_in(path.parent)  # as if it had been run: files beside it can be imported, and pickles know where it is
    found = import_module(path.stem).__file__
    if found is None or Path(found).resolve() != path:
        raise UserError(f"{place} has the name of another module, {path.stem}; give the file another name.")


def _look_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
