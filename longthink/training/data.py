"""Which problems an update sees: a pure function of the recipe, the seed and the update's number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longthink.errors import UserError
from longthink.tasks.base import Batch, Split, Task, join
from longthink.tasks.tokens import TokenTask
from longthink.training.recipe import Recipe

_KEEP_ON_DEVICE = 4 * 2**30
_DRAWS_FOUND = 16
"""After so many draws for each problem, of those that are drawn alike one in e^16 (9 million) is still missing."""
_DRAWS_WANTED = 64
"""At most so many draws for each problem that is wanted, though very rare ones may be left."""


def prepare(task: Task) -> None:
    """Fetch and store what processes side by side would otherwise all fetch at once."""
    stream = getattr(task, "stream", None)
    if stream is not None:
        for split in ("train", "valid"):
            stream(split, 1, 1)
    origin(task)


def origin(task: Task) -> dict[str, Any] | None:
    """Which data this is, of a task that has any which may change."""
    found = getattr(task, "origin", None)
    return None if found is None else found()


def check_same_data(now: dict[str, Any] | None, before: dict[str, Any] | None, folder: Path) -> None:
    """A run goes on with the text that it began with, and is not that of another one."""
    if now is not None and any((before or now).get(split) != now.get(split) for split in ("train", "valid")):
        raise UserError(
            f"The data of {folder} has changed since that run began; bring it back, or begin again in another --folder."
        )


class TrainingData:
    """An epoch's problems, in the order in which they come."""

    def __init__(self, recipe: Recipe, task: Task, seed: int, device: torch.device) -> None:
        if recipe.different and not isinstance(task, TokenTask):
            raise UserError(
                f"different=true is for problems that are a row of tokens with one answer, which {task.name} are not; "
                "leave it out."
            )
        self.recipe, self.task, self.seed, self.device = recipe, task, seed, device
        self._epoch = -1
        self._problems: Batch | None = None
        self._sizes: list[int] = []  # how many of them each difficulty has
        self._order = torch.empty(0, dtype=torch.long)
        self._lengths: torch.Tensor | None = None
        stream = getattr(task, "stream", None)  # a text that is read in order
        if stream is None and recipe.forget_every is not None:
            raise UserError(f"forget_every is for texts, which {task.name} are not; leave it out.")
        if stream is not None and (len(set(recipe.difficulty)) > 1 or recipe.shares or recipe.balanced):
            raise UserError("A text is read in blocks of one length: give one difficulty, no shares, and no balanced.")
        self._stream = None if stream is None else stream("train", recipe.batch, max(recipe.difficulty))

    def begins(self, update: int) -> bool:
        """True where a text is read from its beginning, or as if it were, and does not go on from the batch before."""
        if self._stream is None:
            return False
        every = self.recipe.forget_every
        return update % self._stream.blocks == 0 or (every is not None and update % every == 0)

    def batch(self, update: int) -> Batch:
        """The whole batch of this update, on the device."""
        if self._stream is not None:
            return self._stream.block(update).to(self.device)
        epoch, position = divmod(update, self.recipe.updates_an_epoch)
        if epoch != self._epoch:
            self._begin(epoch)
        assert self._problems is not None
        size = self.recipe.batch
        rows = self._order[position * size : (position + 1) * size]
        batch = self._problems[rows.to(self._problems.inputs.device)]
        if self._lengths is not None:
            longest = int(self._lengths[rows].max())
            batch = batch.cut(min(batch.inputs.shape[1], _rounded(longest)))
        return batch.to(self.device)

    def _begin(self, epoch: int) -> None:
        recipe = self.recipe
        if self._problems is None or recipe.fresh:
            seed = derived_seed(self.seed, epoch if recipe.fresh else 0)
            problems, self._sizes = _training_set(recipe, self.task, seed)
            self._lengths = problems.lengths() if problems.is_sequence else None
            size = problems.inputs.nbytes + problems.targets.nbytes
            self._problems = problems.to(self.device) if size < _KEEP_ON_DEVICE else problems
        # Sorting raw random bits: the bit generator's stream is the same in every NumPy, its shuffle may not be.
        bits = np.random.PCG64(np.random.SeedSequence([self.seed, epoch, 0x0DE5]))
        count = recipe.updates_an_epoch * recipe.batch
        if recipe.balanced:
            drawn = _equally_often(bits, self._sizes, count)
        else:
            drawn = _shuffled(bits, recipe.train_samples)
        # A random rest is left out of the last batch, before sequences are sorted by their length.
        order = torch.from_numpy(drawn[:count])
        self._order = order if self._lengths is None else _binned(order, self._lengths, recipe.batch, recipe.pool)
        self._epoch = epoch


def _training_set(recipe: Recipe, task: Task, seed: int) -> tuple[Batch, list[int]]:
    """The problems, and how many of them each difficulty has, one after the other."""
    n, difficulties, shares = recipe.train_samples, recipe.difficulty, recipe.shares
    if recipe.different:
        parts = different_problems(task, n, difficulties, seed, "train", shares)
        return join([part for part in parts if len(part)]), [len(part) for part in parts]
    sizes = proportions(n, shares or [1] * len(difficulties))
    return mixed_problems(task, n, difficulties, seed, "train", shares), sizes


def _shuffled(bits: np.random.PCG64, n: int) -> np.ndarray:
    return np.argsort(bits.random_raw(n), kind="stable")


def _equally_often(bits: np.random.PCG64, sizes: Sequence[int], count: int) -> np.ndarray:
    """``count`` places among parts of these sizes that follow each other, as many of each part: the places of small
    parts come several times, no one twice before all others of its part came once more."""
    drawn, start = [], 0
    sizes = [size for size in sizes if size]
    for size, wanted in zip(sizes, proportions(count, [1] * len(sizes)), strict=True):
        rounds = [_shuffled(bits, size) + start for _ in range(-(-wanted // size))]
        drawn.append(np.concatenate(rounds)[:wanted])
        start += size
    together = np.concatenate(drawn)
    return together[_shuffled(bits, len(together))]


def _rounded(length: int) -> int:
    """Up to a multiple of 8, from 64 on to one of an eighth or less: few different shapes, and little padding."""
    step = max(8, (1 << (length - 1).bit_length()) // 8)
    return -(-length // step) * step


def _binned(order: torch.Tensor, lengths: torch.Tensor, batch: int, pool: int) -> torch.Tensor:
    """The same order with sequences of like length in one batch: pools of batches are sorted, their batches mixed."""
    parts = []
    for part in order.split(batch * pool):
        sorted_part = part[lengths[part].sort(stable=True).indices]
        batches = list(sorted_part.split(batch))
        # Any fixed mixing will do: which lengths a batch has is already random.
        step = next(s for s in (17, 13, 11, 7, 5, 3, 1) if np.gcd(s, max(1, len(batches))) == 1)
        parts += [batches[i * step % len(batches)] for i in range(len(batches))]
    return torch.cat(parts)


def proportions(n: int, shares: Sequence[int]) -> list[int]:
    """``n`` in parts like these (the first ones have one more where it does not divide)."""
    sizes = [n * share // sum(shares) for share in shares]
    more = n - sum(sizes)
    return [size + (i < more) for i, size in enumerate(sizes)]


def mixed_problems(
    task: Task, n: int, difficulties: Sequence[int], seed: int, split: Split, shares: Sequence[int] | None = None
) -> Batch:
    """``n`` problems of these difficulties, in equal parts or in such ``shares``."""
    sizes = proportions(n, shares or [1] * len(difficulties))
    parts = [task.sample(size, d, seed, split) for size, d in zip(sizes, difficulties, strict=True) if size]
    if len({part.inputs.shape[1:] for part in parts}) > 1 and not parts[0].is_sequence:
        raise UserError(
            f"Problems of {task.name} differ in size with their difficulty; train at one of {list(difficulties)}."
        )
    return join(parts)


def different_problems(
    task: Task, n: int, difficulties: Sequence[int], seed: int, split: Split, shares: Sequence[int] | None = None
) -> list[Batch]:
    """``n`` problems of tokens, no two alike, by difficulty. What one of them lacks, the harder ones make up for in
    equal parts."""
    sizes = proportions(n, shares or [1] * len(difficulties))
    easiest_first = sorted(range(len(difficulties)), key=lambda i: difficulties[i])
    parts: dict[int, Batch] = {}
    lacking = 0
    for done, i in enumerate(easiest_first, 1):
        parts[i] = _first_ones(task, sizes[i], difficulties[i], seed, split)
        lacking = sizes[i] - len(parts[i])
        harder = easiest_first[done:]
        for j, more in zip(harder, proportions(lacking, [1] * len(harder)), strict=True):
            sizes[j] += more
    if lacking:
        raise UserError(
            f"Of {n} different problems of {task.name} with {', '.join(map(str, difficulties))} {task.unit}, {lacking} "
            "could not be found; lower train_samples, or add a harder difficulty."
        )
    return [parts[i] for i in range(len(difficulties))]


def _first_ones(task: Task, n: int, difficulty: int, seed: int, split: Split) -> Batch:
    """The first ``n`` different problems that are drawn with this seed, or all where there are fewer."""
    drawn, before = n, -1
    while True:
        problems = task.sample(drawn, difficulty, seed, split)  # those of the last time and as many more
        places = _first_places(problems.inputs.numpy())
        no_more = len(places) == before and drawn >= _DRAWS_FOUND * len(places)
        if len(places) >= n or no_more or drawn >= _DRAWS_WANTED * n:
            return problems[places[:n]]
        drawn, before = 2 * drawn, len(places)


def _first_places(rows: np.ndarray) -> np.ndarray:
    """Where each different row comes for the first time, in order."""
    tokens = int(rows.max(initial=0)) + 1
    numbers, most = np.zeros(len(rows), np.int64), 1  # one for each row, the same for equal ones alone, below ``most``
    for column in rows.T:
        if most * tokens > 2**63:  # long rows: which of those there are so far
            numbers, most = np.unique(numbers, return_inverse=True)[1], len(rows)
        numbers, most = numbers * tokens + column, most * tokens
    return np.sort(np.unique(numbers, return_index=True)[1])


def derived_seed(*parts: int) -> int:
    """One seed from several numbers, mixed and never added."""
    return int(np.random.SeedSequence([*parts, 0xDA7A]).generate_state(1, np.uint64)[0] >> np.uint64(1))
