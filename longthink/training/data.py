"""Which problems an update sees: a pure function of the recipe, the seed and the update's number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from longthink.tasks.base import Batch, Split, Task, join
from longthink.training.recipe import Recipe

_KEEP_ON_DEVICE = 4 * 2**30


class TrainingData:
    """An epoch's problems, in the order in which they come."""

    def __init__(self, recipe: Recipe, task: Task, seed: int, device: torch.device) -> None:
        self.recipe, self.task, self.seed, self.device = recipe, task, seed, device
        self._epoch = -1
        self._problems: Batch | None = None
        self._order = torch.empty(0, dtype=torch.long)

    def batch(self, update: int) -> Batch:
        """The whole batch of this update, on the device."""
        epoch, position = divmod(update, self.recipe.updates_an_epoch)
        if epoch != self._epoch:
            self._begin(epoch)
        assert self._problems is not None
        size = self.recipe.batch
        rows = self._order[position * size : (position + 1) * size]
        return self._problems[rows.to(self._problems.inputs.device)].to(self.device)

    def _begin(self, epoch: int) -> None:
        recipe = self.recipe
        if self._problems is None or recipe.fresh:
            seed = derived_seed(self.seed, epoch if recipe.fresh else 0)
            problems = mixed_problems(self.task, recipe.train_samples, recipe.difficulty, seed, "train")
            size = problems.inputs.nbytes + problems.targets.nbytes
            self._problems = problems.to(self.device) if size < _KEEP_ON_DEVICE else problems
        # Sorting raw random bits: the bit generator's stream is the same in every NumPy, its shuffle may not be.
        bits = np.random.PCG64(np.random.SeedSequence([self.seed, epoch, 0x0DE5])).random_raw(recipe.train_samples)
        self._order = torch.from_numpy(np.argsort(bits, kind="stable"))
        self._epoch = epoch


def mixed_problems(task: Task, n: int, difficulties: Sequence[int], seed: int, split: Split) -> Batch:
    """``n`` problems in equal parts of these difficulties (the first ones have one more where n does not divide)."""
    share, more = divmod(n, len(difficulties))
    sizes = [share + (i < more) for i in range(len(difficulties))]
    return join([task.sample(size, d, seed, split) for size, d in zip(sizes, difficulties, strict=True) if size])


def derived_seed(*parts: int) -> int:
    """One seed from several numbers, mixed and never added."""
    return int(np.random.SeedSequence([*parts, 0xDA7A]).generate_state(1, np.uint64)[0] >> np.uint64(1))
