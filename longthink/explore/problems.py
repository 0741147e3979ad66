"""Problems from what a page asks for, what it needs to draw them, and what it is shown of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.explore.frames import chances, classes
from longthink.explore.limits import check_size, check_tokens
from longthink.explore.messages import Wanted
from longthink.inspect.attention import column_labels
from longthink.loading import Loaded
from longthink.solving import pose
from longthink.tasks import Batch, Task
from longthink.tasks.mazes import BORDER
from longthink.tasks.tokens import TokenTask

EXPRESSIONS = ("listops", "arithmetic", "ctl")
USUAL_DEPTH = {"listops": 3, "arithmetic": 3, "ctl": 4}
SHOWN = ("mazes", "prefix_sums", "sudoku", "chess", *EXPRESSIONS)


@dataclass(frozen=True, eq=False)
class Posed:
    """One problem, ready to be thought about."""

    task: Task
    batch: Batch

    @property
    def truth_known(self) -> bool:
        return bool(self.batch.info.get("truth_known", torch.tensor([True]))[0])


def posed(loaded: Loaded, wanted: Wanted) -> Posed:
    """The problem that was typed, or one of the test split; within the page's limits."""
    task = loaded.task
    if task.name not in SHOWN:
        raise UserError(f"The page does not show {task.name}; choose weights for one of: {', '.join(SHOWN)}.")
    if wanted.text is not None:
        return Posed(task, _typed(loaded, wanted.text))
    size = wanted.size
    if size is None:
        size = USUAL_DEPTH.get(task.name)
    if size is not None:
        check_size(task.name, size)
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
    if task.name == "mazes":
        rows = task.show(batch.targets[0], batch).split("\n")
        return {**about, "rows": [row[1:-1] for row in rows[1:-1]]}  # without the border
    if task.name == "chess":
        truth = batch.targets[0].nonzero().tolist() if problem.truth_known else None
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
    if not problem.truth_known:
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
    return right, float(same.float().mean())
