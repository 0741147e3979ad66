"""Studies; importing this package registers them."""

from longthink.studies import chess, dnc, language, mazes, prefix_sums, router, sudoku
from longthink.studies.base import Exam, Row, Study, add, examine, run, studies
from longthink.studies.reports import report

__all__ = [
    "Exam",
    "Row",
    "Study",
    "add",
    "chess",
    "dnc",
    "examine",
    "language",
    "mazes",
    "prefix_sums",
    "report",
    "router",
    "run",
    "studies",
    "sudoku",
]
