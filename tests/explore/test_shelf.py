"""Weights are found by name, and no name leads out of the folder of runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from longthink.errors import UserError
from longthink.explore import shelf
from longthink.explore.server import HOW_TO_TRAIN, _catalogue
from longthink.explore.shelf import Shelf
from longthink.loading import shipped
from longthink.training.train import train
from tests.explore.conftest import TOYS
from tests.training.toy import TOY, options


def test_shipped_weights_and_runs_are_found(runs: Path) -> None:
    found = Shelf(runs).found()
    assert set(found) == {*shipped(), *(f"group/{name}" for name in TOYS)}
    about = found["group/prefix-ff"].to_json()
    assert (about["task"], about["recall"], about["trained_steps"], about["shipped"]) == (
        "prefix_sums",
        False,
        3,
        False,
    )
    assert found["mazes"].to_json()["shipped"]


def test_a_run_is_there_as_soon_as_it_has_weights(tmp_path: Path) -> None:
    found = Shelf(tmp_path / "runs")
    assert set(found.found()) == set(shipped())
    path = train(TOY, 0, options(tmp_path / "runs"))
    assert found.load(path.name).task.name == "prefix_sums"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../runs", "/etc/passwd", "group", "group/../group/ctl-toy", "group/ctl-toy/", "a\0b", "\ud800"],
)
def test_tricks_with_names_find_nothing(runs: Path, name: str) -> None:
    with pytest.raises(UserError, match="no network named"):
        Shelf(runs).load(name)


def test_what_is_no_run_is_passed_over(runs: Path, tmp_path: Path) -> None:
    here = tmp_path / "runs"
    good = shutil.copytree(runs / "group" / "ctl-toy", here / "good")
    for name, card in (("text", "not json"), ("list", "[]"), ("empty", "{}"), ("recipe", '{"recipe": {"task": 1}}')):
        shutil.copytree(good, here / name)
        (here / name / "config.json").write_text(card)
    (here / "link").symlink_to(runs / "group")
    (here / "bare").mkdir()
    (here / "bare" / "model.safetensors").write_bytes(b"rubbish")
    assert set(Shelf(here).found()) == {*shipped(), "good"}
    (good / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(UserError, match="damaged"):
        Shelf(here).load("good")


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": {"model_options": "x"}},
        {"recipe": {"model_options": None}},
        {"recipe": {"model": 3}},
        {"recipe": {"difficulty": ["x"]}},
        {"recipe": {"difficulty": [int("9" * 400)], "alpha": int("9" * 400)}},
        {"recipe": {"name": "\ud800"}},
        {"recipe": "x"},
    ],
)
def test_an_odd_card_is_no_run(runs: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    card, recipe = json.loads((runs / "group" / "ctl-toy" / "config.json").read_text()), change["recipe"]
    card["recipe"] = {**card["recipe"], **recipe} if isinstance(recipe, dict) else recipe
    write_run(runs, tmp_path / "odd", card)
    write_run(runs, tmp_path / "good")
    found = _catalogue(Shelf(tmp_path))
    assert [one["name"] for one in found["weights"] if not one["shipped"]] == ["good"]
    json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # as it goes to the page


@pytest.mark.parametrize("odd", ["x", 3, {"steps": 4}, {"steps": ["a"], "accuracy": [1.0], "samples": 1}, float("nan")])
def test_odd_facts_are_left_out(runs: Path, tmp_path: Path, odd: Any) -> None:
    card = json.loads((runs / "group" / "ctl-toy" / "config.json").read_text())
    write_run(runs, tmp_path / "odd", {**card, "validation": odd, "parameters": odd})
    about = Shelf(tmp_path).found()["odd"].to_json()
    assert about["validation"] is None
    json.dumps(about, allow_nan=False)


def write_run(runs: Path, place: Path, card: Any = None) -> None:
    shutil.copytree(runs / "group" / "ctl-toy", place)
    if card is not None:
        (place / "config.json").write_text(json.dumps(card))


def test_a_run_that_vanishes_meanwhile_is_passed_over(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(runs, tmp_path / "good")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "config.json").write_text((tmp_path / "good" / "config.json").read_text())
    places = [(tmp_path / name, tmp_path / name / "model.safetensors") for name in ("gone", "good")]
    monkeypatch.setattr(shelf, "_weights_below", lambda root: iter(places))
    assert set(Shelf(tmp_path).found()) == {*shipped(), "good"}


def test_the_folder_may_be_a_run_itself(runs: Path) -> None:
    found = Shelf(runs / "group" / "ctl-toy")
    assert set(found.found()) == {*shipped(), "ctl-toy"}
    assert found.load("ctl-toy").task.name == "ctl"


def test_a_run_may_be_named_like_shipped_weights(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(runs, tmp_path / "mazes")
    monkeypatch.chdir(tmp_path)
    for found in (Shelf(Path(".")), Shelf(Path("mazes"))):
        assert set(found.found()) == {*shipped(), "./mazes"}
        assert found.load("./mazes").task.name == "ctl"
        assert found.load("mazes").task.name == "mazes"


def test_the_recipes_that_the_page_recommends_exist() -> None:
    import longthink as lt

    assert {task: lt.recipe(name).task for task, name in HOW_TO_TRAIN.items()} == {task: task for task in HOW_TO_TRAIN}
