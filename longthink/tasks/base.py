"""What a task is. A task is a frozen dataclass with the methods of ``Task``; it knows no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from longthink.errors import UserError, check_options
from longthink.registry import Registry

Split: TypeAlias = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


@dataclass(eq=False)  # not frozen: Fabric rebuilds what it passes to a module
class Batch:
    """Problems with their answers. The first axis of every tensor is the sample."""

    inputs: Tensor
    """What the network sees: float [n, channels, ...] for images and strings; for sequences in time, long [n, length]
    tokens or float [n, length, width] vectors, both padded with 0 at the end."""
    targets: Tensor
    """The right classes: long [n, ...]."""
    mask: Tensor | None = None
    """Outputs that count in loss and score: bool, the shape of targets; None for all."""
    difficulty: int = 0
    """0 where the samples differ in it."""
    info: dict[str, Tensor] = field(default_factory=dict)
    """Whatever else the task needs to check, score or draw its samples."""

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def is_sequence(self) -> bool:
        """Time is axis 1, of targets and mask too where there is an answer at every time step."""
        vectors = self.inputs.dim() == self.targets.dim() == 3
        return vectors or not self.inputs.is_floating_point()

    @property
    def truth_known(self) -> bool:
        """Whether anybody knows the answer of the first problem, which one may type without."""
        return bool(self.info.get("truth_known", torch.tensor([True]))[0])

    def lengths(self) -> Tensor:
        """How long each sequence is without its padding: [n]."""
        there = self.inputs != 0
        there = there.any(-1) if there.dim() == 3 else there
        return (there * torch.arange(1, there.shape[1] + 1, device=there.device)).amax(1)

    def cut(self, length: int) -> Batch:
        """Sequences of this length: what lies beyond is cut off, what is missing is padded."""
        now = self.inputs.shape[1]

        def fit(part: Tensor) -> Tensor:
            if part.dim() < 2 or part.shape[1] != now:  # one answer for the whole sequence
                return part
            return pad(part, (0, 0) * (part.dim() - 2) + (0, length - now)) if length > now else part[:, :length]

        mask = None if self.mask is None else fit(self.mask)
        return replace(self, inputs=fit(self.inputs), targets=fit(self.targets), mask=mask)

    def __getitem__(self, rows: slice | Tensor | np.ndarray) -> Batch:
        return self.map(lambda t: t[rows])

    def to(self, device: torch.device | str) -> Batch:
        waits = torch.device(device).type == "cpu"  # whoever reads a copy on the host must not come too early
        return self.map(lambda t: t.to(device, non_blocking=not waits))

    def map(self, f: Callable[[Tensor], Tensor]) -> Batch:
        """The same with every tensor changed."""
        return replace(
            self,
            inputs=f(self.inputs),
            targets=f(self.targets),
            mask=None if self.mask is None else f(self.mask),
            info={name: f(value) for name, value in self.info.items()},
        )


class Task(Protocol):
    """One problem at every difficulty.

    Where the published measure counts parts of an answer, a task is a ``CountsParts`` too.
    """

    @property
    def name(self) -> str: ...

    @property
    def unit(self) -> str:
        """What a difficulty counts: "bits", "cells a side", "given cells"."""

    @property
    def shape(self) -> dict[str, int]:
        """What a model must know: "dims", "inputs" and "classes" of images and strings, "vocabulary" and "classes" of
        tokens, "inputs", "outputs" (answers a time step) and "classes" of sequences of vectors."""

    def sample(self, n: int, difficulty: int, seed: int, split: Split = "test") -> Batch:
        """``n`` problems; sample i depends on the task and these arguments alone. No two splits share a problem."""

    def check(self, batch: Batch) -> Tensor:
        """Are the labels right? Found by another algorithm than the one that made them: bool [n]."""

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """The answer that these logits mean, as classes of the shape of ``batch.targets``."""

    def score(self, logits: Tensor, batch: Batch) -> Tensor:
        """Is the whole answer right? bool [n]."""

    def draw(self, batch: Batch, index: int = 0, logits: Tensor | None = None) -> np.ndarray:
        """A picture of the problem, or of an answer to it when logits are given: uint8 [height, width, 3]."""

    def parse(self, text: str) -> Batch:
        """A batch of one problem from what a person typed, with its true answer."""

    def text(self, batch: Batch, index: int = 0) -> str:
        """The problem as a person would type it, for ``parse``."""

    def show(self, classes: Tensor, batch: Batch, index: int = 0) -> str:
        """An answer (classes, as ``batch.targets[index]``) as text a person can read."""


@runtime_checkable
class CountsParts(Protocol):
    """An answer has parts, such as words, which ``batch.mask`` marks, and their errors are what counts."""

    parts: ClassVar[str]
    """What they are called."""
    failed_above: ClassVar[float]
    """A difficulty with a larger share of wrong parts counts as failed."""

    def wrong_parts(self, logits: Tensor, batch: Batch) -> Tensor:
        """How many parts of each answer are wrong: [n]."""


def without_repeats(task: Task, n: int, difficulty: int, split: Split) -> int:
    """``n``, or as many as there are where problems come from a file of stories, so that none counts twice."""
    stories = getattr(task, "stories", None)
    return n if stories is None else min(n, stories(difficulty, split))


def join(batches: Sequence[Batch]) -> Batch:
    """One batch of several whose samples have the same shapes; sequences are padded to the longest."""
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    if first.is_sequence:
        longest = max(batch.inputs.shape[1] for batch in batches)
        batches = [batch.cut(longest) for batch in batches]
    same = len({batch.difficulty for batch in batches}) == 1
    return Batch(
        inputs=torch.cat([batch.inputs for batch in batches]),
        targets=torch.cat([batch.targets for batch in batches]),
        mask=None if first.mask is None else torch.cat([b.mask for b in batches if b.mask is not None]),
        difficulty=first.difficulty if same else 0,
        info={name: torch.cat([batch.info[name] for batch in batches]) for name in first.info},
    )


tasks: Registry[Callable[..., Task]] = Registry("task")


def task(name: str, **options: Any) -> Task:
    """The task of this name, with its options: ``task("mazes", style="kruskal")``."""
    make = tasks[name]
    check_options(f"the task {name}", make, options)
    try:
        found = make(**options)
    except TypeError as error:
        raise UserError(f"The task {name!r} does not take these options: {error}.") from error
    lacks = [part for part in ("name", "unit", "shape", "sample", "predict", "score") if not hasattr(found, part)]
    if lacks:
        raise UserError(f"The task {name!r} has no {' and no '.join(lacks)}, which every task needs; give it one.")
    if found.name != name:
        raise UserError(f"The task {name!r} calls itself {found.name!r}; give it one name.")
    return found


def check_difficulty(problem: Task, difficulty: int, seed: int = 0) -> None:
    """The task's own complaints, which come before any work and before those about memory."""
    try:
        problem.sample(0, difficulty, seed, "test")
    except UserError:
        raise
    except Exception:  # people's own tasks need not know how to make no problem at all
        problem.sample(1, difficulty, seed, "test")


def correct_everywhere(predicted: Tensor, batch: Batch) -> Tensor:
    """Exact match of the whole answer on the outputs that count: bool [n]."""
    right = predicted == batch.targets
    if batch.mask is not None:
        right = right | ~batch.mask
    return right.flatten(1).all(1)


def mixed_seed(name: str, difficulty: int, seed: int) -> np.uint64:
    """One well-mixed 64-bit number from a task, a difficulty and a seed (SeedSequence, never a sum)."""
    entropy = [crc32(name.encode()), difficulty, seed]
    return np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]


def check_request(n: int, difficulty: int, seed: int, split: str) -> None:
    """The complaints that all tasks share."""
    if split not in SPLITS:
        raise UserError(f"There is no split {split!r}; choose train, valid or test.")
    for name, number in (("number of samples", n), ("difficulty", difficulty), ("seed", seed)):
        if isinstance(number, float):
            raise UserError(f"The {name} must be a whole number, not {number}.")
    if n < 0:
        raise UserError(f"The number of samples must be 0 or more, not {n}.")
    if seed < 0:
        raise UserError(f"The seed must be 0 or more, not {seed}.")
    if difficulty < 1:
        raise UserError(f"The difficulty must be 1 or more, not {difficulty}.")
