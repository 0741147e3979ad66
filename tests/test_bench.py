"""Benchmarks run anywhere at toy size, say what they measured, and keep what other benchmarks wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longthink.bench import generators
from longthink.cli import main

WHAT = ("cvmm", "deepthinking", "dnc", "language", "router")


def test_benchmarks_are_printed_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for what in WHAT:
        assert main(["bench", what, "--out", str(tmp_path), "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["repeats"] >= 2
        assert len(printed["rows"]) >= 2
        assert all(row["milliseconds"] > 0 for row in printed["rows"])
    (file,) = tmp_path.glob("*.json")
    assert set(json.loads(file.read_text())) == set(WHAT)


def test_generators_are_timed() -> None:
    found = generators.measure(part=0.001)
    assert {row["task"] for row in found["rows"]} >= {"listops", "arithmetic", "ctl", "ctlpp", "mazes"}
    for row in found["rows"]:
        assert row["a million (s)"] == pytest.approx(1000 * row["milliseconds"] / row["samples"])


def test_an_unknown_benchmark_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "rooter"]) == 2
    assert "router" in capsys.readouterr().err
