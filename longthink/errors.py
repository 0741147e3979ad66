"""The one exception that is meant for people: a sentence that says what to do."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any


class UserError(Exception):
    """Bad input. The command line prints its one sentence and exits with code 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    few = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {few}." if names else "it has none."
    return UserError(f"There is no {kind} named {name!r}; {hint}")


def check_options(kind: str, make: Callable[..., Any], given: Iterable[str]) -> None:
    """Complain about an option that ``make`` does not have, and name the nearest that it has."""
    parameters = inspect.signature(make).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return  # it passes them on, and whoever gets them complains
    for name in given:
        if name not in parameters:
            raise unknown(f"option of {kind}", name, parameters)
