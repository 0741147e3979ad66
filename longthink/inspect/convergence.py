"""Does a network come to rest, and does it keep its answers? (Figures 5.8 right, 5.12 and 5.15; section 5.5.3)

A state that thinks on may reach a *fixed point*, circle in a *limit cycle*, *drift* or *explode*.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.inspect.pieces import (
    OnStep,
    at_test_time,
    check_answers,
    check_repeats,
    device_of,
    distance,
    length,
    nobody,
    pieces,
    rounded,
)
from longthink.solving import AT_REST
from longthink.tasks.base import Split, Task
from longthink.think import State, Thinker, check_steps, unfold
from longthink.training.files import finite

FIXED, CYCLE, DRIFT, EXPLOSION = "fixed point", "limit cycle", "drift", "explosion"
VERDICTS = (FIXED, CYCLE, DRIFT, EXPLOSION)
LONGEST_PERIOD = 16
FEWEST_STEPS = 8
"""With fewer, growth that slows down cannot be told from growth that does not."""

_GROWN, _UNSLOWED = 1.5, 0.85
_HIGHEST = 1e30  # in pictures
MULTIPLES = (1, 3, 10, 100)


@dataclass(frozen=True, eq=False)
class Settling:
    """How the states of some samples moved. Tensors are [samples, steps] on the CPU."""

    inputs: str
    """What was thought about: "problems" or "noise"."""
    distance: Tensor
    """How far each step moved the state: the published figures' ||phi_n - phi_(n-1)||."""
    change: Tensor
    """The same, relative to the length of the state."""
    verdicts: tuple[str, ...]
    periods: tuple[int, ...]
    """Of those in a limit cycle; 0 for the others."""
    tolerance: float

    @property
    def steps(self) -> int:
        return self.distance.shape[1]

    def rest_steps(self) -> Tensor:
        """The step from which on the change stayed below the tolerance, -1 without a fixed point: [samples]."""
        still = (self.change < self.tolerance).flip(1).int().cumprod(1).sum(1)
        fixed = torch.tensor([verdict == FIXED for verdict in self.verdicts])
        return torch.where(fixed, self.steps - still + 1, -1)

    def to_json(self) -> dict[str, Any]:
        counts, rest = Counter(self.verdicts), self.rest_steps()
        return {
            "inputs": self.inputs,
            "samples": len(self.verdicts),
            "steps": self.steps,
            "tolerance": self.tolerance,
            "verdicts": {verdict: counts[verdict] for verdict in VERDICTS},
            "periods": dict(sorted(Counter(p for p in self.periods if p).items())),
            "mean_steps_to_rest": finite(float(rest[rest > 0].double().mean())),
            "final_change": rounded(self.change[:, -1].median()),
            "distance": rounded(self.distance.mean(0)),
            "change": rounded(self.change.mean(0)),
        }


def settle(
    model: Thinker,
    inputs: Tensor,
    steps: int,
    *,
    name: str = "problems",
    tolerance: float = AT_REST,
    longest_period: int = LONGEST_PERIOD,
    chunk: int = 20,
    on_step: OnStep = nobody,
) -> Settling:
    """Think for ``steps`` steps and say of each sample what became of its state.

    Fixed point: the last steps all changed it by less than ``tolerance`` of its length. Limit cycle: it came back to
    where it was p steps ago, p up to ``longest_period``. Explosion: it is not finite, or it grows by the same factor
    again and again. Drift: it still moves after the last step, and does none of these; where the change is falling,
    more steps may bring it to rest.
    """
    check_repeats(model)
    check_steps(model, steps, fewest=1)
    if steps < FEWEST_STEPS or longest_period < 2:
        raise UserError(f"A verdict needs at least {FEWEST_STEPS} steps and a longest period of 2 or more.")
    moved, changed, verdicts, periods = [], [], [], []
    with at_test_time(model):
        for piece in pieces(len(inputs), chunk):
            states: deque[State] = deque(maxlen=min(longest_period, steps - 1) + 1)
            parts, lengths = [], []
            for moment in unfold(model, inputs[piece].to(device_of(model)), steps):
                parts.append(distance(moment.state, moment.previous).cpu())
                lengths.append(length(moment.state).cpu())
                if moment.count > steps - (states.maxlen or 0):
                    states.append(moment.state)
                on_step(piece.stop - piece.start)
            moved.append(torch.stack(parts, 1))
            size = torch.stack(lengths, 1)
            changed.append(moved[-1] / size.clamp_min(1e-30))
            for verdict, period in _judge(changed[-1], size, list(states), tolerance):
                verdicts.append(verdict)
                periods.append(period)
    return Settling(name, torch.cat(moved), torch.cat(changed), tuple(verdicts), tuple(periods), tolerance)


def _judge(change: Tensor, size: Tensor, states: list[State], tolerance: float) -> list[tuple[str, int]]:
    """A verdict and a period for each sample, from its history and its last states."""
    steps = size.shape[1]
    third, last = (
        size[:, b - 1].log() - size[:, a - 1].log() for a, b in ((steps // 2, 3 * steps // 4), (3 * steps // 4, steps))
    )
    # Growth by a constant factor does not slow down on a logarithmic scale; that of a drift does.
    unslowed = (third + last > math.log(_GROWN)) & (last > _UNSLOWED * third)
    exploded = ~size[:, -1].isfinite() | unslowed
    still = (change[:, -len(states) :] < tolerance).all(1)
    since = [distance(states[-1], earlier).cpu() / size[:, -1].clamp_min(1e-30) for earlier in reversed(states[:-1])]
    found = []
    for i in range(len(size)):
        period = next(
            (
                p
                for p, back in enumerate(since, 1)
                if p > 1 and back[i] < tolerance and back[i] < 0.5 * change[i, -1]  # not merely slow
            ),
            0,
        )
        if bool(exploded[i]):
            found.append((EXPLOSION, 0))
        elif bool(still[i]):
            found.append((FIXED, 0))
        else:
            found.append((CYCLE, period) if period else (DRIFT, 0))
    return found


def noise_like(inputs: Tensor, vocabulary: int | None = None, seed: int = 0) -> Tensor:
    """Nonsense of the same shape (Figure 5.12): standard normal numbers, or tokens at random."""
    random = torch.Generator().manual_seed(seed)
    if inputs.is_floating_point():
        return torch.randn(inputs.shape, generator=random).to(inputs)
    if vocabulary is None:
        raise UserError("Noise for tokens needs to know how many tokens there are.")
    return torch.randint(1, vocabulary, inputs.shape, generator=random).to(inputs)


def draw(settlings: Sequence[Settling], train_steps: int | None = None, title: str = "") -> Any:
    """The length of each step's change over the steps, on a logarithmic scale: the mean, and the range of all."""
    from longthink.inspect.figures import COLOURS, SHADE, figure, plain

    new = figure(6.4, 3.6)
    axes = new.add_subplot()
    if train_steps:
        axes.axvspan(0, train_steps, color=SHADE, lw=0, zorder=0)
    for colour, one in zip(COLOURS, settlings, strict=False):
        steps = torch.arange(1, one.steps + 1)
        moved = one.distance.nan_to_num(nan=_HIGHEST, posinf=_HIGHEST).clamp(1 / _HIGHEST, _HIGHEST)
        counts = Counter(one.verdicts)
        label = f"{one.inputs}: " + ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v])
        axes.plot(steps, moved.mean(0), color=colour, lw=1.6, label=label)
        axes.fill_between(steps, moved.amin(0), moved.amax(0), color=colour, alpha=0.18, lw=0)
    plain(axes, title, yscale="log", xlabel="steps of thinking", ylabel="length of the state's change")
    axes.set_xlim(0, max(one.steps for one in settlings))
    axes.legend(frameon=False, fontsize=8)
    return new


@dataclass(frozen=True, eq=False)
class Overthinking:
    """Who was right when, on easy problems. ``right`` is [samples, checkpoints]."""

    difficulty: int
    train_steps: int
    multiples: tuple[int, ...]
    right: Tensor
    split: str

    @property
    def accuracy(self) -> Tensor:
        return self.right.double().mean(0)

    @property
    def lost(self) -> float:
        """The fraction of samples that were right at a checkpoint and are wrong at the last one."""
        return float((self.right.any(1) & ~self.right[:, -1]).double().mean())

    @property
    def verdict(self) -> str:
        """One sentence: from the best checkpoint on, where is the worst, and how much is lost there?"""
        points = 100 * self.accuracy
        best = int(points.argmax())
        worst = best + int(points[best:].argmin())
        fall = float(points[best] - points[worst])
        last = self.multiples[-1]
        if fall > 0:
            back = float(points[-1] - points[worst])
            recovers = f", and has {points[-1]:.1f}% at {last} m" if back > 0 else ""
            return f"Loses {fall:.1f} points by {self.multiples[worst]} m{recovers}."
        if points[-1] == 0:
            return f"Has no answers to lose: it solves nothing up to {last} m."
        if points[-1] > points[0]:
            return f"Keeps its answers up to {last} m, and finds {points[-1] - points[0]:.1f} points more than at 1 m."
        return f"Keeps its answers up to {last} m."

    def to_json(self) -> dict[str, Any]:
        return {
            "difficulty": self.difficulty,
            "split": self.split,
            "samples": len(self.right),
            "train_steps": self.train_steps,
            "multiples": list(self.multiples),
            "steps": [self.train_steps * k for k in self.multiples],
            "accuracy": rounded(self.accuracy, 6),
            "lost": self.lost,
            "verdict": self.verdict,
        }


def overthinking(
    model: Thinker,
    task: Task,
    train_steps: int,
    difficulty: int,
    *,
    multiples: Sequence[int] = MULTIPLES,
    samples: int = 20,
    seed: int = 0,
    split: Split = "test",
    chunk: int = 20,
    on_step: OnStep = nobody,
) -> Overthinking:
    """Accuracy at the steps of training (m) and at multiples of them, on unseen problems as easy as in training.

    Nothing is cut short for states at rest: all steps are taken.
    """
    check_answers(task)
    if train_steps < 1:
        raise UserError("This network takes no steps of thinking, so it cannot overthink.")
    limit = getattr(model, "max_steps", None)
    chosen = sorted({k for k in multiples if limit is None or train_steps * k <= limit})
    if not chosen or chosen[0] < 1:
        raise UserError(f"The multiples of the training steps must be 1 or more, not {list(multiples)}.")
    batch = task.sample(samples, difficulty, seed, split)
    parts = []
    with at_test_time(model):
        for piece in pieces(len(batch), chunk):
            there = batch[piece].to(device_of(model))
            checkpoints, columns = {train_steps * k for k in chosen}, []
            for moment in unfold(model, there.inputs, train_steps * chosen[-1], keep_previous=False):
                if moment.count in checkpoints:
                    columns.append(task.score(moment.logits, there).cpu())
                on_step(len(there))
            parts.append(torch.stack(columns, 1))
    return Overthinking(difficulty, train_steps, tuple(chosen), torch.cat(parts), split)


def draw_overthinking(reports: Sequence[Overthinking], unit: str = "", title: str = "") -> Any:
    """Accuracy at each checkpoint."""
    from longthink.inspect.figures import COLOURS, figure, plain

    new = figure(6.4, 3.4)
    axes = new.add_subplot()
    for colour, one in zip(COLOURS, reports, strict=False):
        steps = [one.train_steps * k for k in one.multiples]
        label = f"{one.difficulty} {unit}: {one.verdict[:1].lower()}{one.verdict[1:].rstrip('.')}"
        axes.plot(steps, 100 * one.accuracy, "o-", color=colour, lw=1.6, ms=4, label=label, clip_on=False)
    names = {one.train_steps * k: f"{one.train_steps * k:,}\n{k} m" for one in reports for k in one.multiples}
    plain(axes, title, xscale="log", ylim=(0, 101), xlabel="steps of thinking", ylabel="problems solved (%)")
    axes.set_xticks(list(names), list(names.values()))
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    return new
