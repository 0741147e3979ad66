from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longthink.errors import UserError
from longthink.tasks.base import SPLITS, Batch, Split
from longthink.tasks.ctlpp import CTLPP

variants = st.sampled_from("ARS")
halves = st.integers(1, 5)
seeds = st.integers(0, 2**63)
splits = st.sampled_from(SPLITS)
few = settings(max_examples=30, deadline=None)
staged = st.builds(CTLPP, st.just("S"), st.sampled_from(range(0, 32, 4)), st.integers(0, 8), st.integers(0, 3))


def fingerprint(batch: Batch) -> str:
    numbers = batch.inputs.numpy().astype("<i8").tobytes() + batch.targets.numpy().astype("<i8").tobytes()
    return sha256(numbers).hexdigest()[:16]


def contents(batch: Batch) -> set[tuple[int, ...]]:
    return set(map(tuple, batch.inputs.tolist()))


def names(task: CTLPP) -> list[str]:
    return list(task.tokens[9:])


def trace(task: CTLPP, text: str) -> list[tuple[str, int]]:
    """Each function in the order of application, with the symbol that it gives."""
    *functions, symbol = text.split()
    value, steps = int(symbol), []
    for function in reversed(functions):
        value = int(task.tables[names(task).index(function)][value])
        steps.append((function, value))
    return steps


def group_pairs(task: CTLPP, batch: Batch) -> list[list[tuple[str, str]]]:
    """The groups of each two successive functions, for each sample."""
    group = {f: name for name, functions in task.groups.items() for f in functions}
    walks = [[group[f] for f, _ in trace(task, task.text(batch, i))] for i in range(len(batch))]
    return [list(pairwise(walk)) for walk in walks]


@few
@given(variants, halves, seeds, splits, st.integers(0, 3))
def test_labels_are_right(variant: str, half: int, seed: int, split: Split, table_seed: int) -> None:
    task = CTLPP(variant, table_seed=table_seed)
    batch = task.sample(20, 2 * half, seed, split)
    assert batch.inputs.shape == (20, 2 * half + 1)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.targets.shape == (20,)
    assert batch.mask is None
    assert batch.difficulty == 2 * half
    assert task.check(batch).all()
    for i in range(20):
        assert task.show(batch.targets[i], batch, i) == str(trace(task, task.text(batch, i))[-1][1])


@pytest.mark.parametrize("depth", [2, 3, 6, 9])
@pytest.mark.parametrize("variant", ["A", "R"])
def test_pairs_of_groups(variant: str, depth: int) -> None:
    task = CTLPP(variant)
    same: Callable[[tuple[str, str]], bool] = lambda pair: pair[0] == pair[1]  # noqa: E731
    for split in SPLITS:
        wanted = (variant == "R") != (split == "test")
        pairs = group_pairs(task, task.sample(300, depth, 0, split))
        assert all(same(pair) == wanted for walk in pairs for pair in walk)
        assert {walk[0][0] for walk in pairs} == {"a", "b"}


@few
@given(staged, halves, seeds)
def test_stages(task: CTLPP, half: int, seed: int) -> None:
    training = {("a1", "a2"), ("b1", "b2"), ("a1", "o"), ("b1", "o")}
    crossing = {("a1", "b2"), ("b1", "a2")}
    between = set(product(("a2", "b2", "o"), ("a1", "b1")))
    for split in SPLITS:
        for walk in group_pairs(task, task.sample(20, 2 * half, seed, split)):
            assert set(walk[::2]) <= (crossing if split == "test" else training)
            assert set(walk[1::2]) <= between


@few
@given(staged, halves, seeds, st.sampled_from(("train", "valid")))
def test_shared_functions_see_their_symbols_alone(task: CTLPP, half: int, seed: int, split: Split) -> None:
    batch = task.sample(20, 2 * half, seed, split)
    for i in range(len(batch)):
        for (first, symbol), (second, _) in pairwise(trace(task, task.text(batch, i))):
            if second in task.groups["o"]:
                path = 0 if first in task.groups["a1"] else 1
                assert str(symbol) in task.restrictions[second][path]


@few
@given(staged)
def test_restrictions(task: CTLPP) -> None:
    assert set(task.restrictions) == set(task.groups["o"])
    shared: set[str] = set()
    for a, b in task.restrictions.values():
        assert a | b == set("01234567")
        assert len(a & b) == task.overlapping_symbols
        assert abs(len(a) - len(b)) <= 1
        shared |= a & b
    assert len(shared) == min(8, task.shared_functions * task.overlapping_symbols)


def test_every_allowed_pair_occurs_and_no_other() -> None:
    task = CTLPP("S", shared_functions=8, overlapping_symbols=4)
    seen = contents(task.sample(60_000, 2, 0, "train")) | contents(task.sample(60_000, 2, 0, "valid"))
    size, total = 6, 0
    for path, first in enumerate(("a1", "b1")):
        for f, symbol in product(task.groups[first], range(8)):
            middle = str(task.tables[names(task).index(f)][symbol])
            total += size + sum(middle in task.restrictions[o][path] for o in task.groups["o"])
    # The rest, about a quarter, is the part of the training graph that neither split has.
    assert 0.7 * total < len(seen) < 0.8 * total
    assert len(contents(task.sample(20_000, 2, 0, "test"))) == 2 * size * size * 8


@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        (CTLPP("A"), {"a": 16, "b": 16}),
        (CTLPP("R"), {"a": 16, "b": 16}),
        (CTLPP("S"), {"a1": 4, "a2": 4, "b1": 4, "b2": 4, "o": 16}),
        (CTLPP("S", 4), {"a1": 7, "a2": 7, "b1": 7, "b2": 7, "o": 4}),
        (CTLPP("S", 0), {"a1": 8, "a2": 8, "b1": 8, "b2": 8, "o": 0}),
    ],
)
def test_groups(task: CTLPP, sizes: dict[str, int]) -> None:
    assert {group: len(functions) for group, functions in task.groups.items()} == sizes
    assert sorted(f for functions in task.groups.values() for f in functions) == sorted(names(task))
    assert len(set(names(task))) == 32


def test_single_functions() -> None:
    for variant in "AR":
        batch = CTLPP(variant).sample(6000, 1, 0, "train")
        assert len(contents(batch)) == 32 * 8
        for split in ("valid", "test"):
            with pytest.raises(UserError, match=rf"are for training; choose 2 or more for the {split} split\.$"):
                CTLPP(variant).sample(1, 1, 0, split)
    for depth in (1, 3):
        with pytest.raises(UserError, match=rf"^Variant S has an even number of functions; .* not {depth}\.$"):
            CTLPP("S").sample(1, depth, 0, "train")


@pytest.mark.parametrize("variant", ["A", "R", "S"])
def test_splits_share_nothing(variant: str) -> None:
    sets = [contents(CTLPP(variant).sample(20_000, 2, seed, split)) for seed, split in enumerate(SPLITS)]
    assert len(set().union(*sets)) == sum(map(len, sets))
    if variant != "S":
        assert 4000 < len(sets[2]) <= 2 * 16 * 16 * 8
        assert 0.45 < len(sets[0]) / 4096 < 0.55
        assert 0.2 < len(sets[1]) / 4096 < 0.3


def test_tables() -> None:
    task = CTLPP("S")
    assert (np.sort(task.tables, 1) == np.arange(8)).all()
    assert len(set(map(tuple, task.tables.tolist()))) == 32
    assert np.array_equal(task.tables, CTLPP("A").tables)
    other = CTLPP("S", table_seed=1)
    assert not np.array_equal(task.tables, other.tables)
    assert task.restrictions != other.restrictions
    assert task.restrictions == CTLPP("S").restrictions


def test_functions_are_spread_evenly() -> None:
    for task in (CTLPP("A"), CTLPP("R")):
        counts = Counter(task.sample(16_000, 4, 0, "train").inputs[:, :-1].flatten().tolist())
        assert all(abs(counts[9 + f] - 2000) < 200 for f in range(32))
    task = CTLPP("S")
    first = Counter(task.sample(16_000, 4, 0, "train").inputs[:, 3].tolist())
    assert {task.tokens[token] for token in first} == {*task.groups["a1"], *task.groups["b1"]}
    assert all(abs(count - 2000) < 200 for count in first.values())


@few
@given(variants, halves, seeds, splits)
def test_samples_depend_on_nothing_else(variant: str, half: int, seed: int, split: Split) -> None:
    task = CTLPP(variant)
    five, three = task.sample(5, 2 * half, seed, split), task.sample(3, 2 * half, seed, split)
    assert torch.equal(five.inputs[:3], three.inputs)
    assert torch.equal(five.targets[:3], three.targets)


@few
@given(variants, halves, seeds, st.integers(1, 7))
def test_corrupt_labels_are_found(variant: str, half: int, seed: int, shift: int) -> None:
    task = CTLPP(variant)
    batch = task.sample(5, 2 * half, seed)
    assert not task.check(replace(batch, targets=(batch.targets + shift) % 8)).any()
    assert not task.check(replace(batch, difficulty=1)).any()
    assert task.check(replace(batch, difficulty=0)).all()


@pytest.mark.parametrize(
    ("task", "depth", "seed", "split", "golden"),
    [
        (CTLPP("A"), 1, 0, "train", "23bb645845b5e31f"),
        (CTLPP("A"), 6, 1, "train", "927f1ce2621df46f"),
        (CTLPP("R"), 5, 0, "test", "d8a1fa524b588bdc"),
        (CTLPP("S"), 6, 0, "valid", "7110cc422e374ba3"),
        (CTLPP("S", 12, 3, table_seed=5), 4, 2**40, "train", "f426027cf7fad15a"),
    ],
)
def test_the_same_everywhere(task: CTLPP, depth: int, seed: int, split: Split, golden: str) -> None:
    assert fingerprint(task.sample(50, depth, seed, split)) == golden


@few
@given(variants, halves, seeds)
def test_text_can_be_parsed(variant: str, half: int, seed: int) -> None:
    task = CTLPP(variant)
    batch = task.sample(2, 2 * half, seed)
    parsed = task.parse(f"  {task.text(batch, 1)}\n")
    assert torch.equal(parsed.inputs[0], batch.inputs[1])
    assert torch.equal(parsed.targets[0], batch.targets[1])
    assert parsed.difficulty == 2 * half


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=20) | st.text("05abz ", max_size=20))
def test_parse_answers_anything_with_a_problem_or_a_sentence(text: str) -> None:
    task = CTLPP()
    try:
        problem = "" if task.check(task.parse(text)).all() else "a wrong label"
    except UserError as error:
        problem = str(error)
    assert not problem or (problem.endswith(".") and "\n" not in problem)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "at least one function and a symbol, as in c b a 3"),
        ("3", "at least one function"),
        ("c ba a 3", "Token 2, 'ba', is not a function; they are a to z and aa to af"),
        ("3 c b a", "Token 1, '3', is not a function"),
        ("c b a", "Token 3, 'a', is not a symbol; end with one of 0 to 7"),
        ("c b 8", "Token 3, '8', is not a symbol"),
        ("c,b,3", "Token 1, 'c,b,3', is not a symbol"),
    ],
)
def test_parse_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*\.$") as caught:
        CTLPP().parse(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("depth", "seed", "split"), [(0, 0, "train"), (10_001, 0, "test"), (3, -1, "test"), (3, 0, "x")]
)
def test_impossible_requests(depth: int, seed: int, split: Split) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*\.$"):
        CTLPP().sample(1, depth, seed, split)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"variant": "T"}, "no variant of CTL++ named 'T'"),
        ({"variant": "A", "shared_functions": 4}, "Only variant S has shared functions"),
        ({"variant": "S", "shared_functions": 3}, "0, 4, 8, ... or 28, not 3"),
        ({"variant": "S", "shared_functions": 32}, "0, 4, 8, ... or 28, not 32"),
        ({"variant": "S", "overlapping_symbols": 9}, "from 0 to 8, not 9"),
        ({"table_seed": -1}, "table seed"),
    ],
)
def test_impossible_options(options: dict[str, int], says: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*\.$") as caught:
        CTLPP(**options)  # type: ignore[arg-type]
    assert says in str(caught.value)


def test_very_deep_and_empty() -> None:
    task = CTLPP("S")
    assert task.check(task.sample(2, 10_000, 0)).all()
    empty = task.sample(0, 4, 0)
    assert empty.inputs.shape == (0, 5)
    assert task.check(empty).shape == (0,)


def test_score_and_shape() -> None:
    task = CTLPP()
    assert task.shape == {"vocabulary": 41, "classes": 8}
    assert task.tokens[0] == "<pad>"
    batch = task.sample(3, 5, 0)
    logits = torch.nn.functional.one_hot(batch.targets, 8).float()
    assert torch.equal(task.predict(logits, batch), batch.targets)
    logits[1] = logits[1].roll(1)
    assert task.score(logits, batch).tolist() == [True, False, True]


def test_draw() -> None:
    task = CTLPP()
    batch = task.sample(2, 5, 0)
    logits = 9.0 * torch.nn.functional.one_hot(batch.targets, 8)
    drawn = [task.draw(batch, 1), task.draw(batch, 1, logits), task.draw(batch, 1, logits.roll(1, 1))]
    assert all(pixels.dtype == np.uint8 and pixels.shape[1:] == (900, 3) for pixels in drawn)
    red = [(pixels[..., 0].astype(int) - pixels[..., 1] > 100).sum() for pixels in drawn]
    assert red[0] == red[1] == 0 < 1000 < red[2]
