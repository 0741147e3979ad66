"""Table 5.2 and Figures 5.3 and 5.7 (left): from 32 to 48 and 512 bits."""

from longthink.studies.base import Exam, Row, Study, add

add(
    Study(
        name="prefix_sums",
        title="Prefix sums, trained on 32 bits",
        source="Schwarzschild, Table 5.2, Figures 5.3 and 5.7 (left)",
        rows=(
            Row("DT", "prefix_sums-dt-alpha0", {"48 bits": (94.61, 1.19, 42), "512 bits": (0.0, 0.0, None)}),
            Row(
                "DT, progressive", "prefix_sums-dt-alpha1", {"48 bits": (97.73, 1.8, 27), "512 bits": (11.26, 6.9, 171)}
            ),
            Row(
                "DT-Recall",
                "prefix_sums-dt_recall-alpha0",
                {"48 bits": (99.97, 0.01, 46), "512 bits": (96.19, 3.73, 466)},
            ),
            Row(
                "DT-Recall, progressive",
                "prefix_sums-dt_recall-alpha1",
                {"48 bits": (99.96, 0.02, 26), "512 bits": (97.12, 1.88, 237)},
            ),
            Row("DT-Recall, n = 0", "prefix_sums-dt_recall-zero_n", {"512 bits": (90.27, None, None)}),
            Row("feed-forward", "prefix_sums-ff-alpha0", {"48 bits": (27.15, 2.56, 30), "512 bits": (0.0, 0.0, 30)}),
            Row("DT, long horizon", "prefix_sums-long-no_recall"),
            Row("DT-Recall, long horizon", "prefix_sums-long"),
        ),
        exams=(
            Exam("32 bits", 32, 10_000, 300, read_every=10, chunk=2_000),
            Exam("48 bits", 48, 10_000, 300, chunk=2_000),
            Exam("512 bits", 512, 1_000, 2_000, read_every=10, chunk=1_000),
        ),
    )
)

add(
    Study(
        name="prefix_sums_size",
        title="Prefix sums: how wide, and trained for how many steps",
        source="Schwarzschild, Figure 5.17 (curves without figures: wider and longer is better, up to 400 and 30)",
        rows=tuple(
            row
            for loss, recipe in (("", "prefix_sums-dt_recall-alpha1"), (", long horizon", "prefix_sums-long"))
            for row in (
                *(Row(f"width {width}{loss}", f"{recipe}-width{width}") for width in (50, 100, 200)),
                *(Row(f"m = {steps}{loss}", f"{recipe}-m{steps}") for steps in (10, 20)),
                Row(f"width 400, m = 30{loss}", recipe),
            )
        ),
        exams=(Exam("512 bits", 512, 1_000, 2_000, read_every=10, chunk=1_000),),
        remarks="As published with alpha = 1 and recall, and with the long-horizon loss.",
    )
)
