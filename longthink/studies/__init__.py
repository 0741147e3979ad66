"""Studies; importing this package registers them."""

from longthink.studies import chess, mazes, prefix_sums, router, sudoku
from longthink.studies.base import Study, examine, report, run, studies

__all__ = ["Study", "chess", "examine", "mazes", "prefix_sums", "report", "router", "run", "studies", "sudoku"]
