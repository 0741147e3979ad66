"""Training on a text that is read in order: it learns, remembers, and goes on at the very next token."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from longthink.cli import main
from longthink.errors import UserError
from longthink.loading import load, save
from longthink.recipes import recipes
from longthink.sampling import write
from longthink.tasks.base import Batch
from longthink.tasks.text import Text
from longthink.training.files import read_tensors
from longthink.training.losses import Objective, Past, Plan
from longthink.training.recipe import Recipe, override
from longthink.training.train import Trainer, train
from tests.training.toy import TOY, options


@pytest.fixture
def toy(tmp_path: Path) -> Recipe:
    letters = np.random.PCG64(0).random_raw(4000) % 8
    (tmp_path / "text.txt").write_bytes(bytes(int(n) + 97 for n in letters.repeat(2)))  # every other letter is certain
    base = replace(recipes["text-small-dense"], difficulty=(12,), train_samples=160, batch=4, valid_samples=40)
    small = ["model.width=16", "model.hidden=32", "model.heads=2", "model.head_size=8", "model.memory=8"]
    where = [f"task.corpus={tmp_path / 'text.txt'}", f"task.folder={tmp_path / 'cache'}"]
    rest = ["model.distinct_steps=2", "steps=2", "epochs=3", "learning_rate=0.01", "clip=1"]
    return override(base, [*small, *where, *rest])


def test_a_text_is_learned_and_validated_in_bits(
    toy: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(toy, 0, options(tmp_path))
    found = load(run).card["validation"]
    assert main(["eval", str(run), "--samples", "30", "--memory", "0,8", "--json"]) == 0
    tested = json.loads(capsys.readouterr().out)["memories"]
    assert [one["memory"] for one in tested] == [0, 8, 32]  # the last is what it does by itself
    assert all(one["tokens"] == 30 * 12 for one in tested)
    assert tested[0]["bits_per_byte"] > tested[1]["bits_per_byte"]
    assert abs(tested[-1]["bits_per_byte"] - found["bits_per_byte"]) < 0.6
    assert main(["eval", str(run), "--samples", "3000"]) == 0
    shown = capsys.readouterr().out
    assert "bits per byte" in shown
    assert "all 34 blocks" in shown
    assert found["bits_per_byte"] < 2.4  # 3 bits for a new letter, none for its copy; 8 letters alike would cost 3
    assert found["samples"] > 100


def test_texts_are_validated_in_blocks_of_their_own_length(toy: Recipe, tmp_path: Path) -> None:
    plain = replace(toy, epochs=1)
    found = [load(train(replace(plain, valid_difficulty=d), 0, options(tmp_path))) for d in (None, (10, 30))]
    verdicts = [one.card["validation"] for one in found]
    assert [one["samples"] for one in verdicts] == [4 * 8 * 12, 4 * 3 * 30]
    assert verdicts[0]["bits_per_byte"] != verdicts[1]["bits_per_byte"]
    weights, same = (one.model.state_dict() for one in found)
    assert all(torch.equal(weights[name], same[name]) for name in weights)  # trained alike
    with pytest.raises(UserError, match="blocks of 1 token or more"):
        train(replace(plain, valid_difficulty=(0,)), 0, options(tmp_path))


def test_going_on_is_the_same_as_never_stopping(toy: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(toy, 0, options(tmp_path / "whole"))
    late = Trainer._is_late
    monkeypatch.setattr(Trainer, "_is_late", lambda trainer, _: trainer.update in (7, 50))
    stopped = options(tmp_path / "stopped")
    for _ in range(3):
        run = train(toy, 0, stopped)
    monkeypatch.setattr(Trainer, "_is_late", late)
    ours, theirs = (read_tensors(folder / "last.safetensors")[0] for folder in (whole, run))
    assert any(name.startswith("memory.") for name in ours)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_subwords_stay_what_they_were_when_the_corpus_changes(
    toy: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentencepiece")
    corpus = tmp_path / "words.txt"
    corpus.write_text("the cat sat on the mat and the dog sat on the log\n" * 200)
    recipe = override(toy, [f"task.corpus={corpus}", "task.tokeniser=sentencepiece", "task.pieces=40", "epochs=1"])
    recipe = override(recipe, ["train_samples=8"])
    run = train(recipe, 0, options(tmp_path))
    before = load(run).task.encode("the cat and the dog").tolist()
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "task.tokeniser").write_text("of another network")
    saved = save(load(run), tmp_path / "saved")
    corpus.write_text("quite another text with other words\n" * 300)
    assert load(run).task.encode("the cat and the dog").tolist() == before
    other = tmp_path / "other.txt"
    other.write_text("words that nobody has learned yet\n" * 300)
    posed = load(run).with_settings([f"task.corpus={other}"])  # another text, read in the same subwords
    assert posed.task.encode("the cat and the dog").tolist() == before
    with pytest.raises(UserError, match=r"leave task\.tokeniser out"):
        load(run).with_settings(["task.tokeniser=bytes"])
    other.write_text("the cat ЖЖ sat\n" * 300)
    out, setting = tmp_path / "bits.json", f"task.corpus={other}"
    assert main(["eval", str(run), "--set", setting, "--samples", "3", "--memory", "4", "--out", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())  # tables are folded
    document = json.loads(out.read_text())
    assert (document["corpus"], document["settings"], document["blocks"]) == (str(other), [setting], 3)
    assert document["device"] == "cpu"
    tested = load(run).with_settings([setting]).task
    assert isinstance(tested, Text)
    lost, known = document["bytes without tokens"], tested.tokens("test")[1].bytes
    assert lost > 0
    assert lost * len("the cat  sat\n") == known * len("ЖЖ".encode())
    assert f"unknown {lost:,} of {lost + known:,} bytes are in no token" in shown
    assert f"written {out}" in shown
    corpus.unlink()
    for folder in (run, saved):
        loaded = load(folder)
        assert loaded.task.encode("the cat and the dog").tolist() == before
        assert write(loaded, "the cat", length=3).tokens <= 3


def test_the_memory_matters(toy: Recipe, tmp_path: Path) -> None:
    """In training: both are tested with as much of it."""

    def bits_after_training(memory: int) -> float:
        recipe = override(toy, [f"model.memory={memory}", "model.evaluation_memory=8", "epochs=1"])
        run = train(recipe, 0, options(tmp_path))
        return float(load(run).card["validation"]["bits_per_byte"])

    assert bits_after_training(8) != bits_after_training(0)


@pytest.mark.parametrize("setting", ["difficulty=4,8", "shares=1", "balanced=true"])
def test_a_text_is_read_in_blocks_of_one_length(toy: Recipe, tmp_path: Path, setting: str) -> None:
    with pytest.raises(UserError, match="A text is read in blocks of one length"):
        train(override(toy, [setting]), 0, options(tmp_path))


def test_texts_are_forgotten_now_and_then(toy: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts have nothing before them either. A stop in between changes nothing."""
    remembered: list[bool] = []
    forward = Objective.forward

    def spy(
        self: Objective, batch: Batch, plan: Plan, count: torch.Tensor | None = None, past: Past | None = None
    ) -> Any:
        remembered.append(past is not None and past.memory is not None)
        return forward(self, batch, plan, count, past)

    monkeypatch.setattr(Objective, "forward", spy)
    recipe = replace(toy, forget_every=4, epochs=1, train_samples=44)
    whole = train(recipe, 0, options(tmp_path / "whole"))
    assert remembered == [False, True, True, True] * 2 + [False, True, True]
    monkeypatch.setattr(Trainer, "_is_late", lambda trainer, _: trainer.update == 6)
    train(recipe, 0, options(tmp_path / "stopped", seconds=1.0))
    monkeypatch.setattr(Trainer, "_is_late", lambda *_: False)
    stopped = train(recipe, 0, options(tmp_path / "stopped"))
    one, other = (read_tensors(run / "last.safetensors")[0] for run in (whole, stopped))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_only_texts_can_be_forgotten(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^forget_every is for texts, which prefix_sums are not; leave it out\.$"):
        train(replace(TOY, forget_every=3), 0, options(tmp_path))
    with pytest.raises(UserError, match=r"^forget_every must be 1 update or more, or none, not 0\.$"):
        replace(TOY, forget_every=0)


def test_two_devices_remember_what_one_does(toy: Recipe, tmp_path: Path) -> None:
    # Sums of half batches round differently, and Adam makes steps of gradients next to zero: few and small ones here.
    recipe = override(toy, ["epochs=1", "train_samples=40", "learning_rate=1e-4"])
    one = train(recipe, 0, options(tmp_path / "one"))
    two = train(recipe, 0, options(tmp_path / "two", devices=2))
    ours, theirs = (read_tensors(run / "last.safetensors")[0] for run in (one, two))
    assert ours["memory.0"].shape == (4, 8, 16)
    for name in ("memory.0", "memory.1", "model.embedding.weight", "model.head.weight"):
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("options_", [{"balance_weight": 0.5}, {"balance": None, "selection": "sinkhorn"}], ids=str)
def test_two_devices_balance_their_experts_together(toy: Recipe, tmp_path: Path, options_: dict[str, object]) -> None:
    experts = {"experts": 4, "k": 2, **options_}
    more = {**toy.model_options, "feedforward": "experts", "feedforward_options": experts}
    recipe = override(replace(toy, model_options=more), ["epochs=1", "train_samples=12", "learning_rate=1e-3"])
    one = train(recipe, 0, options(tmp_path / "one"))
    two = train(recipe, 0, options(tmp_path / "two", devices=2))
    ours, theirs = (read_tensors(run / "last.safetensors")[0] for run in (one, two))
    selectors = [name for name in ours if name.startswith("model.") and name.endswith("selection.weight")]
    assert selectors
    for name in selectors:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-5)


def test_going_on_with_another_text_is_refused(toy: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Trainer._is_late
    monkeypatch.setattr(Trainer, "_is_late", lambda trainer, _: trainer.update == 5)
    run = train(toy, 0, options(tmp_path / "runs"))
    monkeypatch.setattr(Trainer, "_is_late", late)
    corpus = Path(toy.task_options["corpus"])
    text = corpus.read_text()
    corpus.write_text(text.upper())
    with pytest.raises(UserError, match=r"The data of .* has changed since that run began"):
        train(toy, 0, options(tmp_path / "runs"))
    corpus.write_text(text)  # the same again, at another time
    train(toy, 0, options(tmp_path / "runs"))
    data = load(run).card["data"]
    assert data["corpus"] == str(corpus)
    assert data["train"]["bytes"] + data["valid"]["bytes"] + data["test"]["bytes"] == len(text.encode())
    corpus.write_text(text.upper())
    with pytest.raises(UserError, match=r"The data of .* has changed since that run began"):
        train(toy, 0, options(tmp_path / "runs"))  # it has ended, but with another text


def test_what_is_remembered_is_the_full_pass(toy: Recipe, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="alpha below 1"):
        train(replace(toy, alpha=1.0), 0, options(tmp_path))
