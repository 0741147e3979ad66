"""How fast problems are made, on one core: training must not wait for them."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from longthink.bench.timing import surroundings
from longthink.tasks import task


class Wanted(NamedTuple):
    """Problems of these difficulties in equal parts."""

    task: str
    difficulties: tuple[int, ...]
    samples: int


ALL = (
    Wanted("listops", (1, 2, 3, 4, 5), 1_000_000),
    Wanted("listops", (7, 8), 10_000),
    Wanted("arithmetic", (1, 2, 3, 4, 5), 1_000_000),
    Wanted("arithmetic", (7, 8), 10_000),
    Wanted("ctl", (1, 2, 3, 4, 5), 1_000_000),
    Wanted("ctlpp", (1, 2, 3, 4, 5, 6), 1_000_000),
    Wanted("prefix_sums", (32,), 1_000_000),
    Wanted("mazes", (9,), 20_000),
    Wanted("mazes", (59,), 200),
    Wanted("sudoku", (30,), 200),
)


def measure(wanted: tuple[Wanted, ...] = ALL, part: float = 1.0) -> dict[str, Any]:
    """``part`` of the samples, to see that it runs. Once each: a second run makes the same problems again."""
    rows = []
    for name, difficulties, samples in wanted:
        made = task(name)
        each = max(1, int(part * samples) // len(difficulties))
        for difficulty in difficulties:
            made.sample(1, difficulty, 1, "train")  # compiles
        began = time.perf_counter()
        for difficulty in difficulties:
            made.sample(each, difficulty, 0, "train")
        seconds = time.perf_counter() - began
        rows.append(
            {
                "task": name,
                "difficulties": ",".join(map(str, difficulties)),
                "samples": each * len(difficulties),
                "milliseconds": 1000 * seconds,
                "a million (s)": 1e6 * seconds / (each * len(difficulties)),
            }
        )
    return {"benchmark": "generators: making problems, one core", **surroundings(1), "statistic": "once", "rows": rows}
