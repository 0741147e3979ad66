"""What people see on a terminal: a network thinking, an answer, a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import Tensor

from longthink.limits import places_of
from longthink.loading import Loaded
from longthink.solving import Solution
from longthink.tasks import Batch, Task
from longthink.think import Moment, confidence

if TYPE_CHECKING:
    from rich.console import RenderableType


_MANY = 200_000


class Watching:
    """Shows a network think: a drawing or a line that changes on a terminal, plain lines now and then elsewhere."""

    def __init__(
        self, task: Task, batch: Batch, budget: int, quiet: bool = False, console: Console | None = None
    ) -> None:
        self.task, self.batch, self.budget = task, batch, budget
        self.console = console or Console(stderr=True)
        self.live: Live | None = None
        self.quiet = quiet
        if not quiet and self.console.is_terminal and not self.console.is_dumb_terminal:
            self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.interval = 0.12 if self.live else 2.0
        self._shown = time.monotonic() if self.live is None else 0.0

    def __enter__(self) -> Watching:
        if self.live:
            self.live.start()
        elif not self.quiet and (places := places_of(self.batch)) > _MANY:  # before a first step that may take a minute
            print(f"{places:,} places, at most {self.budget:,} steps", file=sys.stderr, flush=True)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live:
            self.live.stop()

    def on_step(self, moment: Moment) -> None:
        """Reads the answer only when it is time to show it."""
        if self.quiet or time.monotonic() - self._shown < self.interval:
            return
        logits = moment.logits.cpu()
        sure = float(confidence(logits, self.batch.mask))
        line = f"step {moment.count} of at most {self.budget}   change {float(moment.change):.1e}"
        line += f"   confidence {sure:.1%}"
        if self.live:
            self.live.update(self._drawing(logits, line), refresh=True)
        else:
            print(line, file=sys.stderr, flush=True)
            self.interval = min(30.0, 1.5 * self.interval)  # a long thought must not fill a log
        self._shown = time.monotonic()

    def _drawing(self, logits: Tensor, line: str) -> RenderableType:
        drawing = sketch(self.task, self.batch, logits, self.console)
        fits = drawing is not None and len(drawing.split("\n")) < self.console.height - 2
        return Group(drawing, Text(line, "dim")) if drawing is not None and fits else Text(line)


def sketch(task: Task, batch: Batch, logits: Tensor | None, console: Console) -> Text | None:
    """An answer (without logits: the true one) in coloured characters; None where the terminal cannot show it."""
    draw = {"mazes": _sketch_maze, "prefix_sums": _sketch_bits, "sudoku": _sketch_sudoku}.get(task.name)
    if draw is None or console.color_system is None or console.no_color or not console.encoding.startswith("utf"):
        return None
    if logits is None:
        classes = torch.nn.functional.one_hot(batch.targets, task.shape["classes"]).movedim(-1, 1)
        return draw(batch, classes[0].float(), console.width)
    return draw(batch, logits.float().softmax(1)[0], console.width)


def _sketch_maze(batch: Batch, likely: Tensor, width: int) -> Text | None:
    """Half blocks: a character shows two cells, the upper one in its colour, the lower one in its background."""
    picture = batch.inputs[0, :, 3:-3:2, 3:-3:2]  # a pixel of each cell
    if picture.shape[2] + 2 > width:
        return None
    path = _cell_means(likely[1])
    shades = torch.stack([255 - path * (255 - full) for full in (37, 99, 235)])
    walls, start, goal = (picture == 0).all(0), picture[0] < picture[1], picture[0] > picture[1]
    for where, colour in ((walls, (30, 41, 59)), (start, (22, 163, 74)), (goal, (220, 38, 38))):
        shades[:, where] = torch.tensor(colour, dtype=shades.dtype)[:, None]
    framed = torch.empty(3, shades.shape[1] + 3, shades.shape[2] + 2)
    framed[:] = torch.tensor((30.0, 41.0, 59.0))[:, None, None]
    framed[:, 1:-2, 1:-1] = shades
    rows = framed.round().int().permute(1, 2, 0).tolist()
    text = Text(no_wrap=True)
    for upper, lower in zip(rows[::2], rows[1::2], strict=True):
        for above, below in zip(upper, lower, strict=True):
            text.append("▀", f"rgb({above[0]},{above[1]},{above[2]}) on rgb({below[0]},{below[1]},{below[2]})")
        text.append("\n")
    text.rstrip()
    return text


def _cell_means(pixels: Tensor) -> Tensor:
    inner = pixels[3:-3, 3:-3]
    return inner.unflatten(0, (-1, 2)).unflatten(2, (-1, 2)).mean((1, 3))


def _sketch_bits(batch: Batch, likely: Tensor, width: int) -> Text | None:
    """Pairs of lines: the problem's bits, and below them the answer's: the brighter the surer, red where wrong."""
    bits, truth = (batch.inputs[0, 0] > 0).tolist(), batch.targets[0].tolist()
    ones = likely[1].tolist()
    text = Text(no_wrap=True)
    for start in range(0, len(bits), width):
        text.append("".join("01"[bit] for bit in bits[start : start + width]) + "\n", "bright_black")
        for p, true in zip(ones[start : start + width], truth[start : start + width], strict=True):
            text.append("1" if p > 0.5 else "0", _ink(2 * abs(p - 0.5), (p > 0.5) == true))
        text.append("\n")
    text.rstrip()
    return text


def _sketch_sudoku(batch: Batch, likely: Tensor, width: int) -> Text | None:
    """Givens in bold; a digit appears when it is likelier than all others together, in red where it is wrong."""
    givens, truth = batch.inputs[0].argmax(0).tolist(), batch.targets[0].tolist()
    chance, digits = (part.tolist() for part in likely.max(0))
    text = Text(no_wrap=True)
    for row in range(9):
        if row in (3, 6):
            text.append("──────┼───────┼──────\n", "bright_black")
        for column in range(9):
            if column in (3, 6):
                text.append("│ ", "bright_black")
            given, p = givens[row][column], chance[row][column]
            if given:
                text.append(f"{given} ", "bold")
            else:
                digit = digits[row][column]
                text.append(f"{digit + 1} " if p > 0.5 else "· ", _ink(2 * (p - 0.5), digit == truth[row][column]))
        text.append("\n")
    text.rstrip()
    return text


def _ink(sure: float, right: bool) -> str:
    """From grey to amber, or to red where the answer is wrong, in 16 shades."""
    part = round(15 * min(1.0, max(0.0, sure))) / 15
    full = (251, 191, 36) if right else (239, 68, 68)
    red, green, blue = (round(low + part * (high - low)) for low, high in zip((75, 85, 99), full, strict=True))
    return f"rgb({red},{green},{blue})"


def report(solution: Solution) -> None:
    """The answer, the truth, whether they agree, and what it took."""
    console = Console()
    drawings = []
    if console.is_terminal:
        for label, logits in (("answer", solution.logits), ("truth", None)):
            drawing = sketch(solution.task, solution.batch, logits, console)
            if drawing is not None and (label == "answer" or solution.solved is False):
                drawings.append(Group(Text(label, "bold"), drawing, ""))
    if drawings:
        console.print(Columns(drawings, padding=(0, 4)) if len(drawings) > 1 else drawings[0])
    else:
        if "\n" not in solution.problem:  # a maze is part of its answer
            print(f"problem  {solution.problem}")
        short = len(solution.answer) <= 3
        truth = "the same" if solution.truth == solution.answer and not short else solution.truth or "not known"
        for label, text in (("answer", solution.answer), ("truth", truth)):
            print(f"{label}\n{text}" if "\n" in text else f"{label:<9}{text}")
    verdict = {True: "yes", False: "no", None: "not known: it came without an answer"}[solution.solved]
    colour = {True: "bold green", False: "bold red", None: "bold"}[solution.solved]
    console.print(Text.assemble("solved   ", (verdict, colour)))
    rest = "the state is at rest" if solution.at_rest else "not at rest: other --steps may give another answer"
    if solution.answers_while_reading:
        rest = "it answers while it reads"
    print(f"steps    {solution.steps} ({rest})")
    print(f"seconds  {solution.seconds:.1f}")


def tell_training(loaded: Loaded, settings: Sequence[str]) -> None:
    """What its training was otherwise than these settings."""
    other = loaded.unlike_training(settings)
    if other:
        print(f"trained  with {', '.join(other)}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # files and pipes have no width that lines must be folded at
    table = Table(
        title=title, box=SIMPLE_HEAD, show_edge=False, title_justify="left", title_style="bold", header_style="bold"
    )
    wide = sum(2 + max(map(len, values)) for values in zip(columns, *rows, strict=True)) > console.width
    if wide and console.is_terminal and len(columns) > 2:  # a column of three letters is not read
        _print_records(console, columns, rows, title)
        return
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        numeric = all(value[:1].isdigit() or value in ("", "-") for value in values)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_records(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None
) -> None:
    """A table that is too wide for the terminal: the name of each row, and what there is to say about it below."""
    if title:
        console.print(Text(title, "bold"))
    for name, *values in rows:
        about = [f"{column}: {value}" for column, value in zip(columns[1:], values, strict=True) if value]
        console.print(Text(name, "bold"), soft_wrap=True)  # names are copied, so they stay whole
        console.print(Padding(Text("; ".join(about)), (0, 0, 0, 2)))
