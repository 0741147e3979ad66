"""Addition of binary numbers: a task, a model, recipes and a study that are not part of longthink.

a 1011        b 0110        answer 10001

Trained on sums of 12 bits, asked for longer ones: where a carry runs far, a network has to think for longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

import longthink as lt
from longthink import recipes, studies
from longthink.models import models
from longthink.tasks import check_request, tasks


@tasks.add("addition")
@dataclass(frozen=True)
class Addition:
    """Difficulty is the number of bits; the answer has one more."""

    name: ClassVar[str] = "addition"
    unit: ClassVar[str] = "bits"
    shape: ClassVar[dict[str, int]] = {"dims": 1, "inputs": 2, "classes": 2}  # what a model must know

    def sample(self, n: int, difficulty: int, seed: int, split: str = "test") -> lt.Batch:
        """The same problems for the same arguments, and none of another split's; ``n`` may be 0."""
        check_request(n, difficulty, seed, split)
        if difficulty < 3:
            raise lt.UserError("Of fewer than 3 bits not every split has sums; choose a larger difficulty.")
        numbers = np.random.Generator(np.random.PCG64(np.random.SeedSequence([difficulty, seed])))
        found = np.empty((0, 2, difficulty), np.int64)
        while len(found) < n:
            bits = numbers.integers(0, 2, (2 * n + 20, 2, difficulty))
            found = np.concatenate([found, bits[[self.split_of(one) == split for one in bits]]])
        return self.batch(found[:n])

    def split_of(self, bits: np.ndarray) -> str:
        return ("train", "train", "train", "valid", "test")[crc32(bits.tobytes()) % 5]

    def batch(self, bits: np.ndarray) -> lt.Batch:
        """Of problems [n, 2, bits], the smallest bit first, as carries run from left to right then."""
        bits = np.pad(bits, ((0, 0), (0, 0), (0, 1)))  # room for the last carry
        answers, carry = np.empty_like(bits[:, 0]), 0
        for place in range(bits.shape[2]):
            total = bits[:, 0, place] + bits[:, 1, place] + carry
            answers[:, place], carry = total % 2, total // 2
        inputs = torch.from_numpy(bits).float() - 0.5
        return lt.Batch(inputs, torch.from_numpy(answers), difficulty=bits.shape[2] - 1)

    def check(self, batch: lt.Batch) -> Tensor:
        """Are the answers right? Found in another way: as Python adds."""
        bits = (batch.inputs > 0).long()
        sums = [number(a) + number(b) == number(c) for (a, b), c in zip(bits, batch.targets, strict=True)]
        return torch.tensor(sums)

    def predict(self, logits: Tensor, batch: lt.Batch) -> Tensor:
        return logits.argmax(1)

    def score(self, logits: Tensor, batch: lt.Batch) -> Tensor:
        """Is the whole answer right?"""
        return (logits.argmax(1) == batch.targets).all(1)

    # For `longthink solve`: problems that people type, and answers that they read.

    def parse(self, text: str) -> lt.Batch:
        numbers = [part.strip() for part in text.split("+")]
        if len(numbers) != 2 or not all(part and set(part) <= set("01") for part in numbers):
            raise lt.UserError(f"Type two binary numbers, as in 1011+110, not {text!r}.")
        length = max(map(len, numbers))
        return self.batch(np.array([[[int(digit) for digit in part.zfill(length)[::-1]] for part in numbers]]))

    def text(self, batch: lt.Batch, index: int = 0) -> str:
        a, b = (batch.inputs[index] > 0).long()[:, :-1]
        return f"{self.show(a, batch)}+{self.show(b, batch)}"

    def show(self, classes: Tensor, batch: lt.Batch, index: int = 0) -> str:
        return "".join(map(str, classes.flip(0).tolist()))


def number(bits: Tensor) -> int:
    return sum(bit << place for place, bit in enumerate(bits.tolist()))


@models.add("gated_cells")
class GatedCells(nn.Module):
    """Each place keeps its state, or changes it by what it and its neighbours have: a convolutional GRU."""

    def __init__(self, dims: int, inputs: int, classes: int, width: int = 32) -> None:
        super().__init__()
        assert dims == 1, "these cells lie in a row"
        self.width = width
        self.gates = nn.Conv1d(width + inputs, 2 * width, 3, padding=1)
        self.update = nn.Conv1d(width + inputs, width, 3, padding=1)
        self.head = nn.Conv1d(width, classes, 1)

    def look(self, x: Tensor) -> Tensor:
        return x  # what depends on the problem alone: here the problem itself, which every step sees anew

    def start(self, context: Tensor) -> Tensor:
        return context.new_zeros(len(context), self.width, context.shape[2])

    def step(self, state: Tensor, context: Tensor) -> Tensor:
        keep, forget = self.gates(torch.cat([state, context], 1)).sigmoid().chunk(2, 1)
        lt.note("keep", keep)  # whoever watches "keep" gets it; it costs nothing otherwise
        update = self.update(torch.cat([forget * state, context], 1)).tanh()
        return keep * state + (1 - keep) * update

    def read(self, state: Tensor, context: Tensor) -> Tensor:
        return self.head(state)


_RECIPE = lt.Recipe(
    name="addition-cells",
    task="addition",
    difficulty=(12,),
    model="gated_cells",
    steps=16,
    # In every second update it thinks on for 16 to 60 steps without gradient, and is asked for the answer again.
    alpha=0.5,
    progressive_every=2,
    first_n=16,
    horizon=60,
    train_samples=6_400,
    fresh=True,
    valid_samples=200,
    batch=64,
    epochs=8,  # 800 updates
    learning_rate=3e-3,
    schedule="cosine",
    warmup_epochs=0,
    weight_decay=0.0,
    clip=1.0,
)
recipes.add(_RECIPE)

# The same with a network of longthink's, and without thinking on in training.
recipes.add(
    lt.Recipe(
        **{
            **_RECIPE.to_json(),
            "name": "addition-dt",
            "model": "deepthinking",
            "model_options": {"width": 32, "head": (16, 8)},
            "alpha": 0.0,
            "horizon": None,
            "first_n": 0,
        }
    )
)

studies.add(
    studies.Study(
        name="addition",
        title="Binary addition",
        source="our own",
        rows=(studies.Row("gated cells", "addition-cells"), studies.Row("Deep Thinking", "addition-dt")),
        exams=(
            studies.Exam("64 bits", difficulty=64, samples=200, steps=100),
            studies.Exam("256 bits", difficulty=256, samples=200, steps=300),
        ),
    )
)
