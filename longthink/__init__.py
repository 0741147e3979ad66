"""Train on easy problems, think longer, solve hard ones.

import longthink as lt

model, mazes, card = lt.load("mazes")
batch = mazes.sample(1, difficulty=33, seed=0)
thought = lt.think(model, batch.inputs, steps=500, halt=lt.Converged(1e-5))
print(mazes.score(thought.logits, batch), thought.steps_used)
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from longthink import inspect
    from longthink.catalogue import list, recipe
    from longthink.errors import UserError
    from longthink.evaluate import Curve, curve, evaluate
    from longthink.halting import ACT, Budget, Converged, Halting, MaximumConfidence, Ponder
    from longthink.loading import Loaded, load, push_to_hub, save
    from longthink.models import build
    from longthink.tasks import Batch, Task, task
    from longthink.think import Moment, Thinker, Thought, note, think, unfold, wanted
    from longthink.training.recipe import Recipe, override
    from longthink.training.train import TrainingOptions, train, train_together

_HOMES = {
    "longthink.catalogue": ("list", "recipe"),
    "longthink.errors": ("UserError",),
    "longthink.evaluate": ("Curve", "curve", "evaluate"),
    "longthink.halting": ("ACT", "Budget", "Converged", "Halting", "MaximumConfidence", "Ponder"),
    "longthink.loading": ("Loaded", "load", "push_to_hub", "save"),
    "longthink.models": ("build",),
    "longthink.tasks": ("Batch", "Task", "task"),
    "longthink.think": ("Moment", "Thinker", "Thought", "note", "think", "unfold", "wanted"),
    "longthink.training.recipe": ("Recipe", "override"),
    "longthink.training.train": ("TrainingOptions", "train", "train_together"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ACT",
    "Batch",
    "Budget",
    "Converged",
    "Curve",
    "Halting",
    "Loaded",
    "MaximumConfidence",
    "Moment",
    "Ponder",
    "Recipe",
    "Task",
    "Thinker",
    "Thought",
    "TrainingOptions",
    "UserError",
    "build",
    "curve",
    "evaluate",
    "inspect",
    "list",
    "load",
    "note",
    "override",
    "push_to_hub",
    "recipe",
    "save",
    "task",
    "think",
    "train",
    "train_together",
    "unfold",
    "wanted",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `longthink --help` need not wait for torch."""
    if name == "inspect":
        return import_module("longthink.inspect")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'longthink' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> Any:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Importing longthink/think.py would put the module where people expect the function; likewise evaluate."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _HOME_OF.get(name) == value.__name__:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
