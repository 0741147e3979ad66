"""Section 6.1: sudoku, trained on puzzles with many given cells and tested on fewer."""

from __future__ import annotations

from dataclasses import replace

from longthink.studies.base import Exam, Row, Study, add
from longthink.tasks.base import Batch
from longthink.tasks.reading import data_file
from longthink.tasks.sudoku import Sudoku, load_puzzles


def _seventeen_clues(task: Sudoku) -> Batch:
    return replace(load_puzzles(data_file("sudoku17.csv"), limit=5_000), difficulty=17)


add(
    Study(
        name="sudoku",
        title="Sudoku, trained on 36 to 60 given cells",
        source='Schwarzschild, section 6.1, gives no figures ("can solve harder puzzles")',
        rows=(Row("DT-Recall, long horizon", "sudoku-long"),),
        exams=(
            *(
                Exam(f"{givens} given", givens, 1_000, 600, read_every=10, chunk=1_000)
                for givens in (50, 40, 36, 34, 32, 30, 28, 26, 25, 24, 23)
            ),
            Exam("17 given", 17, 5_000, 600, read_every=10, chunk=1_000, source=_seventeen_clues),
        ),
        axis="given cells",
        needs=("sudoku17.csv",),
        remarks="The 17-clue puzzles are the first 5,000 of sudoku17.csv, a list of 44,151 with a column named puzzle.",
    )
)
