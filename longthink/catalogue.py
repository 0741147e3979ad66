"""The names of what there is."""

from __future__ import annotations

from collections.abc import Iterable

from longthink.errors import unknown
from longthink.loading import shipped
from longthink.models import models
from longthink.recipes import recipes
from longthink.studies import studies
from longthink.tasks import tasks
from longthink.training.recipe import Recipe


def list(kind: str) -> tuple[str, ...]:
    """The names of "tasks", "models", "recipes", "weights" or "studies"."""
    kinds: dict[str, Iterable[str]] = {
        "tasks": tasks,
        "models": models,
        "recipes": recipes,
        "weights": shipped(),
        "studies": studies,
    }
    if kind not in kinds:
        raise unknown("list", kind, kinds)
    return tuple(kinds[kind])


def recipe(name: str) -> Recipe:
    """A published recipe by name; ``override`` changes it."""
    return recipes[name]
