"""Weights are found by name, and no name leads out of the folder of runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from longthink.errors import UserError
from longthink.explore.server import HOW_TO_TRAIN
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
    shelf = Shelf(tmp_path / "runs")
    assert set(shelf.found()) == set(shipped())
    path = train(TOY, 0, options(tmp_path / "runs"))
    assert shelf.load(path.name).task.name == "prefix_sums"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../runs", "/etc/passwd", "group", "group/../group/ctl-toy", "group/ctl-toy/", "a\0b", "\ud800"],
)
def test_tricks_with_names_find_nothing(runs: Path, name: str) -> None:
    with pytest.raises(UserError, match="no weights named"):
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


def test_the_recipes_that_the_page_recommends_exist() -> None:
    import longthink as lt

    assert {task: lt.recipe(name).task for task, name in HOW_TO_TRAIN.items()} == {task: task for task in HOW_TO_TRAIN}
