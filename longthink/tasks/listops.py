"""ListOps (Csordás, section 5.2.3): nested minima, maxima, medians and sums modulo 10 of digits.

input   [MED 4 8 5 [MAX 8 4 9]]        answer   6   (the median is rounded down)
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numba import njit

from longthink.errors import UserError
from longthink.tasks.base import Batch, Split, mixed_seed, tasks
from longthink.tasks.reading import read_lines
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

NESTING = 0.3  # the chance that an argument is an operation
MOST_ARGUMENTS = 5
FEWEST_ARGUMENTS = 2  # as in the original files

_EXAMPLE = "as in [SM [MAX 2 9] 3 [MED 1 4 8]]"
_DIGIT, _MIN, _MAX, _MED, _SM, _CLOSE = 1, 11, 12, 13, 14, 15  # tokens
_SHALLOWEST_LIMIT = 5  # branches that don't count may be this deep in the published training set,
_DEEPEST_BRANCH = 7  # and beside the path so deep in the deepest published test set
_PATIENCE = 32

# Operations that are not closed yet: the path's, then those of a branch, one row of numbers each. An argument's value
# and depth are one number, so that of equal values the shallowest is the smallest.
_OPERATOR, _WANTED, _GIVEN, _ARGUMENTS = 0, 1, 2, 3
_DEPTH_BITS = 32
_DEPTH = (1 << _DEPTH_BITS) - 1

# The files that came with the original have more operators than the paper.
_OTHER_OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[FIRST": lambda values: values[0],
    "[LAST": lambda values: values[-1],
    "[PM": lambda values: math.prod(values) % 10,
    "[FLSUM": lambda values: sum(values[:2]) % 10,
}


@tasks.add("listops")
@dataclass(frozen=True)
class ListOps(TokenTask):
    """Difficulty is the dependency depth (D.3.2): that of the tree without the branches that no operation selects.

    MIN and MAX select one argument, MED one or two, SM all. Of equal arguments the shallowest ones count as selected,
    for whoever knows these need not know the others (the public code takes the first ones).

    A problem grows from a digit upwards: each level puts it among the arguments of a new operation, whose operator,
    number of arguments (2 to 5), place and other arguments (operations with probability 0.3) are drawn again and again
    until the dependency depth is one more. Branches beside the path go down to depth 5 of the whole tree, or to the
    wanted one if that is larger, so in problems of depth 1 to 5 brackets don't tell the depth. What is longer
    than ``longest`` is thrown away, and after every 32 failures in a row, operations and more than two arguments
    become a tenth less likely: this happens from depth 6 on with the published 50 tokens. (Published: whole problems
    are thrown away until the depths are equally frequent, which takes dozens of times longer at depth 8. It gives
    problems a little different from ours: of depth 8, 43.1 tokens and brackets 8.3 deep on average, for branches that
    don't count may be deeper than the path; ours have 40.8 tokens, and from depth 5 on no branch is deeper than it.)

    The ten problems of depth 0 are all in the train split.
    """

    name: ClassVar[str] = "listops"
    unit: ClassVar[str] = "nested operations that count"
    # An operator and its bracket are one token, as in the original files.
    tokens: ClassVar[tuple[str, ...]] = (PAD, *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
    answers: ClassVar[tuple[str, ...]] = tuple("0123456789")
    tokens_a_level: ClassVar[int] = 3
    shallowest: ClassVar[int] = 1

    longest: int | None = 50
    """In tokens; None for no limit. (The public code counts three for the two tokens of an operation.)"""

    def __post_init__(self) -> None:
        check_longest(self.longest)

    def sample(self, n: int, difficulty: int, seed: int, split: Split = "test") -> Batch:
        check_depth(self.name, n, difficulty, 0, seed, split)
        check_room(difficulty, self.tokens_a_level, self.longest)
        if difficulty == 0 and split != "train":
            raise UserError(
                f"The ten problems of depth 0 are all for training; choose depth 1 or more for the {split} split."
            )
        stream_seed = mixed_seed(f"{self.name}/{self.longest}", difficulty, seed)
        flat, ends, answers = _fill(stream_seed, SPLIT_CODES[split], n, difficulty, self.longest or 0)
        return Batch(
            inputs=torch.from_numpy(padded(flat, ends)), targets=torch.from_numpy(answers), difficulty=difficulty
        )

    def words(self, text: str) -> list[str]:
        found = re.findall(r"\[[A-Za-z]*|\]|[^\s\[\]]+", re.sub(r"\[\s+", "[", text))
        # What is no token stays as it was typed, for the complaint about it.
        return [word.upper() if word.upper() in self.tokens else word for word in found]

    def text(self, batch: Batch, index: int = 0) -> str:
        return " ".join(self.decoded(batch, index)).replace(" ]", "]")

    def evaluate(self, words: Sequence[str]) -> tuple[int, int]:
        return _evaluate(words)

    def read(self, path: str | Path, limit: int | None = None) -> tuple[Batch, dict[str, int]]:
        """Of an original file the first problems that fit, and how many before the last of them do not, by reason."""
        return _read(path, limit, self.longest)


def load_listops(path: str | Path, limit: int | None = None, longest: int | None = None) -> Batch:
    """The problems of one of the original files: label, tab, expression; plain or .zst. The first ``limit`` of those
    that have at most ``longest`` tokens.

    Every label is compared with the value found here. Problems with FIRST, LAST, PM (product) or FLSUM (sum of the
    first two), which our task lacks, are checked and left out. The brackets ( and ) say nothing and are dropped.
    """
    return _read(path, limit, longest)[0]


def _read(path: str | Path, limit: int | None, longest: int | None) -> tuple[Batch, dict[str, int]]:
    name, task, known = Path(path).name, ListOps(), set(ListOps.tokens)
    if ".tar" in Path(path).suffixes:
        raise UserError(f"{name} is an archive; take the files out and name one of them.")
    problems: list[list[str]] = []
    answers, depths = list[int](), set[int]()
    left_out = {"other_operators": 0, "too_long": 0}
    for number, line in enumerate(read_lines(path), 1):
        if limit is not None and len(problems) == limit:
            break
        label, tab, expression = line.partition("\t")
        if not tab or label not in ListOps.answers:
            do = "leave the header out" if number == 1 and tab else "get the file again"
            raise UserError(f"Line {number} of {name} is not a digit, a tab and an expression; {do}.")
        words = task.words(re.sub("[()]", " ", expression))
        try:
            value, depth = _evaluate(words, _OTHER_OPERATORS)
        except UserError as error:
            raise UserError(f"Line {number} of {name}: {error}") from error
        if value != int(label):
            raise UserError(f"Line {number} of {name} says {label} and the value is {value}; get the file again.")
        if not known.issuperset(words):
            left_out["other_operators"] += 1
        elif longest is not None and len(words) > longest:
            left_out["too_long"] += 1
        else:
            problems.append(words)
            answers.append(value)
            depths.add(depth)
    if not problems:
        room = "" if longest is None else f" and at most {longest} tokens"
        raise UserError(f"There are no problems in {name} that have MIN, MAX, MED and SM alone{room}.")
    batch = Batch(
        inputs=task.encoded(problems),
        targets=torch.tensor(answers),
        difficulty=depths.pop() if len(depths) == 1 else 0,
    )
    return batch, left_out


def _evaluate(words: Sequence[str], others: dict[str, Callable[[list[int]], int]] | None = None) -> tuple[int, int]:
    """Value and dependency depth, found from the text with a stack, as depth has no limit."""
    operators = {*ListOps.tokens[_MIN:_CLOSE], *(others or ())}
    if not words:
        raise UserError(f"There is no expression; type one, {_EXAMPLE}.")
    whole: list[tuple[int, int]] = []  # values and depths
    opened: list[tuple[int, str, list[tuple[int, int]]]] = []  # position, operator, arguments
    for position, word in enumerate(words, 1):
        here = f"Token {position}, {word[:20]!r},"
        arguments = opened[-1][2] if opened else whole
        if whole:
            raise UserError(f"{here} comes after the end of the expression; leave it out.")
        if word in ListOps.answers:
            arguments.append((int(word), 0))
        elif word in operators:
            opened.append((position, word, []))
        elif word != "]":
            kind = "an operator; they are [MIN, [MAX, [MED and [SM" if word[0] == "[" else "a digit, operator or ]"
            digits = "; numbers have one digit" if word.isdecimal() else ""
            raise UserError(f"{here} is not {kind}{digits}, {_EXAMPLE}.")
        elif not opened:
            raise UserError(f"{here} closes nothing; begin with an operator, {_EXAMPLE}.")
        elif not arguments:
            raise UserError(f"{here} closes {opened[-1][1]} without arguments; give it one or more, {_EXAMPLE}.")
        else:
            _, operator, arguments = opened.pop()
            (opened[-1][2] if opened else whole).append(_apply(operator, arguments, others or {}))
    if opened:
        raise UserError(f"Token {opened[-1][0]}, {opened[-1][1]!r}, is never closed; add its ], {_EXAMPLE}.")
    return whole[0]


def _apply(
    operator: str, arguments: list[tuple[int, int]], others: dict[str, Callable[[list[int]], int]]
) -> tuple[int, int]:
    values = [value for value, _ in arguments]
    selected = sorted(values)
    if operator in others:
        value = others[operator](values)
    elif operator == "[SM":
        value = sum(values) % 10
    else:
        half = (len(values) - 1) // 2
        middle = slice(half, len(values) - half)
        selected = selected[{"[MIN": slice(1), "[MAX": slice(-1, None), "[MED": middle}[operator]]
        value = sum(selected) // len(selected)
    # Of the arguments with a selected value, as many as were selected, the shallowest first.
    depth = max(sorted(d for v, d in arguments if v == s)[count - 1] for s, count in Counter(selected).items())
    return value, 1 + depth


@njit(cache=True)
def _combine(opened: np.ndarray, level: int) -> tuple[int, int]:
    """Value and dependency depth of an operation that has all its arguments."""
    operator, n = opened[level, _OPERATOR], opened[level, _WANTED]
    stop = _ARGUMENTS + n
    if operator == _SM:
        total = deepest = 0
        for i in range(_ARGUMENTS, stop):
            total += opened[level, i] >> _DEPTH_BITS
            deepest = max(deepest, opened[level, i] & _DEPTH)
        return total % 10, 1 + deepest
    if operator == _MIN:
        chosen = opened[level, _ARGUMENTS]
        for i in range(_ARGUMENTS + 1, stop):
            chosen = min(chosen, opened[level, i])
        return chosen >> _DEPTH_BITS, 1 + (chosen & _DEPTH)
    if operator == _MAX:
        chosen = 0
        for i in range(_ARGUMENTS, stop):
            chosen = max(chosen, opened[level, i] ^ _DEPTH)  # the larger this is, the shallower of equal values
        return chosen >> _DEPTH_BITS, 1 + (_DEPTH - (chosen & _DEPTH))
    for i in range(_ARGUMENTS + 1, stop):
        key, j = opened[level, i], i
        while j > _ARGUMENTS and opened[level, j - 1] > key:
            opened[level, j] = opened[level, j - 1]
            j -= 1
        opened[level, j] = key
    low, high = _ARGUMENTS + (n - 1) // 2, _ARGUMENTS + n // 2
    lower, upper = opened[level, low] >> _DEPTH_BITS, opened[level, high] >> _DEPTH_BITS
    first = low
    while first > _ARGUMENTS and opened[level, first - 1] >> _DEPTH_BITS == lower:
        first -= 1
    if lower == upper:
        return lower, 1 + (opened[level, first + high - low] & _DEPTH)
    # The first with the upper value is where it begins.
    return (lower + upper) // 2, 1 + max(opened[level, first] & _DEPTH, opened[level, high] & _DEPTH)


@njit(cache=True, inline="always")
def _open(state: np.ndarray, scale: float, opened: np.ndarray, level: int) -> None:
    opened[level, _OPERATOR] = _MIN + below(state, 4)
    more = int(below(state, MOST_ARGUMENTS - FEWEST_ARGUMENTS + 1))
    opened[level, _WANTED] = FEWEST_ARGUMENTS + (more if scale == 1.0 or chance(state) < scale else 0)
    opened[level, _GIVEN] = 0


@njit(cache=True, inline="always")
def _give(opened: np.ndarray, level: int, value: int, depth: int) -> None:
    opened[level, _ARGUMENTS + opened[level, _GIVEN]] = value << _DEPTH_BITS | depth
    opened[level, _GIVEN] += 1


@njit(cache=True)
def _branch(state: np.ndarray, limit: int, scale: float, row: np.ndarray, length: int, opened: np.ndarray) -> int:
    """Writes a random operation of at most ``limit`` levels and gives it to the one at level 0; the new length (-1: no
    room)."""
    level = 0
    while length < len(row):
        if level == 0 or (level < limit and chance(state) < NESTING * scale):
            level += 1
            _open(state, scale, opened, level)
            row[length] = opened[level, _OPERATOR]
            length += 1
            continue
        value = int(below(state, 10))
        row[length] = _DIGIT + value
        length += 1
        _give(opened, level, value, 0)
        while opened[level, _GIVEN] == opened[level, _WANTED]:
            if length == len(row):
                return -1
            row[length] = _CLOSE
            length += 1
            value, depth = _combine(opened, level)
            level -= 1
            _give(opened, level, value, depth)
            if level == 0:
                return length
    return -1


@njit(cache=True, inline="always")
def _argument(state: np.ndarray, limit: int, scale: float, row: np.ndarray, length: int, opened: np.ndarray) -> int:
    """Writes an argument and gives it to the operation at level 0; the new length (-1: no room)."""
    if limit > 0 and chance(state) < NESTING * scale:
        return _branch(state, limit, scale, row, length, opened)
    value = int(below(state, 10))
    row[length] = _DIGIT + value
    _give(opened, 0, value, 0)
    return length + 1


@njit(cache=True)
def _grow(
    state: np.ndarray,
    wanted: int,
    scale: float,
    row: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    opened: np.ndarray,
) -> tuple[int, int, int]:
    """Writes one problem into the middle of ``row``: its start and end there (0, 0: no room), and its value."""
    room = len(left)
    value, depth = int(below(state, 10)), 0
    start, end = room, room + 1
    row[start] = _DIGIT + value
    for level in range(1, wanted + 1):
        limit = min(_DEEPEST_BRANCH, max(_SHALLOWEST_LIMIT, wanted) - (wanted - level + 1))
        above = 3 * (wanted - level)  # the least that is still to come
        new_value = before = after = 0
        new_depth = -1
        while new_depth != level:
            _open(state, scale, opened, 0)
            n = opened[0, _WANTED]
            place = below(state, n)
            left[0] = opened[0, _OPERATOR]
            before, after = 1, 0
            for i in range(n):
                if i == place:
                    _give(opened, 0, value, depth)
                elif i < place:
                    before = _argument(state, limit, scale, left, before, opened)
                else:
                    after = _argument(state, limit, scale, right, after, opened)
                if before < 0 or after < 0 or before + end - start + after + 1 + above > room:
                    return 0, 0, 0
            new_value, new_depth = _combine(opened, 0)
        value, depth = new_value, new_depth
        row[start - before : start] = left[:before]
        row[end : end + after] = right[:after]
        row[end + after] = _CLOSE
        start, end = start - before, end + after + 1
    return start, end, value


@njit(cache=True)
def _fill(
    seed: np.uint64, wanted_split: int, n: int, depth: int, longest: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All problems one after the other, where each ends, and their values. ``longest`` 0 is no limit."""
    flat = np.empty(n * (3 * depth + 1), np.uint8)
    ends, answers = np.empty(n, np.int64), np.empty(n, np.int64)
    room = longest if longest > 0 else 50 * depth + 50
    row, left, right = np.empty(2 * room, np.uint8), np.empty(room, np.uint8), np.empty(room, np.uint8)
    opened = np.empty((1 + _DEEPEST_BRANCH, _ARGUMENTS + MOST_ARGUMENTS), np.int64)
    used = 0
    for i in range(n):
        state = stream(seed, i)
        scale, failures = 1.0, 0
        while True:
            before = state[0]
            start, end, answers[i] = _grow(state, depth, scale, row, left, right, opened)
            if end > 0:
                if depth == 0 or split_code(content_hash(row[start:end])) == wanted_split:
                    break
                scale, failures = 1.0, 0  # or the splits would have different distributions
            elif longest == 0:
                state[0] = before  # the same problem again, with more room
                room *= 2
                row, left, right = np.empty(2 * room, np.uint8), np.empty(room, np.uint8), np.empty(room, np.uint8)
            else:
                failures += 1
                if failures % _PATIENCE == 0:
                    scale *= 0.9
        flat = append(flat, used, row[start:end])
        used += end - start
        ends[i] = used
    return flat, ends, answers
