"""Runs that are trained as one network end like runs that are trained one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from longthink.errors import UserError
from longthink.recipes import recipes
from longthink.training import member
from longthink.training.files import read_json, read_tensors
from longthink.training.recipe import Recipe
from longthink.training.train import Job, Trainer, train, train_together
from longthink.training.trainer import clip_each
from longthink.training.validation import Verdict
from tests.training.toy import TOY, metrics, options

# Without dropout, whose masks would be others: all that is random is then a run's own.
BASE = replace(
    recipes["ctl-router"],
    name="together",
    model_options={"width": 8, "hidden": 8, "heads": 2, "attention": "geometric", "gate": True, "dropout": 0.0},
    steps=4,
    patient_steps=6,
    train_samples=40,
    valid_samples=30,
    batch=8,
    epochs=4,
    validate_every=1,
    learning_rate=3e-3,
    clip=0.5,
    average=0.9,
    enough=None,
    shares=None,
)
BACKWARD = replace(BASE, name="backward", task_options={"backward": True}, difficulty=(1, 2, 3))
JOBS: list[Job] = [(BASE, 0), (BASE, 3), (BACKWARD, 0)]


def assert_alike(one: Path, other: Path) -> None:
    """The same up to rounding: several products in one call may be summed in another order."""
    for name in ("best.safetensors", "last.safetensors"):
        (a, about_a), (b, about_b) = read_tensors(one / name), read_tensors(other / name)
        assert a.keys() == b.keys()
        for key, value in a.items():
            torch.testing.assert_close(value, b[key], rtol=1e-3, atol=2e-5, msg=lambda text, key=key: f"{key}: {text}")
        assert about_a.keys() == about_b.keys()
    lines, others = metrics(one), metrics(other)
    assert len(lines) == len(others)
    for line, another in zip(lines, others, strict=True):
        assert line == pytest.approx(another, rel=1e-3, abs=1e-4)
    card, another = read_json(one / "card.json"), read_json(other / "card.json")
    for key in ("recipe", "seed", "updates", "parameters", "hardware"):
        assert card[key] == another[key]
    assert card["finished"]["updates"] == another["finished"]["updates"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("alone")
    return [train(recipe, seed, options(folder)) for recipe, seed in JOBS]


def test_together_as_alone(alone: list[Path], tmp_path: Path) -> None:
    runs = train_together(JOBS, options(tmp_path))
    assert [run.name for run in runs] == [run.name for run in alone]
    for run, one in zip(runs, alone, strict=True):
        assert_alike(run, one)
    norms = [line["gradient_norm"] for run in runs for line in metrics(run) if "gradient_norm" in line]
    assert min(norms) < 0.5 < max(norms)  # some were clipped and others not
    assert len(set(norms)) == len(norms)  # each has its own
    before = {path: path.read_bytes() for run in runs for path in run.iterdir()}
    train_together(JOBS, options(tmp_path))
    assert before == {path: path.read_bytes() for path in before}  # nothing is done twice


@pytest.mark.parametrize("onwards", ["together", "alone"])
def test_runs_that_were_stopped_go_on(
    onwards: str, alone: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Trainer._is_late
    monkeypatch.setattr(Trainer, "_is_late", lambda trainer, _: trainer.update == 7)
    runs = train_together(JOBS, options(tmp_path, seconds=1.0))
    assert not any((run / "card.json").exists() for run in runs)
    monkeypatch.setattr(Trainer, "_is_late", late)
    if onwards == "together":
        train_together(JOBS, options(tmp_path))
    else:
        for recipe, seed in JOBS:
            train(recipe, seed, options(tmp_path))
    for run, one in zip(runs, alone, strict=True):
        assert_alike(run, one)


def test_each_ends_when_it_is_good_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is flawless from the first validation on, the first from the second on, the third never."""
    jobs: list[Job] = [(replace(recipe, enough=2), seed) for recipe, seed in JOBS]
    seen: dict[Any, int] = {}

    def judge(recipe: Recipe, problem: Any) -> Any:
        number = len(seen)
        seen[number] = 0

        def verdict(model: Any) -> Verdict:
            seen[number] += 1
            flawless = number == 1 or (number == 0 and seen[number] > 1)
            card = {"samples": 1, "steps": [4, 6], "accuracy": [0.5, 0.5]}
            return Verdict([float(seen[number])], {"valid_4": 0.5}, card, flawless)

        return verdict

    monkeypatch.setattr(member, "validation", judge)
    runs = train_together(jobs, options(tmp_path))
    assert [read_json(run / "card.json")["finished"]["updates"] for run in runs] == [15, 10, 20]
    assert list(seen.values()) == [3, 2, 4]
    assert [max(line["update"] for line in metrics(run)) for run in runs] == [15, 10, 20]


def test_one_that_is_done_is_left_alone(alone: list[Path], tmp_path: Path) -> None:
    done = train(BASE, 0, options(tmp_path))
    before = {path: path.read_bytes() for path in done.iterdir()}
    runs = train_together(JOBS, options(tmp_path))
    assert runs[0] == done
    assert before == {path: path.read_bytes() for path in done.iterdir()}
    assert_alike(runs[2], alone[2])


def test_runs_that_stand_elsewhere_cannot_go_on_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_is_late", lambda trainer, _: trainer.update == 3)
        train(BASE, 0, options(tmp_path, seconds=1.0))
    with pytest.raises(UserError, match="not at the same update"):
        train_together(JOBS, options(tmp_path))


@pytest.mark.parametrize(
    ("jobs", "reason"),
    [
        ([(BASE, 0), (replace(BASE, learning_rate=1e-3), 1)], "differ in more than their data"),
        ([(BASE, 0), (BASE, 0)], "are the same"),
        ([(TOY, 0), (TOY, 1)], "one by one"),
        ([(BASE, 0), (BASE, -1)], "0 or more"),
        ([(recipes["ctl-lstm"], 0), (recipes["ctl-lstm"], 1)], "one by one"),
        ([(recipes["ctl-router-sigma_moe"], 0), (recipes["ctl-router-sigma_moe"], 1)], "one by one"),
    ],
)
def test_what_cannot_be_together_gets_a_sentence(jobs: list[Job], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=reason):
        train_together(jobs, options(tmp_path))


def test_gradients_are_clipped_for_each() -> None:
    parts = [torch.tensor([[3.0, 0.0], [0.3, 0.0]]), torch.tensor([[[4.0]], [[0.4]]])]
    torch.testing.assert_close(clip_each(parts, 1.0), torch.tensor([5.0, 0.5]))
    torch.testing.assert_close(parts[0], torch.tensor([[0.6, 0.0], [0.3, 0.0]]), rtol=1e-5, atol=0)
    torch.testing.assert_close(parts[1], torch.tensor([[[0.8]], [[0.4]]]), rtol=1e-5, atol=0)
