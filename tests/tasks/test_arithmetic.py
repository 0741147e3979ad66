from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longthink.errors import UserError
from longthink.tasks.arithmetic import Arithmetic
from longthink.tasks.base import SPLITS, Batch, Split

ARITHMETIC = Arithmetic()

depths = st.integers(1, 12)
seeds = st.integers(0, 2**63)
splits = st.sampled_from(SPLITS)
lengths = st.sampled_from((None, 49, 50, 100))
few = settings(max_examples=30, deadline=None)


def fingerprint(batch: Batch) -> str:
    numbers = batch.inputs.numpy().astype("<i8").tobytes() + batch.targets.numpy().astype("<i8").tobytes()
    return sha256(numbers).hexdigest()[:16]


def texts(batch: Batch) -> list[str]:
    return [ARITHMETIC.text(batch, i) for i in range(len(batch))]


def brackets(text: str) -> int:
    """How deep the brackets are nested."""
    level = deepest = 0
    for letter in text:
        level += {"(": 1, ")": -1}.get(letter, 0)
        deepest = max(deepest, level)
    return deepest


@few
@given(depths, seeds, splits, lengths, st.sampled_from((0.0, 0.2, 0.45)))
def test_labels_are_right(depth: int, seed: int, split: Split, longest: int | None, nesting: float) -> None:
    task = Arithmetic(longest, nesting)
    batch = task.sample(20, depth, seed, split)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.targets.shape == (20,)
    assert batch.mask is None
    assert batch.difficulty == depth
    assert longest is None or batch.inputs.shape[1] <= longest
    assert batch.inputs[:, -1].any()  # no more padding than the longest needs
    assert task.check(batch).all()
    for text, answer in zip(texts(batch), batch.targets.tolist(), strict=True):
        assert eval(text) % 10 == answer
        assert brackets(text) == depth


@few
@given(depths, seeds, st.integers(1, 9))
def test_corrupt_labels_are_found(depth: int, seed: int, shift: int) -> None:
    batch = ARITHMETIC.sample(5, depth, seed)
    assert not ARITHMETIC.check(replace(batch, targets=(batch.targets + shift) % 10)).any()
    assert not ARITHMETIC.check(replace(batch, difficulty=depth + 1)).any()
    assert ARITHMETIC.check(replace(batch, difficulty=0)).all()


@pytest.mark.parametrize("row", [[0], [11, 1, 13, 1], [1, 1], [11, 1, 0, 13, 1, 12], [15], [-1], [12]])
def test_check_finds_rows_that_are_no_problems(row: list[int]) -> None:
    assert not ARITHMETIC.check(Batch(torch.tensor([row]), torch.tensor([0]))).any()


@few
@given(depths, seeds, splits, lengths)
def test_samples_depend_on_nothing_else(depth: int, seed: int, split: Split, longest: int | None) -> None:
    task = Arithmetic(longest)
    five, three = task.sample(5, depth, seed, split), task.sample(3, depth, seed, split)
    assert texts(five)[:3] == texts(three)
    assert torch.equal(five.targets[:3], three.targets)


@pytest.mark.parametrize(
    ("task", "depth", "seed", "split", "golden"),
    [
        (ARITHMETIC, 0, 0, "train", "7a893c6984971037"),
        (ARITHMETIC, 5, 1, "train", "a1522551ecf426aa"),
        (ARITHMETIC, 12, 0, "valid", "5d7f0457879acabc"),
        (Arithmetic(None, 0.4), 30, 2**40, "test", "a427f7c12383fbc9"),
    ],
)
def test_the_same_everywhere(task: Arithmetic, depth: int, seed: int, split: Split, golden: str) -> None:
    assert fingerprint(task.sample(50, depth, seed, split)) == golden


def test_splits() -> None:
    sets = {split: set(texts(ARITHMETIC.sample(5000, 1, 0, split))) for split in SPLITS}
    assert len(set().union(*sets.values())) == sum(map(len, sets.values())) == 200
    assert 80 < len(sets["train"]) < 120
    for one, other in pairwise(SPLITS):  # of tasks with other options too
        here, there = ARITHMETIC.sample(3000, 2, 0, one), Arithmetic(None, 0.3).sample(3000, 2, 1, other)
        assert not set(texts(here)) & set(texts(there))


def test_all_digits_are_for_training() -> None:
    batch = ARITHMETIC.sample(200, 0, 0, "train")
    assert set(texts(batch)) == set("0123456789")
    assert ARITHMETIC.check(batch).all()
    with pytest.raises(UserError, match=r"depth 0 are all for training; choose depth 1 or more for the test split\.$"):
        ARITHMETIC.sample(1, 0, 0, "test")


def test_the_deep_path_is_on_both_sides() -> None:
    problems = texts(Arithmetic(nesting=0.0).sample(4000, 2, 0))
    left = sum(text.startswith("((") for text in problems)
    assert abs(left - 2000) < 200
    signs = "".join(problems)
    assert abs(signs.count("+") - signs.count("*")) < 400
    assert all(abs(signs.count(digit) - 1200) < 200 for digit in "0123456789")


def test_other_arguments_are_operations_as_often_as_wanted() -> None:
    # At depth 2 there is one other argument, and an operation in it has digits alone.
    lengths = (Arithmetic(nesting=0.2).sample(10_000, 2, 0).inputs > 0).sum(1)
    assert set(lengths.tolist()) == {9, 13}
    assert abs((lengths == 13).float().mean() - 0.2) < 0.02


@few
@given(depths, seeds)
def test_text_can_be_parsed(depth: int, seed: int) -> None:
    batch = ARITHMETIC.sample(1, depth, seed)
    parsed = ARITHMETIC.parse(" " + ARITHMETIC.text(batch).replace("+", " + ") + "\n")
    assert torch.equal(parsed.inputs, batch.inputs)
    assert torch.equal(parsed.targets, batch.targets)
    assert parsed.difficulty == depth
    assert ARITHMETIC.show(parsed.targets[0], parsed) == str(eval(ARITHMETIC.text(batch)) % 10)


def test_the_example_of_the_text() -> None:
    batch = ARITHMETIC.parse("((4*7)+2)")
    assert (ARITHMETIC.show(batch.targets[0], batch), batch.difficulty) == ("0", 2)
    assert ARITHMETIC.parse("7").difficulty == 0


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=20) | st.text("(12)+*", max_size=12))
def test_parse_answers_anything_with_a_problem_or_a_sentence(text: str) -> None:
    try:
        problem = "" if ARITHMETIC.check(ARITHMETIC.parse(text)).all() else "a wrong label"
    except UserError as error:
        problem = str(error)
    assert not problem or (problem.endswith(".") and "\n" not in problem)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "There is no expression"),
        ("4*7", "Token 2, '*', comes after the end; numbers have one digit, and each operation its brackets"),
        ("(4*7)+2", "Token 6, '+', comes after the end"),
        ("(4*7))", "Token 6, ')', comes after the end; leave it out"),
        ("(4-7)", "Token 3, '-', is where a + or * should be"),
        ("(47)", "Token 3, '7', is where a + or *"),
        ("(4*x)", "Token 4, 'x', is where a digit or a ("),
        ("(4*7+2)", "Token 5, '+', is where a ) should be"),
        ("((4*7)+2", "Token 1, '(', is never closed"),
        ("(4*", "Token 1, '(', is never closed"),
        ("(4+(", "Token 4, '(', is never closed"),
        ("()", "Token 2, ')', is where a digit"),
        ("²", "Token 1, '²', is where a digit"),
    ],
)
def test_parse_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*\.$") as caught:
        ARITHMETIC.parse(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("depth", "seed", "split", "says"),
    [
        (-1, 0, "train", "goes from 0 to 10000, not -1"),
        (10_001, 0, "test", "goes from 0"),
        (13, 0, "test", "Depth 13 takes at least 53 tokens and the longest problem may have 50"),
        (3, -1, "test", "seed"),
        (3, 0, "x", "split"),
    ],
)
def test_impossible_requests(depth: int, seed: int, split: Split, says: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*\.$") as caught:
        ARITHMETIC.sample(1, depth, seed, split)
    assert says in str(caught.value)


@pytest.mark.parametrize("options", [{"longest": 0}, {"longest": -5}, {"nesting": 0.5}, {"nesting": -0.1}])
def test_impossible_options(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*\.$"):
        Arithmetic(**options)  # type: ignore[arg-type]


def test_very_deep_and_empty() -> None:
    deep = Arithmetic(longest=None)
    assert deep.check(deep.sample(2, 10_000, 0)).all()
    tight = Arithmetic(longest=401)  # not one operation more than the path
    assert tight.check(tight.sample(3, 100, 0)).all()
    assert len(ARITHMETIC.sample(0, 5, 0)) == 0
    assert ARITHMETIC.check(ARITHMETIC.sample(0, 5, 0)).shape == (0,)
    assert Arithmetic(nesting=0) == Arithmetic(nesting=0.0)


def test_score_and_shape() -> None:
    assert ARITHMETIC.shape == {"vocabulary": 15, "classes": 10}
    assert ARITHMETIC.tokens[0] == "<pad>"
    batch = ARITHMETIC.sample(3, 5, 0)
    logits = torch.nn.functional.one_hot(batch.targets, 10).float()
    assert torch.equal(ARITHMETIC.predict(logits, batch), batch.targets)
    logits[1] = logits[1].roll(1)
    assert ARITHMETIC.score(logits, batch).tolist() == [True, False, True]


def test_draw() -> None:
    batch = ARITHMETIC.sample(2, 8, 0)
    logits = 9.0 * torch.nn.functional.one_hot(batch.targets, 10)
    drawn = [ARITHMETIC.draw(batch, 1), ARITHMETIC.draw(batch, 1, logits), ARITHMETIC.draw(batch, 1, logits.roll(1, 1))]
    assert all(pixels.dtype == np.uint8 and pixels.shape[1:] == (900, 3) for pixels in drawn)
    red = [(pixels[..., 0].astype(int) - pixels[..., 1] > 100).sum() for pixels in drawn]
    assert red[0] == red[1] == 0 < 1000 < red[2]
    assert ARITHMETIC.draw(Arithmetic(longest=None).sample(1, 500, 0)).shape[0] < 1000  # leaves out the middle
