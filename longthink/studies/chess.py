"""Table 5.4 and Figures 5.5 and 5.6: chess puzzles, trained on the easier ones and tested on the harder."""

from __future__ import annotations

from longthink.studies.base import Exam, Row, Study, add
from longthink.tasks.base import Batch
from longthink.tasks.chess_puzzles import Chess


def _ninth_tenth(task: Chess) -> Batch:
    return task.ranks(task.total * 8 // 10, task.total * 9 // 10)


def _last_tenth(task: Chess) -> Batch:
    return task.ranks(task.total * 9 // 10, task.total)


add(
    Study(
        name="chess",
        title="Chess puzzles, trained on the easier 80%",
        source="Schwarzschild, Table 5.4, Figures 5.5 and 5.6 (600,000 puzzles in training)",
        rows=(
            Row("DT", "chess-dt-alpha0"),
            Row("DT, progressive", "chess-dt-alpha0.5"),
            Row("DT-Recall", "chess-dt_recall-alpha0"),
            Row("DT-Recall, progressive", "chess-dt_recall-alpha0.5"),
            Row("feed-forward", "chess-ff-alpha0"),
            Row("DT-Recall, long horizon", "chess-long"),
        ),
        exams=(
            Exam("held-out easy tenths", tuple(range(1, 9)), 1_000, 300, read_every=5, chunk=1_000),
            Exam("ninth tenth", 9, 10_000, 300, read_every=5, chunk=2_500, source=_ninth_tenth),
            Exam("last tenth", 10, 10_000, 300, read_every=5, chunk=2_500, source=_last_tenth),
        ),
        remarks="Published, after training on the easiest 600,000 puzzles of another file, on the next 100,000: "
        "DT 78.81 ± 1.04, progressive 82.32 ± 0.1, DT-Recall 82.12 ± 0.69, progressive 82.69 ± 0.27, "
        "feed-forward 61.17 ± 1.76. Ours come from 92,575 Lichess puzzles rated 400 to 2,712, no random "
        "sample (SHA-256 of the CSV: 156c7278de6f6067...); training saw 80% of its easier 80%, the rest "
        "of them are for validation and tests. Nothing here compares.",
    )
)
