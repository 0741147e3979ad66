"""Weights and cards: what is saved is what is loaded, and what is shipped solves what it should."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import longthink as lt
from longthink.errors import UserError
from longthink.evaluate import accuracy_at
from longthink.loading import WEIGHTS, Loaded, load, push_to_hub, rebuild, save, shipped
from longthink.think import think
from longthink.training.files import read_json, read_tensors, write_json
from longthink.training.recipe import Recipe
from longthink.training.train import TrainingOptions, train

TOY = Recipe(
    name="toy",
    task="mazes",
    difficulty=(5,),
    task_options={"style": "kruskal"},
    model_options={"width": 6, "head": [4, 4], "dilation": 2},
    steps=2,
    train_samples=8,
    valid_samples=4,
    batch=4,
    epochs=1,
)


@pytest.fixture
def toy() -> Loaded:
    problem, model = rebuild(TOY, seed=3)
    return Loaded(model, problem, {"recipe": TOY.to_json(), "seed": 3, "updates": 0})


def assert_same_network(first: Loaded, second: Loaded) -> None:
    a, b = first.model.state_dict(), second.model.state_dict()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert first.task == second.task
    x = first.task.sample(2, 5, 0).inputs
    assert torch.equal(think(first.model, x, 3).logits, think(second.model, x, 3).logits)


@pytest.mark.parametrize("kind", [str, Path])
def test_what_is_saved_is_what_is_loaded(toy: Loaded, tmp_path: Path, kind: Any) -> None:
    assert save(toy, kind(tmp_path / "out")) == tmp_path / "out"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.safetensors", "config.json"}
    again = load(kind(tmp_path / "out"))
    assert_same_network(toy, again)
    assert again.card == read_json(tmp_path / "out" / "config.json")
    assert again.recipe == TOY
    assert again.task.style == "kruskal"  # type: ignore[attr-defined]


def test_loaded_networks_are_ready_for_use(toy: Loaded, tmp_path: Path) -> None:
    model = load(save(toy, tmp_path)).model
    assert not model.training
    assert not any(weight.requires_grad for weight in model.parameters())
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_networks_of_a_loop_of_ones_own_are_saved_with_a_recipe(tmp_path: Path) -> None:
    task = lt.task("prefix_sums")
    model = lt.build("deepthinking", **task.shape, width=8, head=(4, 4))
    recipe = lt.Recipe("mine", "prefix_sums", 8, model_options={"width": 8, "head": [4, 4]})  # type: ignore[arg-type]
    lt.save(lt.Loaded(model, task, {"recipe": recipe.to_json()}), tmp_path / "mine")
    again = lt.load(tmp_path / "mine")
    x = task.sample(2, 8, 0).inputs
    torch.testing.assert_close(lt.think(again.model, x, 3).logits, lt.think(model, x, 3).logits)
    lt.save((model, task, again.card), tmp_path / "unpacked")  # type: ignore[arg-type]
    for saved, sentence in (
        (model, "Save what lt.load gave"),
        ((model, task, {}), r"The card has no recipe.* add one"),
        (
            (model, task, {"recipe": lt.recipe("prefix_sums-long").to_json()}),
            r"weight is \[8, 8, 3\] here and \[400, 400, 3\] there",
        ),
    ):
        with pytest.raises(UserError, match=sentence):
            lt.save(saved, tmp_path / "wrong")  # type: ignore[arg-type]
    assert not (tmp_path / "wrong").exists()


def test_wrong_names_and_devices_get_one_sentence() -> None:
    with pytest.raises(UserError, match=r"by name, as in load\('mazes'\)"):
        lt.load(None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="device 'abacus' cannot be used"):
        lt.load("mazes", "abacus")
    with pytest.raises(UserError, match=r"Train a recipe, such as lt\.recipe\('prefix_sums-long'\), not 'mazes-long'"):
        lt.train("mazes-long")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="TrainingOptions"):
        lt.train(lt.recipe("mazes-long"), options={"quiet": True})  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"difficulty must be a whole number, not 8\.5"):
        lt.task("prefix_sums").sample(1, 8.5, 0)  # type: ignore[arg-type]


def test_half_storage_is_half_the_size_and_near(toy: Loaded, tmp_path: Path) -> None:
    save(toy, tmp_path / "half", half=True)
    save(toy, tmp_path / "whole")
    stored = load_file(tmp_path / "half" / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.bfloat16}
    sizes = [sum(t.nbytes for t in load_file(tmp_path / d / "model.safetensors").values()) for d in ("half", "whole")]
    assert sizes[0] * 2 == sizes[1]
    again = load(tmp_path / "half")
    for name, value in toy.model.state_dict().items():
        loaded = again.model.state_dict()[name]
        assert loaded.dtype == torch.float32
        assert torch.equal(loaded, value.bfloat16().float())
    assert_same_network(again, load(save(again, tmp_path / "again", half=True)))


def test_the_card_travels_in_the_weights_too(toy: Loaded, tmp_path: Path) -> None:
    """A single file is enough."""
    save(toy, tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "alone.safetensors")
    assert_same_network(toy, load(tmp_path / "alone.safetensors"))


def test_files_can_be_read_by_others(toy: Loaded, tmp_path: Path) -> None:
    save(toy, tmp_path)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1
    (tmp_path / "plain").touch()
    assert modes == {stat.S_IMODE((tmp_path / "plain").stat().st_mode)}


def test_run_folders_load_their_best_weights(tmp_path: Path) -> None:
    run = train(TOY, 1, TrainingOptions(folder=str(tmp_path), accelerator="cpu", quiet=True, tensorboard=False))
    loaded = load(run)
    best = read_tensors(run / "best.safetensors")[0]
    assert all(torch.equal(value, best[name]) for name, value in loaded.model.state_dict().items())
    assert loaded.card["seed"] == 1
    assert loaded.recipe == TOY
    assert_same_network(loaded, load(save(loaded, tmp_path / "saved")))


def test_how_a_network_thinks_is_saved_with_it(tmp_path: Path) -> None:
    options = {"width": 16, "hidden": 16, "heads": 2}
    recipe = Recipe(name="toy", task="ctl", difficulty=(2,), model="router", model_options=options, steps=3)
    problem, model = rebuild(recipe)
    leaking = Loaded(model.eval(), problem, {"recipe": recipe.to_json()})
    tight = leaking.with_settings(["model.gate_threshold=0.2"]).with_settings(["model.gate_threshold=0.3"])
    assert tight.model.gate_threshold == 0.3
    assert (leaking.model.gate_threshold, leaking.with_settings([]).model) == (0.0, leaking.model)
    assert tight.recipe == recipe  # how it was trained
    again = load(save(tight, tmp_path / "tight"))
    assert again.model.gate_threshold == 0.3
    assert again.card["settings"] == ["model.gate_threshold=0.2", "model.gate_threshold=0.3"]
    inputs = problem.sample(4, 2, seed=0).inputs
    logits = [think(one.model, inputs, 5).logits for one in (leaking, tight, again)]
    assert torch.equal(logits[1], logits[2])
    assert not torch.allclose(logits[0], logits[1])
    other = tight.with_settings(["task.backward=true"])
    assert (other.task.backward, other.model.gate_threshold, other.card) == (True, 0.3, tight.card)
    write_json(tmp_path / "tight" / "config.json", {**tight.card, "settings": "model.gate_threshold=0.3"})
    with pytest.raises(UserError, match="must be a list like"):
        load(tmp_path / "tight")


def test_a_rebuilt_network_depends_on_its_seed_alone() -> None:
    first, again, other = (rebuild(TOY, seed)[1].state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("recipe", ["mazes-long", "ctl-router", "listops-lstm", "babi-dnc", "text-sigma_moe"])
def test_networks_larger_than_memory_are_refused_before_they_fill_it(recipe: str) -> None:
    size = "model.size" if recipe == "babi-dnc" else "model.width"
    with pytest.raises(
        UserError, match=r"has [\d,]{13,} parameters, more than fit into memory here; make it smaller\."
    ):
        rebuild(lt.override(lt.recipe(recipe), f"{size}=102400000"))


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'mazes'"):
        load("maze")
    with pytest.raises(UserError, match=r"choose one of: arithmetic, .* and \d+ more"):
        load("zzzzzzzz")


def test_folders_without_weights(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no weights"):
        load(tmp_path)
    with pytest.raises(UserError, match="no folder or file"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no folder or file"):
        load("nowhere.safetensors")


def test_uploading_without_the_extra_says_what_to_install(
    toy: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"longthink\[hub\]"):
        push_to_hub(toy, "someone/toy", tmp_path)


def test_shipped_weights_are_small_and_have_cards() -> None:
    names = {path.stem for path in WEIGHTS.glob("*.safetensors")}
    assert names == set(shipped())
    assert {"mazes", "prefix_sums"} <= names
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) < 40e6
    for name, card in shipped().items():
        assert card.keys() >= {"recipe", "seed", "updates", "hardware", "minutes"}, name
        recipe = Recipe.from_json(card["recipe"])
        assert 0 < card["updates"] <= recipe.updates, name
        assert card["minutes"] > 0, name
        assert card["hardware"], name
        model = load(name).model
        assert card["parameters"] == sum(weight.numel() for weight in model.parameters()), name


@pytest.mark.parametrize(("name", "size", "steps"), [("mazes", 9, 60), ("prefix_sums", 32, 60)])
def test_shipped_weights_solve_easy_problems(name: str, size: int, steps: int) -> None:
    loaded = load(name)
    assert loaded.task.name == name
    batch = loaded.task.sample(20, size, seed=123)
    assert bool(loaded.task.check(batch).all())
    assert accuracy_at(loaded.model, loaded.task, batch, [steps]) == [1.0]
