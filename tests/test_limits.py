"""What solving refuses before it begins or soon after: what does not fit into memory, and what would take hours."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from longthink import limits, solving
from longthink.cli import main
from longthink.errors import UserError
from longthink.loading import Loaded, load
from longthink.models import build
from longthink.think import unfold

GIB = 2**30


def loaded(name: str, memory: float, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """The shipped network of this name on a machine with so many bytes."""
    monkeypatch.setattr(limits, "host_memory", lambda: float(memory))
    return load(name)


def refused(network: Loaded, *args: Any) -> str:
    with pytest.raises(UserError, match=r"^[^\n]*\.$") as error:
        limits.check_memory(network, *args)
    return str(error.value)


def test_images_need_nine_times_their_state(monkeypatch: pytest.MonkeyPatch) -> None:
    width = load("mazes").recipe.model_options["width"]
    place = 9 * 4 * width  # of one pixel
    network = loaded("mazes", 50 * 10_000 * place, monkeypatch)
    limits.check_memory(network, 10_000, 50)
    limits.check_memory(network, 500_000)
    assert "choose a smaller size, fewer samples or steps, or a smaller chunk." in refused(network, 10_001, 50)
    have = 500_000 * place / GIB
    assert refused(network, 1_000_000) == (
        f"This takes some {2 * have:.3g} GiB of memory and there are {have:.3g}; choose a smaller size."
    )


def test_what_is_kept_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    network = loaded("prefix_sums", GIB, monkeypatch)
    place = 9 * 4 * network.recipe.model_options["width"]
    limits.check_memory(network, 100, 2, GIB - 200 * place)
    refused(network, 100, 2, GIB - 200 * place + 1)
    assert refused(network, 0, 2, 3 * GIB).startswith("This takes some 3 GiB of memory and there are ")


def test_tokens_look_at_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """14 tables a head and sample, and 10 for the order of geometric attention; models without attention have none."""
    network = loaded("listops", 4 * 1_000**2 * (14 * 8 + 10), monkeypatch)
    assert network.recipe.model_options["heads"] == 8
    limits.check_memory(network, 1_000)
    refused(network, 1_001)
    refused(network, 1_000, 2)
    assert network.recipe.model == "transformer"
    limits.check_memory(loaded("repeat_copy", 1_000, monkeypatch), 10**6)


def test_problems_that_do_not_fit_are_never_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limits, "host_memory", lambda: 2.0**20)
    for asked, advice in (
        (["solve", "mazes", "--size", "201"], "choose a smaller size"),
        (["solve", "prefix_sums", "01" * 5_000], "type a shorter problem"),
        (["solve", "listops", f"[SM {'1 ' * 999}]"], "type a shorter problem"),
        (["inspect", "attention", "listops", "--problem", f"[SM {'1 ' * 999}]"], "type a shorter problem"),
    ):
        assert main(asked) == 2
        shown = capsys.readouterr().err
        assert re.fullmatch(rf"This takes some \S+ GiB of memory and there are 0.000977; {advice}.\n", shown)
    for command in (
        ["eval", "mazes", "--difficulty", "9", "--samples", "1000"],
        ["eval", "ctl", "--difficulty", "3,900"],
        ["inspect", "gates", "ctl", "--difficulty", "900"],
    ):
        assert main(command) == 2
        assert capsys.readouterr().err.endswith("fewer samples or steps, or a smaller chunk.\n")
    assert main(["inspect", "attention", "ctl", "--difficulty", "900"]) == 2
    assert "choose a smaller size." in capsys.readouterr().err


def test_with_gates_shut_it_thinks_half_as_long_again() -> None:
    network, deep = load("listops"), load("listops").task.sample(1, 8, seed=0)
    assert solving.default_steps(network, deep) == 25
    assert solving.default_steps(network.with_settings(["model.gate_threshold=0.06"]), deep) == 38
    assert solving.default_steps(network.with_settings(["model.gate_threshold=0"]), deep) == 25


def test_a_thought_of_hours_is_refused_unless_somebody_chose_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limits, "MOST_MINUTES", 0.0)
    assert main(["solve", "listops", "[SM 1 2 [MAX 3 4]]"]) == 2
    shown = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"A step takes \S+ seconds here, so the usual 20 may take 0 minutes; choose how many with --steps, "
        r"or a shorter problem\.",
        shown,
    )
    assert main(["solve", "listops", "[SM 1 2 [MAX 3 4]]", "--steps", "20"]) == 0
    assert main(["solve", "prefix_sums", "1011"]) == 0  # comes to rest long before


def test_patience_is_measured_after_the_first_step() -> None:
    """700 steps of a second are too many, 600 are not, and a slow first one says nothing."""
    model = build("router", vocabulary=9, classes=4, width=4, hidden=4).eval()
    tokens = torch.ones(1, 3, dtype=torch.long)

    def think_with(budget: int) -> None:
        times = iter([1_000.0, *range(1_001, 9_999)])
        patience = limits.Patience(budget, lambda: next(times))
        for moment in unfold(model, tokens, 3):
            patience(moment)

    think_with(600)
    with pytest.raises(UserError, match="A step takes 1 seconds here, so the usual 700 may take 12 minutes; choose"):
        think_with(700)
