"""Compositional table lookup (Csordás, section 5.2.1): apply functions to a symbol, one after the other.

input   101 d a b        answer   b(a(d(101)))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import ClassVar

import numpy as np
import torch
from numba import njit

from longthink.errors import UserError
from longthink.tasks.base import Batch, Split, mixed_seed, tasks
from longthink.tasks.rng import SPLIT_CODES, below, split_code, stream
from longthink.tasks.tokens import PAD, TokenTask, check_depth, content_hash

SYMBOLS = 8
ANY_SPLIT = -1

_NAMES = tuple("".join(bits) for bits in product("01", repeat=3))
_FUNCTIONS = tuple("abcdefghi")  # D.3.2; the public code has two more, which are never composed


@tasks.add("ctl")
@dataclass(frozen=True)
class CTL(TokenTask):
    """Difficulty is the number of functions, all drawn alike; all problems of depth 1 are for training (D.3.2).

    The published training set is 53,704 fixed samples; this one has no end below half of all problems.
    """

    name: ClassVar[str] = "ctl"
    unit: ClassVar[str] = "functions"
    tokens: ClassVar[tuple[str, ...]] = (PAD, *_NAMES, *_FUNCTIONS)
    answers: ClassVar[tuple[str, ...]] = _NAMES
    tokens_a_level: ClassVar[int] = 1
    shallowest: ClassVar[int] = 2

    backward: bool = False
    """Write b a d 101 rather than 101 d a b. Sample i is the same problem in both orders."""
    table_seed: int = 0
    """What the functions do is part of the task, as it must be learned."""

    def __post_init__(self) -> None:
        check_table_seed(self.table_seed)

    @property
    def tables(self) -> np.ndarray:
        """What each function makes of each symbol: [9, 8]."""
        return random_tables(self.name, len(_FUNCTIONS), self.table_seed)

    def sample(self, n: int, difficulty: int, seed: int, split: Split = "test") -> Batch:
        check_depth(self.name, n, difficulty, 1, seed, split)
        if difficulty == 1 and split != "train":
            raise UserError(f"All problems with one function are for training; choose 2 or more for the {split} split.")
        # After any function and symbol, any function may come.
        choices = np.broadcast_to(np.arange(len(_FUNCTIONS)), (2, SYMBOLS, len(_FUNCTIONS))).astype(np.int64)
        counts = np.full((2, SYMBOLS), len(_FUNCTIONS))
        group_of = np.ones(len(_FUNCTIONS), np.int64)
        code = ANY_SPLIT if difficulty == 1 else SPLIT_CODES[split]
        stream_seed = mixed_seed(self.name, difficulty, seed)
        problems, answers = compose(stream_seed, code, n, difficulty, self.tables, group_of, choices, counts)
        rows = problems[:, ::-1] if self.backward else problems
        return Batch(
            inputs=torch.from_numpy(rows.astype(np.int64)), targets=torch.from_numpy(answers), difficulty=difficulty
        )

    def evaluate(self, words: Sequence[str]) -> tuple[int, int]:
        example = "b a d 101" if self.backward else "101 d a b"
        where = len(words) - 1 if self.backward else 0  # of the symbol
        for position, word in enumerate(words):
            here = f"Token {position + 1}, {word[:20]!r},"
            if position == where and word not in _NAMES:
                order = "end" if self.backward else "begin"
                raise UserError(f"{here} is not a symbol; {order} with one of 000 to 111, as in {example}.")
            if position != where and word not in _FUNCTIONS:
                raise UserError(f"{here} is not a function; they are a to i, as in {example}.")
        if len(words) < 2:
            raise UserError(f"Type a symbol and at least one function, as in {example}.")
        applied = words[:-1][::-1] if self.backward else words[1:]
        maps = [self.tables[_FUNCTIONS.index(word)].tolist() for word in applied]
        return outermost_first(maps, _NAMES.index(words[where])), len(applied)


def check_table_seed(table_seed: int) -> None:
    if table_seed < 0:
        raise UserError(f"The table seed must be 0 or more, not {table_seed}.")


def outermost_first(maps: Sequence[Sequence[int]], symbol: int) -> int:
    """Compose the functions from the last to the first into one table, then look the symbol up.

    The samples are made the other way, by following the symbol.
    """
    table: Sequence[int] = range(SYMBOLS)
    for inner in reversed(maps):
        table = [table[value] for value in inner]
    return table[symbol]


@lru_cache(maxsize=64)
def random_tables(name: str, count: int, table_seed: int) -> np.ndarray:
    """Different random bijections of the symbols: [count, 8]."""
    tables = _shuffled(mixed_seed(f"{name}/tables", count, table_seed), count)
    tables.flags.writeable = False
    return tables


@njit(cache=True)
def _shuffled(seed: np.uint64, count: int) -> np.ndarray:
    tables = np.empty((count, SYMBOLS), np.int64)
    for f in range(count):
        state = stream(seed, f)
        new = False
        while not new:
            tables[f] = np.arange(SYMBOLS)
            for i in range(SYMBOLS - 1, 0, -1):
                j = below(state, i + 1)
                tables[f, i], tables[f, j] = tables[f, j], tables[f, i]
            new = True
            for g in range(f):
                new &= (tables[f] != tables[g]).any()
    return tables


@njit(cache=True)
def compose(
    seed: np.uint64,
    wanted_split: int,
    n: int,
    depth: int,
    tables: np.ndarray,
    group_of: np.ndarray,
    choices: np.ndarray,
    counts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Walks through a graph of groups of functions: tokens in the order of application and the last symbol.

    ``choices[group, symbol, :counts[group, symbol]]`` are the functions that may follow one of this group (0 is the
    beginning) that gave this symbol. Symbols are tokens 1 to 8, functions come after them.
    """
    problems = np.empty((n, depth + 1), np.uint8)
    answers = np.empty(n, np.int64)
    for i in range(n):
        state = stream(seed, i)
        row = problems[i]
        found = False
        while not found:
            symbol = below(state, SYMBOLS)
            row[0] = 1 + symbol
            group = 0
            for j in range(depth):
                f = choices[group, symbol, below(state, counts[group, symbol])]
                row[j + 1] = 1 + SYMBOLS + f
                group = group_of[f]
                symbol = tables[f, symbol]
            answers[i] = symbol
            found = wanted_split == ANY_SPLIT or split_code(content_hash(row)) == wanted_split
    return problems, answers
