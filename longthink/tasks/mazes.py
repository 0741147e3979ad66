"""Mazes (Schwarzschild, section 2.2.2): mark the shortest path between two cells in a picture of a maze.

    S # . . .        S # . . .
    . # . # #        * # . # #        size 5: 3 x 3 rooms with walls or passages between them;
    . # G . .        * # G * *        start and goal belong to the path
    . # # # .        * # # # *
    . . . . .        * * * * *

The published mazes are depth-first trees. The other styles are for networks that never saw them: trees of
another texture (kruskal, wilson), parts out of reach (percolation), open halls (rooms) and loops in any one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from longthink.errors import UserError, unknown
from longthink.tasks.base import Batch, Split, check_request, correct_everywhere, mixed_seed, tasks
from longthink.tasks.maze_carving import STYLES, TREES, lay_out, make_mazes, solve_maze
from longthink.tasks.rng import SPLIT_CODES

# Published: training sets for 9 to 17, test sets for all of these.
PUBLISHED_SIZES: tuple[int, ...] = (*range(9, 38, 2), 59)
LARGEST = 4001
BORDER = 3  # pixels
OPENNESS = 0.55  # so that a fifth to a quarter of the free cells is out of reach

_HOW_TO_TYPE = "type lines of # (wall), . (free), one S (start) and one G (goal)"
_DARK, _WHITE, _BLUE, _GREEN, _RED = np.array(
    [[30, 41, 59], [255, 255, 255], [59, 130, 246], [22, 163, 74], [220, 38, 38]], np.float64
)


@tasks.add("mazes")
@dataclass(frozen=True)
class Mazes:
    """Difficulty is the odd number of cells a side; the picture has 2 pixels a cell and 3 of border."""

    name: ClassVar[str] = "mazes"
    unit: ClassVar[str] = "cells a side"
    shape: ClassVar[dict[str, int]] = {"dims": 2, "inputs": 3, "classes": 2}

    style: str = "depth_first"
    loops: float = 0.0
    """The fraction of the remaining walls between rooms that is removed; then any shortest path is right."""
    openness: float = OPENNESS
    """For percolation: how likely a passage is open. Near 0.5 the largest part falls apart."""

    def __post_init__(self) -> None:
        style, loops = self.style, self.loops
        if style == "loops":  # a short name for the commonest mixture
            style, loops = "depth_first", loops or 0.1
        if style not in STYLES:
            raise unknown("maze style", style, (*STYLES, "loops"))
        if not 0 <= loops <= 1:
            raise UserError(f"The fraction of loops must be from 0 to 1, not {loops}.")
        if not 0.1 <= self.openness <= 1:
            raise UserError(f"The openness must be from 0.1 to 1, not {self.openness}.")
        if style != "percolation" and self.openness != OPENNESS:
            raise UserError(f"Only percolation mazes have an openness; leave it out for {style}.")
        object.__setattr__(self, "style", style)
        object.__setattr__(self, "loops", float(loops))  # 0 and 0.0 must be the same task
        object.__setattr__(self, "openness", float(self.openness))

    def sample(self, n: int, difficulty: int, seed: int, split: Split = "test") -> Batch:
        if difficulty % 2 == 0 or not 3 <= difficulty <= LARGEST:
            raise UserError(f"Choose an odd maze size from 3 to {LARGEST}, such as 9, not {difficulty}.")
        check_request(n, difficulty, seed, split)
        # With the split in the seed, train and test do not show the same walls with other goals.
        options = f"{self.style}/{self.loops}" + (f"/{self.openness}" if self.style == "percolation" else "")
        stream_seed = mixed_seed(f"{self.name}/{options}/{split}", difficulty, seed)
        style = STYLES.index(self.style)
        arrays = _blank(n, difficulty)
        if not make_mazes(stream_seed, SPLIT_CODES[split], style, self.loops, self.openness, *arrays):
            raise UserError(
                f"The {split} split has no {self.style} mazes of size {difficulty} with these options; "
                "choose a larger size."
            )
        return self._batch(difficulty, *arrays)

    def check(self, batch: Batch) -> Tensor:
        """Reads the picture alone; distances come from waves that run from the goal, all mazes at once."""
        inputs, targets = batch.inputs.cpu(), batch.targets.cpu()
        walls = (inputs == 0).all(1)
        right = ((inputs == 0) | (inputs == 1)).flatten(1).all(1)
        right &= (_blown_up(inputs[:, :, BORDER:-BORDER:2, BORDER:-BORDER:2]) == inputs).flatten(1).all(1)
        if batch.mask is not None:
            right &= (batch.mask.cpu() == ~walls).flatten(1).all(1)
        right &= ((targets == 0) | (targets == 1) & ~walls).flatten(1).all(1)
        free, start, goal = (_cells(pixels) == 4 for pixels in (~walls, _start(inputs), _goal(inputs)))
        white = _cells((inputs == 1).all(1)) == 4
        right &= (free == (white | start | goal)).flatten(1).all(1)
        right &= (start.flatten(1).sum(1) == 1) & (goal.flatten(1).sum(1) == 1)
        rows = right.nonzero()[:, 0]
        distance = torch.from_numpy(_wave(free[rows].numpy(), start[rows].numpy(), goal[rows].numpy()))
        right[rows] &= _is_path(targets[rows].bool(), start[rows], goal[rows], distance + 1)
        return right.to(batch.inputs.device)

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """The free pixels that are more likely on the path than not."""
        likely = logits[:, 1] > logits[:, 0]  # argmax over two classes, many times faster on a CPU
        return (likely & ~(batch.inputs == 0).all(1)).long()

    def score(self, logits: Tensor, batch: Batch) -> Tensor:
        right = correct_everywhere(logits[:, 1] > logits[:, 0], batch)
        if "several" not in batch.info:
            return right
        marked = self.predict(logits, batch).bool()
        start, goal = _cells(_start(batch.inputs)) == 4, _cells(_goal(batch.inputs)) == 4
        shortest = batch.targets.flatten(1).sum(1) // 4
        return right | (batch.info["several"] & _is_path(marked, start, goal, shortest))

    def all_shortest(self, batch: Batch) -> Tensor:
        """The pixels of all cells that lie on any of the shortest paths: bool, the shape of the targets."""
        inputs = batch.inputs.cpu()
        free = _cells((inputs != 0).any(1)) == 4
        ends = [_cells(end) == 4 for end in (_start(inputs), _goal(inputs))]
        away, left = (torch.from_numpy(_arrivals(free.numpy(), end.numpy())) for end in ends)
        shortest = (away * ends[1]).flatten(1).sum(1)[:, None, None]
        on = (away >= 0) & (left >= 0) & (away + left == shortest)
        return _blown_up(on[:, None].float())[:, 0].bool().to(batch.targets.device)

    def parse(self, text: str) -> Batch:
        """Lines of # for walls and . or space for free cells, with one S and one G; or a file of them.

        Stars are free too, so that what ``show`` prints can be read again.
        """
        lines = _read(text).splitlines()
        first = 1  # the number of the first line that is left, for the messages
        while lines and not lines[0]:
            del lines[0]
            first += 1
        while lines and not lines[-1]:
            del lines[-1]
        if not lines:
            raise UserError(f"There is no maze; {_HOW_TO_TYPE}.")
        ends: dict[str, tuple[int, int]] = {}
        for y, line in enumerate(lines):
            for x, letter in enumerate(line):
                here = f"Line {y + first}, column {x + 1}"
                if letter not in "#. *+SG":
                    raise UserError(f"{here} is {letter!r}; {_HOW_TO_TYPE}.")
                if letter in "SG":
                    if letter in ends:
                        raise UserError(f"{here} is a second {letter}; a maze has one S and one G.")
                    ends[letter] = y, x
            if len(line) != len(lines[0]):
                raise UserError(
                    f"Line {y + first} has {len(line)} characters and line {first} has {len(lines[0])}; "
                    "make all lines equally long, with . for free cells at their ends."
                )
        for letter, meaning in (("S", "start"), ("G", "goal")):
            if letter not in ends:
                raise UserError(f"The maze has no {meaning}; write {letter} where it is.")
        free = np.array([[letter != "#" for letter in line] for line in lines])
        if free.shape[0] != free.shape[1]:
            raise UserError(
                f"The maze has {free.shape[0]} lines of {free.shape[1]} characters; add # to make it square."
            )
        start, goal = ends["S"], ends["G"]
        if not (free[0].any() or free[-1].any() or free[:, 0].any() or free[:, -1].any()):
            free = free[1:-1, 1:-1]  # the border is not part of the maze
            start, goal = (start[0] - 1, start[1] - 1), (goal[0] - 1, goal[1] - 1)
        if len(free) > LARGEST:
            raise UserError(f"The maze has {len(free)} cells a side; the most is {LARGEST}.")
        arrays = _blank(1, len(free))
        grid, (source, target) = lay_out(free, start, goal)
        if not solve_maze(grid, source, target, *arrays):
            raise UserError("No path leads from S to G in this maze; open a wall between them.")
        return self._batch(len(free), *arrays)

    def text(self, batch: Batch, index: int = 0) -> str:
        return self.show(torch.zeros_like(batch.targets[index]), batch, index)

    def show(self, classes: Tensor, batch: Batch, index: int = 0) -> str:
        """The maze as ``parse`` reads it, with * on the path (+ where only a part of a cell is marked)."""
        picture = batch.inputs[index : index + 1].cpu()
        marks = _cells(classes[None].cpu() == 1)[0]
        cells = np.full(marks.shape, "#")
        free = ~_cells((picture == 0).all(1))[0].bool()
        cells[free] = " "
        cells[free & (marks > 0)] = "+"
        cells[free & (marks == 4)] = "*"
        cells[_cells(_start(picture))[0].bool()] = "S"
        cells[_cells(_goal(picture))[0].bool()] = "G"
        return "\n".join("".join(row) for row in np.pad(cells, 1, constant_values="#"))

    def draw(self, batch: Batch, index: int = 0, logits: Tensor | None = None) -> np.ndarray:
        """The path in blue; with logits, free cells are the bluer the likelier they are on it."""
        picture = batch.inputs[index : index + 1].detach().cpu()
        if logits is None:
            path = batch.targets[index].double()
        else:
            path = logits[index].detach().double().softmax(0)[1]
        shade = path.cpu().numpy()[..., None]
        pixels = _WHITE + shade * (_BLUE - _WHITE)
        pixels[(picture == 0).all(1)[0].numpy()] = _DARK
        pixels[_start(picture)[0].numpy()] = _GREEN
        pixels[_goal(picture)[0].numpy()] = _RED
        pixels = pixels[1:-1, 1:-1]  # a border as wide as a cell
        scale = max(1, round(600 / len(pixels)))
        return pixels.round().astype(np.uint8).repeat(scale, 0).repeat(scale, 1)

    def _batch(
        self, side: int, inputs: np.ndarray, targets: np.ndarray, mask: np.ndarray, several: np.ndarray
    ) -> Batch:
        # Networks are scored after each of thousands of steps: in trees, score need not look for other paths.
        tree = self.style in TREES and self.loops == 0 and not several.any()
        return Batch(
            inputs=torch.from_numpy(inputs),
            targets=torch.from_numpy(targets),
            mask=torch.from_numpy(mask),
            difficulty=side,
            info={} if tree else {"several": torch.from_numpy(several)},
        )


def _blank(n: int, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets, mask and "are there several shortest paths" of pictures that are black all over."""
    pixels = 2 * side + 2 * BORDER
    return (
        np.zeros((n, 3, pixels, pixels), np.float32),
        np.zeros((n, pixels, pixels), np.int64),
        np.zeros((n, pixels, pixels), np.bool_),
        np.zeros(n, np.bool_),
    )


def _read(text: str) -> str:
    """The text itself, or that of the file it names: no maze fits in one line."""
    if "\n" in text.strip("\r\n"):
        return text
    path = Path(text.strip())
    try:
        if not path.is_file():
            raise UserError(f"This is neither a maze nor a file; {_HOW_TO_TYPE}.")
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"The file {path.name[:40]!r} cannot be read; give a text file.") from error


def _start(inputs: Tensor) -> Tensor:
    return (inputs[:, 0] == 0) & (inputs[:, 1] == 1) & (inputs[:, 2] == 0)


def _goal(inputs: Tensor) -> Tensor:
    return (inputs[:, 0] == 1) & (inputs[:, 1] == 0) & (inputs[:, 2] == 0)


def _cells(pixels: Tensor) -> Tensor:
    """How many of the four pixels of each cell are set: [n, side, side]."""
    n, height, width = pixels.shape
    inner = pixels[:, BORDER:-BORDER, BORDER:-BORDER]
    return inner.reshape(n, height // 2 - BORDER, 2, width // 2 - BORDER, 2).sum((2, 4))


def _blown_up(cells: Tensor) -> Tensor:
    """The picture of these cells: [n, channels, height, width]."""
    return pad(cells.repeat_interleave(2, 2).repeat_interleave(2, 3), (BORDER,) * 4)


def _is_path(pixels: Tensor, start: Tensor, goal: Tensor, shortest: Tensor) -> Tensor:
    """Do the marked pixels, all of free cells, form one of the paths of ``shortest`` cells? bool [n].

    Counting neighbours is enough. If start and goal have one marked neighbour and all other marked cells two,
    then the marked cells are one path from start to goal and perhaps rings elsewhere; the path alone has at
    least ``shortest`` cells, so with that number in all, it is a shortest one without rings. And no shortest
    path is refused, for none touches itself.
    """
    counts = _cells(pixels)
    marked = counts == 4
    n = marked.to(torch.int32)
    neighbours = pad(n[:, 1:], (0, 0, 0, 1)) + pad(n[:, :-1], (0, 0, 1, 0))
    neighbours += pad(n[:, :, 1:], (0, 1)) + pad(n[:, :, :-1], (1, 0))
    ends = start | goal
    good = torch.where(marked, neighbours == torch.where(ends, 1, 2), (counts == 0) & ~ends)
    return good.flatten(1).all(1) & (n.flatten(1).sum(1) == shortest)


def _wave(free: np.ndarray, start: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Steps from goal to start in each of many mazes (bool [n, side, side]), -1 for no way: int64 [n]."""
    return _arrivals(free, goal, start)[start]


def _arrivals(free: np.ndarray, source: np.ndarray, enough: np.ndarray | None = None) -> np.ndarray:
    """Steps from the source to each cell of many mazes, -1 for no way: int64 [n, side, side].

    Cells that are farther away than the last of ``enough`` may be left at -1.
    """
    edge = ((0, 0), (1, 1), (1, 1))
    dry = np.pad(free, edge).ravel()
    front = np.flatnonzero(np.pad(source, edge))
    wanted = np.flatnonzero(np.pad(enough, edge)) if enough is not None else front[:0]
    width = free.shape[2] + 2
    arrived = np.full(dry.size, -1, np.int64)
    arrived[front] = 0
    dry[front] = False
    time = 0
    while front.size and (enough is None or (arrived[wanted] < 0).any()):
        time += 1
        parts = []
        for step in (-width, -1, 1, width):
            part = front + step
            part = part[dry[part]]
            dry[part] = False
            parts.append(part)
        front = np.concatenate(parts)
        arrived[front] = time
    return arrived.reshape(-1, width, width)[:, 1:-1, 1:-1]
