"""Tasks; importing this package registers them."""

from longthink.tasks import arithmetic, chess_puzzles, ctl, ctlpp, listops, mazes, prefix_sums, sudoku
from longthink.tasks.base import Batch, Split, Task, join, task, tasks

__all__ = [
    "Batch",
    "Split",
    "Task",
    "arithmetic",
    "chess_puzzles",
    "ctl",
    "ctlpp",
    "join",
    "listops",
    "mazes",
    "prefix_sums",
    "sudoku",
    "task",
    "tasks",
]
