"""Problems and answers as figures, and the files that figures are written to."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.solving import Solution
from longthink.tasks import Batch, Task
from longthink.think import Moment
from longthink.training.files import replace_file


class Album:
    """Keeps the answers of evenly spaced steps of a thought whose length nobody knows beforehand."""

    def __init__(self, room: int = 64) -> None:
        self.room, self.every = room, 1
        self.pages: list[tuple[int, Tensor]] = []

    def __call__(self, moment: Moment) -> None:
        if moment.count % self.every:
            return
        self.pages.append((moment.count, moment.logits.cpu()))
        if len(self.pages) > self.room:
            self.every *= 2
            self.pages = [page for page in self.pages if page[0] % self.every == 0]

    def pick(self, n: int, until: int) -> list[tuple[int, Tensor]]:
        """``n`` pages from an early one to that of step ``until``, at rising distances: most happens early."""
        wanted = [until * ((i + 1) / n) ** 1.5 for i in range(n)]
        steps = np.array([step for step, _ in self.pages])
        found = sorted({int(np.abs(steps - step).argmin()) for step in wanted})
        return [self.pages[i] for i in found]

    def first_right(self, problem: Task, batch: Batch) -> int:
        """The first page from which on every answer is right; the last one where there is none."""
        first = self.pages[-1][0]
        for step, logits in reversed(self.pages):
            if not bool(problem.score(logits, batch)):
                break
            first = step
        return first


def answer_picture(solution: Solution) -> Any:
    """The problem beside the answer."""
    batch, problem = solution.batch, solution.task
    blank = replace(batch, targets=torch.zeros_like(batch.targets))
    verdict = {True: "solved", False: "not solved", None: "answer"}[solution.solved]
    # Pictures of the other tasks tell the problem from its answer, and have no blanks: show the truth instead.
    blanks = problem.name in ("prefix_sums", "mazes", "chess")
    left = ("problem", problem.draw(blank)) if blanks else ("truth", problem.draw(batch))
    rest = ", at rest" if solution.at_rest else ""  # which it comes to after it has the answer
    when = "" if solution.answers_while_reading else f"{rest} after {solution.steps} steps"
    right = (f"{verdict}{when}", problem.draw(batch, logits=solution.logits))
    drawn = [right] if not blanks and solution.solved is None else [left, right]
    return panels(drawn, columns=2, key=_KEYS.get(problem.name, ""))


def thinking_picture(solution: Solution, album: Album, n: int = 6) -> Any:
    """The answer at a few steps, up to the one that first has it right; of a string, every bit at every step."""
    if solution.batch.targets.dim() == 2:
        return _wave(solution, album)
    right = album.first_right(solution.task, solution.batch)
    drawn = []
    for step, logits in album.pick(n, right):
        title = f"step {step}: solved" if step == right and solution.solved else f"step {step}"
        drawn.append((title, solution.task.draw(solution.batch, logits=logits)))
    return panels(drawn, columns=3, key=_KEYS.get(solution.task.name, ""))


def _wave(solution: Solution, album: Album) -> Any:
    """How likely the network holds the right class to be: right answers spread through the string."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    target = solution.batch.targets[:, None]
    likely = torch.cat([logits.softmax(1).gather(1, target)[:, 0] for _, logits in album.pages])
    figure = Figure(figsize=(8, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    extent = (0.5, likely.shape[1] + 0.5, album.pages[-1][0], 0)
    image = axes.imshow(
        likely.numpy(), cmap="RdBu", vmin=0, vmax=1, aspect="auto", extent=extent, interpolation="nearest"
    )
    axes.set(xlabel="place in the string", ylabel="steps of thinking")
    figure.colorbar(image, label="probability of the right answer", shrink=0.9, ticks=(0, 0.5, 1))
    return figure


_KEYS = {
    "mazes": "from green to red; blue: the way that the answer takes",
    "prefix_sums": "upper row: the bits, dark is 1; lower row: the answer, orange is 1",
    "sudoku": "grey: given",
}


def panels(pictures: Sequence[tuple[str, np.ndarray]], columns: int, key: str = "") -> Any:
    """Titled pictures in a grid, as a matplotlib figure, with a key below; long strips and wide drawings lie below each
    other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height, width = pictures[0][1].shape[:2]
    wide = height >= 90 and width > 2 * height  # a drawing with words in it
    strip = not wide and width > 4 * height
    columns = 1 if strip or wide else min(columns, len(pictures))
    rows = math.ceil(len(pictures) / columns)
    heights = [pixels.shape[0] if wide else 1 for _, pixels in pictures[::columns]]
    if wide:
        widest = max(pixels.shape[1] for _, pixels in pictures)
        size = (widest / 110, sum(heights) / 110 + 0.35 * rows)
    else:
        size = (12.0, 0.75 * rows + 0.1) if strip else (4.2 * columns, 4.2 * rows * height / width + 0.3 * rows)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(rows, columns, height_ratios=heights)
    for i, (title, pixels) in enumerate(pictures):
        axes = figure.add_subplot(grid[i // columns, i % columns])
        axes.imshow(pixels, interpolation="nearest", aspect="auto" if strip else "equal")
        axes.set_anchor("W" if wide else "C")
        axes.set_title(title, size=11, color="#334155", loc="center" if columns > 1 else "left", pad=4)
        axes.axis("off")
    if key:
        figure.set_figheight(figure.get_figheight() + 0.3)
        figure.supxlabel(key, size=9, color="#64748b")
    return figure


def check_place(path: Path, kinds: Sequence[str] = (".png",)) -> None:
    """Complain before the work, not after it."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file in it.")
    if path.suffix.lower() not in kinds:
        picture = path.suffix.lower() in (".png", ".pdf", ".svg") and ".json" in kinds
        hint = "; a picture is asked for with --plot" if picture else ""
        raise UserError(f"The file {path.name!r} must end in {' or '.join(kinds)}{hint}.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _beside(path).touch()
        _beside(path).unlink()
    except OSError as error:
        raise UserError(f"The folder {path.parent} cannot be written ({error.strerror}); choose another.") from None


def save_figure(figure: Any, path: Path) -> None:
    kind = path.suffix[1:].lower()
    replace_file(path, lambda part: figure.savefig(part, format=kind, bbox_inches="tight", pad_inches=0.08))


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")
