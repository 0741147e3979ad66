"""Training that starts from weights: those of a folder, and those that another recipe ended with."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from longthink.errors import UserError
from longthink.loading import load
from longthink.training.files import read_json, read_tensors
from longthink.training.recipe import override, source_of, throughout
from longthink.training.train import Trainer, train
from tests.training.toy import TOY, options


def test_training_may_start_from_weights(tmp_path: Path) -> None:
    first = train(TOY, 0, options(tmp_path))
    still = replace(TOY, learning_rate=1e-30, weight_decay=0.0, average=None)  # ends as it began
    second = train(replace(still, weights=str(first)), 1, options(tmp_path))
    ours, card = read_tensors(second / "best.safetensors")
    for name, tensor in read_tensors(first / "best.safetensors")[0].items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-12)
    assert card["recipe"]["weights"] == str(first)
    assert replace(TOY, weights=str(first)).hash() != TOY.hash()
    for weights, says in ((str(first), "another network than this one: size mismatch"), ("nowhere", "nowhere")):
        wider = override(replace(TOY, weights=weights), ["model.width=5"])
        with pytest.raises(UserError, match=says):
            train(wider, 0, options(tmp_path))


def test_a_recipe_may_go_on_where_another_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longthink.training.recipe.recipes", {TOY.name: TOY})
    after = replace(TOY, name="after", weights=TOY.name, learning_rate=1e-30, weight_decay=0.0, average=None)
    with pytest.raises(UserError, match=f"no such run in .*; first: longthink train {TOY.name} --seed 1"):
        train(after, 1, options(tmp_path))
    assert not list(tmp_path.glob("**/*.safetensors"))
    for seed in (0, 1):  # that of the same seed is taken
        first = read_tensors(train(TOY, seed, options(tmp_path)) / "best.safetensors")[0]
        ours = read_tensors(train(after, seed, options(tmp_path)) / "best.safetensors")[0]
        for name, tensor in first.items():
            torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-12)


def test_what_a_recipe_goes_on_from_may_have_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are for all of a chain, each has those of the next; what cannot be found is named as it is typed."""
    second = replace(TOY, name="second", weights=TOY.name)
    third = replace(TOY, name="third", weights="second")
    monkeypatch.setattr("longthink.training.recipe.recipes", {one.name: one for one in (TOY, second, third)})
    settings = ["model.width=5", " epochs = 1", "name=x"]
    chain = throughout(third, settings)
    assert (chain.name, chain.epochs, chain.weights) == ("x", 1, "second model.width=5 epochs=1")
    before = source_of(chain)
    assert before is not None
    assert before == replace(override(second, settings[:2]), weights=f"{TOY.name} model.width=5 epochs=1")
    assert source_of(before) == override(TOY, settings[:2])
    with pytest.raises(UserError) as error:
        train(chain, 3, options(tmp_path))
    typed = str(error.value).partition("first: longthink train ")[2]
    name, *words = shlex.split(typed)
    assert (name, words[:2], words[-2:]) == ("second", ["--seed", "3"], ["--folder", str(tmp_path)])
    assert override(second, words[3:-2:2]) == before  # what somebody types is what was missed
    train(override(TOY, settings[:2]), 3, options(tmp_path))
    train(before, 3, options(tmp_path))
    assert load(train(chain, 3, options(tmp_path))).recipe == chain
    # Weights that are named are what they are.
    assert throughout(third, ["epochs=1", f"weights={TOY.name}"]) == replace(third, epochs=1, weights=TOY.name)
    assert throughout(third, []) == third
    folder = replace(TOY, weights="some folder's name")
    assert throughout(folder, ["epochs=1"]) == replace(folder, epochs=1)
    with pytest.raises(UserError, match="quotation mark is missing"):
        source_of(replace(TOY, weights="second 'epochs=1"))
    train(TOY, 3, options(tmp_path))
    with pytest.raises(UserError, match=r"than this one: .*; settings .* --set 'weights=toy k=v'\.$"):
        train(override(second, ["model.width=5"]), 3, options(tmp_path))


def test_a_run_goes_on_without_the_weights_it_started_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train(TOY, 0, options(tmp_path))
    recipe = replace(TOY, weights=str(first))
    late = Trainer._is_late
    monkeypatch.setattr(Trainer, "_is_late", lambda trainer, _: trainer.update == 5)
    train(recipe, 1, options(tmp_path))
    monkeypatch.setattr(Trainer, "_is_late", late)
    shutil.rmtree(first)
    assert read_json(train(recipe, 1, options(tmp_path)) / "card.json")["finished"]["updates"] == recipe.updates
