"""What there is, by name, and a few words about each."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from longthink.errors import unknown
from longthink.loading import shipped
from longthink.models import models
from longthink.recipes import recipes
from longthink.solving import usual_size
from longthink.studies import studies
from longthink.studies.base import Study
from longthink.tasks import task, tasks
from longthink.training.recipe import Recipe, settings_of
from longthink.training.validation import in_words


def list(kind: str) -> tuple[str, ...]:
    """The names of "tasks", "models", "recipes", "weights" or "studies"."""
    return tuple(_names(kind))


def recipe(name: str) -> Recipe:
    """A published recipe by name; ``override`` changes it."""
    return recipes[name]


def settings(recipe: str) -> dict[str, str]:
    """All settings of a published recipe and their values, both as ``override`` and the command line take them."""
    return {key: _typed(value) for key, value in settings_of(recipes[recipe]).items()}


def _typed(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)


def table(kind: str) -> tuple[dict[str, Any], ...]:
    """One row about each of ``list(kind)``, its name first."""
    cards = shipped()  # files, read once
    about: dict[str, Callable[[str], dict[str, Any]]] = {
        "tasks": lambda name: _task(name, name in cards),
        "models": lambda name: {"what it is": _first_line(models[name])},
        "recipes": lambda name: _recipe(recipes[name]),
        "weights": lambda name: _weights(cards[name]),
        "studies": lambda name: _study(studies[name]),
    }
    return tuple({"name": name, **about[kind](name)} for name in _names(kind))


def _names(kind: str) -> Iterable[str]:
    kinds: dict[str, Callable[[], Iterable[str]]] = {
        "tasks": lambda: tasks,
        "models": lambda: models,
        "recipes": lambda: recipes,
        "weights": shipped,
        "studies": lambda: studies,
    }
    if kind not in kinds:
        raise unknown("list", kind, kinds)
    return kinds[kind]()


def _task(name: str, ready: bool) -> dict[str, Any]:
    problem = task(name)
    return {
        "size means": problem.unit,
        "usual size": usual_size(name),
        "weights": "shipped" if ready else "train them",
        "what it is": _first_line(sys.modules[type(problem).__module__]),
    }


def _recipe(r: Recipe) -> dict[str, Any]:
    return {
        "task": r.task,
        "sizes": [*r.difficulty],
        "steps": r.steps,
        "alpha": r.alpha,
        "updates": r.updates,
        "batch": r.batch,
        "note": r.note,
    }


def _study(s: Study) -> dict[str, Any]:
    return {"title": s.title, "published": s.source, "rows": len(s.rows)}


def _weights(card: dict[str, Any]) -> dict[str, Any]:
    return {
        "task": card["recipe"]["task"],
        "recipe": card["recipe"]["name"],
        "parameters": card["parameters"],
        "minutes": card["minutes"],
        "hardware": card["hardware"],
        "trained on": card["recipe"]["difficulty"],
        "validated": in_words(card["validation"]),
        "n": card["validation"]["samples"],
    }


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().split("\n", 1)[0].rstrip(".:")
