"""Simple arithmetic (Csordás, section 5.2.2): nested additions and multiplications modulo 10, each in brackets.

input   ((4*7)+2)        answer   0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numba import njit

from longthink.errors import UserError
from longthink.tasks.base import Batch, Split, mixed_seed, tasks
from longthink.tasks.rng import SPLIT_CODES, below, chance, split_code, stream
from longthink.tasks.tokens import (
    PAD,
    TokenTask,
    append,
    check_depth,
    check_longest,
    check_room,
    content_hash,
    padded,
)

_EXAMPLE = "as in ((4*7)+2)"
_DIGIT, _OPEN, _CLOSE, _PLUS, _TIMES = 1, 11, 12, 13, 14  # tokens
_EXACTLY, _AT_MOST, _SIGN, _END = 0, 1, 2, 3  # what waits to be written
_PATIENCE = 32


@tasks.add("arithmetic")
@dataclass(frozen=True)
class Arithmetic(TokenTask):
    """Difficulty is the number of operations on the deepest path: 0 for a digit, 2 for the example.

    One path is grown to the wanted depth, at each operation to the left or to the right (in the public code only to
    the right). Each other argument is an operation with probability ``nesting`` and else a digit, and so are its own
    arguments, but nothing is deeper than the path. Operations and digits are all equally likely. What is longer than
    ``longest`` is thrown away, and after every 32 failures in a row ``nesting`` becomes a tenth less: the published
    sets never come to that. (Published: whole expressions are thrown away until the depths are equally
    frequent.)

    The ten problems of depth 0 are all in the train split.
    """

    name: ClassVar[str] = "arithmetic"
    unit: ClassVar[str] = "nested operations"
    tokens: ClassVar[tuple[str, ...]] = (PAD, *"0123456789()+*")
    answers: ClassVar[tuple[str, ...]] = tuple("0123456789")
    tokens_a_level: ClassVar[int] = 4
    shallowest: ClassVar[int] = 1

    longest: int | None = 50
    """In tokens; None for no limit."""
    nesting: float = 0.2  # D.3.2; the public code has 0.3 for validation and test

    def __post_init__(self) -> None:
        check_longest(self.longest)
        if not 0 <= self.nesting < 0.5:
            raise UserError(f"The nesting must be from 0 to below 0.5, not {self.nesting}: above, nothing ends.")
        object.__setattr__(self, "nesting", float(self.nesting))  # 0 and 0.0 must be the same task

    def sample(self, n: int, difficulty: int, seed: int, split: Split = "test") -> Batch:
        check_depth(self.name, n, difficulty, 0, seed, split)
        check_room(difficulty, self.tokens_a_level, self.longest)
        if difficulty == 0 and split != "train":
            raise UserError(
                f"The ten problems of depth 0 are all for training; choose depth 1 or more for the {split} split."
            )
        stream_seed = mixed_seed(f"{self.name}/{self.longest}/{self.nesting}", difficulty, seed)
        flat, ends, answers = _fill(stream_seed, SPLIT_CODES[split], n, difficulty, self.nesting, self.longest or 0)
        return Batch(
            inputs=torch.from_numpy(padded(flat, ends)), targets=torch.from_numpy(answers), difficulty=difficulty
        )

    def words(self, text: str) -> list[str]:
        return list("".join(text.split()))

    def text(self, batch: Batch, index: int = 0) -> str:
        return "".join(self.decoded(batch, index))

    def evaluate(self, words: Sequence[str]) -> tuple[int, int]:
        """Reads from left to right and keeps the open operations on a stack, as depth has no limit."""
        if not words:
            raise UserError(f"There is no expression; type one, {_EXAMPLE}.")
        waiting: list[tuple[int, str, int, int]] = []  # position of the bracket, sign, left value, left depth
        complete: tuple[int, int] | None = None  # value and depth of what was just read
        for position, word in enumerate(words, 1):
            here = f"Token {position}, {word[:20]!r},"
            if complete is None:
                if word == "(":
                    waiting.append((position, "", 0, 0))
                elif word in self.answers:
                    complete = int(word), 0
                else:
                    raise UserError(f"{here} is where a digit or a ( should be, {_EXAMPLE}.")
            elif not waiting:
                what = "leave it out" if word == ")" else "numbers have one digit, and each operation its brackets"
                raise UserError(f"{here} comes after the end; {what}, {_EXAMPLE}.")
            elif not waiting[-1][1]:
                if word not in ("+", "*"):
                    digits = "; numbers have one digit" if word.isdecimal() else ""
                    raise UserError(f"{here} is where a + or * should be{digits}, {_EXAMPLE}.")
                waiting[-1] = (waiting[-1][0], word, *complete)
                complete = None
            else:
                if word != ")":
                    raise UserError(f"{here} is where a ) should be; each operation has two arguments, {_EXAMPLE}.")
                _, sign, left, depth = waiting.pop()
                value = left + complete[0] if sign == "+" else left * complete[0]
                complete = value % 10, 1 + max(depth, complete[1])
        if waiting:
            raise UserError(f"Token {waiting[-1][0]}, '(', is never closed; add the rest of its operation, {_EXAMPLE}.")
        assert complete is not None
        return complete


@njit(cache=True)
def _grow(
    state: np.ndarray, depth: int, nesting: float, row: np.ndarray, waiting: np.ndarray, values: np.ndarray
) -> tuple[int, int]:
    """Writes one expression into ``row``; its length, or -1 where the row is too short, and its value."""
    waiting[0] = _EXACTLY + 4 * depth
    top, length, held = 1, 0, 0
    while top > 0:
        if length == len(row):
            return -1, 0
        top -= 1
        kind, rest = waiting[top] & 3, waiting[top] >> 2
        if kind == _END:
            held -= 1
            left, right = values[held - 1], values[held]
            values[held - 1] = (left + right if rest == _PLUS else left * right) % 10
            row[length] = _CLOSE
        elif kind == _SIGN:
            row[length] = rest
        elif rest > 0 and (kind == _EXACTLY or chance(state) < nesting):
            sign = _PLUS + below(state, 2)
            first = second = _AT_MOST + 4 * (rest - 1)
            if kind == _EXACTLY:
                if below(state, 2) == 0:
                    first = _EXACTLY + 4 * (rest - 1)
                else:
                    second = _EXACTLY + 4 * (rest - 1)
            waiting[top], waiting[top + 1] = _END + 4 * sign, second
            waiting[top + 2], waiting[top + 3] = _SIGN + 4 * sign, first
            top += 4
            row[length] = _OPEN
        else:
            values[held] = below(state, 10)
            row[length] = _DIGIT + values[held]
            held += 1
        length += 1
    return length, values[0]


@njit(cache=True)
def _fill(
    seed: np.uint64, wanted_split: int, n: int, depth: int, nesting: float, longest: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All expressions one after the other, where each ends, and their values. ``longest`` 0 is no limit."""
    flat = np.empty(n * (4 * depth + 1), np.uint8)
    ends, answers = np.empty(n, np.int64), np.empty(n, np.int64)
    row = np.empty(longest if longest > 0 else 8 * depth + 64, np.uint8)
    waiting, values = np.empty(4 * depth + 4, np.int64), np.empty(depth + 2, np.int64)
    end = 0
    for i in range(n):
        state = stream(seed, i)
        likely, failures = nesting, 0
        while True:
            before = state[0]
            length, answers[i] = _grow(state, depth, likely, row, waiting, values)
            if length >= 0:
                if depth == 0 or split_code(content_hash(row[:length])) == wanted_split:
                    break
                likely, failures = nesting, 0  # or the splits would have different distributions
            elif longest == 0:
                state[0] = before  # the same expression again, with more room
                row = np.empty(2 * len(row), np.uint8)
            else:
                failures += 1
                if failures % _PATIENCE == 0:
                    likely *= 0.9
        flat = append(flat, end, row[:length])
        end += length
        ends[i] = end
    return flat, ends, answers
