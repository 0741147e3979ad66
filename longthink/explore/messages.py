"""What a page may ask for. Every field is checked here, so that the rest can trust it.

{"type": "think", "id": 1, "weights": "mazes", "problem": {"size": 33, "seed": 0, "style": "kruskal"},
 "changes": [{"step": 20, "kind": "noise", "seed": 7, "std": 1.0}], "from": 0, "until": 40}
{"type": "more", "id": 1, "until": 80}
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NoReturn, TypeAlias, get_args

from longthink.errors import UserError, unknown
from longthink.explore.limits import MOST_BYTES_OF_MESSAGE, MOST_CHANGES, MOST_SEED, MOST_STD, MOST_STEPS

Kind: TypeAlias = Literal["noise", "zeros", "swapped", "problem"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_MOST_ID = 2**32 - 1  # ids travel in four bytes of a frame
_MOST_SIZE = 10**9  # what a task makes of it is for the task to say
_LONGEST_NAME = 300
_WORDS = {
    "id": "number of a message",
    "from": "first step",
    "until": "last step",
    "weights": "name of the weights",
    "std": "strength of the noise",
}
"""What a field means to people, where that is not its name."""


@dataclass(frozen=True)
class Wanted:
    """A problem: typed, or one that the task makes (``size`` None stands for the task's usual one)."""

    text: str | None = None
    size: int | None = None
    seed: int = 0
    style: str | None = None


@dataclass(frozen=True)
class Change:
    """What happens after ``step`` steps: noise, zeros or another problem's thoughts, or a new problem."""

    step: int
    kind: Kind
    seed: int = 0
    std: float = 1.0
    problem: Wanted | None = None


@dataclass(frozen=True)
class Script:
    """All that decides what is on the screen."""

    weights: str
    problem: Wanted
    changes: tuple[Change, ...] = ()

    def same_until(self, other: Script) -> int | None:
        """The first step at which two scripts may differ; None where they differ from the beginning."""
        if (self.weights, self.problem) != (other.weights, other.problem):
            return None
        for mine, theirs in zip(self.changes, other.changes, strict=False):
            if mine != theirs:
                return min(mine.step, theirs.step)
        common = min(len(self.changes), len(other.changes))
        rest = self.changes[common:] or other.changes[common:]
        return rest[0].step if rest else MOST_STEPS


@dataclass(frozen=True)
class Think:
    id: int
    script: Script
    first: int
    """Frames are wanted from this step on."""
    until: int


@dataclass(frozen=True)
class More:
    """The page has room for frames up to this step."""

    id: int
    until: int


def read_message(text: str) -> Think | More:
    if len(text) > MOST_BYTES_OF_MESSAGE:
        raise UserError(f"A message may have {MOST_BYTES_OF_MESSAGE} characters, not {len(text)}.")
    try:
        message = json.loads(text, parse_constant=_no_such_number)
    except (ValueError, RecursionError) as error:
        raise UserError(f"The message is not JSON ({type(error).__name__}).") from None
    fields = _object("message", message)
    kind = fields.get("type")
    if kind == "more":
        _only("message", fields, ("type", "id", "until"))
        return More(_whole(fields, "id", 0, _MOST_ID), _whole(fields, "until", 0, MOST_STEPS))
    if kind != "think":
        raise UserError("A message's type is think or more.")
    _only("message", fields, ("type", "id", "weights", "problem", "changes", "from", "until"))
    script = Script(
        weights=_text(fields, "weights", _LONGEST_NAME),
        problem=_wanted(fields.get("problem")),
        changes=_changes(fields.get("changes", [])),
    )
    return Think(
        id=_whole(fields, "id", 0, _MOST_ID),
        script=script,
        first=_whole(fields, "from", 0, MOST_STEPS, 0),
        until=_whole(fields, "until", 0, MOST_STEPS),
    )


def _wanted(value: Any) -> Wanted:
    fields = _object("problem", value)
    if "text" in fields:
        _only("problem", fields, ("text",))
        return Wanted(text=_text(fields, "text", MOST_BYTES_OF_MESSAGE))
    _only("problem", fields, ("size", "seed", "style"))
    return Wanted(
        size=None if fields.get("size") is None else _whole(fields, "size", -_MOST_SIZE, _MOST_SIZE),
        seed=_whole(fields, "seed", 0, MOST_SEED, 0),
        style=None if fields.get("style") is None else _text(fields, "style", _LONGEST_NAME),
    )


def _changes(value: Any) -> tuple[Change, ...]:
    if not isinstance(value, list):
        raise UserError("The changes must be a list.")
    if len(value) > MOST_CHANGES:
        raise UserError(f"At most {MOST_CHANGES} changes are kept, not {len(value)}; start again.")
    changes = tuple(_change(item) for item in value)
    if any(after.step < before.step for before, after in pairwise(changes)):
        raise UserError("Changes must be in the order of their steps.")
    return changes


def _change(value: Any) -> Change:
    fields = _object("change", value)
    _only("change", fields, ("step", "kind", "seed", "std", "problem"))
    kind = fields.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise unknown("change", str(kind)[:40], KINDS)
    if (kind == "problem") != ("problem" in fields):
        raise UserError("A change has a problem if it is one of the problem, and only then.")
    return Change(
        step=_whole(fields, "step", 0, MOST_STEPS),
        kind=kind,
        seed=_whole(fields, "seed", 0, MOST_SEED, 0),
        std=_number(fields, "std", MOST_STD, 1.0),
        problem=_wanted(fields["problem"]) if kind == "problem" else None,
    )


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"A {name} must be a JSON object.")
    return value


def _only(name: str, fields: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in fields:
        if key not in known:
            raise UserError(f"A {name} has no field {key[:40]!r}; its fields are {', '.join(known)}.")


def _whole(fields: dict[str, Any], name: str, low: int, high: int, usual: int | None = None) -> int:
    value = fields.get(name, usual)
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserError(f"The {_called(name)} must be a whole number.")
    if not low <= value <= high:
        shown = value if abs(value) < 10**15 else "such a large number"
        raise UserError(f"The {_called(name)} must be from {low} to {high}, not {shown}.")
    return value


def _number(fields: dict[str, Any], name: str, high: float, usual: float) -> float:
    value = fields.get(name, usual)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UserError(f"The {_called(name)} must be a number.")
    if not 0 < value <= high or not math.isfinite(value):
        raise UserError(f"The {_called(name)} must be above 0 and at most {high:g}.")
    return float(value)


def _text(fields: dict[str, Any], name: str, longest: int) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise UserError(f"The {_called(name)} must be a text.")
    if len(value) > longest:
        raise UserError(f"The {_called(name)} may have {longest} characters, not {len(value)}.")
    return value


def _called(name: str) -> str:
    return _WORDS.get(name, name)


def _no_such_number(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")
