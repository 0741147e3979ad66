"""What can happen to a network's thoughts, or to its problem, while it thinks (Table 5.5, Figures 5.8-5.14)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from longthink.errors import UserError, unknown
from longthink.inspect.pieces import check_answers, pieces
from longthink.tasks.base import Batch, Task, join
from longthink.think import State, Thinker, check_steps

Generators: TypeAlias = Sequence[torch.Generator]
"""One a sample, so that what happens to a sample does not depend on its neighbours."""
ChangeState: TypeAlias = Callable[[State, Generators], State]
ChangeProblem: TypeAlias = Callable[[Task, Batch, Generators], Batch]
CheckProblem: TypeAlias = Callable[[Task, Batch], None]
"""Complains about problems that cannot be disturbed so: before any thinking, which may take long."""

CLEAN = "clean"
EARLY, LATE = 1, 50
"""After so many steps the published disturbances come."""


@dataclass(frozen=True)
class Disturbance:
    """What happens after step ``at``: to the thoughts, to the problem, or to both; ``clean`` is nothing at all."""

    name: str
    at: int
    state: ChangeState | None = None
    problem: ChangeProblem | None = None
    check: CheckProblem | None = None

    @property
    def label(self) -> str:
        return self.name if self.name == CLEAN else f"{self.name}@{self.at}"


def clean() -> Disturbance:
    return Disturbance(CLEAN, 0)


def noise(at: int = EARLY, std: float = 1.0) -> Disturbance:
    """Gaussian noise is added to the thoughts."""
    if not std > 0 or not math.isfinite(std):
        raise UserError(f"The standard deviation of the noise must be above 0, not {std:g}.")

    def add(state: State, random: Generators) -> State:
        def one(t: Tensor) -> Tensor:
            if not t.is_floating_point():
                return t
            drawn = torch.stack([torch.randn(t.shape[1:], generator=generator) for generator in random])
            return t + std * drawn.to(t)

        return tree_map_only(Tensor, one, state)

    return Disturbance("noise", at, add)


def zeros(at: int = EARLY) -> Disturbance:
    """All thoughts are wiped out."""

    def wipe(state: State, random: Generators) -> State:
        return tree_map_only(Tensor, lambda t: torch.zeros_like(t) if t.is_floating_point() else t, state)

    return Disturbance("zeros", at, wipe)


def swapped(at: int = LATE) -> Disturbance:
    """Each sample goes on with the thoughts of the next one."""

    def swap(state: State, random: Generators) -> State:
        return tree_map_only(Tensor, lambda t: t.roll(-1, 0), state)

    return Disturbance("swapped", at, swap, check=_need_two)


def bit_flips(at: int = LATE, count: int = 1) -> Disturbance:
    """Prefix sums: ``count`` bits of the problem, chosen at random, are flipped."""

    def check(task: Task, batch: Batch) -> None:
        _need_task(task, "prefix_sums", "Bits can be flipped")
        length = batch.inputs.shape[2]
        if not 1 <= count <= length:
            raise UserError(f"From 1 to {length} of {length} bits can be flipped, not {count}.")

    def flip(task: Task, batch: Batch, random: Generators) -> Batch:
        length = batch.inputs.shape[2]
        places = torch.stack([torch.randperm(length, generator=generator)[:count] for generator in random])
        return flip_bits(batch, places)

    return Disturbance("flips", at, problem=flip, check=check)


def goal_closer(at: int = LATE, rooms: int = 2) -> Disturbance:
    """Mazes: the goal moves along the path, towards the start."""
    if rooms < 1:
        raise UserError(f"The goal must move by 1 room or more, not {rooms}.")

    def check(task: Task, batch: Batch) -> None:
        _need_task(task, "mazes", "A goal can be moved")

    def move(task: Task, batch: Batch, random: Generators) -> Batch:
        return move_goals(task, batch, rooms)

    return Disturbance("goal", at, problem=move, check=check)


def another_problem(at: int = LATE) -> Disturbance:
    """Each sample goes on with the problem of the next one, and keeps its thoughts."""

    def swap(task: Task, batch: Batch, random: Generators) -> Batch:
        return batch.map(lambda t: t.roll(-1, 0))

    return Disturbance("other", at, problem=swap, check=_need_two)


KINDS: dict[str, Callable[..., Disturbance]] = {
    "noise": noise,
    "zeros": zeros,
    "swapped": swapped,
    "flips": bit_flips,
    "goal": goal_closer,
    "other": another_problem,
}


def parse(text: str, **options: Any) -> Disturbance:
    """``parse("noise@1", std=0.5)``: what happens, and after how many steps; ``clean`` for nothing."""
    name, _, when = text.partition("@")
    if name == CLEAN:
        return clean()
    if name not in KINDS:
        raise unknown("disturbance", name, (CLEAN, *KINDS))
    if when and not (when.isascii() and when.isdigit()):
        raise UserError(f"Write a disturbance as noise@1, with the number of steps before it, not {text!r}.")
    return KINDS[name](**({"at": int(when)} if when else {}), **options)


def table_5_5() -> tuple[Disturbance, ...]:
    """The columns of the published table."""
    return clean(), noise(EARLY), zeros(EARLY), swapped(LATE)


def published(task_name: str) -> tuple[Disturbance, ...]:
    """All published disturbances of a task's networks: those of the table and those of the figures."""
    changes: dict[str, tuple[Disturbance, ...]] = {"mazes": (goal_closer(LATE),), "prefix_sums": (bit_flips(LATE),)}
    return *table_5_5(), zeros(LATE), *changes.get(task_name, ()), another_problem(LATE)


def flip_bits(batch: Batch, places: Tensor) -> Batch:
    """Prefix sums with the bits at ``places`` [n, count] flipped, and their answers."""
    inputs = batch.inputs.clone()
    chosen = places.to(inputs.device)[:, None]
    inputs.scatter_(2, chosen, -inputs.gather(2, chosen))
    targets = (inputs[:, 0] > 0).long().cumsum(1) % 2
    return replace(batch, inputs=inputs, targets=targets)


def move_goals(task: Task, batch: Batch, rooms: int) -> Batch:
    """Mazes whose goals lie ``rooms`` rooms nearer on the path; one room before the start where that is too far."""
    moved = []
    for i in range(len(batch)):
        lines = [list(line) for line in task.show(batch.targets[i], batch, i).split("\n")]
        path = _path(lines)
        # Rooms are two cells apart, and start and goal are not the same room.
        new = path[min(2 * rooms, len(path) - 3)]
        for y, x in path[:-1]:
            lines[y][x] = "."
        lines[new[0]][new[1]] = "G"
        moved.append(task.parse("\n".join(map("".join, lines))))
    return join(moved).to(batch.inputs.device)


def _path(lines: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
    """The marked cells in their order, from G to S: a shortest path never touches itself, so each has one next."""
    marked = {(y, x): cell for y, line in enumerate(lines) for x, cell in enumerate(line) if cell in "*SG"}
    here = next(place for place, cell in marked.items() if cell == "G")
    path = [here]
    while marked.pop(here) != "S":
        y, x = here
        here = next(place for place in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)) if place in marked)
        path.append(here)
    return path


def _need_task(task: Task, name: str, what: str) -> None:
    if task.name != name:
        raise UserError(f"{what} in {name} only; choose another disturbance for {task.name}.")


def _need_two(task: Task, batch: Batch) -> None:
    if len(batch) < 2:
        raise UserError("Swapping needs at least two samples at once; ask for more samples or a larger chunk.")


def check(
    model: Thinker, task: Task, batch: Batch, disturbances: Sequence[Disturbance], steps: int, chunk: int
) -> None:
    """All complaints, before any work."""
    check_answers(task)
    if not disturbances:
        raise UserError("There is no disturbance; ask for at least one, such as noise.")
    for one in disturbances:
        _check_steps(model, one, steps)
    for piece in pieces(len(batch), chunk):
        for one in disturbances:
            if one.check is not None:
                one.check(task, batch[piece])


def _check_steps(model: Thinker, one: Disturbance, steps: int) -> None:
    """Steps before the disturbance count too: a complaint about them names it, as it may be one nobody asked for."""
    if one.at < 0:
        raise UserError(f"A disturbance comes after 0 steps or more, not {one.at}.")
    check_steps(model, steps, fewest=1)
    limit = getattr(model, "max_steps", None)
    if limit is not None and one.at + steps > limit:
        raise UserError(
            f"The disturbance {one.label} and {steps} steps after it need {one.at + steps} steps, "
            f"and this network has weights for {limit}; disturb it after step {limit - steps} at the latest."
        )
