"""What the tasks share whose problem is a row of bit vectors, one a time step, with answers at some of the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from numba import njit
from torch import Tensor

from longthink.errors import UserError
from longthink.tasks.base import Batch, check_request, correct_everywhere

MOST = 4096
WIDEST = 32  # bits of a vector

_PAPER, _ASKED, _WRONG = (241, 245, 249), (254, 243, 199), (254, 202, 202)
_INK, _CONTROL, _ANSWER, _RED = (30, 41, 59), (37, 99, 235), (180, 83, 9), (185, 28, 28)


class BitmapTask:
    """Inputs are float [n, steps, width], targets and mask [n, steps, outputs], logits [n, 2, steps, outputs].

    Bits are seen as -1 and 1 and control bits come last, as in the public code. Padding is 0: no real step has a 0.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    fewest: ClassVar[int] = 1
    controls: ClassVar[int]
    """How many of the input bits are control bits."""

    bits: int
    every_step: bool

    @property
    def inputs(self) -> int:
        return self.bits + self.controls

    @property
    def outputs(self) -> int:
        return self.bits

    @property
    def shape(self) -> dict[str, int]:
        """What a model must know to fit this task."""
        return {"inputs": self.inputs, "outputs": self.outputs, "classes": 2}

    def parse(self, text: str) -> Batch:
        raise NotImplementedError

    def text(self, batch: Batch, index: int = 0) -> str:
        raise NotImplementedError

    def asked(self, steps: Sequence[str]) -> list[range]:
        """The steps that want an answer, in their parts."""
        raise NotImplementedError

    def check(self, batch: Batch) -> Tensor:
        """Writes each problem down as text and reads that again, which finds the answers in plain Python."""
        right = [self._is_right(batch, i) for i in range(len(batch))]
        return torch.tensor(right, dtype=torch.bool, device=batch.targets.device)

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        return (logits[:, 1] > logits[:, 0]).long()  # argmax over two classes, many times faster on a CPU

    def score(self, logits: Tensor, batch: Batch) -> Tensor:
        return correct_everywhere(self.predict(logits, batch), batch)

    def show(self, classes: Tensor, batch: Batch, index: int = 0) -> str:
        rows = classes.tolist()
        parts = self.asked(self.steps(batch, index))
        return " | ".join(",".join(self.shown(rows[step]) for step in part) for part in parts)

    def shown(self, row: Sequence[int]) -> str:
        return "".join(map(str, row))

    def draw(self, batch: Batch, index: int = 0, logits: Tensor | None = None) -> np.ndarray:
        """Time runs to the right: the bits that are seen above (control bits blue), those that are wanted below.

        The steps that want an answer are yellow. With logits, the answer is shaded by its probability and its wrong
        bits are red.
        """
        steps = self.steps(batch, index)
        length, truth = len(steps), batch.targets[index, : len(steps)].cpu()
        asked = np.zeros(length, bool)
        for part in self.asked(steps):
            asked[part] = True
        seen = (batch.inputs[index, :length] > 0).float().cpu().numpy()
        ink = np.array([_INK] * (self.inputs - self.controls) + [_CONTROL] * self.controls)
        above = _blend(seen, np.array(_PAPER), ink)
        paper = np.where(asked[:, None, None], _ASKED, np.broadcast_to(_PAPER, (length, self.outputs, 3)))
        if logits is None:
            below = _blend(truth.numpy(), paper, np.array(_ANSWER))
        else:
            one = logits[index, :, :length].detach().float().cpu()
            counts = torch.ones_like(truth) if batch.mask is None else batch.mask[index, :length].cpu()
            wrong = (((one[1] > one[0]).long() != truth) & counts.bool()).numpy()[..., None]
            below = _blend(one.softmax(0)[1].numpy(), np.where(wrong, _WRONG, paper), np.where(wrong, _RED, _ANSWER))
        cell = max(2, min(14, 1600 // max(1, length)))
        gap = np.full((length, 1, 3), 255.0)
        return _tiled(np.concatenate([above, gap, below], 1).transpose(1, 0, 2), cell)

    def steps(self, batch: Batch, index: int = 0) -> list[str]:
        """What is seen at each step, as 0s and 1s, without the padding."""
        rows = batch.inputs[index].cpu()
        length = int(rows.any(1).sum())
        if not bool((rows[:length].abs() == 1).all()) or bool(rows[length:].any()):
            raise UserError(f"This is no problem of {self.name}: its inputs are not all -1 or 1.")
        return ["".join("1" if bit > 0 else "0" for bit in row) for row in rows[:length].tolist()]

    def built(self, seen: Sequence[str], wanted: Sequence[str | None], difficulty: int) -> Batch:
        """A batch of one from what is seen and wanted at each step; None where nothing is asked."""
        answers = [word or "0" * self.outputs for word in wanted]
        asked = torch.tensor([[word is not None for word in wanted]])
        return Batch(
            inputs=torch.tensor([[2.0 * int(bit) - 1 for bit in row] for row in seen])[None],
            targets=torch.tensor([[int(bit) for bit in row] for row in answers])[None],
            mask=self.counted(asked, torch.ones_like(asked)),
            difficulty=difficulty,
        )

    def batch(
        self, seen: np.ndarray, wanted: np.ndarray, asked: np.ndarray, lengths: np.ndarray, difficulty: int
    ) -> Batch:
        """Bits as tensors, cut after the longest sample: 0 or 1 [n, steps, width], [n, steps, outputs], [n, steps]."""
        end = int(lengths.max(initial=0))
        real = torch.arange(end) < torch.from_numpy(lengths)[:, None]
        return Batch(
            inputs=(2.0 * torch.from_numpy(seen[:, :end]) - 1.0) * real[..., None],
            targets=torch.from_numpy(wanted[:, :end].astype(np.int64)),
            mask=self.counted(torch.from_numpy(asked[:, :end]), real),
            difficulty=difficulty,
        )

    def counted(self, asked: Tensor, real: Tensor) -> Tensor:
        return (real if self.every_step else asked)[..., None].repeat(1, 1, self.outputs)

    def empty(self, n: int, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Room for what is seen, what is wanted and where it is asked."""
        return (
            np.zeros((n, steps, self.inputs), np.uint8),
            np.zeros((n, steps, self.outputs), np.uint8),
            np.zeros((n, steps), bool),
        )

    def vector(self, word: str) -> str:
        """The bits that a person typed."""
        digits = "".join(word.split())
        if len(digits) != self.bits or set(digits) - {"0", "1"}:
            example = "10110010" * (WIDEST // 8)
            hint = f"type {self.bits} digits 0 or 1, as in {example[: self.bits]}"
            raise UserError(f"{word.strip()[:40]!r} is no vector of {self.bits} bits; {hint}.")
        return digits

    def check_bits(self, fewest: int = 1) -> None:
        if not fewest <= self.bits <= WIDEST:
            raise UserError(f"The vectors of {self.name} have {fewest} to {WIDEST} bits, not {self.bits}.")

    def check_request(self, n: int, difficulty: int, seed: int, split: str) -> None:
        check_request(n, max(1, difficulty), seed, split)
        if not self.fewest <= difficulty <= MOST:
            raise UserError(
                f"The difficulty of {self.name}, its {self.unit}, goes from {self.fewest} to {MOST}, not {difficulty}."
            )

    def _is_right(self, batch: Batch, index: int) -> bool:
        try:
            again = self.parse(self.text(batch, index))
        except UserError:
            return False
        end = again.inputs.shape[1]
        one = batch[index : index + 1].to("cpu")
        mask = torch.ones_like(one.targets, dtype=torch.bool) if one.mask is None else one.mask
        rest = (one.inputs[:, end:], one.targets[:, end:], mask[:, end:])
        whole = replace(one, inputs=one.inputs[:, :end], targets=one.targets[:, :end], mask=mask[:, :end])
        assert again.mask is not None
        assert whole.mask is not None
        return (
            not any(bool(padding.any()) for padding in rest)
            and torch.equal(whole.inputs, again.inputs)
            and torch.equal(whole.targets, again.targets)
            and torch.equal(whole.mask, again.mask)
            and batch.difficulty in (0, again.difficulty)
        )


@njit(cache=True, inline="always")
def write_bits(row: np.ndarray, start: int, word: np.uint64, bits: int) -> None:
    """A word into a row from ``start``, the highest bit first."""
    for k in range(bits):
        row[start + k] = (word >> np.uint64(bits - 1 - k)) & np.uint64(1)


def _blend(share: np.ndarray, paper: np.ndarray, ink: np.ndarray) -> np.ndarray:
    return paper + share[..., None] * (ink.astype(float) - paper)


def _tiled(pixels: np.ndarray, cell: int) -> np.ndarray:
    """Each pixel as a square, with white lines between them where there is room, and a white border."""
    big = pixels.repeat(cell, 0).repeat(cell, 1).round().astype(np.uint8)
    if cell >= 6:
        big[cell - 1 :: cell] = 255
        big[:, cell - 1 :: cell] = 255
    return np.pad(big, ((10, 10), (10, 10), (0, 0)), constant_values=255)
