"""The demo, end to end on small problems."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import pytest
import torch

from longthink import demo


def test_demo_solves_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert demo.demo(tmp_path / "out", {"prefix_sums": 24, "mazes": 11, "sudoku": 50})
    finally:
        torch.set_num_threads(threads)
    names = [f"{task}{suffix}.png" for task in ("maze", "prefix_sums", "sudoku") for suffix in ("-thinking", "")]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    for name in names:
        assert matplotlib.image.imread(tmp_path / "out" / name).std() > 0.05
    shown = capsys.readouterr().out
    assert shown.count("solved   yes") == 3
    assert all(name in shown.splitlines()[-1] for name in names)


def test_exit_code_says_whether_all_was_solved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for solved, code in ((True, 0), (False, 1)):
        monkeypatch.setattr(demo, "demo", lambda out, solved=solved: solved)
        assert demo.main(["--out", str(tmp_path)]) == code


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert demo.main(["--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
