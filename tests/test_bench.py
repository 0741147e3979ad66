"""Benchmarks run anywhere at toy size, say what they measured, and keep what other benchmarks wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longthink.bench import generators, shown
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


@pytest.mark.parametrize("what", WHAT)
def test_tables_for_people_say_what_their_words_mean(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"path": "plain", "milliseconds": 1234.5, "megabytes": None, "tokens": 32768}
    other = {"path": "ours, captured", "milliseconds": 0.0123456, "megabytes": None, "tokens": 9}
    found = {"benchmark": "a layer", "hardware": "a GPU", "statistic": "median", "repeats": 50, "rows": [row, other]}
    shown.show(what, found, gpu=True)
    text = capsys.readouterr().out
    assert text.startswith("a layer (a GPU, median of 50)\n")
    assert "1,234" in text  # to be read, not to be computed with
    assert "0.0123 " in text
    assert "32,768" in text
    assert "megabytes" not in text  # a column without a number
    assert ("\nplain: " in text) == ("plain" in shown.WORDS[what])
    assert "\nfloor: " not in text  # no such row
    assert "toy size" not in text
    shown.show(what, found, gpu=False)
    assert "toy size" in capsys.readouterr().out


def test_generators_are_timed() -> None:
    found = generators.measure(part=0.001)
    assert {row["task"] for row in found["rows"]} >= {"listops", "arithmetic", "ctl", "ctlpp", "mazes"}
    for row in found["rows"]:
        assert row["a million (s)"] == pytest.approx(1000 * row["milliseconds"] / row["samples"])


def test_an_unknown_benchmark_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "rooter"]) == 2
    assert "router" in capsys.readouterr().err
