"""The one exception that is meant for people: a sentence that says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input. The command line prints its one sentence and exits with code 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    few = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {few}."
    return UserError(f"There is no {kind} named {name!r}; {hint}")
