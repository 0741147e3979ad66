"""How far does what it learned reach: to easier problems (Figure 5.16), and to places far away?"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from longthink.errors import UserError
from longthink.evaluate import Curve, evaluate
from longthink.inspect.pieces import at_test_time, device_of
from longthink.tasks.base import Batch, Task, check_difficulty
from longthink.think import Thinker, ThinkingModule, check_steps, tensors, unfold
from longthink.training.files import finite


@dataclass(frozen=True, eq=False)
class HardToEasy:
    """Accuracy over steps on problems that are easier than those of the training."""

    trained: tuple[int, ...]
    train_steps: int
    curves: tuple[Curve, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "trained": {"difficulty": list(self.trained), "steps": self.train_steps},
            "curves": [curve.to_json() for curve in self.curves],
        }


def hard_to_easy(
    model: ThinkingModule,
    task: Task,
    trained: Sequence[int],
    train_steps: int,
    difficulties: Sequence[int] = (),
    steps: int | None = None,
    *,
    samples: int = 20,
    seed: int = 0,
    chunk: int = 20,
) -> HardToEasy:
    """Test on ``difficulties`` (by default about half and three quarters of the trained one) and on the trained one."""
    if steps is None:
        steps = min(5 * train_steps, getattr(model, "max_steps", None) or 5 * train_steps)
    if not difficulties:
        easiest = max(trained) if getattr(task, "larger_is_easier", False) else min(trained)
        difficulties = (*easier(task, easiest), easiest)
    chosen = tuple(difficulties)
    curves = evaluate(model, task, chosen, steps, samples=samples, seed=seed, chunk=chunk)
    return HardToEasy(tuple(trained), train_steps, tuple(curves))


def easier(task: Task, difficulty: int, parts: Sequence[float] = (0.5, 0.75)) -> tuple[int, ...]:
    """Difficulties of about these fractions that the task has, rising: mazes have odd sizes only. Of tasks whose
    problems are easier the larger their number is (sudoku's given cells), as many times more."""
    found = set()
    larger = getattr(task, "larger_is_easier", False)
    for part in parts:
        for near in range(round(difficulty / part if larger else part * difficulty), difficulty if larger else 0, -1):
            try:
                check_difficulty(task, near)
            except UserError:
                continue
            if near != difficulty:
                found.add(near)
            break
    if not found:
        raise UserError(f"Nothing in {task.name} is easier than {difficulty} {task.unit}; choose the difficulties.")
    return tuple(sorted(found))


def draw_hard_to_easy(found: HardToEasy, weights: str, unit: str) -> Any:
    from longthink.plots import accuracy_plot

    return accuracy_plot({**found.to_json(), "weights": weights, "unit": unit})


@dataclass(frozen=True, eq=False)
class ReceptiveField:
    """How far from a changed place anything differs after 0, 1, ... steps; -1 where nothing does.

    Distances are the larger of the two coordinates' in pictures: what a square of convolutions covers.
    """

    place: tuple[int, ...]
    edge: int
    """The largest distance that the input has room for."""
    state: tuple[int, ...]
    logits: tuple[int, ...]
    answer: tuple[int, ...]
    """Where the likeliest class differs."""
    solution_radius: int | None
    """How far apart an output and an input that it depends on can be; None where nobody knows."""
    mean_steps_to_solution: float | None = None

    @property
    def steps(self) -> int:
        return len(self.state) - 1

    @property
    def per_step(self) -> int | None:
        """The most that one step adds to the field of the state, before the edge is reached."""
        grown = [b - a for a, b in zip(self.state, self.state[1:], strict=False) if a >= 0 and b < self.edge]
        return max(grown, default=None)

    @property
    def fewest_steps(self) -> int | None:
        """Steps before which the answer cannot know all of the problem, whatever the weights."""
        if self.solution_radius is None or not self.per_step:
            return None
        missing = self.solution_radius - max(0, self.logits[0])
        return max(0, -(-missing // self.per_step))

    def to_json(self) -> dict[str, Any]:
        return {
            "place": list(self.place),
            "edge": self.edge,
            "steps": list(range(self.steps + 1)),
            "state": list(self.state),
            "logits": list(self.logits),
            "answer": list(self.answer),
            "per_step": self.per_step,
            "solution_radius": self.solution_radius,
            "fewest_steps": self.fewest_steps,
            "mean_steps_to_solution": self.mean_steps_to_solution,
        }


def receptive_field(
    model: Thinker,
    task: Task,
    batch: Batch,
    steps: int,
    place: Sequence[int] | None = None,
    *,
    threshold: float = 0.0,
) -> ReceptiveField:
    """Think about two inputs that differ in one place (the middle if not said), side by side.

    Both are computed in double precision by the same operations, so that where nothing arrives not even the last bit
    differs; a ``threshold`` counts only what differs by more. Of several samples the farthest counts.
    """
    space = tuple(batch.inputs.shape[2:])
    if not batch.inputs.is_floating_point() or not space:
        raise UserError("A receptive field needs strings or pictures, whose places have neighbours; tokens have none.")
    check_steps(model, steps, fewest=1)
    if not threshold >= 0:
        raise UserError(f"The threshold must be 0 or more, not {threshold}.")
    where = tuple(size // 2 for size in space) if place is None else tuple(place)
    if len(where) != len(space) or any(not 0 <= p < size for p, size in zip(where, space, strict=True)):
        raise UserError(f"The place {list(where)} is not in an input of {' x '.join(map(str, space))}.")
    if isinstance(model, nn.Module):
        model = copy.deepcopy(model).double()
    far = _distances(space, where).to(device_of(model))
    first = batch.inputs.to(device_of(model)).double()
    second = first.clone()
    here: tuple[Any, ...] = (slice(None), slice(None), *where)
    mirrored = first.min() + first.max() - first[here]  # a flipped bit, a wall for a free pixel
    second[here] = torch.where(mirrored == first[here], first[here] + 1, mirrored)
    state, logits, answer = [], [], []

    def compare(one: Any, other: Any, read: Tensor, other_read: Tensor) -> None:
        parts = [
            ((a - b).abs() > threshold).any(1).any(0)
            for a, b in zip(tensors(one), tensors(other), strict=True)
            if tuple(a.shape[2:]) == space
        ]
        if not parts or tuple(read.shape[2:]) != space:
            raise UserError("A receptive field needs states and answers with the places of the input; this has others.")
        state.append(_farthest(torch.stack(parts).any(0), far))
        logits.append(_farthest(((read - other_read).abs() > threshold).any(1).any(0), far))
        answer.append(_farthest((read.argmax(1) != other_read.argmax(1)).any(0), far))

    with at_test_time(model):
        contexts = model.look(first), model.look(second)
        starts = model.start(contexts[0]), model.start(contexts[1])
        compare(*starts, *(model.read(s, c) for s, c in zip(starts, contexts, strict=True)))
        both = (unfold(model, None, steps, state=s, context=c) for s, c in zip(starts, contexts, strict=True))
        for one, other in zip(*both, strict=True):
            compare(one.state, other.state, one.logits, other.logits)
    radius = solution_radius(task, batch)
    return ReceptiveField(where, int(far.max()), tuple(state), tuple(logits), tuple(answer), radius)


def with_steps_used(field: ReceptiveField, curve: Curve) -> ReceptiveField:
    """The same beside the steps that the network takes."""
    solved = curve.steps_to_solution()
    return replace(field, mean_steps_to_solution=finite(float(solved[solved > 0].double().mean())))


def solution_radius(task: Task, batch: Batch) -> int | None:
    """The farthest that an answer at one place depends on the problem at another, in the worst of these problems.

    The last prefix sum depends on the first bit. Whether a pixel of a maze is on the path depends on where start and
    goal are (and on more: this is a lower bound).
    """
    if task.name == "prefix_sums":
        return batch.inputs.shape[2] - 1
    if task.name != "mazes":
        return None
    farthest = 0
    for picture, target in zip(batch.inputs, batch.targets, strict=True):
        path = target.nonzero()
        red, green, blue = picture
        for end in ((red == 1) & (green == 0), (red == 0) & (green == 1) & (blue == 0)):
            gaps = (path[:, None] - end.nonzero()[None]).abs().amax(2)
            farthest = max(farthest, int(gaps.amax()))
    return farthest


def draw_receptive_field(field: ReceptiveField, title: str = "") -> Any:
    from longthink.inspect.figures import COLOURS, INK, figure, plain

    new = figure(6.8, 3.4)
    axes = new.add_subplot()
    for colour, name in zip(COLOURS, ("state", "logits", "answer"), strict=False):
        distances = [float("nan") if d < 0 else d for d in getattr(field, name)]
        below: dict[str, Any] = {"lw": 3.2, "ms": 5, "alpha": 0.5}  # or the others would hide it
        line = below if name == "state" else {"lw": 1.4, "ms": 3}
        axes.plot(range(field.steps + 1), distances, "o-", color=colour, label=f"differs in the {name}", **line)
    for level, label, style in (
        (field.edge, "farthest place of the input", ":"),
        (field.solution_radius, "farthest that an answer depends on", "--"),
    ):
        if level is not None:
            axes.axhline(level, color=INK, lw=0.9, ls=style, label=label)
    if field.mean_steps_to_solution is not None and field.mean_steps_to_solution <= field.steps:
        axes.axvline(field.mean_steps_to_solution, color=COLOURS[3], lw=0.9, label="mean steps to the solution")
    plain(axes, title, xlabel="steps of thinking", ylabel="distance from the changed place", xlim=(0, field.steps))
    axes.set_ylim(bottom=0)
    new.legend(loc="outside right upper", frameon=False, fontsize=8)
    return new


def _distances(space: Sequence[int], place: Sequence[int]) -> Tensor:
    axes = [(torch.arange(size) - p).abs() for size, p in zip(space, place, strict=True)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).amax(0)


def _farthest(differs: Tensor, far: Tensor) -> int:
    return int(torch.where(differs, far, -1).max())
