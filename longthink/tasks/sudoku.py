"""Sudoku (Schwarzschild, section 6.1): fill the blanks so that every row, column and box holds each digit once.

input   5 3 . | . 7 . | . . .        answer   5 3 4 | 6 7 8 | 9 1 2
        6 . . | 1 9 5 | . . .                 6 7 2 | 1 9 5 | 3 4 8   ...
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numba import njit
from torch import Tensor

from longthink.errors import UserError
from longthink.tasks.base import Batch, Split, check_request, correct_everywhere, mixed_seed, tasks
from longthink.tasks.reading import read_lines
from longthink.tasks.rng import SPLIT_CODES, absorb, below, split_code, stream

# Blanking cells until no more can go leaves 24.4 givens on average: one attempt in 30 reaches 22, in 400 21.
FEWEST_GENERATED = 22
MOST_GIVENS = 80

_CELLS = np.arange(81).reshape(9, 9)
_BOXES = _CELLS.reshape(3, 3, 3, 3).transpose(0, 2, 1, 3).reshape(9, 9)
_UNITS = np.concatenate([_CELLS, _CELLS.T, _BOXES])  # [27, 9]: nine rows, nine columns, nine boxes
_UNITS_OF = np.array([np.flatnonzero(np.isin(_UNITS, cell).any(1)) for cell in range(81)])  # [81, 3]
_BITS = np.array([mask.bit_count() for mask in range(512)])
_ALL = 511
# Digits tried, about a second; the hardest of 44151 puzzles with 17 given cells takes fewer than 32000.
_PATIENCE = 4_000_000
_NO_END = np.iinfo(np.int64).max


@tasks.add("sudoku")
@dataclass(frozen=True)
class Sudoku:
    """Difficulty is the number of given cells: fewer is harder.

    Channel 0 of the input marks blank cells, channels 1 to 9 the given digits; class d is the digit d + 1.
    All 81 cells count, the given ones too. Puzzles that differ only by a renaming of digits are in one split.
    """

    name: ClassVar[str] = "sudoku"
    unit: ClassVar[str] = "given cells"
    larger_is_easier: ClassVar[bool] = True
    shape: ClassVar[dict[str, int]] = {"dims": 2, "inputs": 10, "classes": 9}

    def sample(self, n: int, difficulty: int, seed: int, split: Split = "test") -> Batch:
        check_request(n, difficulty, seed, split)
        if not FEWEST_GENERATED <= difficulty <= MOST_GIVENS:
            raise UserError(
                f"Sudokus are made with {FEWEST_GENERATED} to {MOST_GIVENS} given cells, not {difficulty}"
                + ("; type one with fewer, or read a file with load_puzzles in Python." if difficulty < 40 else ".")
            )
        puzzles = np.empty((n, 81), np.uint8)
        solutions = np.empty((n, 81), np.uint8)
        _fill(mixed_seed(self.name, difficulty, seed), SPLIT_CODES[split], difficulty, puzzles, solutions)
        return _batch(puzzles, solutions)

    def check(self, batch: Batch) -> Tensor:
        givens = batch.inputs.argmax(1).flatten(1)
        answers = batch.targets.flatten(1) + 1
        one_hot = (batch.inputs.sum(1) == 1).flatten(1).all(1) & (batch.inputs.amax(1) == 1).flatten(1).all(1)
        agree = ((givens == answers) | (givens == 0)).all(1)
        units = answers[:, torch.from_numpy(_UNITS).to(answers.device)]  # [n, 27, 9]
        permutations = (units.sort(2).values == torch.arange(1, 10, device=units.device)).flatten(1).all(1)
        right = one_hot & agree & permutations
        unique = [bool(ok) and _exact_covers(row) == 1 for ok, row in zip(right, givens.tolist(), strict=True)]
        return torch.tensor(unique, dtype=torch.bool, device=batch.targets.device)

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        return logits.argmax(1)

    def score(self, logits: Tensor, batch: Batch) -> Tensor:
        return correct_everywhere(logits.argmax(1), batch)

    def parse(self, text: str) -> Batch:
        puzzle = _read_cells(text)[None]
        solutions, counts = _solve(puzzle)
        if counts[0] != 1:
            raise UserError(_complaint(puzzle[0], counts[0]))
        return _batch(puzzle, solutions)

    def text(self, batch: Batch, index: int = 0) -> str:
        return "".join(map(str, batch.inputs[index].argmax(0).flatten().tolist())).replace("0", ".")

    def show(self, classes: Tensor, batch: Batch, index: int = 0) -> str:
        rows = ["".join(map(str, row)) for row in (classes + 1).tolist()]
        return "\n".join(f"{row[:3]} {row[3:6]} {row[6:]}" for row in rows)

    def draw(self, batch: Batch, index: int = 0, logits: Tensor | None = None) -> np.ndarray:
        """Givens are dark on grey, the other cells blue, or red where the answer in the logits is wrong."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle

        givens = batch.inputs[index].argmax(0).cpu() > 0
        truth = batch.targets[index].cpu()
        answer = truth if logits is None else logits[index].argmax(0).cpu()
        figure = Figure(figsize=(6, 6), dpi=100)
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_axes((0.02, 0.02, 0.96, 0.96), xlim=(-0.03, 9.03), ylim=(9.03, -0.03))
        axes.axis("off")
        for row, column in np.ndindex(9, 9):
            given, wrong = bool(givens[row, column]), bool(answer[row, column] != truth[row, column])
            paper = ("white", "#fee2e2", "#e9edf2", "#fca5a5")[2 * given + wrong]
            ink = "#b91c1c" if wrong else "#0f172a" if given else "#2563eb"
            axes.add_patch(Rectangle((column, row), 1, 1, color=paper, lw=0))
            digit = str(int(answer[row, column]) + 1)
            axes.text(column + 0.5, row + 0.52, digit, ha="center", va="center_baseline", size=25, color=ink)
        for line in range(10):
            width = 2.8 if line % 3 == 0 else 0.7
            axes.vlines(line, 0, 9, color="#0f172a", lw=width, capstyle="projecting")
            axes.hlines(line, 0, 9, color="#0f172a", lw=width, capstyle="projecting")
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def load_puzzles(path: str | Path, limit: int | None = None) -> Batch:
    """The puzzles of a file (the first ``limit``): a CSV with a header, or one puzzle a line; plain or .zst.

    A CSV has a column named puzzle, quizzes or question and may have one named solution, solutions or answer.
    Every puzzle must have one solution, which is found here and compared with the one in the file.
    The batch's difficulty is 0 where the puzzles differ in their number of given cells.
    """
    name = Path(path).name
    rows = list(islice(_puzzle_rows(path), limit))
    if not rows:
        raise UserError(f"There are no puzzles in {name}; it needs one puzzle of 81 characters a line.")
    puzzles = np.stack([puzzle for _, puzzle, _ in rows])
    solutions, counts = _solve(puzzles)
    for i, (line, puzzle, answer) in enumerate(rows):
        if counts[i] != 1:
            raise UserError(f"Line {line} of {name}: {_complaint(puzzle, counts[i])}")
        if answer is not None and (answer != solutions[i]).any():
            raise UserError(f"Line {line} of {name}: the solution in the file is not that of the puzzle.")
    return _batch(puzzles, solutions)


def _puzzle_rows(path: str | Path) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
    """(line number, puzzle, solution or None) of each puzzle in a file."""
    name, table = Path(path).name, csv.reader(read_lines(path))
    width, puzzle_column, solution_column = 0, 0, -1  # until a header says otherwise
    try:
        for fields in table:
            line = table.line_num
            if not fields or fields[0].startswith("#"):
                continue
            if line == 1 and re.search("[A-Za-z]", fields[0]):
                header = [field.strip().lower() for field in fields]
                width = len(header)
                puzzle_column = _find(header, ("puzzle", "quizzes", "question"))
                solution_column = _find(header, ("solution", "solutions", "answer"))
                if puzzle_column < 0:
                    raise UserError(
                        f"Line 1 of {name} is neither a puzzle nor a header that names "
                        "a column puzzle, quizzes or question."
                    )
                continue
            if width and len(fields) != width:
                raise UserError(
                    f"Line {line} of {name} has {len(fields)} columns instead of {width}; "
                    "the file may be cut short: get it again."
                )
            try:
                puzzle = _read_cells(fields[puzzle_column])
                answer = _read_cells(fields[solution_column]) if solution_column >= 0 else None
            except UserError as error:
                raise UserError(f"Line {line} of {name}: {error}") from error
            yield line, puzzle, answer
    except csv.Error as error:
        raise UserError(f"Line {table.line_num} of {name} is not CSV ({error}); get the file again.") from error


def _find(header: list[str], names: tuple[str, ...]) -> int:
    return next((header.index(name) for name in names if name in header), -1)


def _read_cells(text: str) -> np.ndarray:
    """81 digits, 0 for blank, from what a person or a file wrote."""
    cells = text
    if not re.fullmatch("[0-9.]{81}", text):
        for position, character in enumerate(text):
            if character not in "0123456789.|-+" and not character.isspace():
                raise UserError(
                    f"Character {position + 1} is {character!r}; type digits, and '.' or 0 for a blank cell."
                )
        cells = re.sub(r"[\s|+-]", "", text)
        if len(cells) != 81:
            raise UserError(f"A sudoku has 81 cells, not {len(cells)}; type digits, and '.' or 0 for a blank cell.")
    return np.frombuffer(cells.replace(".", "0").encode(), np.uint8) - ord("0")


def _complaint(puzzle: np.ndarray, solutions: int) -> str:
    """Why a puzzle without exactly one solution is none."""
    for unit, cells in enumerate(_UNITS):
        digits = puzzle[cells].tolist()
        for digit in range(1, 10):
            if digits.count(digit) > 1:
                kind = ("row", "column", "box")[unit // 9]
                return f"The digit {digit} is given twice in {kind} {unit % 9 + 1}; change one of them."
    if solutions < 0:
        return "This sudoku takes too long to check; check the given digits, or give more."
    if solutions == 0:
        return "This sudoku has no solution; check the given digits."
    return f"This sudoku has several solutions with its {np.count_nonzero(puzzle)} given cells; give more."


def _batch(puzzles: np.ndarray, solutions: np.ndarray) -> Batch:
    inputs = torch.nn.functional.one_hot(torch.from_numpy(puzzles.astype(np.int64)), 10)  # [n, 81, 10]
    givens = set(np.count_nonzero(puzzles, axis=1).tolist())
    return Batch(
        inputs=inputs.movedim(2, 1).reshape(-1, 10, 9, 9).float(),
        targets=torch.from_numpy(solutions.astype(np.int64) - 1).reshape(-1, 9, 9),
        difficulty=givens.pop() if len(givens) == 1 else 0,
    )


def _exact_covers(givens: list[int]) -> int:
    """The number of solutions, up to 2, by Knuth's Algorithm X on sets: shares nothing with the search below.

    The 324 constraints: each cell has a digit; each row, column and box has each digit.
    """

    def constraints(cell: int, digit: int) -> tuple[int, int, int, int]:
        row, column = divmod(cell, 9)
        box = row // 3 * 3 + column // 3
        return cell, 81 + row * 9 + digit, 162 + column * 9 + digit, 243 + box * 9 + digit

    met: set[int] = set()
    for cell, digit in enumerate(givens):
        if digit:
            met.update(constraints(cell, digit - 1))
    choices = {(cell, digit): constraints(cell, digit) for cell in range(81) for digit in range(9)}
    choices = {choice: needs for choice, needs in choices.items() if met.isdisjoint(needs)}
    open_: dict[int, set[tuple[int, int]]] = {need: set() for need in range(324) if need not in met}
    for choice, needs in choices.items():
        for need in needs:
            open_[need].add(choice)

    def count(limit: int) -> int:
        if not open_:
            return 1
        total = 0
        tightest = min(open_, key=lambda need: len(open_[need]))
        for choice in list(open_[tightest]):
            removed = []
            for need in choices[choice]:
                for rival in open_[need]:
                    for other in choices[rival]:
                        if other != need and other in open_:
                            open_[other].discard(rival)
                removed.append((need, open_.pop(need)))
            total += count(limit - total)
            for need, rivals in reversed(removed):
                open_[need] = rivals
                for rival in rivals:
                    for other in choices[rival]:
                        if other != need and other in open_:
                            open_[other].add(rival)
            if total >= limit:
                break
        return total

    return count(2)


def _solve(puzzles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A solution of each puzzle [n, 81] and how many it has, up to 2; -1 where that takes too long to say [n]."""
    solutions, counts = np.zeros_like(puzzles), np.zeros(len(puzzles), np.int64)
    _solve_all(puzzles, solutions, counts)
    return solutions, counts


@njit(cache=True, nogil=True)  # a server goes on meanwhile
def _solve_all(puzzles: np.ndarray, solutions: np.ndarray, counts: np.ndarray) -> None:
    not_random = np.empty(0, np.uint64)
    for i in range(len(puzzles)):
        counts[i] = _search(puzzles[i], -1, 1, 2, not_random, solutions[i], _PATIENCE)


@njit(cache=True, nogil=True)  # a server goes on meanwhile
def _fill(seed: np.uint64, wanted_split: int, givens: int, puzzles: np.ndarray, solutions: np.ndarray) -> None:
    order = np.arange(81)
    for i in range(len(puzzles)):
        state = stream(seed, i)
        while True:
            _random_grid(state, solutions[i])
            if split_code(_digest(solutions[i])) == wanted_split:
                _shuffle(state, order)
                if _dig(solutions[i], order, givens, puzzles[i]):
                    break


@njit(cache=True)
def _dig(solution: np.ndarray, order: np.ndarray, givens: int, puzzle: np.ndarray) -> bool:
    """Blank cells in this order while the solution stays unique; False when too many givens are left."""
    puzzle[:] = solution
    left = 81
    other = np.empty(81, np.uint8)
    not_random = np.empty(0, np.uint64)
    for cell in order:
        if left == givens:
            return True
        digit = int(puzzle[cell])
        puzzle[cell] = 0
        # The rest has a second solution only if it has one with another digit here.
        if _search(puzzle, cell, digit, 1, not_random, other, _NO_END) == 0:
            left -= 1
        else:
            puzzle[cell] = digit
    return left == givens


@njit(cache=True)
def _random_grid(state: np.ndarray, grid: np.ndarray) -> None:
    """A full grid: three boxes that don't see each other at random, then a search with random digits.

    Every grid can come out, though not all with the same probability.
    """
    start = np.zeros(81, np.uint8)
    digits = np.arange(1, 10)
    for box in (0, 4, 8):
        _shuffle(state, digits)
        for j in range(9):
            start[_UNITS[18 + box, j]] = digits[j]
    _search(start, -1, 1, 1, state, grid, _NO_END)


@njit(cache=True)
def _shuffle(state: np.ndarray, values: np.ndarray) -> None:
    for i in range(len(values) - 1, 0, -1):
        j = below(state, i + 1)
        values[i], values[j] = values[j], values[i]


@njit(cache=True)
def _digest(grid: np.ndarray) -> np.uint64:
    """A content hash after the digits are renamed so that the first row is 1 to 9."""
    names = np.zeros(10, np.int64)
    for j in range(9):
        names[grid[j]] = j
    digest = np.uint64(81)
    for cell in range(9, 81):
        digest = absorb(digest, names[grid[cell]])
    return digest


@njit(cache=True)
def _search(
    puzzle: np.ndarray,
    banned_cell: int,
    banned_digit: int,
    limit: int,
    state: np.ndarray,
    solution: np.ndarray,
    patience: int,
) -> int:
    """Count the solutions, up to ``limit``, without this digit in this cell; the last found is written down.

    Depth first, at the cell with the fewest candidates or at a digit that fits one cell of a unit only.
    Digits are tried in random order where a random state is given, else (it is empty) from the lowest; after
    ``patience`` of them the search is given up: -1.
    """
    grid = puzzle.copy()
    used = np.zeros(27, np.int64)  # digits in each unit, as bits
    for cell in range(81):
        if grid[cell]:
            bit = 1 << (np.int64(grid[cell]) - 1)
            for unit in _UNITS_OF[cell]:
                if used[unit] & bit:
                    return 0
                used[unit] |= bit
    candidates = np.empty(81, np.int64)
    cells = np.empty(82, np.int64)
    left = np.empty(82, np.int64)  # digits still to try at each depth
    found = depth = 0
    cells[0], left[0] = _choose(grid, used, candidates, banned_cell, banned_digit)
    while depth >= 0:
        cell = cells[depth]
        if cell < 0:
            found += 1
            solution[:] = grid
            if found == limit:
                return found
            depth -= 1
            continue
        if grid[cell]:
            bit = 1 << (np.int64(grid[cell]) - 1)
            grid[cell] = 0
            for unit in _UNITS_OF[cell]:
                used[unit] ^= bit
        tries = left[depth]
        if tries == 0:
            depth -= 1
            continue
        if len(state):
            for _ in range(below(state, _BITS[tries])):
                tries &= tries - 1
        patience -= 1
        if patience < 0:
            return -1
        bit = tries & -tries
        left[depth] ^= bit
        grid[cell] = _BITS[bit - 1] + 1
        for unit in _UNITS_OF[cell]:
            used[unit] |= bit
        depth += 1
        cells[depth], left[depth] = _choose(grid, used, candidates, banned_cell, banned_digit)
    return found


@njit(cache=True)
def _choose(
    grid: np.ndarray, used: np.ndarray, candidates: np.ndarray, banned_cell: int, banned_digit: int
) -> tuple[int, int]:
    """The cell to fill next (-1: the grid is full) and the digits to try, as bits (none: a dead end)."""
    fewest, best = 10, -1
    for cell in range(81):
        if grid[cell]:
            candidates[cell] = 0
            continue
        units = _UNITS_OF[cell]
        fit = _ALL & ~(used[units[0]] | used[units[1]] | used[units[2]])
        if cell == banned_cell:
            fit &= ~(1 << (banned_digit - 1))
        candidates[cell] = fit
        if _BITS[fit] < fewest:
            fewest, best = _BITS[fit], cell
            if fewest <= 1:
                return best, fit
    if best < 0:
        return -1, 0
    for unit in range(27):
        once = twice = 0
        for cell in _UNITS[unit]:
            twice |= once & candidates[cell]
            once |= candidates[cell]
        if once | used[unit] != _ALL:
            return best, 0
        single = once & ~twice
        if single:
            bit = single & -single
            for cell in _UNITS[unit]:
                if candidates[cell] & bit:
                    return cell, bit
    return best, candidates[best]
