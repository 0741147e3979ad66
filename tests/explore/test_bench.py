"""The benchmark of the page measures frames of a real server."""

from __future__ import annotations

from longthink.bench import explore


def test_frames_are_timed() -> None:
    found = explore.measure((5,), 6, 2)
    alone, together = found["rows"]
    assert (alone["maze"], alone["clients"], alone["frames"]) == ("5x5", 1, 6)
    assert (together["clients"], together["frames"]) == (2, 12)
    assert 0 < alone["median ms"] <= alone["p95 ms"]
