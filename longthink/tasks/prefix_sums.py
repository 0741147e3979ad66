"""Prefix sums modulo two (Schwarzschild, section 2.2.1): bit i of the answer is the parity of the first i bits.

input   1 0 1 1        answer   1 1 0 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numba import njit
from torch import Tensor

from longthink.errors import UserError
from longthink.tasks.base import Batch, Split, check_request, correct_everywhere, mixed_seed, tasks
from longthink.tasks.rng import SPLIT_CODES, absorb, draw, split_code, stream

# The lengths of the published sets (53 files; the text says 52).
PUBLISHED_LENGTHS: tuple[int, ...] = (*range(16, 65), 72, 128, 256, 512)
LONGEST = 1 << 24


@tasks.add("prefix_sums")
@dataclass(frozen=True)
class PrefixSums:
    """Difficulty is the number of bits; the network sees bits minus 0.5 (section 4.2)."""

    name: ClassVar[str] = "prefix_sums"
    unit: ClassVar[str] = "bits"
    shape: ClassVar[dict[str, int]] = {"dims": 1, "inputs": 1, "classes": 2}

    def sample(self, n: int, difficulty: int, seed: int, split: Split = "test") -> Batch:
        check_request(n, difficulty, seed, split)
        if difficulty > LONGEST:
            raise UserError(f"Prefix sums go up to {LONGEST} bits; {difficulty} is too long.")
        if difficulty < 4:
            raise UserError(f"Prefix sums need at least 4 bits, not {difficulty}: with fewer, a split is empty.")
        bits = np.empty((n, difficulty), np.uint8)
        answers = np.empty((n, difficulty), np.uint8)
        _fill(mixed_seed(self.name, difficulty, seed), SPLIT_CODES[split], bits, answers)
        return self._batch(bits, answers)

    def check(self, batch: Batch) -> Tensor:
        # Not a running sum: bit i of the answer must flip exactly where bit i of the input is set.
        bits = (batch.inputs[:, 0] > 0).long()
        flips = batch.targets ^ torch.nn.functional.pad(batch.targets, (1, 0))[:, :-1]
        return (flips == bits).all(1)

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        return (logits[:, 1] > logits[:, 0]).long()  # argmax over two classes, many times faster on a CPU

    def score(self, logits: Tensor, batch: Batch) -> Tensor:
        return correct_everywhere(self.predict(logits, batch), batch)

    def parse(self, text: str) -> Batch:
        digits = "".join(text.split())
        for position, digit in enumerate(digits):
            if digit not in "01":
                raise UserError(f"Character {position + 1} is {digit!r}; type bits, 0 or 1, as in 1011.")
        if not digits:
            raise UserError("There are no bits; type some, as in 1011.")
        bits = np.frombuffer(digits.encode(), np.uint8)[None] - ord("0")
        return self._batch(bits, np.bitwise_xor.accumulate(bits, axis=1))

    def text(self, batch: Batch, index: int = 0) -> str:
        return "".join("1" if bit > 0 else "0" for bit in batch.inputs[index, 0].tolist())

    def show(self, classes: Tensor, batch: Batch, index: int = 0) -> str:
        return "".join(map(str, classes.tolist()))

    def draw(self, batch: Batch, index: int = 0, logits: Tensor | None = None) -> np.ndarray:
        """Two rows of squares: the bits above, the answer below (shaded by its probability when logits are given)."""
        bits = (batch.inputs[index, 0] > 0).float()
        answer = batch.targets[index].float() if logits is None else logits[index].float().softmax(0)[1]
        cell = max(2, min(16, 1600 // max(1, len(bits))))
        rows = torch.stack([bits, answer.to(bits)]).cpu().numpy()  # 1 is dark
        ink = np.array([[30, 41, 59], [180, 83, 9]], np.float64)[:, None]
        picture = 255 - rows[..., None] * (255 - ink)
        big = picture.repeat(cell, 0).repeat(cell, 1).round().astype(np.uint8)
        return np.pad(big, ((cell, cell), (cell, cell), (0, 0)), constant_values=255)

    def _batch(self, bits: np.ndarray, answers: np.ndarray) -> Batch:
        return Batch(
            inputs=torch.from_numpy(bits.astype(np.float32) - 0.5)[:, None],
            targets=torch.from_numpy(answers.astype(np.int64)),
            difficulty=bits.shape[1],
        )


@njit(cache=True)
def _fill(seed: np.uint64, wanted_split: int, bits: np.ndarray, answers: np.ndarray) -> None:
    n, length = bits.shape
    one = np.uint64(1)
    for i in range(n):
        state = stream(seed, i)
        found = False
        while not found:
            digest = np.uint64(length)
            for start in range(0, length, 64):
                word = draw(state)
                for j in range(start, min(length, start + 64)):
                    bits[i, j] = (word >> np.uint64(j - start)) & one
                    digest = absorb(digest, bits[i, j])
            found = split_code(digest) == wanted_split
        parity = np.uint8(0)
        for j in range(length):
            parity ^= bits[i, j]
            answers[i, j] = parity
