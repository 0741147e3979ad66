"""Tasks, models, recipes and studies of other people: files and modules that add themselves when they are imported.

In Python, ``import`` is all there is to it. On the command line they are named, ``longthink --with addition.py train
...``, and in the environment variable LONGTHINK_WITH for many commands; processes that a command starts read it too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from importlib import import_module
from pathlib import Path

from longthink.errors import UserError

VARIABLE = "LONGTHINK_WITH"


def name_extension(place: str) -> None:
    """A file, a package's folder, or a module as Python imports it, for this process and those that it starts."""
    if _is_path(place):
        place = str(_whole(place))
    if os.pathsep in place:
        raise UserError(f"{place} has {os.pathsep!r} in its path, which divides those of {VARIABLE}; move the file.")
    named = named_extensions()
    if place not in named:
        os.environ[VARIABLE] = os.pathsep.join([*named, place])


def import_extensions(given: Collection[str] = ()) -> None:
    """All that are named; of those that were not ``given`` just now people should know where they are."""
    for place in named_extensions():
        try:
            _import(place)
        except (Exception, SystemExit) as error:  # whatever a file does when it is read
            where = "" if place in given else f" {VARIABLE} names it."
            if isinstance(error, UserError):
                raise UserError(f"{error}{where}") from error
            text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
            raise UserError(f"{place} could not be imported ({text}); --debug shows where.{where}") from error


def named_extensions() -> list[str]:
    return [place for place in os.environ.get(VARIABLE, "").split(os.pathsep) if place]


def place_in_an_extension(error: BaseException) -> str | None:
    """The last line of people's own files that an error came through."""
    found, trace = None, error.__traceback__
    files = [str(_whole(place)) if _is_path(place) else place for place in named_extensions()]
    files += [str(_whole(file)) for name in files if (file := getattr(sys.modules.get(name), "__file__", None))]
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if any(file == one or file.startswith(one + os.sep) for one in files):
            found = f"{Path(file).name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _is_path(place: str) -> bool:
    return place.endswith(".py") or "/" in place or os.sep in place or place in (".", "..") or Path(place).is_dir()


def _whole(place: str) -> Path:
    """A file, or the folder of a package."""
    path = Path(place).resolve()
    return path.parent if path.name == "__init__.py" else path


def _import(place: str) -> None:
    if not _is_path(place):
        _look_in(Path.cwd())
        import_module(place)
        return
    path = _whole(place)
    file = path / "__init__.py" if path.is_dir() else path
    if not (file.is_file() and file.suffix == ".py"):
        raise UserError(f"There is no Python file or package {place} to import; check the path.")
    if not path.stem.isidentifier() or (path.is_dir() and path.suffix):
        raise UserError(f"Python cannot import {path.name} by its name; name it with letters, digits and _ alone.")
    _look_in(path.parent)  # so that files beside it can be imported, and pickles know where it is
    found = import_module(path.stem).__file__
    if found is None or Path(found).resolve() != file:
        raise UserError(f"{place} has the name of another module, {path.stem}; give the file another name.")


def _look_in(folder: Path) -> None:
    """Behind all other folders: what lies beside people's files takes nobody's name."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
