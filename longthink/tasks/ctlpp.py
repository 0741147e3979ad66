"""CTL++ (Csordás, section 6.2): compositional table lookup whose tests compose functions that training never composes.

input   c b a 3        answer   c(b(a(3)))

Variant   training                              test
A         successive functions alternate        all functions from one group
          between groups a and b
R         all functions from one group          they alternate
S         pairs: a1 then a2 or o,               a1 then b2,
          b1 then b2 or o                       b1 then a2

In S, a shared function f of group o follows path p only where the symbol between them is in S_p^f.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_lowercase
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from numba import njit

from longthink.errors import UserError, unknown
from longthink.tasks.base import Batch, Split, mixed_seed, tasks
from longthink.tasks.ctl import ANY_SPLIT, SYMBOLS, check_table_seed, compose, outermost_first, random_tables
from longthink.tasks.rng import SPLIT_CODES, below, stream
from longthink.tasks.tokens import PAD, TokenTask, check_depth

Graph: TypeAlias = dict[str, tuple[str, ...]]

FUNCTIONS = 32

_NAMES = tuple("01234567")
_FUNCTIONS = (*ascii_lowercase, *(f"a{letter}" for letter in "abcdef"))
_SHARED, _OVERLAP = 16, 6  # the least with which the networks of Fig. 6.4 reach 100%

# Which groups may follow a group, in training and in the test; "" is the beginning.
_ALTERNATE: Graph = {"": ("a", "b"), "a": ("b",), "b": ("a",)}
_REPEAT: Graph = {"": ("a", "b"), "a": ("a",), "b": ("b",)}
_FIRST: Graph = dict.fromkeys(("", "a2", "b2", "o"), ("a1", "b1"))
_GRAPHS: dict[str, tuple[Graph, Graph]] = {
    "A": (_ALTERNATE, _REPEAT),
    "R": (_REPEAT, _ALTERNATE),
    "S": (_FIRST | {"a1": ("a2", "o"), "b1": ("b2", "o")}, _FIRST | {"a1": ("b2",), "b1": ("a2",)}),
}


@tasks.add("ctlpp")
@dataclass(frozen=True)
class CTLPP(TokenTask):
    """Difficulty is the number of functions, applied from right to left.

    The train and valid splits are two parts of what the training graph makes (the papers' IID), the test split
    is what the test graph makes (OOD). In A and R, all single functions are in the train split (E.1.2; the public
    code leaves them out). In S there are none, and the difficulty is even (the length 2K + 1 of section 6.2 counts
    the symbol). All functions that may come next are equally likely.
    """

    name: ClassVar[str] = "ctlpp"
    unit: ClassVar[str] = "functions"
    tokens: ClassVar[tuple[str, ...]] = (PAD, *_NAMES, *_FUNCTIONS)
    answers: ClassVar[tuple[str, ...]] = _NAMES

    variant: str = "A"
    shared_functions: int = _SHARED
    """For S: how many functions are in o; the other groups divide the rest equally. Published: 4, 8, 12, 16."""
    overlapping_symbols: int = _OVERLAP
    """For S: how many symbols are in both S_a^f and S_b^f; these divide the others. Published: 2 to 6."""
    table_seed: int = 0
    """What the functions do, and the sets S_a^f and S_b^f."""

    def __post_init__(self) -> None:
        check_table_seed(self.table_seed)
        if self.variant not in _GRAPHS:
            raise unknown("variant of CTL++", self.variant, _GRAPHS)
        if self.variant != "S" and (self.shared_functions, self.overlapping_symbols) != (_SHARED, _OVERLAP):
            raise UserError(f"Only variant S has shared functions and symbols; leave them out for {self.variant}.")
        if self.shared_functions not in range(0, FUNCTIONS, 4):
            raise UserError(
                f"The number of shared functions must be 0, 4, 8, ... or {FUNCTIONS - 4}, not {self.shared_functions}, "
                f"for the rest of {FUNCTIONS} to fall into four equal groups."
            )
        if not 0 <= self.overlapping_symbols <= SYMBOLS:
            raise UserError(
                f"The number of overlapping symbols goes from 0 to {SYMBOLS}, not {self.overlapping_symbols}."
            )

    @property
    def tables(self) -> np.ndarray:
        """What each function makes of each symbol: [32, 8]."""
        return random_tables(self.name, FUNCTIONS, self.table_seed)

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The names of the functions of each group. As the tables are random, neighbours may be in one."""
        staged = self.variant == "S"
        names = ("a1", "a2", "b1", "b2") if staged else ("a", "b")
        own = FUNCTIONS - (self.shared_functions if staged else 0)
        size = own // len(names)
        groups = {name: _FUNCTIONS[i * size : (i + 1) * size] for i, name in enumerate(names)}
        return groups | ({"o": _FUNCTIONS[own:]} if staged else {})

    @property
    def restrictions(self) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
        """S_a^f and S_b^f of each shared function f."""
        if self.variant != "S":
            return {}
        sets = _symbol_sets(self.shared_functions, self.overlapping_symbols, self.table_seed)
        rows = ([frozenset(_NAMES[s] for s in np.flatnonzero(path)) for path in f] for f in sets)
        return {name: (a, b) for name, (a, b) in zip(self.groups["o"], rows, strict=True)}

    def sample(self, n: int, difficulty: int, seed: int, split: Split = "test") -> Batch:
        check_depth(self.name, n, difficulty, 1, seed, split)
        if self.variant == "S" and difficulty % 2:
            raise UserError(f"Variant S has an even number of functions; choose 2, 4 or more, not {difficulty}.")
        if difficulty == 1 and split != "train":
            raise UserError(f"All problems with one function are for training; choose 2 or more for the {split} split.")
        code = ANY_SPLIT if difficulty == 1 or split == "test" else SPLIT_CODES[split]
        options = (self.shared_functions, self.overlapping_symbols) if self.variant == "S" else ()
        stream_seed = mixed_seed(f"{self.name}/{self.variant}{options}", difficulty, seed)
        graph = _walks(self, split == "test")
        problems, answers = compose(stream_seed, code, n, difficulty, self.tables, *graph)
        rows = problems[:, ::-1].astype(np.int64)
        return Batch(inputs=torch.from_numpy(rows), targets=torch.from_numpy(answers), difficulty=difficulty)

    def evaluate(self, words: Sequence[str]) -> tuple[int, int]:
        example = "c b a 3"
        for position, word in enumerate(words[:-1]):
            if word not in _FUNCTIONS:
                raise UserError(
                    f"Token {position + 1}, {word[:20]!r}, is not a function; they are a to z and aa to af, "
                    f"as in {example}."
                )
        if words and words[-1] not in _NAMES:
            raise UserError(
                f"Token {len(words)}, {words[-1][:20]!r}, is not a symbol; end with one of 0 to 7, as in {example}."
            )
        if len(words) < 2:
            raise UserError(f"Type at least one function and a symbol, as in {example}.")
        maps = [self.tables[_FUNCTIONS.index(word)].tolist() for word in reversed(words[:-1])]
        return outermost_first(maps, int(words[-1])), len(maps)


@lru_cache(maxsize=64)
def _walks(task: CTLPP, testing: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sampling graph as ``compose`` wants it: the group of each function, what may follow, and how many."""
    groups, restrictions = task.groups, task.restrictions
    graph = _GRAPHS[task.variant][testing]
    numbers = {"": 0} | {group: 1 + i for i, group in enumerate(groups)}
    group_of = np.array([numbers[group] for f in _FUNCTIONS for group in groups if f in groups[group]])
    choices = np.zeros((len(numbers), SYMBOLS, FUNCTIONS), np.int64)
    counts = np.zeros((len(numbers), SYMBOLS), np.int64)
    for before, following in graph.items():
        for symbol, name in enumerate(_NAMES):
            allowed = [
                _FUNCTIONS.index(f)
                for group in following
                for f in groups[group]
                if group != "o" or name in restrictions[f]["ab".index(before[0])]
            ]
            choices[numbers[before], symbol, : len(allowed)] = allowed
            counts[numbers[before], symbol] = len(allowed)
    return group_of, choices, counts


@njit(cache=True)
def _deal(seed: np.uint64, functions: int, overlap: int) -> np.ndarray:
    """Which symbols each shared function may see from path a and from path b: bool [functions, 2, 8].

    The symbols that both may use are dealt from a shuffled deck, so that together they cover all symbols as soon
    as there are enough of them (section 6.2). The paths divide the others at random; the one more of an odd number
    goes to them in turn. (In the public code it is always path a that has more, and the symbols of lower number.)
    """
    state = stream(seed, 0)
    sets = np.zeros((functions, 2, SYMBOLS), np.bool_)
    deck = np.arange(SYMBOLS)
    left = 0  # cards that were not dealt lie at the front
    for f in range(functions):
        for _ in range(overlap):
            if left == 0:
                for symbol in range(SYMBOLS):  # all that this function does not have yet
                    if not sets[f, 0, symbol]:
                        deck[left] = symbol
                        left += 1
            card = below(state, left)
            sets[f, :, deck[card]] = True
            left -= 1
            deck[card], deck[left] = deck[left], deck[card]
        others = np.flatnonzero(~sets[f, 0])
        for i in range(len(others) - 1, 0, -1):
            j = below(state, i + 1)
            others[i], others[j] = others[j], others[i]
        for i in range(len(others)):
            sets[f, (i + f) % 2, others[i]] = True
    return sets


@lru_cache(maxsize=64)
def _symbol_sets(functions: int, overlap: int, table_seed: int) -> np.ndarray:
    return _deal(mixed_seed("ctlpp/symbols", 100 * functions + overlap, table_seed), functions, overlap)
