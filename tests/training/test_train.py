"""Training: what a run leaves behind, that stopping it changes nothing, and which weights are kept."""

from __future__ import annotations

import platform
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch.multiprocessing import ProcessRaisedException

from longthink.errors import UserError
from longthink.loading import load, rebuild
from longthink.recipes import recipes
from longthink.tasks import Batch, task
from longthink.tasks.prefix_sums import PrefixSums
from longthink.training import member, validation
from longthink.training import train as training
from longthink.training.checkpoint import RunFolder, load_last
from longthink.training.data import TrainingData, _equally_often, _rounded, mixed_problems, proportions
from longthink.training.files import read_json, read_tensors
from longthink.training.recipe import Recipe, override
from longthink.training.schedule import make_optimizer
from longthink.training.train import Trainer, TrainingOptions, train
from longthink.training.validation import Solved, Verdict
from tests.training.toy import TOY, assert_same_end, metrics, options

MAZES = Recipe(
    name="toy-mazes",
    task="mazes",
    difficulty=(5,),
    task_options={"style": "percolation"},
    model_options={"width": 4, "head": [4, 4]},
    steps=2,
    alpha=0.5,
    horizon=5,
    train_samples=16,
    valid_samples=10,
    batch=4,
    epochs=2,
    warmup_epochs=0,
    learning_rate=0.01,
    recurrent_scale=0.5,
)
SETTINGS = {
    "averaged": [],
    "sgd": ["optimizer=sgd", "average=none", "alpha=1", "clip=none"],
    "fresh": ["fresh=true", "optimizer=adamw", "progressive_every=3", "schedule=cosine"],
    "rare validation": ["epochs=3", "validate_every=2"],
    "feed-forward": ["model.distinct_steps=3", "model.recall=false", "horizon=none", "average=none"],
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_stopping_after_every_update_changes_nothing(tmp_path: Path, settings: list[str]) -> None:
    recipe = override(TOY, settings)
    whole = train(recipe, 3, options(tmp_path / "whole"))
    stopped = options(tmp_path / "stopped", seconds=0)
    run = RunFolder(tmp_path / "stopped", recipe, 3)
    for update in range(1, recipe.updates + 1):
        assert not run.finished()
        assert train(recipe, 3, stopped) == run.path
        assert read_tensors(run.last)[1]["update"] == update
        load(run.path)  # there are weights to load from the first stop on
    assert run.finished()
    assert_same_end(whole, run.path)


def test_images_resume_too(tmp_path: Path) -> None:
    whole = train(MAZES, 0, options(tmp_path / "whole"))
    for _ in range(MAZES.updates):
        run = train(MAZES, 0, options(tmp_path / "stopped", seconds=0))
    assert_same_end(whole, run)


def test_the_optimisers_memory_lies_as_the_weights_do_after_a_stop(tmp_path: Path) -> None:
    """Fused optimisers, which a GPU gets, refuse any other order."""
    train(MAZES, 0, options(tmp_path, seconds=0))
    run = RunFolder(tmp_path, MAZES, 0)
    model = rebuild(MAZES, 0)[1]
    optimizer = make_optimizer(MAZES, model)
    load_last([run], model, optimizer, None)
    stored, _ = read_tensors(run.last)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    assert any(not weight.is_contiguous() for weight in weights)
    for index, weight in enumerate(weights):
        for slot in ("exp_avg", "exp_avg_sq"):
            assert optimizer.state[weight][slot].stride() == weight.stride()
            assert torch.equal(optimizer.state[weight][slot], stored[f"optimizer.{index}.{slot}"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="fused optimisers of a GPU")
@pytest.mark.parametrize("recipe", [MAZES, TOY], ids=lambda recipe: recipe.name)
def test_training_goes_on_after_a_stop_on_a_gpu(tmp_path: Path, recipe: Recipe) -> None:
    whole, _ = read_tensors(
        train(recipe, 0, replace(options(tmp_path / "whole"), accelerator="cuda")) / "last.safetensors"
    )
    for _ in range(recipe.updates):
        run = train(recipe, 0, replace(options(tmp_path / "stopped", seconds=0), accelerator="cuda"))
    stopped, _ = read_tensors(run / "last.safetensors")
    assert stopped.keys() == whole.keys()
    for name, value in whole.items():
        torch.testing.assert_close(
            stopped[name], value, rtol=1e-2, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_enough_flawless_validations_in_a_row_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(TOY, epochs=9, enough=2)
    too_early = (
        recipe.updates_an_epoch - 1
    )  # a stopped run without weights to load is validated, and that does not count
    flawless = iter([True] * too_early + [True, False, True, True])

    def validate(self: Solved, model: torch.nn.Module) -> Verdict:
        right = next(flawless)
        accuracy = [1.0 if right else 0.5] * 2
        return Verdict(accuracy, {}, {"samples": 1, "steps": [3, 9], "accuracy": accuracy}, right)

    monkeypatch.setattr(Solved, "__call__", validate)
    for _ in range(4 * recipe.updates_an_epoch - 1):  # the count is part of the checkpoint
        run = train(recipe, 0, options(tmp_path, seconds=0))
        assert not RunFolder(tmp_path, recipe, 0).finished()
    run = train(recipe, 0, options(tmp_path, seconds=0))
    assert RunFolder(tmp_path, recipe, 0).finished()
    assert read_tensors(run / "last.safetensors")[1]["update"] == 4 * recipe.updates_an_epoch
    with pytest.raises(UserError, match="enough must be 1 or more"):
        replace(TOY, enough=0)


def test_a_finished_run_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(TOY, 0, options(tmp_path, tensorboard=True))
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tmp_path.rglob("*")}
    monkeypatch.setattr(training, "_train_here", lambda *_: pytest.fail("trained again"))
    assert train(TOY, 0, options(tmp_path, tensorboard=True)) == run
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tmp_path.rglob("*")} == before


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    first, again = (train(TOY, 0, options(tmp_path / name)) for name in ("a", "b"))
    assert_same_end(first, again)
    other = train(TOY, 1, options(tmp_path / "a"))
    assert other != first
    weights, others = read_tensors(first / "best.safetensors")[0], read_tensors(other / "best.safetensors")[0]
    assert not any(torch.equal(weights[name], others[name]) for name in weights)


def test_training_leaves_the_callers_random_numbers_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    train(TOY, 0, options(tmp_path))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_training_leaves_the_callers_settings_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def settings() -> tuple[str, bool]:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark

    inside = []
    monkeypatch.setattr(Trainer, "run", lambda self: inside.append(settings()))
    before = settings()
    train(override(TOY, ["epochs=1"]), 0, options(tmp_path))
    assert inside == [("high", True)]
    assert settings() == before != inside[0]


def epoch_of(data: TrainingData, epoch: int) -> list[tuple[float, ...]]:
    an_epoch = data.recipe.updates_an_epoch
    batches = [data.batch(epoch * an_epoch + i) for i in range(an_epoch)]
    return [tuple(row) for batch in batches for row in batch.inputs.flatten(1).tolist()]


@pytest.mark.parametrize("fresh", [False, True])
def test_which_problems_are_seen(fresh: bool) -> None:
    recipe = replace(TOY, fresh=fresh, difficulty=(32,), train_samples=40)
    problem = task("prefix_sums")
    data = TrainingData(recipe, problem, 5, torch.device("cpu"))
    first, second, third = (epoch_of(data, epoch) for epoch in range(3))
    assert len(first) == 40
    if fresh:
        assert len({*first, *second, *third}) == 120  # 32 bits: no two alike
    else:
        assert set(first) == set(second) == set(third)
        assert len(set(first)) == 40
        assert first != second != third != first  # in another order
    late = TrainingData(recipe, problem, 5, torch.device("cpu"))
    assert epoch_of(late, 2) == third  # whatever came before
    assert set(epoch_of(TrainingData(recipe, problem, 6, torch.device("cpu")), 0)).isdisjoint(first)


def test_the_last_small_batch_is_dropped() -> None:
    assert TOY.train_samples == 37
    data = TrainingData(TOY, task("prefix_sums"), 0, torch.device("cpu"))
    assert {len(data.batch(update)) for update in range(2 * TOY.updates_an_epoch)} == {4}
    assert TOY.updates == 18


def test_several_difficulties_have_equal_parts() -> None:
    class Record(PrefixSums):
        def sample(self, n: int, difficulty: int, seed: int, split: Any = "test") -> Batch:
            batch = super().sample(n, 8, seed, split)
            batch.info["difficulty"] = torch.full((n,), difficulty)
            return batch

    batch = mixed_problems(Record(), 11, (3, 4, 5), 0, "train")
    assert batch.info["difficulty"].tolist() == [3] * 4 + [4] * 4 + [5] * 3


def test_shares_decide_how_many_problems_of_each_difficulty() -> None:
    recipe = replace(recipes["ctl-router"], train_samples=537, batch=537, balanced=False)
    assert proportions(537, recipe.shares or ()) == [6, 5, 37, 208, 281]
    assert sum(recipes["ctl-router"].shares or ()) == recipes["ctl-router"].train_samples
    batch = TrainingData(recipe, task("ctl"), 0, torch.device("cpu")).batch(0)
    lengths = batch.lengths()
    assert [int((lengths == functions + 1).sum()) for functions in (1, 2, 3, 4, 5)] == [6, 5, 37, 208, 281]
    with pytest.raises(UserError, match="shares must be none, or 1 or more for each of 5 difficulties"):
        replace(recipe, shares=(1, 2))


def test_balanced_recipes_draw_every_difficulty_as_often() -> None:
    recipe = replace(recipes["ctl-router"], train_samples=537, batch=50, balanced=True)
    data = TrainingData(recipe, task("ctl"), 0, torch.device("cpu"))
    rows = torch.cat([data.batch(update).inputs for update in range(10)])
    lengths = (rows != 0).sum(1)
    assert [int((lengths == functions + 1).sum()) for functions in (1, 2, 3, 4, 5)] == [100] * 5
    again = TrainingData(recipe, task("ctl"), 0, torch.device("cpu"))
    assert torch.equal(again.batch(3).inputs, data.batch(3).inputs)
    assert not torch.equal(again.batch(13).inputs, data.batch(3).inputs)
    drawn = _equally_often(np.random.PCG64(3), [2, 7, 100], 60)
    assert sorted(drawn[drawn < 2]) == [0] * 10 + [1] * 10
    counts = np.bincount(drawn[(drawn >= 2) & (drawn < 9)], minlength=9)[2:]
    assert set(counts) == {2, 3}  # 20 draws of 7
    assert np.bincount(drawn[drawn >= 9]).max() == 1
    assert sorted(_equally_often(np.random.PCG64(3), [0, 1, 0, 1], 4)) == [0, 0, 1, 1]  # no problems of some depths


def test_sequences_come_in_few_shapes_with_little_padding() -> None:
    shapes = [_rounded(length) for length in range(1, 2049)]
    assert all(length <= shape < length + max(8, length / 4) for length, shape in enumerate(shapes, 1))
    assert shapes[9:64:8] == [16, 24, 32, 40, 48, 56, 64]
    assert len(set(shapes)) == 8 + 4 * 5


@pytest.mark.parametrize(("pool", "alike"), [(32, True), (1, False)])
def test_sequences_of_a_batch_are_alike_or_mixed(pool: int, alike: bool) -> None:
    recipe = replace(recipes["ctl-router"], train_samples=640, batch=20, shares=None, balanced=False, pool=pool)
    data = TrainingData(recipe, task("ctl"), 0, torch.device("cpu"))
    depths = [len(data.batch(update).lengths().unique()) for update in range(32)]
    assert (np.mean(depths) < 1.5) == alike
    assert (min(depths) >= 3) == (not alike)  # of five


def test_no_sequence_is_always_left_out_of_the_last_batch() -> None:
    recipe = replace(recipes["ctl-router"], train_samples=1_000, batch=300, shares=None)
    data = TrainingData(recipe, task("ctl"), 0, torch.device("cpu"))
    longest = []
    for epoch in range(6):
        batches = [data.batch(epoch * recipe.updates_an_epoch + i) for i in range(recipe.updates_an_epoch)]
        longest.append(sum(int((batch.lengths() == 6).sum()) for batch in batches))
    assert min(longest) > 150  # of 200; sorted before cutting, the same 100 would always be missing


def test_difficulties_of_different_sizes_get_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="differ in size"):
        train(replace(TOY, difficulty=(8, 9)), 0, options(tmp_path))


def test_averaged_weights_are_what_is_validated_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(TOY, average=0.7)
    expected = {name: value.clone() for name, value in rebuild(recipe, 0)[1].state_dict().items()}
    seen: list[dict[str, torch.Tensor]] = []
    move = Trainer._move_average

    def moved(trainer: Trainer) -> None:
        move(trainer)
        decay = min(0.7, (1 + trainer.update) / (10 + trainer.update))  # short memory at first
        for name, value in trainer.model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * value

    def accuracy(model: torch.nn.Module, *_: Any) -> list[float]:
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return [float(len(seen)), float(len(seen))]  # always better than before

    monkeypatch.setattr(Trainer, "_move_average", moved)
    monkeypatch.setattr(validation, "accuracy_at", accuracy)
    run = train(recipe, 0, options(tmp_path))
    assert len(seen) == recipe.epochs
    best, last = read_tensors(run / "best.safetensors")[0], read_tensors(run / "last.safetensors")[0]
    for name, value in best.items():
        assert torch.equal(value, seen[-1][name])
        assert torch.equal(value, last[f"average.{name}"])
        assert not torch.equal(value, last[f"model.{name}"])


def test_averaging_does_not_change_what_is_averaged(tmp_path: Path) -> None:
    averaged = train(TOY, 0, options(tmp_path))
    plain = train(replace(TOY, average=None), 0, options(tmp_path))
    a, b = (read_tensors(run / "last.safetensors")[0] for run in (averaged, plain))
    assert {name for name in a if name.startswith("average.")}
    assert b.keys() == {name for name in a if not name.startswith("average.")}
    assert all(torch.equal(a[name], b[name]) for name in b)


def test_the_best_weights_are_those_that_stay_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smaller of the accuracies at m and at 10 m decides, then their sum, then the loss; equals are not better."""
    script = [[1.0, 0.2], [0.5, 0.6], [0.6, 0.5], [0.5, 0.9], [0.5, 0.5], [0.4, 1.0]]
    late = iter([1.0, 3.0, 2.0, 2.0, 2.5, 0.1])
    best_updates: list[int] = []

    def accuracy(model: torch.nn.Module, problem: Any, batch: Batch, steps: Sequence[int]) -> list[float]:
        assert list(steps) == [3, 30]
        assert len(batch) == TOY.valid_samples
        return script.pop(0)

    def kept(folder: RunFolder, weights: Any, about: dict[str, Any]) -> None:
        best_updates.append(about["updates"])
        assert about["validation"] == {"samples": 20, "steps": [3, 30], "accuracy": about["validation"]["accuracy"]}
        save(folder, weights, about)

    save = member.save_best
    monkeypatch.setattr(validation, "accuracy_at", accuracy)
    monkeypatch.setattr(member, "save_best", kept)
    monkeypatch.setattr(validation.Solved, "loss_at", lambda self, steps, model: {30: next(late)}[steps])
    recipe = replace(TOY, epochs=6)
    run = train(recipe, 0, options(tmp_path))
    assert best_updates == [9, 18, 27, 36]
    card = read_json(run / "card.json")
    assert card["updates"] == 36
    assert card["validation"]["accuracy"] == [0.5, 0.9]
    assert card["finished"]["updates"] == 54
    assert [line["valid_3"] for line in metrics(run) if "valid_3" in line] == [1.0, 0.5, 0.6, 0.5, 0.5, 0.4]
    assert [line["valid_30"] for line in metrics(run) if "valid_3" in line] == [0.2, 0.6, 0.5, 0.9, 0.5, 1.0]


def test_where_nothing_stays_right_the_loss_at_m_breaks_the_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "accuracy_at", lambda *_: [1.0, 0.0])
    monkeypatch.setattr(validation.Solved, "loss_at", lambda self, steps, model: float(steps))
    _, model = rebuild(TOY)
    assert validation.Solved(TOY, task("prefix_sums"))(model).score == [0.0, 1.0, -3.0]


def test_nothing_harder_than_the_recipe_is_ever_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[tuple[int, str]] = set()
    sample = PrefixSums.sample

    def record(self: PrefixSums, n: int, difficulty: int, seed: int, split: Any = "test") -> Batch:
        asked.add((difficulty, split))
        return sample(self, n, difficulty, seed, split)

    monkeypatch.setattr(PrefixSums, "sample", record)
    train(replace(TOY, fresh=True), 0, options(tmp_path))
    assert asked == {(8, "train"), (8, "valid")}


@pytest.mark.parametrize("settings", [[], ["model.distinct_steps=5", "model.recall=false"]], ids=["dt", "ff"])
def test_training_learns(tmp_path: Path, settings: list[str]) -> None:
    base = ["steps=5", "horizon=none", "alpha=0", "model.width=16", "train_samples=400", "batch=20", "epochs=4"]
    run = train(override(TOY, [*base, *settings]), 0, options(tmp_path))
    losses = [line["loss"] for line in metrics(run) if "loss" in line]
    assert losses[0] > 0.68
    assert losses[-1] < 0.5
    validated = [line for line in metrics(run) if "valid_5" in line]
    assert len(validated) == 4
    assert validated[-1]["valid_5"] > 0.02  # 8 bits by chance: 0.004
    assert ("valid_50" in validated[-1]) == (not settings)


def test_tensorboard_has_every_number_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.summary.writer import event_file_writer

    # Files are read in the order of their names, which end with the second and a process's count: .10 is before .9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(100))
    # stopped right at a checkpoint, whose numbers must stay, and in the middle of an epoch
    for seconds in (0, 0, None):
        run = train(TOY, 0, options(tmp_path, tensorboard=True, seconds=seconds))
    assert list(run.glob("events.out.tfevents.*"))
    events = EventAccumulator(str(run))
    events.Reload()
    for name in ("loss", "full", "progressive", "rate", "gradient_norm", "valid_3", "valid_30", "valid_loss"):
        logged = [(line["update"], pytest.approx(line[name])) for line in metrics(run) if name in line]
        assert [(event.step, event.value) for event in events.Scalars(name)] == logged
        assert logged


def test_card_and_recipe_say_how_the_weights_were_made(tmp_path: Path) -> None:
    run = train(TOY, 4, options(tmp_path))
    assert run.name == f"toy-{TOY.hash()}-seed4"
    assert read_json(run / "recipe.json") == {
        "recipe": TOY.to_json() | {"difficulty": [8], "decay_epochs": []},
        "seed": 4,
    }
    card = read_json(run / "card.json")
    assert Recipe.from_json(card["recipe"]) == TOY
    assert card["seed"] == 4
    assert card["hardware"] == f"{platform.machine()} CPU"
    assert card["torch"] == torch.__version__
    assert card["updates"] in (9, 18)
    assert card["finished"]["updates"] == 18
    assert card["minutes"] >= 0
    weights = read_tensors(run / "best.safetensors")[0]
    assert card["parameters"] == sum(value.numel() for value in weights.values())
    best = max(
        (line for line in metrics(run) if "valid_3" in line),
        key=lambda line: (min(line["valid_3"], line["valid_30"]), -line["valid_loss"]),
    )
    assert card["updates"] == best["update"]
    assert card["validation"]["accuracy"] == [best["valid_3"], best["valid_30"]]
    assert {path.name for path in run.iterdir()} == {
        "recipe.json", "card.json", "metrics.jsonl", "best.safetensors", "last.safetensors"
    }  # fmt: skip


def test_two_devices_train_as_one(tmp_path: Path) -> None:
    """Halves of a batch of mazes differ in how many pixels count; the pooled mean must not notice."""
    problems = TrainingData(MAZES, rebuild(MAZES)[0], 0, torch.device("cpu")).batch(0)
    assert problems.mask is not None
    assert problems.mask[:2].sum() != problems.mask[2:].sum()
    one = train(MAZES, 0, options(tmp_path / "one"))
    two = train(MAZES, 0, options(tmp_path / "two", devices=2))
    first, second = metrics(one), metrics(two)
    assert len(first) == MAZES.updates + MAZES.epochs
    for mine, theirs in zip(first, second, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)
    a, b = (load(run).model.state_dict() for run in (one, two))
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("error", [UserError("Choose: an odd size."), ZeroDivisionError("a mistake of ours")])
def test_complaints_of_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """They arrive as the text of a traceback; a sentence for people stays one, a bug keeps its traceback."""

    def launch(fabric: Fabric, function: Any) -> None:
        try:
            try:
                raise OSError("the cause")
            except OSError as cause:
                raise error from cause
        except Exception:
            text = f"\n\n-- Process 1 terminated with the following error:\n{traceback.format_exc()}"
        raise ProcessRaisedException(text, 1, 4711)

    monkeypatch.setattr(Fabric, "launch", launch)
    with pytest.raises(UserError if isinstance(error, UserError) else ProcessRaisedException) as caught:
        train(TOY, 0, options(tmp_path, devices=2))
    if isinstance(error, UserError):
        assert str(caught.value) == str(error)


@pytest.mark.parametrize(
    ("changes", "seed", "words"),
    [
        ({"devices": 3}, 0, "batch of 4 cannot be shared by 3"),
        ({"devices": 0}, 0, "1 device or more"),
        ({"precision": "17-bit"}, 0, "must be 32-true or bf16-mixed"),
        ({"accelerator": "abacus"}, 0, "auto, cpu or cuda"),
        ({"precision": "16-mixed"}, 0, "bf16-mixed"),
        ({}, -1, "seed must be 0 or more"),
    ],
)
def test_impossible_options_get_one_sentence(tmp_path: Path, changes: dict[str, Any], seed: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        train(TOY, seed, TrainingOptions(folder=str(tmp_path), **{"accelerator": "cpu", "quiet": True, **changes}))
    assert not list(tmp_path.iterdir())


def test_progress_is_told_in_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(TOY, 0, options(tmp_path, quiet=False, seconds=0))
    train(TOY, 0, options(tmp_path, quiet=False))
    out, err = capsys.readouterr()
    assert out == ""
    assert "Stopped after 1 of 18 updates; run again to go on." in err
    assert "update 18:" in err
    assert "toy seed 0  18/18" in err
    train(TOY, 1, options(tmp_path))
    assert capsys.readouterr() == ("", "")
