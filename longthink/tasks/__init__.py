"""Tasks; importing this package registers them."""

from longthink.tasks import (
    arithmetic,
    associative_recall,
    babi,
    chess_puzzles,
    ctl,
    ctlpp,
    key_value,
    listops,
    mazes,
    prefix_sums,
    repeat_copy,
    sudoku,
    text,
)
from longthink.tasks.base import Batch, Split, Task, check_request, join, task, tasks

__all__ = [
    "Batch",
    "Split",
    "Task",
    "arithmetic",
    "associative_recall",
    "babi",
    "check_request",
    "chess_puzzles",
    "ctl",
    "ctlpp",
    "join",
    "key_value",
    "listops",
    "mazes",
    "prefix_sums",
    "repeat_copy",
    "sudoku",
    "task",
    "tasks",
    "text",
]
