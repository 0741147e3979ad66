"""Train on easy problems, think longer, solve hard ones.

import longthink as lt

model, mazes, card = lt.load("mazes")
batch = mazes.sample(1, difficulty=33, seed=0)
thought = lt.think(model, batch.inputs, steps=500, halt=lt.Converged(1e-5))
print(mazes.score(thought.logits, batch), thought.steps_used)
"""

from collections.abc import Iterable

from longthink import recipes as _recipes  # noqa: F401  registers the published recipes
from longthink.errors import UserError
from longthink.evaluate import Curve, curve, evaluate
from longthink.loading import Loaded, load, push_to_hub, save, shipped
from longthink.models import build, models
from longthink.tasks import Batch, Task, task, tasks
from longthink.think import (
    ACT,
    Budget,
    Converged,
    MaximumConfidence,
    Moment,
    Ponder,
    Thinker,
    Thought,
    note,
    think,
    unfold,
    wanted,
)
from longthink.training.recipe import Recipe, override, recipes
from longthink.training.train import TrainingOptions, train

__version__ = "0.1.0"


def list(kind: str) -> "tuple[str, ...]":
    """The names of what there is: ``list("tasks")``, "models", "recipes" or "weights"."""
    from longthink.errors import unknown

    kinds: dict[str, Iterable[str]] = {"tasks": tasks, "models": models, "recipes": recipes, "weights": shipped()}
    if kind not in kinds:
        raise unknown("list", kind, kinds)
    return tuple(kinds[kind])


__all__ = [
    "ACT",
    "Batch",
    "Budget",
    "Converged",
    "Curve",
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
    "list",
    "load",
    "models",
    "note",
    "override",
    "push_to_hub",
    "recipes",
    "save",
    "task",
    "tasks",
    "think",
    "train",
    "unfold",
    "wanted",
]
