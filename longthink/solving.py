"""Solve one problem with trained weights, as data: what ``longthink solve`` and the demo show.

weights, loaded = find_weights("mazes")
batch = pose(loaded, size=33, seed=0)
solution = solve(loaded, batch, weights=weights)
print(solution.solved, solution.steps, solution.answer)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.halting import Converged
from longthink.limits import Patience, check_memory, places_of
from longthink.loading import Loaded, load, shipped
from longthink.tasks import Batch, Task, task, tasks
from longthink.tasks.base import check_difficulty
from longthink.think import Moment, confidence, think
from longthink.training.files import finite

AT_REST = 1e-5
"""The shipped networks come to a fixed point: below this relative change nothing moves that matters."""
MOST_STEPS = 10**12
_STEPS_A_LEVEL = 1.5
"""Routers take 1 to 1.25 for each operation or function, and those that do not come to rest lose answers later."""
_WITH_GATES_SHUT = 1.5
"""Shipped routers need up to so much longer then: ListOps of depth 8 are at 85% after 25 steps and at 99% after 37."""


class Habits(NamedTuple):
    """What a task gets where nobody says otherwise."""

    size: int
    steps: Callable[[int], int]
    """From the difficulty; about twice what the shipped weights need."""
    outputs: Callable[[int], int]
    """How many places a problem of this difficulty has."""


HABITS: dict[str, Habits] = {
    "prefix_sums": Habits(512, lambda bits: 2 * bits + 50, lambda bits: bits),
    "mazes": Habits(33, lambda side: side * side // 4 + 100, lambda side: (2 * side + 6) ** 2),
    "sudoku": Habits(30, lambda givens: 300, lambda givens: 81),
    "chess": Habits(1, lambda tenth: 300, lambda tenth: 64),
}


_HARDER = {"ctl": 10, "arithmetic": 8, "listops": 8}
"""What the shipped routers can still do: deeper than in training."""


def usual_size(name: str) -> int | None:
    """Of the problems that are posed where nobody says a size; None for those of training."""
    return HABITS[name].size if name in HABITS else _HARDER.get(name)


@dataclass(frozen=True, eq=False)
class Solution:
    """A problem, the answer that thinking came to, and how it went."""

    task: Task
    batch: Batch
    logits: Tensor
    weights: str
    steps: int
    budget: int
    seconds: float
    change: float
    trained_steps: int

    @property
    def at_rest(self) -> bool:
        return self.change < AT_REST

    @property
    def answers_while_reading(self) -> bool:
        """No thinking afterwards changes what such a model has said."""
        return self.trained_steps == 0

    @property
    def confidence(self) -> float:
        return float(confidence(self.logits, self.batch.mask))

    @property
    def problem(self) -> str:
        return self.task.text(self.batch)

    @property
    def answer(self) -> str:
        return answer_of(self.task, self.logits, self.batch)

    @property
    def truth(self) -> str | None:
        """None where nobody knows it, as for a chess position that somebody typed."""
        return truth_of(self.task, self.batch)

    @property
    def solved(self) -> bool | None:
        return bool(self.task.score(self.logits, self.batch)) if self.batch.truth_known else None

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task.name,
            "size": self.batch.difficulty,
            "problem": self.problem,
            "answer": self.answer,
            "truth": self.truth,
            "solved": self.solved,
            "steps": self.steps,
            "budget": self.budget,
            "at_rest": None if self.answers_while_reading else self.at_rest,
            "change": finite(self.change),
            "confidence": finite(self.confidence),
            "seconds": round(self.seconds, 3),
            "weights": self.weights,
        }


def answer_of(problem: Task, logits: Tensor, batch: Batch) -> str:
    """What these logits say of the first problem."""
    return problem.show(problem.predict(logits, batch)[0], batch)


def truth_of(problem: Task, batch: Batch) -> str | None:
    """The right answer of the first problem, if anybody knows it."""
    return problem.show(batch.targets[0], batch) if batch.truth_known else None


def find_weights(name: str, weights: str | None = None, device: str = "cpu") -> tuple[str, Loaded]:
    """The weights that were asked for, or those that are shipped for this task."""
    tasks[name]  # an unknown task is the first thing to complain about
    if weights is None and name not in shipped():
        raise UserError(f"No weights for {name} are shipped; train a recipe and pass its folder with --weights.")
    loaded = load(weights or name, device)
    if loaded.task.name != name:
        raise UserError(f"The weights {weights} were trained for {loaded.task.name}, not for {name}.")
    return weights or name, loaded


def check_methods(problem: Task, *methods: str) -> None:
    """Tasks that people add need not have all that there is; training and tests do without these."""
    for method in methods:
        if not hasattr(problem, method):
            raise UserError(f"The task {problem.name} has no method {method!r}, which this needs; give it one.")


def pose(
    loaded: Loaded, text: str | None = None, *, size: int | None = None, seed: int = 0, style: str | None = None
) -> Batch:
    """The problem that somebody typed, or a new one of the test split."""
    problem = loaded.task
    if style is not None:
        if problem.name != "mazes":
            raise UserError(f"Only mazes have a style; {problem.name} has none.")
        problem = task("mazes", style=style)
    if text is not None:
        batch = problem.parse(text)
        check_memory(loaded, places_of(batch), less="type a shorter problem")
        return batch
    habits = HABITS.get(problem.name)
    if size is None:
        size = habits.size if habits else max(usual_size(problem.name) or 0, *loaded.recipe.difficulty)
    check_difficulty(problem, size, seed)
    if habits is not None:
        check_memory(loaded, habits.outputs(size))
    batch = problem.sample(1, size, seed, "test")
    if habits is None:
        check_memory(loaded, places_of(batch))
    return batch


def default_steps(loaded: Loaded, batch: Batch) -> int:
    """A generous budget where the shipped networks come to rest and leave most of it; else the steps of training, and
    some more for each level that the problem is deeper. Models that have read the answer off their input take none."""
    habits = HABITS.get(loaded.task.name)
    deeper = max(0, batch.difficulty - max(loaded.recipe.difficulty)) if loaded.recipe.steps else 0
    steps = habits.steps(batch.difficulty) if habits else loaded.recipe.steps + math.ceil(_STEPS_A_LEVEL * deeper)
    if getattr(loaded.model, "gate_threshold", 0):
        steps = math.ceil(_WITH_GATES_SHUT * steps)
    return min(steps, getattr(loaded.model, "max_steps", None) or steps)


@torch.no_grad()
def solve(
    loaded: Loaded,
    batch: Batch,
    steps: int | None = None,
    *,
    weights: str = "",
    until_rest: bool = True,
    on_step: Sequence[Callable[[Moment], None]] = (),
) -> Solution:
    """Think about one problem until the state rests or the budget is spent; ``on_step`` functions see every moment."""
    budget = default_steps(loaded, batch) if steps is None else steps
    fewest = min(1, loaded.recipe.steps)  # some models have the answer when they have read the problem
    if not fewest <= budget <= MOST_STEPS:
        raise UserError(f"The number of steps must be from {fewest} to {MOST_STEPS}, not {budget}.")
    last = [torch.zeros(1)]
    nothing = torch.empty(0)  # kept for each step of a budget that may be a billion

    def see(moment: Moment) -> Tensor:
        for look in on_step:
            look(moment)
        last[:] = [moment.change]
        return nothing

    there = batch.to(next(loaded.model.parameters()).device)
    began = time.perf_counter()
    halt = Converged(AT_REST) if until_rest else None
    thought = think(loaded.model, there.inputs, budget, halt=halt, watch={"nothing": see})
    return Solution(
        task=loaded.task,
        batch=batch,
        logits=thought.logits.cpu(),
        weights=weights,
        steps=int(thought.steps_used),
        budget=budget,
        seconds=time.perf_counter() - began,
        change=float(last[0]),
        trained_steps=loaded.recipe.steps,
    )


def patience(loaded: Loaded, budget: int) -> list[Callable[[Moment], None]]:
    """For ``on_step``, where nobody chose the steps; images come to rest long before their budget is spent."""
    return [] if loaded.task.name in HABITS else [Patience(budget)]
