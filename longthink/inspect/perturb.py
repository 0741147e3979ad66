"""Does a network come back when its thoughts, or its problem, change while it thinks? (Table 5.5, Figures 5.8-5.14)

found = recover(model, task, batch, table_5_5(), steps=100)
print(found.to_json()["recoveries"][1]["mean_steps_to_solution"])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longthink.errors import unknown
from longthink.inspect.disturbances import CLEAN, Disturbance, Generators, check
from longthink.inspect.pieces import OnStep, at_test_time, device_of, nobody, pieces, rounded
from longthink.tasks.base import Batch, Task
from longthink.think import State, Thinker, unfold
from longthink.training.files import finite


@dataclass(frozen=True, eq=False)
class Recovery:
    """One disturbance: who was right at each step. Before it the old problem counts, after it the new one."""

    disturbance: str
    at: int
    right: Tensor
    """bool [samples, at + steps after the disturbance]."""
    right_at_once: Tensor
    """bool [samples]: is the answer that is read before any further step right?"""

    @property
    def accuracy(self) -> Tensor:
        return self.right.double().mean(0)

    @property
    def after(self) -> Tensor:
        return self.right[:, self.at :]

    @property
    def best(self) -> float:
        """The best accuracy at any one step after the disturbance."""
        return float(self.after.double().mean(0).max())

    @property
    def final(self) -> float:
        return float(self.accuracy[-1])

    def steps_to_solution(self) -> Tensor:
        """Steps from the disturbance to the first right answer, -1 where there is none: [samples]."""
        return torch.where(self.after.any(1), self.after.int().argmax(1) + 1, -1)

    def steps_to_stay(self) -> Tensor:
        """Steps from the disturbance until the answer is right and stays so, -1 where it is wrong at the end."""
        held = self.after.flip(1).int().cumprod(1).sum(1)
        return torch.where(held > 0, self.after.shape[1] - held + 1, -1)

    def to_json(self) -> dict[str, Any]:
        first, stay = self.steps_to_solution(), self.steps_to_stay()
        return {
            "disturbance": self.disturbance,
            "at": self.at,
            "samples": len(self.right),
            "steps_after": self.after.shape[1],
            "mean_steps_to_solution": _mean(first),
            "mean_steps_to_stay": _mean(stay),
            "best_accuracy": self.best,
            "final_accuracy": self.final,
            "right_at_once": float(self.right_at_once.double().mean()),
            "wrong_at_the_end": (~self.right[:, -1]).nonzero()[:, 0].tolist(),
            "accuracy": rounded(self.accuracy, 6),
        }


@dataclass(frozen=True, eq=False)
class Recoveries:
    """The same problems with one disturbance after the other."""

    difficulty: int
    seed: int
    recoveries: tuple[Recovery, ...]

    def __getitem__(self, label: str) -> Recovery:
        for one in self.recoveries:
            if label in (one.disturbance, f"{one.disturbance}@{one.at}"):
                return one
        raise unknown("disturbance", label, [f"{one.disturbance}@{one.at}" for one in self.recoveries])

    def table(self) -> list[list[str]]:
        """Cells as published: steps to the solution, with the best accuracy in parentheses."""
        rows = []
        for one in self.recoveries:
            first = _mean(one.steps_to_solution())
            when = "" if one.disturbance == CLEAN else str(one.at)
            cell = f"{'-' if first is None else f'{first:.2f}'} ({100 * one.best:.0f}%)"
            rows.append([one.disturbance, when, cell, f"{100 * one.final:.1f}%", str(len(one.right))])
        return rows

    def to_json(self) -> dict[str, Any]:
        return {
            "difficulty": self.difficulty,
            "samples": len(self.recoveries[0].right),
            "seed": self.seed,
            "recoveries": [one.to_json() for one in self.recoveries],
        }


def recover(
    model: Thinker,
    task: Task,
    batch: Batch,
    disturbances: Sequence[Disturbance],
    steps: int,
    *,
    seed: int = 0,
    chunk: int = 20,
    on_step: OnStep = nobody,
) -> Recoveries:
    """Think, disturb, and think on for ``steps`` steps. The undisturbed beginning is thought once for all."""
    check(model, task, batch, disturbances, steps, chunk)
    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in disturbances]
    with at_test_time(model):
        for piece in pieces(len(batch), chunk):
            before = batch[piece]
            rows = range(piece.start, piece.stop)
            early, states = _beginning(model, task, before, disturbances, steps, on_step)
            for i, one in enumerate(disturbances):
                if one.name == CLEAN:
                    found[i].append((early[:, 1 : steps + 1], early[:, 0]))
                    continue
                random = [_random(seed, sample) for sample in rows]
                later = _afterwards(model, task, before, one, states[one.at], steps, random, on_step)
                found[i].append((torch.cat([early[:, 1 : one.at + 1], later[:, 1:]], 1), later[:, 0]))
    recoveries = []
    for one, parts in zip(disturbances, found, strict=True):
        right, at_once = (torch.cat(column) for column in zip(*parts, strict=True))
        recoveries.append(Recovery(one.name, one.at, right, at_once))
    return Recoveries(batch.difficulty, seed, tuple(recoveries))


def longest_beginning(disturbances: Sequence[Disturbance], steps: int) -> int:
    """How many undisturbed steps are needed."""
    return max(steps if one.name == CLEAN else one.at for one in disturbances)


def _beginning(
    model: Thinker, task: Task, batch: Batch, disturbances: Sequence[Disturbance], steps: int, on_step: OnStep
) -> tuple[Tensor, dict[int, State]]:
    """Who is right after 0, 1, ... steps without a disturbance, and the states that will be disturbed."""
    there = batch.to(device_of(model))
    wanted = {one.at for one in disturbances if one.name != CLEAN}
    context = model.look(there.inputs)
    state = model.start(context)
    right, states = [task.score(model.read(state, context), there).cpu()], {0: state}
    for moment in unfold(model, None, longest_beginning(disturbances, steps), state=state, context=context):
        right.append(task.score(moment.logits, there).cpu())
        if moment.count in wanted:
            states[moment.count] = moment.state
        on_step(len(batch))
    return torch.stack(right, 1), states


def _afterwards(
    model: Thinker,
    task: Task,
    batch: Batch,
    one: Disturbance,
    state: State,
    steps: int,
    random: Generators,
    on_step: OnStep,
) -> Tensor:
    """Who is right 0, 1, ... steps after the disturbance: [samples, 1 + steps]."""
    problem = batch if one.problem is None else one.problem(task, batch, random)
    there = problem.to(device_of(model))
    state = state if one.state is None else one.state(state, random)
    context = model.look(there.inputs)  # look again and keep the state
    right = [task.score(model.read(state, context), there).cpu()]
    for moment in unfold(model, None, steps, state=state, context=context, keep_previous=False):
        right.append(task.score(moment.logits, there).cpu())
        on_step(len(batch))
    return torch.stack(right, 1)


def draw(found: Recoveries, train_steps: int | None = None, title: str = "") -> Any:
    """Accuracy over the steps, a panel a disturbance, with the moment of the disturbance marked."""
    from longthink.inspect.figures import COLOURS, SHADE, figure, plain

    columns = min(3, len(found.recoveries))
    rows = -(-len(found.recoveries) // columns)
    new = figure(3.4 * columns + 0.4, 2.5 * rows + 0.4)
    if title:
        new.suptitle(title, size=11, x=0.01, ha="left")
    for i, one in enumerate(found.recoveries):
        axes = new.add_subplot(rows, columns, i + 1)
        if train_steps:
            axes.axvspan(0, train_steps, color=SHADE, lw=0, zorder=0)
        percent = 100 * one.accuracy
        axes.plot(range(1, len(percent) + 1), percent, color=COLOURS[0], lw=1.6, clip_on=False)
        first = _mean(one.steps_to_solution())
        solved = "never solved" if first is None else f"solved in {first:.1f} steps"
        heading = "undisturbed"
        if one.disturbance != CLEAN:
            axes.axvline(one.at, color=COLOURS[3], lw=1.2, ls="--")
            heading = f"{one.disturbance} after step {one.at}"
        plain(axes, f"{heading}: {solved}", xlim=(0, len(percent)), ylim=(0, 103))
        axes.title.set_size(9)
        if i % columns == 0:
            axes.set_ylabel("problems solved (%)")
        if i + columns >= len(found.recoveries):
            axes.set_xlabel("steps of thinking")
    return new


def _random(seed: int, sample: int) -> torch.Generator:
    mixed = np.random.SeedSequence([seed, sample]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed))


def _mean(steps: Tensor) -> float | None:
    """Of those that arrived; None where nobody did."""
    return finite(float(steps[steps > 0].double().mean()))
