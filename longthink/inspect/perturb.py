"""Does a network come back when its thoughts, or its problem, change while it thinks? (Table 5.5, Figures 5.8-5.14)

found = recover(model, task, batch, table_5_5(), steps=100)
print(found.to_json()["recoveries"][1]["mean_steps_to_solution"])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from longthink.errors import UserError, unknown
from longthink.inspect.pieces import OnStep, at_test_time, check_steps, device_of, nobody, pieces, rounded
from longthink.tasks.base import Batch, Task, join
from longthink.think import State, Thinker, unfold
from longthink.training.files import finite

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
    _check(model, task, batch, disturbances, steps, chunk)
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


def _check(
    model: Thinker, task: Task, batch: Batch, disturbances: Sequence[Disturbance], steps: int, chunk: int
) -> None:
    """All complaints, before any work."""
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
    check_steps(model, steps)
    limit = getattr(model, "max_steps", None)
    if limit is not None and one.at + steps > limit:
        raise UserError(
            f"The disturbance {one.label} and {steps} steps after it need {one.at + steps} blocks, "
            f"and this feed-forward network has {limit}; disturb it after step {limit - steps} at the latest."
        )


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


@dataclass(frozen=True, eq=False)
class FlipProfile:
    """Figure 5.8, left: steps to recover from one flipped bit, by its place. ``steps`` is [samples, places]."""

    at: int
    budget: int
    steps: Tensor  # -1 where it did not recover

    @property
    def mean(self) -> Tensor:
        """NaN where no sample recovered: [places]."""
        solved = self.steps > 0
        return torch.where(solved, self.steps, 0).double().sum(0) / solved.sum(0)

    def to_json(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "budget": self.budget,
            "samples": len(self.steps),
            "places": self.steps.shape[1],
            "mean_steps_to_solution": rounded(self.mean),
            "recovered": rounded((self.steps > 0).double().mean(0)),
        }


def flip_profile(
    model: Thinker, task: Task, batch: Batch, at: int = LATE, steps: int = 100, *, chunk: int = 50
) -> FlipProfile:
    """Flip each bit of prefix sums in turn after ``at`` steps, and count the steps to the new answer."""
    _check(model, task, batch, [bit_flips(at)], steps, chunk)
    length = batch.inputs.shape[2]
    found = torch.full((len(batch), length), -1)
    with at_test_time(model):
        for i in range(len(batch)):
            one = batch[i : i + 1].to(device_of(model))
            state = model.start(model.look(one.inputs))
            for moment in unfold(model, one.inputs, at):
                state = moment.state
            for piece in pieces(length, chunk):
                places = torch.arange(piece.start, piece.stop)[:, None]
                many = one[torch.zeros(len(places), dtype=torch.long)]
                problem = flip_bits(many, places)
                copies = _copies(state, len(places))
                for moment in unfold(model, problem.inputs, steps, state=copies, keep_previous=False):
                    right = task.score(moment.logits, problem).cpu()
                    row = found[i, piece]
                    found[i, piece] = torch.where((row < 0) & right, moment.count, row)
                    if bool((found[i, piece] > 0).all()):
                        break
    return FlipProfile(at, steps, found)


def _copies(state: State, n: int) -> State:
    """A state of one sample, n times."""
    return tree_map_only(Tensor, lambda t: t.expand(n, *t.shape[1:]), state)


def draw_flips(profile: FlipProfile, title: str = "") -> Any:
    from longthink.inspect.figures import COLOURS, figure, plain

    new = figure(5.2, 3.2)
    axes = new.add_subplot()
    places = torch.arange(1, profile.steps.shape[1] + 1)
    axes.plot(places, profile.mean, "o-", color=COLOURS[0], ms=3, lw=1.2)
    plain(axes, title, xlabel="place of the flipped bit", ylabel="steps to recover")
    axes.set_xlim(0, len(places) + 1)
    if bool(profile.mean.isnan().all()):
        axes.set_ylim(0, profile.budget)
        axes.text(0.5, 0.5, f"none recovers within {profile.budget} steps", transform=axes.transAxes, ha="center")
    axes.set_ylim(bottom=0)
    return new


def _need_task(task: Task, name: str, what: str) -> None:
    if task.name != name:
        raise UserError(f"{what} in {name} only; choose another disturbance for {task.name}.")


def _need_two(task: Task, batch: Batch) -> None:
    if len(batch) < 2:
        raise UserError("Swapping needs at least two samples at once; ask for more samples or a larger chunk.")


def _random(seed: int, sample: int) -> torch.Generator:
    mixed = np.random.SeedSequence([seed, sample]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed))


def _mean(steps: Tensor) -> float | None:
    """Of those that arrived; None where nobody did."""
    return finite(float(steps[steps > 0].double().mean()))
