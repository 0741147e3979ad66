"""Tasks; importing this package registers them."""

from longthink.tasks import chess_puzzles, mazes, prefix_sums, sudoku
from longthink.tasks.base import Batch, Split, Task, join, task, tasks

__all__ = [
    "Batch",
    "Split",
    "Task",
    "chess_puzzles",
    "join",
    "mazes",
    "prefix_sums",
    "sudoku",
    "task",
    "tasks",
]
