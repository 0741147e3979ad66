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
from longthink.tasks.associative_recall import AssociativeRecall
from longthink.tasks.base import SPLITS, Batch, Split

tasks = st.builds(AssociativeRecall, st.integers(4, 9), st.integers(1, 4), st.booleans())
counts = st.integers(2, 10)
seeds = st.integers(0, 2**63)
splits = st.sampled_from(SPLITS)
few = settings(max_examples=30, deadline=None)


def fingerprint(batch: Batch) -> str:
    assert batch.mask is not None
    numbers = (batch.inputs.numpy().astype("<f4"), batch.targets.numpy().astype("<i8"), batch.mask.numpy())
    return sha256(b"".join(array.tobytes() for array in numbers)).hexdigest()[:16]


def contents(task: AssociativeRecall, batch: Batch) -> set[str]:
    """The items; a split has them with any query."""
    return {task.text(batch, i).split(" ? ")[0] for i in range(len(batch))}


def sharp(classes: torch.Tensor) -> torch.Tensor:
    return 9.0 * torch.stack([1 - classes, classes], 1)


@few
@given(tasks, counts, seeds, splits)
def test_labels_are_right(task: AssociativeRecall, count: int, seed: int, split: Split) -> None:
    batch = task.sample(8, count, seed, split)
    words, stride = task.words, task.words + 1
    steps = count * stride + 2 * words + 1
    assert batch.mask is not None
    assert batch.inputs.shape == (8, steps, task.bits + 2)
    assert batch.targets.shape == batch.mask.shape == (8, steps, task.bits)
    assert (batch.inputs.dtype, batch.targets.dtype, batch.mask.dtype) == (torch.float32, torch.int64, torch.bool)
    assert batch.difficulty == count
    assert task.check(batch).all()
    assert batch.inputs.abs().eq(1).all()
    # Another way to the answer: slide the query over everything that was heard.
    bits = batch.inputs[..., :-2] > 0
    for row, target in zip(bits, batch.targets, strict=True):
        heard, query = row[: count * stride], row[count * stride : count * stride + words]
        fits = [t for t in range(0, len(heard), stride) if torch.equal(heard[t : t + words], query)]
        assert len(fits) == 1
        assert torch.equal(heard[fits[0] + stride : fits[0] + stride + words].long(), target[-words:])
        assert not target[:-words].any()


@few
@given(tasks, counts, seeds, st.data())
def test_corrupt_samples_are_found(task: AssociativeRecall, count: int, seed: int, data: st.DataObject) -> None:
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
    inputs[0, :, -1] *= -1
    assert task.check(replace(batch, inputs=inputs)).tolist() == [False, True, True]
    assert not task.check(replace(batch, difficulty=count + 1)).any()


@few
@given(counts, seeds, splits)
def test_samples_depend_on_nothing_else(count: int, seed: int, split: Split) -> None:
    task = AssociativeRecall()
    five, three = task.sample(5, count, seed, split), task.sample(3, count, seed, split)
    assert torch.equal(five.inputs[:3], three.inputs)
    assert torch.equal(five.targets[:3], three.targets)


@pytest.mark.parametrize(
    ("task", "count", "seed", "split", "golden"),
    [
        (AssociativeRecall(), 2, 0, "train", "39b73dc02f74e8b0"),
        (AssociativeRecall(), 16, 1, "valid", "9a53f1fdea6ce3ee"),
        (AssociativeRecall(every_step=False), 40, 2**40, "test", "574b8f9f25d60424"),
        (AssociativeRecall(bits=4, words=1), 16, 3, "test", "e53c6df50ef944db"),
    ],
)
def test_the_same_everywhere(task: AssociativeRecall, count: int, seed: int, split: Split, golden: str) -> None:
    assert fingerprint(task.sample(20, count, seed, split)) == golden


def test_the_published_layout() -> None:
    batch = AssociativeRecall(bits=2, words=2).parse("10,01 | 11,00 | 01,01 ? 11,00")
    seen = ["1000", "0100", "0010", "1100", "0000", "0010", "0100", "0100", "0001"]
    seen += ["1100", "0000", "0001", "0000", "0000"]
    assert batch.inputs[0].tolist() == [[2 * int(bit) - 1 for bit in row] for row in seen]
    assert batch.targets[0].tolist() == [[0, 0]] * 12 + [[0, 1], [0, 1]]
    answers = AssociativeRecall(bits=2, words=2, every_step=False).parse("10,01 | 11,00 | 01,01 ? 11,00").mask
    assert batch.mask is not None
    assert answers is not None
    assert batch.mask.all()
    assert answers[0, :, 0].tolist() == [False] * 12 + [True] * 2


def test_every_item_but_the_last_is_asked_for() -> None:
    task = AssociativeRecall()
    asked: Counter[int] = Counter()
    batch = task.sample(2000, 5, 0)
    for i in range(2000):
        items, query = task.text(batch, i).split(" ? ")
        asked[items.split(" | ").index(query)] += 1
    assert sorted(asked) == [0, 1, 2, 3]
    assert all(abs(times - 500) < 100 for times in asked.values())


def test_splits() -> None:
    task = AssociativeRecall(bits=4, words=1)
    sets = {split: contents(task, task.sample(2000, 2, 0, split)) for split in SPLITS}
    assert len(set().union(*sets.values())) == sum(map(len, sets.values())) == 16 * 15
    for one, other in pairwise(SPLITS):
        mine, theirs = (AssociativeRecall().sample(300, 3, i, split) for i, split in enumerate((one, other)))
        assert not contents(AssociativeRecall(), mine) & contents(AssociativeRecall(), theirs)


@few
@given(tasks, counts, seeds)
def test_text_can_be_parsed(task: AssociativeRecall, count: int, seed: int) -> None:
    batch = task.sample(2, count, seed)
    parsed = task.parse(f" {task.text(batch, 1)}\n")
    assert torch.equal(parsed.inputs[0], batch.inputs[1])
    assert torch.equal(parsed.targets[0], batch.targets[1])
    assert parsed.difficulty == count
    items, query = task.text(batch, 1).split(" ? ")
    assert dict(pairwise(items.split(" | ")))[query] == task.show(batch.targets[1], batch, 1)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=20) | st.text("01,|? ", max_size=40))
def test_parse_answers_anything_with_a_problem_or_a_sentence(text: str) -> None:
    task = AssociativeRecall(bits=2, words=1)
    try:
        problem = "" if task.check(task.parse(text)).all() else "a wrong label"
    except UserError as error:
        problem = str(error)
    assert not problem or (problem.endswith(".") and "\n" not in problem)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "then one ? and the item"),
        ("10,01 | 11,00", "then one ? and the item"),
        ("10,01 | 11,00 ? 10,01 ? 11,00", "then one ?"),
        ("10,01 | 11 ? 10,01", "'11' has 1 vectors; type 2"),
        ("10,01 | 11,02 ? 10,01", "'02' is no vector of 2 bits"),
        ("10,01 ? 10,01", "2 to 4096 items"),
        ("10,01 | 10,01 ? 10,01", "all must differ"),
        ("10,01 | 11,00 ? 11,00", "comes the last item; ask"),
        ("10,01 | 11,00 ? 11,01", "comes none of the items"),
    ],
)
def test_parse_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*\.$") as caught:
        AssociativeRecall(bits=2, words=2).parse(text)
    assert says in str(caught.value)


def test_impossible_requests() -> None:
    for count, seed, split in ((1, 0, "train"), (4097, 0, "test"), (3, -1, "test"), (3, 0, "x")):
        with pytest.raises(UserError, match=r"^[^\n]*\.$"):
            AssociativeRecall().sample(1, count, seed, split)  # type: ignore[arg-type]
    for options in ({"bits": 0}, {"bits": 33}, {"words": 0}):
        with pytest.raises(UserError, match=r"^[^\n]*\.$"):
            AssociativeRecall(**options)
    with pytest.raises(UserError, match="17 different items need more than 4 bits"):
        AssociativeRecall(bits=4, words=1).sample(1, 17, 0)


def test_many_items_and_none() -> None:
    assert AssociativeRecall().check(AssociativeRecall().sample(1, 1000, 0)).all()
    empty = AssociativeRecall().sample(0, 2, 0)
    assert empty.inputs.shape[0] == 0
    assert AssociativeRecall().check(empty).shape == (0,)


def test_score_and_shape() -> None:
    task = AssociativeRecall()
    assert task.shape == {"inputs": 10, "outputs": 8, "classes": 2}
    batch = task.sample(3, 4, 0)
    classes = batch.targets.clone()
    classes[1, 0, 3] = 1  # a step of listening
    assert torch.equal(task.predict(sharp(classes), batch), classes)
    assert task.score(sharp(classes), batch).tolist() == [True, False, True]
    answers = AssociativeRecall(every_step=False)
    assert answers.score(sharp(classes), answers.sample(3, 4, 0)).all()


def test_draw() -> None:
    task = AssociativeRecall()
    batch = task.sample(2, 4, 0)
    pictures = [
        task.draw(batch, 1),
        task.draw(batch, 1, sharp(batch.targets)),
        task.draw(batch, 1, sharp(0 * batch.targets)),
    ]
    for pixels in pictures:
        assert pixels.dtype == np.uint8
        assert pixels.shape == (14 * 19 + 20, 14 * 23 + 20, 3)
    pink = [(p == (254, 202, 202)).all(-1).sum() for p in pictures]
    assert pink[0] == pink[1] == 0 < pink[2]
