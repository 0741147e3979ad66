"""Runs that are trained as one network end like runs that are trained one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from longthink.errors import UserError
from longthink.recipes import recipes
from longthink.training import member, trainer
from longthink.training.checkpoint import RunFolder
from longthink.training.files import read_json, read_tensors, write_tensors
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
        assert about_a.keys() - {"together"} == about_b.keys()
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
    assert [read_json(run / "card.json")["together"] for run in runs] == [3, 3, 3]
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


def test_runs_that_stand_elsewhere_go_on_after_each_other(
    alone: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_is_late", lambda trainer, _: trainer.update == 3)
        train(*JOBS[0], options(tmp_path, seconds=1.0))
    for run, one in zip(train_together([*JOBS, JOBS[1]], options(tmp_path)), alone, strict=False):
        assert_alike(run, one)


def test_death_between_two_checkpoints(alone: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of three has made its second checkpoint, the others have not."""
    save, calls = trainer.save_last, 0

    def dying(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 8:  # all three are saved before their first validation, too
            raise SystemExit
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "save_last", dying)
        with pytest.raises(SystemExit):
            train_together(JOBS, options(tmp_path))
    folders = [RunFolder(tmp_path, *job) for job in JOBS]
    assert [folder.stands_at() for folder in folders] == [10, 5, 5]
    for run, one in zip(train_together(JOBS, options(tmp_path)), alone, strict=True):
        assert_alike(run, one)


@pytest.mark.parametrize("at", [4, 5, 7])  # found by a line of metrics, by a validation, and by the next line
def test_one_whose_loss_explodes_leaves_the_others_alone(
    at: int, alone: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Trainer._one_update

    def explode(self: Trainer) -> None:
        update(self)
        if self.update == at:
            for weight in self.members[1].model.parameters():
                weight.data.fill_(torch.nan)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_one_update", explode)
        with pytest.raises(UserError, match=f"loss of {alone[1].name} became NaN"):
            train_together(JOBS, options(tmp_path))
    runs = [tmp_path / one.name for one in alone]
    assert not (runs[1] / "card.json").exists()
    for i in (0, 2):
        assert_alike(runs[i], alone[i])
    assert train_together(JOBS, options(tmp_path)) == runs  # from its last checkpoint, alone
    assert_alike(runs[1], alone[1])


def test_one_that_is_good_enough_when_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = {"samples": 1, "steps": [4, 6], "accuracy": [1.0, 1.0]}
    verdicts = iter([True, False, False, False])

    def judge(recipe: Recipe, problem: Any) -> Any:
        flawless = next(verdicts)
        return lambda model: Verdict([1.0], {"valid_4": 1.0}, card, flawless)

    monkeypatch.setattr(member, "validation", judge)
    monkeypatch.setattr(Trainer, "_is_late", lambda trainer, _: trainer.update == 5)
    jobs: list[Job] = [(replace(BASE, enough=1), seed) for seed in (0, 1)]
    first, second = train_together(jobs, options(tmp_path, seconds=1.0))
    assert read_json(first / "card.json")["finished"]["updates"] == 5
    assert not (second / "card.json").exists()
    monkeypatch.undo()
    monkeypatch.setattr(member, "validation", lambda *_: lambda _: Verdict([0.0], {"valid_4": 0.0}, card, False))
    train_together(jobs, options(tmp_path))
    assert read_json(second / "card.json")["finished"]["updates"] == 20


def test_a_damaged_checkpoint_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "_is_late", lambda trainer, _: trainer.update == 5)
    runs = train_together(JOBS, options(tmp_path, seconds=1.0))
    monkeypatch.undo()
    tensors, about = read_tensors(runs[2] / "last.safetensors")
    write_tensors(runs[2] / "last.safetensors", {**tensors, "model.head.bias": torch.zeros(3)}, about)
    with pytest.raises(UserError, match=rf"{runs[2].name}/last\.safetensors does not fit"):
        train_together(JOBS, options(tmp_path))
    write_tensors(runs[2] / "last.safetensors", tensors, {"update": 5})
    with pytest.raises(UserError, match=rf"{runs[2].name}/last\.safetensors does not fit"):
        train_together(JOBS, options(tmp_path))


def test_with_dropout_and_without_averages(tmp_path: Path) -> None:
    """All learn, each with masks of its own: two that are the same but for their folder part ways."""
    dropping = replace(BASE, model_options={**BASE.model_options, "dropout": 0.5}, average=None, clip=None)
    jobs: list[Job] = [(dropping, 0), (replace(dropping, name="twin"), 0)]
    one, twin = (read_tensors(run / "last.safetensors")[0] for run in train_together(jobs, options(tmp_path)))
    weights = [name for name in one if name.startswith("model.") and one[name].unique().numel() > 1]
    assert all(not torch.equal(one[name], twin[name]) for name in weights)
    assert not any(name.startswith("average.") for name in one)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the fast path needs a GPU")
@pytest.mark.parametrize("attention", ["geometric", "gated_positions"])
def test_together_as_alone_on_a_gpu(attention: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled and captured, in float32; stopped and gone on with in between."""
    torch._dynamo.reset()
    jobs: list[Job] = [
        (replace(one, model_options={**one.model_options, "width": 32, "attention": attention}), seed)
        for one, seed in JOBS
    ]
    how: dict[str, Any] = {"accelerator": "cuda", "precision": "32-true"}
    monkeypatch.setattr(Trainer, "_is_late", lambda trainer, _: trainer.update == 7)
    train_together(jobs, options(tmp_path / "together", seconds=1.0, **how))
    monkeypatch.undo()
    runs = train_together(jobs, options(tmp_path / "together", **how))
    for run, (recipe, seed) in zip(runs, jobs, strict=True):
        torch._dynamo.reset()
        one = train(recipe, seed, options(tmp_path / "alone", compile=False, graphs=False, **how))
        for line, another in zip(metrics(run), metrics(one), strict=True):
            # Rounding grows from update to update, and shows in the gradient first: 3.1% after 19 of them were seen.
            lengths = [one.pop("gradient_norm", 0.0) for one in (line, another)]
            assert lengths[0] == pytest.approx(lengths[1], rel=0.05, abs=0.04)
            assert line == pytest.approx(another, rel=0.03, abs=0.04)  # one of 30 problems may fall on the other side
        found, expected = (
            torch.cat([value.flatten() for _, value in sorted(read_tensors(folder / "best.safetensors")[0].items())])
            for folder in (run, one)
        )
        # Products are rounded to TF32, and Adam makes much of small gradients.
        assert (found - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize(
    ("jobs", "reason"),
    [
        ([(BASE, 0), (replace(BASE, learning_rate=1e-3), 1)], "differ in more than their data"),
        ([(BASE, 0), (replace(BASE, task="listops", task_options={}), 0)], "differ in more than their data"),
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
