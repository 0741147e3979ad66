"""Accuracy over difficulty and steps: what one pass of thinking shows at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.tasks.base import Batch, CountsParts, Task
from longthink.think import Moment, ThinkingModule, confidence, think
from longthink.training.files import finite


@dataclass
class Curve:
    """How a network does on problems of one difficulty, step by step. Tensors are [samples, steps] on the CPU."""

    difficulty: int
    right: Tensor  # bool
    confidence: Tensor
    change: Tensor
    read_every: int = 1
    """Column i is step (i + 1) * read_every."""
    wrong: Tensor | None = None
    """How many parts of the answer are wrong, where those count."""
    parts: Tensor | None = None
    """How many there are: [samples]."""

    @classmethod
    def joined(cls, curves: Sequence[Curve]) -> Curve:
        """One curve of more problems of the same kind."""
        names = ("right", "confidence", "change", "wrong", "parts")
        there = [name for name in names if getattr(curves[0], name) is not None]
        columns: dict[str, Any] = {name: torch.cat([getattr(curve, name) for curve in curves]) for name in there}
        return replace(curves[0], **columns)

    @property
    def samples(self) -> int:
        return len(self.right)

    @property
    def accuracy(self) -> Tensor:
        """Fraction solved at each step: [steps]."""
        return self.right.double().mean(0)

    @property
    def error(self) -> Tensor | None:
        """Share of wrong parts at each step: [steps]; None where whole answers count."""
        return None if self.wrong is None or self.parts is None else self.wrong.double().sum(0) / self.parts.sum()

    @property
    def steps(self) -> Tensor:
        return torch.arange(1, self.right.shape[1] + 1) * self.read_every

    @property
    def peak(self) -> tuple[float, int]:
        """The best accuracy and the first step that has it."""
        best = self.accuracy.max()
        return float(best), int(self.steps[(self.accuracy == best).nonzero()[0, 0]])

    @property
    def final(self) -> float:
        return float(self.accuracy[-1])

    def at(self, step: int) -> float:
        column = (self.steps == step).nonzero()
        if len(column) == 0:
            raise UserError(f"This curve has no step {step}; it has every {self.read_every} up to {self.steps[-1]}.")
        return float(self.accuracy[column[0, 0]])

    def most_confident(self) -> Tensor:
        """Accuracy at each step when the answer is that of the most confident step so far (section 4.3): [steps]."""
        return self.right.gather(1, self.confidence.cummax(1).indices).double().mean(0)

    def converged(self, tolerance: float) -> tuple[float, float]:
        """Accuracy and mean steps when each sample stops at its first change below the tolerance, or at the end."""
        below = self.change < tolerance
        below[:, -1] = True
        first = below.int().argmax(1)
        right = self.right.gather(1, first[:, None])
        return float(right.double().mean()), float(self.steps[first].double().mean())

    def steps_to_solution(self) -> Tensor:
        """First step at which each sample is right, -1 where it never is: [samples]."""
        first = self.steps[self.right.int().argmax(1)]
        return torch.where(self.right.any(1), first, -1)

    def to_json(self) -> dict[str, object]:
        best, step = self.peak
        solved = self.steps_to_solution()
        error = {} if self.error is None else {"error": [round(share, 6) for share in self.error.tolist()]}
        return {
            "difficulty": self.difficulty,
            "samples": self.samples,
            "peak_accuracy": best,
            "peak_step": step,
            "final_accuracy": self.final,
            "final_step": int(self.steps[-1]),
            "most_confident_accuracy": float(self.most_confident()[-1]),
            "mean_steps_to_solution": float(solved[solved >= 0].double().mean()) if (solved >= 0).any() else None,
            "steps": self.steps.tolist(),
            "accuracy": [round(a, 6) for a in self.accuracy.tolist()],
            "change": [finite(c) for c in self.change.double().mean(0).tolist()],
            **error,
        }


@torch.no_grad()
def curve(
    model: ThinkingModule,
    task: Task,
    batch: Batch,
    steps: int,
    *,
    chunk: int = 100,
    read_every: int = 1,
    half: bool = False,
    on_step: Callable[[int], None] | None = None,
) -> Curve:
    """Think once about every problem and score the answer after every ``read_every`` steps.

    Only three numbers a sample and step are kept, so that thousands of steps on large images fit. ``half`` computes in
    bfloat16, several times faster on a GPU. ``on_step`` is told after every step how many samples took it.
    """
    if steps == 0:  # one column: the answer before any step
        read_every = 0
    elif steps < read_every or steps % read_every:
        raise UserError(f"The steps ({steps}) must be a multiple of read_every ({read_every}).")
    if len(batch) == 0:
        raise UserError("A curve needs at least one sample.")
    pieces: list[Curve] = []
    was_training = model.training
    model.eval()
    for start in range(0, len(batch), chunk):
        piece = batch[start : start + chunk].to(next(model.parameters()).device)
        with torch.autocast(piece.inputs.device.type, torch.bfloat16, enabled=half):
            found = _trace(model, task, piece, steps, read_every, on_step)
        parts = piece.mask.flatten(1).sum(1).cpu() if "wrong" in found and piece.mask is not None else None
        right = found.pop("right").bool()
        pieces.append(Curve(batch.difficulty, right, read_every=read_every, parts=parts, **found))
    model.train(was_training)
    return Curve.joined(pieces)


def _trace(
    model: ThinkingModule,
    task: Task,
    batch: Batch,
    steps: int,
    read_every: int,
    on_step: Callable[[int], None] | None = None,
) -> dict[str, Tensor]:
    nothing = torch.zeros(len(batch), device=batch.inputs.device)
    if steps == 0:
        logits = think(model, batch.inputs, 0).logits
        found = {"right": solved(task, logits, batch), "confidence": confidence(logits, batch.mask), "change": nothing}
        if isinstance(task, CountsParts):
            found["wrong"] = task.wrong_parts(logits, batch)
        return {name: value[:, None].float().cpu() for name, value in found.items()}

    def right(moment: Moment) -> Tensor:
        if on_step is not None:
            on_step(len(batch))
        return solved(task, moment.logits, batch).float() if moment.count % read_every == 0 else nothing

    def sure(moment: Moment) -> Tensor:
        return confidence(moment.logits, batch.mask) if moment.count % read_every == 0 else nothing

    def change(moment: Moment) -> Tensor:
        return moment.change if moment.count % read_every == 0 else nothing

    def wrong(moment: Moment) -> Tensor:
        assert isinstance(task, CountsParts)
        return task.wrong_parts(moment.logits, batch).float() if moment.count % read_every == 0 else nothing

    watch = {"right": right, "confidence": sure, "change": change}
    if isinstance(task, CountsParts):
        watch["wrong"] = wrong
    trace = think(model, batch.inputs, steps, watch=watch, read=False).trace
    return {name: value[:, read_every - 1 :: read_every].cpu() for name, value in trace.items()}


def solved(task: Task, logits: Tensor, batch: Batch) -> Tensor:
    """What the task says of each answer; of a task that people add it may be something else."""
    found = task.score(logits, batch)
    if found.dtype != torch.bool or found.shape != (len(batch),):
        raise UserError(
            f"The score of the task {task.name} must be one bool for each problem, [{len(batch)}], not "
            f"{str(found.dtype).removeprefix('torch.')} {list(found.shape)}."
        )
    return found


def evaluate(
    model: ThinkingModule,
    task: Task,
    difficulties: Iterable[int] | int,
    steps: int,
    *,
    samples: int = 1000,
    seed: int = 0,
    chunk: int = 100,
    read_every: int = 1,
) -> list[Curve]:
    """One curve a difficulty, on test problems that training never saw."""
    curves = []
    for difficulty in (difficulties,) if isinstance(difficulties, int) else difficulties:
        batch = task.sample(samples, difficulty, seed, "test")
        curves.append(curve(model, task, batch, steps, chunk=chunk, read_every=read_every))
    return curves


@torch.no_grad()
def accuracy_at(
    model: ThinkingModule, task: Task, batch: Batch, steps: Sequence[int], *, chunk: int = 1000
) -> list[float]:
    """Accuracy after each of these numbers of steps (in rising order), reading the answers nowhere else."""
    right = torch.zeros(len(steps), dtype=torch.double)
    was_training = model.training
    model.eval()
    for start in range(0, len(batch), chunk):
        piece = batch[start : start + chunk].to(next(model.parameters()).device)
        context = model.look(piece.inputs)
        state, done = model.start(context), 0
        for i, target in enumerate(steps):
            thought = think(model, None, target - done, state=state, context=context)
            state, done = thought.state, target
            right[i] += solved(task, thought.logits, piece).sum().double().cpu()
    model.train(was_training)
    return (right / len(batch)).tolist()
