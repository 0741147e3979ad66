"""What the tasks share whose problem is a row of tokens and whose answer is one class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numba import njit
from torch import Tensor

from longthink.errors import UserError
from longthink.tasks.base import Batch, check_request
from longthink.tasks.rng import absorb

PAD = "<pad>"
DEEPEST = 10_000
_MOST_DRAWN = 400  # tokens
_ROW = 30.0  # the width of a drawing, in boxes of one letter


class TokenTask:
    """Inputs are long [n, length], padded on the right with token 0; targets are long [n], logits [n, classes].

    Models add their own begin and end tokens.
    """

    tokens: ClassVar[tuple[str, ...]]
    """Token 0 is the padding."""
    answers: ClassVar[tuple[str, ...]]
    """What each class is called."""
    tokens_a_level: ClassVar[int]
    """The shortest problem of a depth has so many tokens for each level, and one more."""
    shallowest: ClassVar[int]
    """The smallest depth that is not for training alone."""

    @property
    def classes(self) -> int:
        return len(self.answers)

    @property
    def shape(self) -> dict[str, int]:
        """What a model must know to fit this task."""
        return {"vocabulary": len(self.tokens), "classes": self.classes}

    def words(self, text: str) -> list[str]:
        """The tokens of what a person typed, whether they make sense or not."""
        return text.split()

    def evaluate(self, words: Sequence[str]) -> tuple[int, int]:
        """The right class and the depth of a problem; a sentence that points at the token where it is none."""
        raise NotImplementedError

    def check(self, batch: Batch) -> Tensor:
        """Reads each problem as text; where the batch has one difficulty, the depth must be that too."""
        targets = batch.targets.tolist()
        right = [self._is_right(row, targets[i], batch.difficulty) for i, row in enumerate(batch.inputs.cpu().numpy())]
        return torch.tensor(right, dtype=torch.bool, device=batch.targets.device)

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        return logits.argmax(1)

    def score(self, logits: Tensor, batch: Batch) -> Tensor:
        return logits.argmax(1) == batch.targets

    def parse(self, text: str) -> Batch:
        words = self.words(text)
        answer, depth = self.evaluate(words)
        return Batch(inputs=self.encoded([words]), targets=torch.tensor([answer]), difficulty=depth)

    def text(self, batch: Batch, index: int = 0) -> str:
        """The problem as a person would type it."""
        return " ".join(self.decoded(batch, index))

    def show(self, classes: Tensor, batch: Batch, index: int = 0) -> str:
        return self.answers[int(classes)]

    def draw(self, batch: Batch, index: int = 0, logits: Tensor | None = None) -> np.ndarray:
        """The tokens in boxes, the darker the deeper in brackets; below them the answer, or the chance of each class.

        The bar of the right class is blue, those of the others grey, and red where a wrong one is the answer.
        """
        chances = None if logits is None else logits[index].detach().float().softmax(0).tolist()
        return _drawing(self.decoded(batch, index), self.answers, int(batch.targets[index]), chances)

    def encoded(self, problems: Sequence[Sequence[str]]) -> Tensor:
        """Tokens as numbers, padded: long [n, length]."""
        number = {word: i for i, word in enumerate(self.tokens)}
        inputs = torch.zeros(len(problems), max(map(len, problems), default=0), dtype=torch.long)
        for row, words in zip(inputs, problems, strict=True):
            row[: len(words)] = torch.tensor([number[word] for word in words], dtype=torch.long)
        return inputs

    def decoded(self, batch: Batch, index: int = 0) -> list[str]:
        """The tokens of a problem without the padding."""
        return [self.tokens[number] for number in batch.inputs[index].tolist() if number]

    def _is_right(self, row: np.ndarray, target: int, difficulty: int) -> bool:
        numbers = np.trim_zeros(row, "b").tolist()
        if not all(0 < number < len(self.tokens) for number in numbers):
            return False
        try:
            answer, depth = self.evaluate([self.tokens[number] for number in numbers])
        except UserError:
            return False
        return answer == target and difficulty in (0, depth)


def check_depth(name: str, n: int, depth: int, shallowest: int, seed: int, split: str) -> None:
    """The complaints that token tasks share."""
    check_request(n, 1, seed, split)
    if not shallowest <= depth <= DEEPEST:
        raise UserError(f"The difficulty of {name} goes from {shallowest} to {DEEPEST}, not {depth}; choose one there.")


def check_longest(longest: int | None) -> None:
    if longest is not None and longest < 1:
        raise UserError(f"The longest problem must have 1 token or more, not {longest}; none stands for no limit.")


def check_room(depth: int, tokens_a_level: int, longest: int | None) -> None:
    needed = tokens_a_level * depth + 1
    if longest is not None and needed > longest:
        raise UserError(
            f"Depth {depth} takes at least {needed} tokens and the longest problem may have {longest}; "
            f"set longest to {needed} or more (task.longest={needed}), or to none for no limit."
        )


@njit(cache=True)
def content_hash(tokens: np.ndarray) -> np.uint64:
    digest = np.uint64(len(tokens))
    for token in tokens:
        digest = absorb(digest, token)
    return digest


@njit(cache=True)
def append(flat: np.ndarray, end: int, tokens: np.ndarray) -> np.ndarray:
    """``flat`` with these tokens at ``end``; a copy of twice the size where it was full."""
    needed = end + len(tokens)
    if needed > len(flat):
        larger = np.empty(2 * needed, np.uint8)
        larger[:end] = flat[:end]
        flat = larger
    flat[end:needed] = tokens
    return flat


@njit(cache=True)
def padded(flat: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Problems that lie one after the other, as rows: int64 [n, longest]."""
    n, width, start = len(ends), 0, 0
    for i in range(n):
        width = max(width, ends[i] - start)
        start = ends[i]
    rows = np.zeros((n, width), np.int64)
    start = 0
    for i in range(n):
        for j in range(start, ends[i]):
            rows[i, j - start] = flat[j]
        start = ends[i]
    return rows


def _drawing(words: list[str], answers: Sequence[str], right: int, chances: Sequence[float] | None) -> np.ndarray:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    boxes, rows = _laid_out(words)
    height = 1.25 * rows + (2.0 if chances is None else 3.6)
    figure = Figure(figsize=(0.3 * _ROW, 0.3 * height), dpi=100)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-0.3, _ROW + 0.3), ylim=(height - 0.1, -0.2))
    axes.axis("off")
    for word, x, y, width, depth in boxes:
        shade = 1 - 0.45 * (1 - 0.85**depth)  # towards blue, ever more slowly
        _box(axes, x, y, width, word, (shade, 0.3 + 0.7 * shade, 1.0), "#0f172a")
    top = 1.25 * rows + 0.35
    if chances is None:
        axes.text(0, top + 0.52, "=", ha="left", va="center_baseline", size=15, color="#334155")
        _box(axes, 1, top, _width(answers[right]), answers[right], "#2563eb", "white")
    else:
        _bars(axes, top, answers, right, chances)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _width(word: str) -> float:
    return 0.55 + 0.35 * len(word)


def _laid_out(words: list[str]) -> tuple[list[tuple[str, float, float, float, int]], int]:
    """Each token with its place, its width and how many brackets it is in; and the number of rows."""
    boxes: list[tuple[str, float, float, float, int]] = []
    x, y, depth = 0.0, 0.0, 0
    for position, word in enumerate(words):
        opens, closes = word[0] in "([", word in (")", "]")
        depth += opens
        if not _MOST_DRAWN // 2 <= position < len(words) - _MOST_DRAWN // 2 or len(words) <= _MOST_DRAWN:
            shown = word
        elif position == _MOST_DRAWN // 2:
            shown = "..."
        else:
            depth -= closes
            continue
        width = _width(shown)
        if x + width > _ROW:
            x, y = 0.0, y + 1.25
        boxes.append((shown, x, y, width, depth))
        x += width + 0.1
        depth -= closes
    return boxes, round(y / 1.25) + 1


def _box(axes: object, x: float, y: float, width: float, word: str, paper: object, ink: str) -> None:
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle

    assert isinstance(axes, Axes)
    axes.add_patch(Rectangle((x, y), width, 1.05, facecolor=paper, edgecolor="#94a3b8", lw=0.6))
    axes.text(x + width / 2, y + 0.54, word, ha="center", va="center_baseline", size=12, color=ink, family="monospace")


def _bars(axes: object, top: float, answers: Sequence[str], right: int, chances: Sequence[float]) -> None:
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle

    assert isinstance(axes, Axes)
    best = max(range(len(chances)), key=chances.__getitem__)
    step = min(2.2, _ROW / len(answers))
    for i, (name, chance) in enumerate(zip(answers, chances, strict=True)):
        colour = "#2563eb" if i == right else "#b91c1c" if i == best else "#94a3b8"
        axes.add_patch(Rectangle((i * step, top), 0.8 * step, 2.0, facecolor="#f1f5f9"))
        axes.add_patch(Rectangle((i * step, top + 2 * (1 - chance)), 0.8 * step, 2 * chance, facecolor=colour))
        axes.text(
            (i + 0.4) * step, top + 2.55, name, ha="center", va="center", size=12, color=colour, family="monospace"
        )
