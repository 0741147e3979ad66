"""Problems from what a page asks for, what it needs to draw them, and what it is shown of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.explore.frames import chances, classes
from longthink.explore.limits import LARGEST, MOST_TOKENS, check_size, check_tokens
from longthink.explore.messages import Wanted
from longthink.inspect.attention import column_labels
from longthink.loading import Loaded
from longthink.solving import pose
from longthink.tasks import Batch, Task, task
from longthink.tasks.chess_puzzles import LEVELS, Chess, whole_position
from longthink.tasks.mazes import BORDER, Mazes
from longthink.tasks.sudoku import FEWEST_GENERATED, MOST_GIVENS
from longthink.tasks.tokens import TokenTask

EXPRESSIONS = ("listops", "arithmetic", "ctl")
USUAL_DEPTH = {"listops": 3, "arithmetic": 3, "ctl": 4}
SHOWN = ("mazes", "prefix_sums", "sudoku", "chess", *EXPRESSIONS)
_SIZES = {
    "mazes": (3, LARGEST["mazes"]),
    "prefix_sums": (4, LARGEST["prefix_sums"]),
    "sudoku": (FEWEST_GENERATED, MOST_GIVENS),
    "chess": (1, LEVELS),
}
_MADE = {
    "mazes": "Mazes are made here with an odd number of cells a side",
    "prefix_sums": "Strings are made here with a number of bits",
    "sudoku": "Puzzles are made with a number of given cells",
    "chess": "The tenths of the puzzles by rating go",
}
"""Before: from ... to ..."""
_SHALLOW = 3


@dataclass(frozen=True, eq=False)
class Posed:
    """One problem, ready to be thought about."""

    task: Task
    batch: Batch
    typed: str | None = None

    @cached_property
    def all_shortest(self) -> Tensor | None:
        """Of a maze that has several shortest paths, the pixels of all their cells."""
        several = isinstance(self.task, Mazes) and bool(self.batch.info.get("several", torch.tensor([False]))[0])
        return self.task.all_shortest(self.batch) if several else None  # type: ignore[attr-defined]


def sizes(task: Task) -> tuple[int, int]:
    """The smallest and the largest problem that the page makes."""
    if not isinstance(task, TokenTask):
        return _SIZES[task.name]
    longest = min(MOST_TOKENS, getattr(task, "longest", None) or MOST_TOKENS)
    return task.shallowest, (longest - 1) // task.tokens_a_level


def can_be_made(task: Task, size: int) -> bool:
    low, high = sizes(task)
    return low <= size <= high and (task.name != "mazes" or size % 2 == 1)


def posed(loaded: Loaded, wanted: Wanted) -> Posed:
    """The problem that was typed, or one of the test split; within the page's limits."""
    task = loaded.task
    if task.name not in SHOWN:
        raise UserError(f"The page does not show {task.name}; choose weights for one of: {', '.join(SHOWN)}.")
    if wanted.text is not None:
        return Posed(task, _typed(loaded, wanted.text), wanted.text)
    size = wanted.size
    if size is None:
        size = USUAL_DEPTH.get(task.name)
    if size is not None and not can_be_made(task, size):
        low, high = sizes(task)
        made = _MADE.get(task.name, "Expressions are made here with a depth")
        raise UserError(f"{made} from {low} to {high}, not {size}.")
    batch = pose(loaded, size=size, seed=wanted.seed, style=wanted.style)
    if task.name in EXPRESSIONS:
        check_tokens(batch.inputs.shape[1])
    return Posed(task, batch)


def _typed(loaded: Loaded, text: str) -> Batch:
    task = loaded.task
    if task.name == "mazes":
        lines = text.strip("\r\n").splitlines()
        if len(lines) < 2:  # the task takes one line for the name of a file, and nobody reads files from a page
            raise UserError("A maze has several lines of # (wall), . (free), one S (start) and one G (goal).")
        check_size(task.name, max(len(lines), *map(len, lines)) - 2)
    elif task.name == "prefix_sums":
        check_size(task.name, len("".join(text.split())))
    elif isinstance(task, TokenTask):
        check_tokens(len(task.words(text)))
    return pose(loaded, text)


def describe(problem: Posed) -> dict[str, Any]:
    """What the page needs to draw the problem and its truth."""
    task, batch = problem.task, problem.batch
    about: dict[str, Any] = {"task": task.name, "size": batch.difficulty, "text": task.text(batch)}
    if isinstance(task, Chess):  # the network does not see who may castle, but an engine must know
        about["text"] = whole_position(problem.typed) if problem.typed is not None else task.position(batch)
    if task.name == "mazes":
        rows = task.show(batch.targets[0], batch).split("\n")
        several = problem.all_shortest is not None
        return {**about, "rows": [row[1:-1] for row in rows[1:-1]], "several": several}  # without the border
    if task.name == "chess":
        truth = batch.targets[0].nonzero().tolist() if problem.batch.truth_known else None
        rating = int(batch.info["rating"][0]) or None
        return {**about, "black": bool(batch.info["black"][0]), "truth": truth, "rating": rating}
    if isinstance(task, TokenTask):
        words = task.decoded(batch)
        answer = task.show(batch.targets[0], batch)
        return {**about, "words": words, "answers": list(task.answers), "truth": answer}
    return {**about, "truth": "".join(task.show(batch.targets[0], batch).split())}


def columns_of(problem: Posed, columns: int) -> list[str]:
    """What stands in each column of a Transformer that thinks about this problem."""
    words = problem.task.decoded(problem.batch) if isinstance(problem.task, TokenTask) else []
    return list(column_labels(words, columns))


def answer_sections(problem: Posed, logits: Tensor) -> dict[str, np.ndarray]:
    """Names and bytes of what is shown of an answer."""
    task, batch = problem.task, problem.batch
    likely = logits.float().softmax(1)[0]
    if task.name == "mazes":
        return {"chance": chances(likely[1, BORDER:-BORDER, BORDER:-BORDER])}
    if task.name == "prefix_sums":
        return {"chance": chances(likely[1])}
    answer = classes(task.predict(logits, batch)[0])
    return {"chance": chances(likely[1] if task.name == "chess" else likely), "answer": answer.reshape(-1)}


def how_right(problem: Posed, logits: Tensor) -> tuple[bool | None, float]:
    """Is the whole answer right, and how much of it?"""
    task, batch = problem.task, problem.batch
    if not problem.batch.truth_known:
        return None, float("nan")
    right = bool(task.score(logits, batch))
    if right and task.name not in EXPRESSIONS:
        return True, 1.0
    if task.name in EXPRESSIONS:
        return right, float(logits.float().softmax(1)[0, batch.targets[0]])
    same = (task.predict(logits, batch) == batch.targets)[0]
    if task.name == "chess":
        return right, float(same[batch.targets[0] == 1].float().mean())
    if batch.mask is not None:
        same = same[batch.mask[0]]
    correct = float(same.float().mean())
    if problem.all_shortest is not None:  # nothing tells the network which of them is meant
        all_same = (task.predict(logits, batch) == problem.all_shortest)[batch.mask]
        return bool(all_same.all()), max(correct, float(all_same.float().mean()))
    return right, correct


def warm_up() -> None:
    """Make and read a problem of each task: in a fresh checkout, this compiles what visitors would wait for."""
    for name in SHOWN:
        if name != "chess":  # which compiles little, and may have a large file to read
            one = task(name)
            one.parse(one.text(one.sample(1, max(_SHALLOW, sizes(one)[0]), 0, "test")))
