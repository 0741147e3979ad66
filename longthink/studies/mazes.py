"""Table 5.3, Figures 5.4 and 5.7 (right), and the largest mazes of section 5.4: from 9x9 to 801x801."""

from longthink.studies.base import Exam, Row, Study, add

_SMALL = ("DT", "DT, progressive", "DT-Recall", "DT-Recall, progressive", "feed-forward", "DT, short", "FF, short")

add(
    Study(
        name="mazes",
        title="Mazes, trained on 9x9",
        source="Schwarzschild, Table 5.3, Figures 5.4 and 5.7 (right), section 5.4",
        rows=(
            Row("DT", "mazes-dt-alpha0", {"13x13": (85.59, 2.81, 40), "59x59": (0.0, 0.0, None)}, most=100),
            Row(
                "DT, progressive",
                "mazes-dt-alpha0.01",
                {"13x13": (86.08, 3.96, 38), "59x59": (0.0, 0.0, None)},
                most=100,
            ),
            Row("DT-Recall", "mazes-dt_recall-alpha0", {"13x13": (99.94, 0.03, 94), "59x59": (82.72, 15.14, 999)}),
            Row(
                "DT-Recall, progressive",
                "mazes-dt_recall-alpha0.01",
                {"13x13": (99.88, 0.05, 70), "59x59": (97.3, 0.68, 984), "201x201": (74.0, None, 2_000)},
            ),
            Row(
                "feed-forward",
                "mazes-ff-alpha0",
                {"13x13": (38.22, 5.28, None), "59x59": (0.0, 0.0, None)},
                most=100,
            ),
            Row("DT, short", "mazes-short-dt", most=200),
            Row("FF, short", "mazes-short-ff", most=1_000),
            Row("DT-Recall, long horizon", "mazes-long"),
        ),
        exams=(
            Exam("9x9", 9, 10_000, 300, read_every=5, chunk=2_500),
            Exam("13x13", 13, 10_000, 1_000, read_every=5, chunk=2_500),
            Exam("59x59", 59, 1_000, 3_000, read_every=20, chunk=100),
            Exam("201x201", 201, 100, 5_000, read_every=100, chunk=20, skip=_SMALL),
            Exam("801x801", 801, 1, 16_000, read_every=500, chunk=1, skip=_SMALL),
        ),
        remarks="Short: fewer updates of larger batches than published. The published 201x201 figure is for 2,000 "
        "steps; one 801x801 maze was solved with 20,000.",
    )
)
