"""Solve one problem with trained weights, as data: what ``longthink solve`` and the demo show.

weights, loaded = find_weights("mazes")
batch = pose(loaded, size=33, seed=0)
solution = solve(loaded, batch, weights=weights)
print(solution.solved, solution.steps, solution.answer)
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.loading import Loaded, load, shipped
from longthink.tasks import Batch, Task, task, tasks
from longthink.tasks.base import check_difficulty
from longthink.think import Converged, Moment, confidence, tensors, think
from longthink.training.files import finite, replace_file

AT_REST = 1e-5
"""The shipped networks come to a fixed point: below this relative change nothing moves that matters."""
MOST_STEPS = 10**12
MOST_MINUTES = 10.0
"""That a thought may take whose steps nobody chose; memory and time of a step grow with the square of a row's length,
and its steps with the depth."""
_STEPS_A_LEVEL = 1.5
"""Routers take 1 to 1.25 for each operation or function, and those that do not come to rest lose answers later."""
_WITH_GATES_SHUT = 1.5
"""Shipped routers need up to so much longer then: ListOps of depth 8 are at 85% after 25 steps and at 99% after 37."""
_BUFFERS = 9  # copies of the state at the worst moment of a step: measured
_TABLES, _ORDERS = 14, 10
"""Tables of tokens x tokens at that moment, for each head and for the order of geometric attention: measured."""


class Habits(NamedTuple):
    """What a task gets where nobody says otherwise."""

    size: int
    steps: Callable[[int], int]
    """From the difficulty; about twice what the shipped weights need."""
    outputs: Callable[[int], int]
    """How many places a problem of this difficulty has."""


HABITS: dict[str, Habits] = {
    "prefix_sums": Habits(512, lambda bits: 2 * bits + 50, lambda bits: bits),
    "mazes": Habits(33, lambda side: side * side // 4 + 100, lambda side: (2 * side + 6) ** 2),
    "sudoku": Habits(30, lambda givens: 300, lambda givens: 81),
    "chess": Habits(1, lambda tenth: 300, lambda tenth: 64),
}


_HARDER = {"ctl": 10, "arithmetic": 8, "listops": 8}
"""What the shipped routers can still do: deeper than in training."""


def usual_size(name: str) -> int | None:
    """Of the problems that are posed where nobody says a size; None for those of training."""
    return HABITS[name].size if name in HABITS else _HARDER.get(name)


@dataclass(frozen=True, eq=False)
class Solution:
    """A problem, the answer that thinking came to, and how it went."""

    task: Task
    batch: Batch
    logits: Tensor
    weights: str
    steps: int
    budget: int
    seconds: float
    change: float
    trained_steps: int

    @property
    def at_rest(self) -> bool:
        return self.change < AT_REST

    @property
    def answers_while_reading(self) -> bool:
        """No thinking afterwards changes what such a model has said."""
        return self.trained_steps == 0

    @property
    def confidence(self) -> float:
        return float(confidence(self.logits, self.batch.mask))

    @property
    def problem(self) -> str:
        return self.task.text(self.batch)

    @property
    def answer(self) -> str:
        return self.task.show(self.task.predict(self.logits, self.batch)[0], self.batch)

    @property
    def truth(self) -> str | None:
        """None where nobody knows it, as for a chess position that somebody typed."""
        return self.task.show(self.batch.targets[0], self.batch) if self._truth_known else None

    @property
    def solved(self) -> bool | None:
        return bool(self.task.score(self.logits, self.batch)) if self._truth_known else None

    @property
    def _truth_known(self) -> bool:
        return bool(self.batch.info.get("truth_known", torch.tensor([True]))[0])

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task.name,
            "size": self.batch.difficulty,
            "problem": self.problem,
            "answer": self.answer,
            "truth": self.truth,
            "solved": self.solved,
            "steps": self.steps,
            "budget": self.budget,
            "at_rest": None if self.answers_while_reading else self.at_rest,
            "change": finite(self.change),
            "confidence": finite(self.confidence),
            "seconds": round(self.seconds, 3),
            "weights": self.weights,
        }


def find_weights(name: str, weights: str | None = None, device: str = "cpu") -> tuple[str, Loaded]:
    """The weights that were asked for, or those that are shipped for this task."""
    tasks[name]  # an unknown task is the first thing to complain about
    if weights is None and name not in shipped():
        raise UserError(f"No weights for {name} are shipped yet; train a recipe and pass its folder with --weights.")
    loaded = load(weights or name, usable_device(device))
    if loaded.task.name != name:
        raise UserError(f"The weights {weights} were trained for {loaded.task.name}, not for {name}.")
    return weights or name, loaded


def check_methods(problem: Task, *methods: str) -> None:
    """Tasks that people add need not have all that there is; training and tests do without these."""
    for method in methods:
        if not hasattr(problem, method):
            raise UserError(f"The task {problem.name} has no method {method!r}, which this needs; give it one.")


def pose(
    loaded: Loaded, text: str | None = None, *, size: int | None = None, seed: int = 0, style: str | None = None
) -> Batch:
    """The problem that somebody typed, or a new one of the test split."""
    problem = loaded.task
    if style is not None:
        if problem.name != "mazes":
            raise UserError(f"Only mazes have a style; {problem.name} has none.")
        problem = task("mazes", style=style)
    if text is not None:
        batch = problem.parse(text)
        check_memory(loaded, places_of(batch))
        return batch
    habits = HABITS.get(problem.name)
    if size is None:
        size = habits.size if habits else max(usual_size(problem.name) or 0, *loaded.recipe.difficulty)
    check_difficulty(problem, size, seed)
    if habits is not None:
        check_memory(loaded, habits.outputs(size))
    batch = problem.sample(1, size, seed, "test")
    if habits is None:
        check_memory(loaded, places_of(batch))
    return batch


def places_of(batch: Batch) -> int:
    """Of an image's pixels, or of a row's tokens."""
    return math.prod(batch.inputs.shape[1 if batch.inputs.dim() == 2 else 2 :])


def default_steps(loaded: Loaded, batch: Batch) -> int:
    """A generous budget where the shipped networks come to rest and leave most of it; else the steps of training, and
    some more for each level that the problem is deeper. Models that have read the answer off their input take none."""
    habits = HABITS.get(loaded.task.name)
    deeper = max(0, batch.difficulty - max(loaded.recipe.difficulty)) if loaded.recipe.steps else 0
    steps = habits.steps(batch.difficulty) if habits else loaded.recipe.steps + math.ceil(_STEPS_A_LEVEL * deeper)
    if getattr(loaded.model, "gate_threshold", 0):
        steps = math.ceil(_WITH_GATES_SHUT * steps)
    return min(steps, getattr(loaded.model, "max_steps", None) or steps)


@torch.no_grad()
def solve(
    loaded: Loaded,
    batch: Batch,
    steps: int | None = None,
    *,
    weights: str = "",
    until_rest: bool = True,
    on_step: Sequence[Callable[[Moment], None]] = (),
) -> Solution:
    """Think about one problem until the state rests or the budget is spent; ``on_step`` functions see every moment."""
    budget = default_steps(loaded, batch) if steps is None else steps
    fewest = min(1, loaded.recipe.steps)  # some models have the answer when they have read the problem
    if not fewest <= budget <= MOST_STEPS:
        raise UserError(f"The number of steps must be from {fewest} to {MOST_STEPS}, not {budget}.")
    last = [torch.zeros(1)]
    nothing = torch.empty(0)  # kept for each step of a budget that may be a billion

    def see(moment: Moment) -> Tensor:
        for look in on_step:
            look(moment)
        last[:] = [moment.change]
        return nothing

    there = batch.to(next(loaded.model.parameters()).device)
    began = time.perf_counter()
    halt = Converged(AT_REST if until_rest else -1.0)
    thought = think(loaded.model, there.inputs, budget, halt=halt, watch={"nothing": see})
    return Solution(
        task=loaded.task,
        batch=batch,
        logits=thought.logits.cpu(),
        weights=weights,
        steps=int(thought.steps_used),
        budget=budget,
        seconds=time.perf_counter() - began,
        change=float(last[0]),
        trained_steps=loaded.recipe.steps,
    )


class Patience:
    """Refuses to think for hours, as soon as the first steps tell how long they take; for budgets that nobody chose."""

    def __init__(self, budget: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.budget, self.clock = budget, clock
        self.began = 0.0

    def __call__(self, moment: Moment) -> None:
        now = self.clock()
        if moment.count == 1:  # which is slower where something has to warm up
            self.began = now
            return
        step = (now - self.began) / (moment.count - 1)
        minutes = step * (self.budget - moment.count) / 60
        if minutes > MOST_MINUTES:
            raise UserError(
                f"A step takes {step:.2g} seconds here, so the usual {self.budget:,} may take {minutes:,.0f} minutes; "
                "choose how many with --steps, or a shorter problem."
            )


def patience(loaded: Loaded, budget: int) -> list[Callable[[Moment], None]]:
    """For ``on_step``, where nobody chose the steps; images come to rest long before their budget is spent."""
    return [] if loaded.task.name in HABITS else [Patience(budget)]


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


def usable_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UserError(f"The device {name!r} cannot be used on this machine; try cpu.") from None
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # Triton starts kernels on the current one, which plain "cuda" means as well
    return device


def check_memory(loaded: Loaded, outputs: int, samples: int = 1, kept: int = 0) -> None:
    """Refuse what cannot fit, before the machine starts to swap: so many problems at once, and ``kept`` bytes."""
    shape, side = loaded.task.shape, 8
    device = next(loaded.model.parameters()).device
    if "dims" not in shape:  # rows of tokens or vectors are short, but every token may look at every other
        heads = loaded.recipe.model_options.get("heads", 1) if loaded.recipe.model == "transformer" else 0
        need = 4.0 * outputs**2 * (_TABLES * samples * heads + _ORDERS) if heads else 0.0
    else:
        with torch.no_grad():
            small = torch.zeros(1, shape["inputs"], *(side,) * shape["dims"], device=device)
            state = loaded.model.start(loaded.model.look(small))
        need = samples * outputs * _BUFFERS * sum(t.nbytes for t in tensors(state)) / side ** shape["dims"]
    memory = _memory()
    have = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else memory - kept
    if need > have or kept > memory:
        total, most = (need + kept) / 2**30, max(have, memory) / 2**30
        less = "a smaller size" if samples == 1 else "a smaller size, fewer samples or steps, or a smaller chunk"
        raise UserError(f"This takes some {total:.3g} GiB of memory and there are {most:.3g}; choose {less}.")


def _memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not on Windows
        return 16 * 2.0**30


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
    return panels([right] if not blanks and solution.solved is None else [left, right], columns=2)


def thinking_picture(solution: Solution, album: Album, n: int = 6) -> Any:
    """The answer at a few steps, up to the one that first has it right; of a string, every bit at every step."""
    if solution.batch.targets.dim() == 2:
        return _wave(solution, album)
    right = album.first_right(solution.task, solution.batch)
    drawn = []
    for step, logits in album.pick(n, right):
        title = f"step {step}: solved" if step == right and solution.solved else f"step {step}"
        drawn.append((title, solution.task.draw(solution.batch, logits=logits)))
    return panels(drawn, columns=3)


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


def panels(pictures: Sequence[tuple[str, np.ndarray]], columns: int) -> Any:
    """Titled pictures in a grid, as a matplotlib figure; long strips and wide drawings lie below each other."""
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
    return figure


def check_place(path: Path, kinds: Sequence[str] = (".png",)) -> None:
    """Complain before the work, not after it."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file in it.")
    if path.suffix.lower() not in kinds:
        raise UserError(f"The file {path.name!r} must end in {' or '.join(kinds)}.")
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
