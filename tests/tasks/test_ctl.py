from __future__ import annotations

from collections import Counter
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longthink.errors import UserError
from longthink.tasks.base import SPLITS, Batch, Split
from longthink.tasks.ctl import CTL

depths = st.integers(2, 12)
seeds = st.integers(0, 2**63)
splits = st.sampled_from(SPLITS)
orders = st.booleans()
few = settings(max_examples=30, deadline=None)


def fingerprint(batch: Batch) -> str:
    numbers = batch.inputs.numpy().astype("<i8").tobytes() + batch.targets.numpy().astype("<i8").tobytes()
    return sha256(numbers).hexdigest()[:16]


def contents(batch: Batch) -> set[tuple[int, ...]]:
    return set(map(tuple, batch.inputs.tolist()))


def walk(task: CTL, text: str) -> str:
    """Follow the symbol through the tables, in plain Python."""
    symbol, *functions = text.split()[:: -1 if task.backward else 1]
    value = int(symbol, 2)
    for function in functions:
        value = int(task.tables["abcdefghi".index(function)][value])
    return f"{value:03b}"


@few
@given(orders, depths, seeds, splits, st.integers(0, 5))
def test_labels_are_right(backward: bool, depth: int, seed: int, split: Split, table_seed: int) -> None:
    task = CTL(backward, table_seed)
    batch = task.sample(20, depth, seed, split)
    assert batch.inputs.shape == (20, depth + 1)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.targets.shape == (20,)
    assert batch.mask is None
    assert batch.difficulty == depth
    assert task.check(batch).all()
    for i in range(20):
        assert task.show(batch.targets[i], batch, i) == walk(task, task.text(batch, i))


@few
@given(orders, depths, seeds, st.integers(1, 7))
def test_corrupt_labels_are_found(backward: bool, depth: int, seed: int, shift: int) -> None:
    task = CTL(backward)
    batch = task.sample(5, depth, seed)
    assert not task.check(replace(batch, targets=(batch.targets + shift) % 8)).any()
    assert not task.check(replace(batch, difficulty=depth + 1)).any()
    assert task.check(replace(batch, difficulty=0)).all()


@pytest.mark.parametrize("row", [[1], [9, 1], [1, 0, 9], [1, 2], [1, 18], [1, -1], [0, 0]])
def test_check_finds_rows_that_are_no_problems(row: list[int]) -> None:
    assert not CTL().check(Batch(torch.tensor([row]), torch.tensor([0]))).any()


@few
@given(depths, seeds, splits)
def test_samples_depend_on_nothing_else(depth: int, seed: int, split: Split) -> None:
    five, three = CTL().sample(5, depth, seed, split), CTL().sample(3, depth, seed, split)
    assert torch.equal(five.inputs[:3], three.inputs)
    assert torch.equal(five.targets[:3], three.targets)
    mirrored = CTL(backward=True).sample(5, depth, seed, split)
    assert torch.equal(mirrored.inputs, five.inputs.flip(1))
    assert torch.equal(mirrored.targets, five.targets)


@pytest.mark.parametrize(
    ("task", "depth", "seed", "split", "golden"),
    [
        (CTL(), 1, 0, "train", "fd9ca0ea5635e8e0"),
        (CTL(), 5, 1, "train", "7ca79ca17a2d5663"),
        (CTL(backward=True), 8, 0, "valid", "7b293bd5a6c19acc"),
        (CTL(table_seed=7), 10, 2**40, "test", "298441608d286d20"),
    ],
)
def test_the_same_everywhere(task: CTL, depth: int, seed: int, split: Split, golden: str) -> None:
    assert fingerprint(task.sample(50, depth, seed, split)) == golden


def test_the_tables() -> None:
    tables = CTL().tables
    assert (np.sort(tables, 1) == np.arange(8)).all()
    assert len(set(map(tuple, tables.tolist()))) == len(tables) == 9
    assert np.array_equal(tables, CTL(backward=True).tables)
    assert not np.array_equal(tables, CTL(table_seed=1).tables)
    with pytest.raises(ValueError):
        tables[0, 0] = 1


def test_splits() -> None:
    sets = {split: contents(CTL().sample(20_000, 2, 3, split)) for split in SPLITS}
    assert len(set().union(*sets.values())) == sum(map(len, sets.values())) == 9 * 9 * 8
    assert 0.4 < len(sets["train"]) / 648 < 0.6
    for one, other in pairwise(SPLITS):
        assert not contents(CTL().sample(2000, 5, 0, one)) & contents(CTL().sample(2000, 5, 1, other))


def test_all_single_functions_are_for_training() -> None:
    batch = CTL().sample(2000, 1, 0, "train")
    assert len(contents(batch)) == 72
    assert CTL().check(batch).all()
    for split in ("valid", "test"):
        with pytest.raises(UserError, match=rf"are for training; choose 2 or more for the {split} split\.$"):
            CTL().sample(1, 1, 0, split)


def test_everything_is_spread_evenly() -> None:
    batch = CTL().sample(20_000, 6, 0)
    counts = Counter(batch.inputs.flatten().tolist())
    assert all(abs(counts[token] - 20_000 / 8) < 300 for token in range(1, 9))
    assert all(abs(counts[token] - 6 * 20_000 / 9) < 700 for token in range(9, 18))
    assert (torch.bincount(batch.targets) - 2500).abs().max() < 300


@few
@given(orders, depths, seeds)
def test_text_can_be_parsed(backward: bool, depth: int, seed: int) -> None:
    task = CTL(backward)
    batch = task.sample(2, depth, seed)
    parsed = task.parse(f"  {task.text(batch, 1)}\n")
    assert torch.equal(parsed.inputs[0], batch.inputs[1])
    assert torch.equal(parsed.targets[0], batch.targets[1])
    assert parsed.difficulty == depth


@settings(max_examples=60, deadline=None)
@given(orders, st.text(max_size=20) | st.text("01abhi ", max_size=20))
def test_parse_answers_anything_with_a_problem_or_a_sentence(backward: bool, text: str) -> None:
    task = CTL(backward)
    try:
        problem = "" if task.check(task.parse(text)).all() else "a wrong label"
    except UserError as error:
        problem = str(error)
    assert not problem or (problem.endswith(".") and "\n" not in problem)


@pytest.mark.parametrize(
    ("backward", "text", "says"),
    [
        (False, "", "a symbol and at least one function, as in 101 d a b"),
        (False, "101", "at least one function"),
        (True, "101", "as in b a d 101"),
        (False, "101 d x b", "Token 3, 'x', is not a function; they are a to i"),
        (False, "102 d b", "Token 1, '102', is not a symbol; begin with one of 000 to 111"),
        (False, "b a d 101", "Token 1, 'b', is not a symbol; begin with"),
        (True, "101 d a b", "Token 1, '101', is not a function"),
        (True, "b a d", "Token 3, 'd', is not a symbol; end with"),
        (False, "101 dab", "Token 2, 'dab', is not a function"),
        (False, "101,d,a,b", "Token 1, '101,d,a,b', is not a symbol"),
        (True, "dab(101)", "Token 1, 'dab(101)', is not a symbol; end with"),
    ],
)
def test_parse_says_what_is_wrong(backward: bool, text: str, says: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*\.$") as caught:
        CTL(backward).parse(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("depth", "seed", "split"), [(0, 0, "train"), (10_001, 0, "test"), (3, -1, "test"), (3, 0, "x")]
)
def test_impossible_requests(depth: int, seed: int, split: Split) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*\.$"):
        CTL().sample(1, depth, seed, split)
    with pytest.raises(UserError, match="table seed"):
        CTL(table_seed=-1)


def test_very_deep_and_empty() -> None:
    assert CTL().check(CTL().sample(2, 10_000, 0)).all()
    empty = CTL().sample(0, 5, 0)
    assert empty.inputs.shape == (0, 6)
    assert CTL().check(empty).shape == (0,)


def test_score_and_shape() -> None:
    task = CTL()
    assert task.shape == {"vocabulary": 18, "classes": 8}
    assert task.tokens[0] == "<pad>"
    batch = task.sample(3, 5, 0)
    logits = torch.nn.functional.one_hot(batch.targets, 8).float()
    assert torch.equal(task.predict(logits, batch), batch.targets)
    logits[1] = logits[1].roll(1)
    assert task.score(logits, batch).tolist() == [True, False, True]


def test_draw() -> None:
    task = CTL()
    batch = task.sample(2, 5, 0)
    logits = 9.0 * torch.nn.functional.one_hot(batch.targets, 8)
    picture, right, wrong = task.draw(batch, 1), task.draw(batch, 1, logits), task.draw(batch, 1, logits.roll(1, 1))
    for pixels in (picture, right, wrong):
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3
        assert pixels.shape[1:] == (900, 3)
    red = [(pixels[..., 0].astype(int) - pixels[..., 1] > 100).sum() for pixels in (picture, right, wrong)]
    assert red[0] == red[1] == 0 < 1000 < red[2]
