"""Commands on a GPU say what they say on a CPU: kernels, devices and weights meet here as people use them."""

from __future__ import annotations

import pytest
import torch

from tests.commands import json_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SOLVED = {
    "prefix_sums": "1011001110",
    "ctl": "101 d a b c e f g h",
    "arithmetic": "((4*7)+2)",
    "listops": "[SM [MAX 2 9] 3 [MED 1 4 8]]",
    "babi": "John took the milk. John went to the office. Where is the milk?",
}


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
@pytest.mark.parametrize("task", SOLVED)
def test_solve(task: str, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    here = json_of(capsys, "solve", task, SOLVED[task])
    there = json_of(capsys, "solve", task, SOLVED[task], "--device", device)
    assert there["answer"] == here["answer"]
    assert there["solved"] == here["solved"]


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    wishes = ("--prompt", "def ", "--length", "40", "--temperature", "0")
    here = json_of(capsys, "solve", "text", *wishes)
    assert json_of(capsys, "solve", "text", *wishes, "--device", "cuda")["answer"] == here["answer"]


def test_eval(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("eval", "ctl", "--difficulty", "5", "--samples", "50", "--steps", "20")
    (here,), (there,) = (json_of(capsys, *asked, "--device", one)["curves"] for one in ("cpu", "cuda"))
    assert there["steps"] == here["steps"]
    assert there["accuracy"] == pytest.approx(here["accuracy"], abs=0.041)  # two of 50


@pytest.mark.parametrize(
    ("command", "weights", "number"), [("attention", "ctl", "attention"), ("experts", "text", "share")]
)
def test_inspect(command: str, weights: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = (json_of(capsys, "inspect", command, weights, "--device", one) for one in ("cpu", "cuda"))
    torch.testing.assert_close(torch.tensor(there[number]), torch.tensor(here[number]), atol=0.02, rtol=0)
