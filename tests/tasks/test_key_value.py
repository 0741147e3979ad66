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
from longthink.tasks.base import SPLITS, Batch, Split
from longthink.tasks.key_value import KeyValue

tasks = st.builds(KeyValue, st.integers(4, 9), st.booleans())
counts = st.integers(1, 12)
seeds = st.integers(0, 2**63)
splits = st.sampled_from(SPLITS)
few = settings(max_examples=30, deadline=None)


def fingerprint(batch: Batch) -> str:
    assert batch.mask is not None
    numbers = (batch.inputs.numpy().astype("<f4"), batch.targets.numpy().astype("<i8"), batch.mask.numpy())
    return sha256(b"".join(array.tobytes() for array in numbers)).hexdigest()[:16]


def contents(task: KeyValue, batch: Batch) -> set[str]:
    """The pairs; a split has them with any order of the queries."""
    return {task.text(batch, i).split(" ? ")[0] for i in range(len(batch))}


def sharp(classes: torch.Tensor) -> torch.Tensor:
    return 9.0 * torch.stack([1 - classes, classes], 1)


@few
@given(tasks, counts, seeds, splits)
def test_labels_are_right(task: KeyValue, count: int, seed: int, split: Split) -> None:
    batch = task.sample(8, count, seed, split)
    bits, steps = task.bits, 3 * (count + 1)
    assert batch.mask is not None
    assert batch.inputs.shape == (8, steps, 2 * bits + 2)
    assert batch.targets.shape == batch.mask.shape == (8, steps, bits)
    assert (batch.inputs.dtype, batch.targets.dtype, batch.mask.dtype) == (torch.float32, torch.int64, torch.bool)
    assert batch.difficulty == count
    assert task.check(batch).all()
    # Another way to the answer: compare each query with all halves at once.
    seen = batch.inputs > 0
    first, second = seen[:, :count, :bits], seen[:, :count, bits:-2]
    for keys, values, start in ((first, second, count + 1), (second, first, 2 * count + 2)):
        query = seen[:, start : start + count, :bits]
        same = (query[:, :, None] == keys[:, None]).all(-1).long()
        assert same.sum(1).eq(1).all()  # each half is asked for once
        assert same.sum(2).eq(1).all()
        assert torch.equal(batch.targets[:, start : start + count], torch.einsum("nqk,nkb->nqb", same, values.long()))


@few
@given(tasks, counts, seeds, st.data())
def test_corrupt_samples_are_found(task: KeyValue, count: int, seed: int, data: st.DataObject) -> None:
    batch = task.sample(3, count, seed)
    assert batch.mask is not None
    where = data.draw(st.integers(0, batch.targets[0].numel() - 1))
    changed = batch.targets.clone()
    changed.view(3, -1)[1, where] ^= 1
    assert task.check(replace(batch, targets=changed)).tolist() == [True, False, True]
    mask = batch.mask.clone()
    mask.view(3, -1)[2, where] ^= True
    assert task.check(replace(batch, mask=mask)).tolist() == [True, True, False]
    inputs = batch.inputs.clone()
    inputs.view(3, -1)[0, data.draw(st.integers(0, inputs[0].numel() - 1))] *= -1
    assert task.check(replace(batch, inputs=inputs)).tolist() == [False, True, True]
    assert not task.check(replace(batch, difficulty=count + 1)).any()


@few
@given(counts, seeds, splits)
def test_samples_depend_on_nothing_else(count: int, seed: int, split: Split) -> None:
    five, three = KeyValue().sample(5, count, seed, split), KeyValue().sample(3, count, seed, split)
    assert torch.equal(five.inputs[:3], three.inputs)
    assert torch.equal(five.targets[:3], three.targets)


@pytest.mark.parametrize(
    ("task", "count", "seed", "split", "golden"),
    [
        (KeyValue(), 2, 0, "train", "1b97649f7e93b898"),
        (KeyValue(), 16, 1, "valid", "f18d8284cae39278"),
        (KeyValue(every_step=False), 40, 2**40, "test", "2ea3bd35cb8ff5f2"),
        (KeyValue(bits=6), 64, 3, "test", "1fcd60e833eb600d"),
    ],
)
def test_the_same_everywhere(task: KeyValue, count: int, seed: int, split: Split, golden: str) -> None:
    assert fingerprint(task.sample(20, count, seed, split)) == golden


def test_the_published_layout() -> None:
    text = "1010=0110, 0001=1111 ? 0001, 1010 ? 0110, 1111"
    batch = KeyValue(bits=4).parse(text)
    seen = ["1010011000", "0001111100", "0000000010"]
    seen += ["0001000000", "1010000000", "0000000001", "0110000000", "1111000000", "0000000011"]
    wanted = ["0000"] * 3 + ["1111", "0110", "0000", "1010", "0001", "0000"]
    assert batch.inputs[0].tolist() == [[2 * int(bit) - 1 for bit in row] for row in seen]
    assert batch.targets[0].tolist() == [[int(bit) for bit in row] for row in wanted]
    answers = KeyValue(bits=4, every_step=False).parse(text).mask
    assert batch.mask is not None
    assert answers is not None
    assert batch.mask.all()
    assert answers[0, :, 0].tolist() == [row != "0000" for row in wanted]


def test_queries_come_in_any_order() -> None:
    task = KeyValue()
    batch = task.sample(2000, 3, 0)
    for which in (1, 2):
        orders: dict[tuple[int, ...], int] = {}
        for i in range(2000):
            pairs, *queries = task.text(batch, i).split(" ? ")
            halves = [pair.split("=")[which - 1] for pair in pairs.split(", ")]
            order = tuple(halves.index(word) for word in queries[which - 1].split(", "))
            orders[order] = orders.get(order, 0) + 1
        assert len(orders) == 6
        assert all(abs(times - 2000 / 6) < 90 for times in orders.values())


def test_splits() -> None:
    task = KeyValue(bits=4)
    sets = {split: contents(task, task.sample(2000, 1, 0, split)) for split in SPLITS}
    assert len(set().union(*sets.values())) == sum(map(len, sets.values())) == 256
    for one, other in pairwise(SPLITS):
        mine, theirs = (KeyValue().sample(300, 2, i, split) for i, split in enumerate((one, other)))
        assert not contents(KeyValue(), mine) & contents(KeyValue(), theirs)


@few
@given(tasks, counts, seeds)
def test_text_can_be_parsed(task: KeyValue, count: int, seed: int) -> None:
    batch = task.sample(2, count, seed)
    parsed = task.parse(f" {task.text(batch, 1)}\n")
    assert torch.equal(parsed.inputs[0], batch.inputs[1])
    assert torch.equal(parsed.targets[0], batch.targets[1])
    assert parsed.difficulty == count
    short = task.parse(task.text(batch, 1).split("?")[0])
    assert task.check(short).all()
    assert short.inputs.shape == parsed.inputs.shape


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=20) | st.text("01,=? ", max_size=40))
def test_parse_answers_anything_with_a_problem_or_a_sentence(text: str) -> None:
    task = KeyValue(bits=4)
    try:
        problem = "" if task.check(task.parse(text)).all() else "a wrong label"
    except UserError as error:
        problem = str(error)
    assert not problem or (problem.endswith(".") and "\n" not in problem)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is no pair; type two halves with ="),
        ("1010", "'1010' is no pair"),
        ("1010=0110=1111", "is no pair"),
        ("1010=011", "'011' is no vector of 4 bits"),
        ("1010=0110, 1010=1111", "may come twice"),
        ("1010=0110, 0001=0110", "may come twice"),
        ("1010=0110 ? 1010", "then ? and all second halves"),
        ("1010=0110 ? 1111 ? 0110", "The first queries must be the first halves"),
        ("1010=0110 ? 1010 ? 0110, 0110", "The second queries must be"),
    ],
)
def test_parse_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*\.$") as caught:
        KeyValue(bits=4).parse(text)
    assert says in str(caught.value)


def test_impossible_requests() -> None:
    for count, seed, split in ((0, 0, "train"), (4097, 0, "test"), (3, -1, "test"), (3, 0, "x")):
        with pytest.raises(UserError, match=r"^[^\n]*\.$"):
            KeyValue().sample(1, count, seed, split)  # type: ignore[arg-type]
    for bits in (3, 33):
        with pytest.raises(UserError, match=r"have 4 to 32 bits"):
            KeyValue(bits)
    with pytest.raises(UserError, match="256 different halves of 8 bits; ask for fewer than 257 pairs"):
        KeyValue().sample(1, 257, 0)


def test_all_pairs_and_none() -> None:
    assert KeyValue().check(KeyValue().sample(2, 256, 0)).all()
    empty = KeyValue().sample(0, 2, 0)
    assert empty.inputs.shape[0] == 0
    assert KeyValue().check(empty).shape == (0,)


def test_score_and_shape() -> None:
    task = KeyValue()
    assert task.shape == {"inputs": 18, "outputs": 8, "classes": 2}
    batch = task.sample(3, 4, 0)
    classes = batch.targets.clone()
    classes[1, 0, 3] = 1  # a step of listening
    assert torch.equal(task.predict(sharp(classes), batch), classes)
    assert task.score(sharp(classes), batch).tolist() == [True, False, True]
    answers = KeyValue(every_step=False)
    assert answers.score(sharp(classes), answers.sample(3, 4, 0)).all()
    assert len(task.show(classes[0], batch).split(" | ")[1].split(",")) == 4


def test_draw() -> None:
    task = KeyValue()
    batch = task.sample(2, 4, 0)
    pictures = [
        task.draw(batch, 1),
        task.draw(batch, 1, sharp(batch.targets)),
        task.draw(batch, 1, sharp(0 * batch.targets)),
    ]
    for pixels in pictures:
        assert pixels.dtype == np.uint8
        assert pixels.shape == (14 * 27 + 20, 14 * 15 + 20, 3)
    pink = [(p == (254, 202, 202)).all(-1).sum() for p in pictures]
    assert pink[0] == pink[1] == 0 < pink[2]
