"""Training sets: what they were stays what it was, and those of different problems have each of them once."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longthink.errors import UserError
from longthink.recipes import recipes
from longthink.tasks import task
from longthink.tasks.ctlpp import CTLPP
from longthink.tasks.rng import SPLIT_CODES, split_code
from longthink.tasks.tokens import content_hash
from longthink.training.data import TrainingData, _first_places, derived_seed, different_problems, proportions
from longthink.training.recipe import Recipe, alike, differences
from longthink.training.train import train
from tests.training.toy import TOY, options

ROOT = Path(__file__).parents[2]
CTL = replace(recipes["ctl-router"], shares=None, balanced=False, different=True)
OLD_SHARES = (256, 2_048, 32_768, 88_309, 88_309, 88_310)
"""Of stored runs of CTL++ A and R."""


def data_of(recipe: Recipe, seed: int = 0) -> TrainingData:
    return TrainingData(recipe, task(recipe.task, **recipe.task_options), seed, torch.device("cpu"))


def epoch_of(data: TrainingData, epoch: int = 0) -> list[tuple[int, ...]]:
    """The problems in the order in which they come, without their padding."""
    updates = range(epoch * data.recipe.updates_an_epoch, (epoch + 1) * data.recipe.updates_an_epoch)
    rows = [row for update in updates for row in data.batch(update).inputs.tolist()]
    return [tuple(token for token in row if token) for row in rows]


def functions(problems: list[tuple[int, ...]]) -> dict[int, int]:
    """How many of them have how many functions, be it CTL or CTL++."""
    return dict(sorted(Counter(len(problem) - 1 for problem in problems).items()))


def whole(recipe: Recipe, seed: int = 0) -> list[tuple[int, ...]]:
    """The training set itself, of which balanced recipes show a part an epoch, and some of it several times."""
    return epoch_of(data_of(replace(recipe, balanced=False, batch=recipe.train_samples // 10), seed))


@pytest.mark.parametrize(
    ("name", "changes", "golden"),
    [
        ("ctl-router", {}, "c7335357609fe118"),
        ("arithmetic-router", {}, "7c053b0d693867a9"),
        ("listops-router", {"fresh": True}, "82302ccbf172146e"),
        ("ctlpp-A-router", {"different": False, "shares": OLD_SHARES}, "e0c051846bf4d636"),
        ("ctlpp-R-router-short_rare", {"different": False, "shares": OLD_SHARES}, "878af4f7285be609"),
        ("ctlpp-S-router-8-4", {"different": False, "shares": (576, 82_944, 216_480)}, "3337c0a45d0da795"),
    ],
)
def test_sets_that_may_repeat_are_those_of_stored_runs(name: str, changes: dict[str, Any], golden: str) -> None:
    data = data_of(replace(recipes[name], train_samples=600, batch=50, **changes), 3)
    digest = sha256()
    for update in range(2 * data.recipe.updates_an_epoch):
        batch = data.batch(update)
        for part in (batch.inputs, batch.targets):
            digest.update(part.numpy().astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == golden


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["ctl-router", "ctlpp-A-router", "ctlpp-R-router-no_singles", "ctlpp-S-router-4-2"]),
    st.integers(10, 1_500),
    st.integers(0, 2**40),
    st.booleans(),
)
def test_no_problem_is_there_twice(name: str, samples: int, seed: int, equal: bool) -> None:
    recipe = replace(recipes[name], different=True, balanced=False, train_samples=samples, batch=samples)
    recipe = replace(recipe, shares=None if equal else tuple(range(1, len(recipe.difficulty) + 1)))
    data = data_of(recipe, seed)
    batch = data.batch(0)
    problems = epoch_of(data)
    assert len(problems) == len(set(problems)) == samples
    assert data.task.check(replace(batch, difficulty=0)).all()
    assert epoch_of(data_of(recipe, seed), 1) == epoch_of(data, 1)
    assert set(epoch_of(data, 1)) == set(problems)


def there_are(made: CTLPP, depth: int) -> set[tuple[int, ...]]:
    """All problems with so many functions that are for training: every walk that it allows, of those the split's."""
    groups, restrictions, tokens = made.groups, made.restrictions, made.tokens
    follow = {
        "A": {"": ("a", "b"), "a": ("b",), "b": ("a",)},
        "R": {"": ("a", "b"), "a": ("a",), "b": ("b",)},
        "S": {"a1": ("a2", "o"), "b1": ("b2", "o")},
    }[made.variant]
    walks = [((1 + symbol,), "", symbol) for symbol in range(8)]  # in the order of application
    for _ in range(depth):
        longer = []
        for row, before, symbol in walks:
            for group in follow.get(before, ("a1", "b1")):
                for name in groups[group]:
                    if group != "o" or str(symbol) in restrictions[name]["ab".index(before[0])]:
                        token = tokens.index(name)
                        longer.append(((*row, token), group, int(made.tables[token - 9, symbol])))
        walks = longer
    rows = [row for row, _, _ in walks]
    codes = [0 if depth == 1 else split_code(np.uint64(content_hash(np.array(row, np.uint8)))) for row in rows]
    return {row[::-1] for row, code in zip(rows, codes, strict=True) if code == SPLIT_CODES["train"]}


def stored_counts(run: str) -> dict[int, int]:
    stored = json.loads((ROOT / "results/ctlpp-training_sets.json").read_text())["without repetition"]["sets"]
    counts = {entry["run"]: entry["different problems by functions"] for entry in stored}
    return {int(depth): count for depth, count in counts[run].items()}


@pytest.mark.parametrize("name", [f"ctlpp-{variant}-router{rest}" for variant in "AR" for rest in ("", "-public_set")])
def test_sets_of_ctlpp(name: str) -> None:
    """All short problems that are for training (E.1.2), single ones too but where the recipe has none; of each longer
    length as many as of another."""
    recipe = recipes[name]
    problems = whole(recipe)
    assert len(set(problems)) == len(problems) == 300_000
    made = task("ctlpp", **recipe.task_options)
    for depth in (1, 2, 3):
        wanted = there_are(made, depth) if depth in recipe.difficulty else set()
        assert {problem for problem in problems if len(problem) == 1 + depth} == wanted
    found = functions(problems)
    assert tuple(found) == recipe.difficulty
    longer = [found[depth] for depth in (4, 5, 6)]
    assert max(longer) - min(longer) <= 3  # one for each shorter length, as what it lacks does not divide
    if name.endswith("router"):
        singles = {problem for problem in problems if len(problem) == 2}
        assert singles == {(function, symbol) for function in range(9, 41) for symbol in range(1, 9)}
        assert found == stored_counts(f"{recipe.task_options['variant']} seed 0")


def test_no_seed_misses_a_single_function() -> None:
    for variant in ("A", "R"):
        for seed in (*range(50), 2748, 4464):  # of which the last have nothing new in the second 1,024 draws of A
            (singles,) = different_problems(task("ctlpp", variant=variant), 256, (1,), derived_seed(seed, 0), "train")
            assert len(singles.inputs.unique(dim=0)) == 256


@pytest.mark.parametrize("cell", [(4, 2), (12, 6), (16, 4)])
def test_cells_of_variant_s(cell: tuple[int, int]) -> None:
    """There all problems of two and of four functions are short ones."""
    recipe = recipes[f"ctlpp-S-router-{cell[0]}-{cell[1]}"]
    problems = whole(recipe)
    assert len(set(problems)) == len(problems) == 300_000
    made = task("ctlpp", **recipe.task_options)
    for depth in (2, 4):
        assert {problem for problem in problems if len(problem) == 1 + depth} == there_are(made, depth)
    assert functions(problems) == stored_counts(f"S {cell[0]} functions, {cell[1]} symbols seeds 0-4")


def test_what_is_missing_of_short_problems_is_made_up_for_by_longer_ones() -> None:
    """CTL has 72 problems with one function, all for training, and about 324 with two."""
    parts = different_problems(task("ctl"), 3_000, (1, 2, 3, 4), 0, "train")
    pairs = len(parts[1])
    assert 290 < pairs < 360
    rest = 3_000 - 72 - pairs
    assert [len(part) for part in parts] == [72, pairs, rest - rest // 2, rest // 2]
    turned = different_problems(task("ctl"), 3_000, (4, 2, 1, 3), 0, "train")  # in whatever order they are named
    assert [part.difficulty for part in turned] == [4, 2, 1, 3]
    assert all(torch.equal(turned[i].inputs, parts[j].inputs) for i, j in ((0, 3), (1, 1), (2, 0), (3, 2)))
    shared = different_problems(task("ctl"), 1_100, (1, 3), 0, "train", (1, 10))
    assert [len(part) for part in shared] == [72, 1_028]
    none_of_some = different_problems(task("ctl"), 2, (1, 2, 3), 0, "train")
    assert [len(part) for part in none_of_some] == [1, 1, 0]
    assert len(set(whole(replace(CTL, train_samples=10, batch=10, shares=(1, 1, 1, 1, 999))))) == 10


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.sampled_from([1, 2, 3]), st.integers(0, 2**40))
def test_they_are_the_first_that_are_drawn(n: int, depth: int, seed: int) -> None:
    drawn = task("ctl").sample(4_000, depth, seed, "train")
    first = list(dict.fromkeys(map(tuple, drawn.inputs.tolist())))
    if depth == 1 and n > 72:
        n = 72
    (found,) = different_problems(task("ctl"), n, (depth,), seed, "train")
    assert list(map(tuple, found.inputs.tolist())) == first[:n]
    assert task("ctl").check(found).all()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 40), st.integers(1, 40), st.integers(2, 9), st.integers(0, 2**32))
def test_first_places(rows: int, length: int, tokens: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    few = random.integers(0, tokens, (4, length))
    few[1:, :-1] = few[0, :-1]  # which differ at the end alone, if at all
    made = np.concatenate([few[random.integers(0, 4, rows)], random.integers(0, tokens, (rows, length))])
    first: dict[tuple[int, ...], int] = {}
    for place, row in enumerate(made.tolist()):
        first.setdefault(tuple(row), place)
    assert _first_places(made).tolist() == list(first.values())


def test_first_places_of_rows_that_fit_into_no_number() -> None:
    rows = np.zeros((6, 130), np.int64)
    rows[1, 0] = rows[2, 65] = rows[3, -1] = rows[5, 0] = 1
    assert _first_places(rows).tolist() == [0, 1, 2, 3]
    assert _first_places(99 * rows).tolist() == [0, 1, 2, 3]


def test_all_difficulties_come_as_often_whatever_was_found_of_them() -> None:
    recipe = replace(CTL, balanced=True, difficulty=(1, 2, 4), train_samples=3_000, batch=100)
    data = data_of(recipe)
    problems = epoch_of(data)
    assert functions(problems) == {1: 1_000, 2: 1_000, 4: 1_000}
    often = Counter(problems)
    singles = [often[problem] for problem in often if len(problem) == 2]
    assert len(singles) == 72
    assert set(singles) == {13, 14}  # 1,000 draws of 72
    assert max(often[problem] for problem in often if len(problem) == 5) == 1
    assert sum(data._sizes) == 3_000
    assert data._sizes[0] == 72 < proportions(3_000, (1, 1, 1))[0]


def test_every_fresh_set_is_without_repetition() -> None:
    data = data_of(replace(CTL, fresh=True, difficulty=(3, 4), train_samples=600, batch=60))
    first, second = epoch_of(data, 0), epoch_of(data, 1)
    assert len(set(first)) == len(set(second)) == 600
    assert set(first) != set(second)


def test_more_problems_than_there_are_get_one_sentence(tmp_path: Path) -> None:
    recipe = replace(CTL, difficulty=(1,), train_samples=72, batch=24)
    assert len(set(epoch_of(data_of(recipe)))) == 72
    with pytest.raises(
        UserError, match=r"^Of 73 different problems of ctl with 1 functions, 1 could not be found; .*\.$"
    ):
        data_of(replace(recipe, train_samples=73)).batch(0)
    with pytest.raises(UserError, match=r"^Of 999 different problems of ctl with 1, 2 functions, \d+ could not .*\.$"):
        data_of(replace(recipe, difficulty=(1, 2), train_samples=999)).batch(0)
    with pytest.raises(UserError, match=r"^With different=true, name each difficulty once, not \(2, 3, 2\)\.$"):
        replace(recipe, difficulty=(2, 3, 2))
    replace(recipe, difficulty=(2, 3, 2), different=False)
    with pytest.raises(UserError, match=r"^different=true is for .* tokens .* which prefix_sums are not; .*\.$"):
        train(replace(TOY, different=True), 0, options(tmp_path))


def test_streamed_texts_cannot_be_different() -> None:
    class Text:
        name = "text"

        def stream(self, *_: Any) -> None:
            pytest.fail("opened")

    with pytest.raises(UserError, match="which text are not"):
        TrainingData(replace(TOY, different=True), Text(), 0, torch.device("cpu"))  # type: ignore[arg-type]


def test_recipes_of_ctlpp_alone_ask_for_different_problems() -> None:
    assert {recipes[name].task for name in recipes if recipes[name].different} == {"ctlpp"}
    assert all(recipes[name].different for name in recipes if recipes[name].task == "ctlpp")


def test_a_stored_recipe_that_does_not_say_it_is_of_the_old_kind() -> None:
    today = recipes["ctlpp-A-router"]
    stored = today.to_json()
    del stored["different"]
    old = Recipe.from_json(stored)
    assert not old.different
    assert differences(old, today) == ["different=False"]
    assert old.hash() != today.hash()
    assert alike(old, today)  # and may be trained together
    assert TOY.hash() == "cfb4dd6c"  # what has the default keeps its folder
