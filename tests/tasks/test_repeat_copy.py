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
from longthink.tasks.repeat_copy import RepeatCopy

tasks = st.builds(RepeatCopy, st.integers(4, 10), st.integers(2, 3), st.integers(3, 6), st.booleans())
blocks = st.integers(1, 6)
seeds = st.integers(0, 2**63)
splits = st.sampled_from(SPLITS)
few = settings(max_examples=30, deadline=None)


def fingerprint(batch: Batch) -> str:
    assert batch.mask is not None
    numbers = (batch.inputs.numpy().astype("<f4"), batch.targets.numpy().astype("<i8"), batch.mask.numpy())
    return sha256(b"".join(array.tobytes() for array in numbers)).hexdigest()[:16]


def contents(task: RepeatCopy, batch: Batch) -> set[str]:
    return {task.text(batch, i) for i in range(len(batch))}


def sharp(classes: torch.Tensor) -> torch.Tensor:
    return 9.0 * torch.stack([1 - classes, classes], 1)


@few
@given(tasks, blocks, seeds, splits)
def test_labels_are_right(task: RepeatCopy, count: int, seed: int, split: Split) -> None:
    batch = task.sample(8, count, seed, split)
    steps = batch.inputs.shape[1]
    assert batch.mask is not None
    assert batch.inputs.shape == batch.targets.shape == batch.mask.shape == (8, steps, task.bits + 1)
    assert (batch.inputs.dtype, batch.targets.dtype, batch.mask.dtype) == (torch.float32, torch.int64, torch.bool)
    assert batch.difficulty == count
    assert task.check(batch).all()
    real = batch.inputs.any(2)
    assert real[:, -1].any()
    assert not batch.mask[~real].any()
    for row, wanted in zip(batch.inputs, batch.targets, strict=True):
        # Another way to the answer: what was heard since the last mark, in a queue.
        queue: list[list[int]] = []
        telling = True
        for seen, out in zip(((row + 1) / 2).tolist(), wanted.tolist(), strict=True):
            if seen[0] == 0.5:
                break
            if telling:
                assert not any(out)
                queue.append([int(bit) for bit in seen])
                telling = not seen[-1]
            else:
                assert not any(seen)
                assert queue.pop(0) == out
                telling = not queue
        assert not queue


@few
@given(tasks, blocks, seeds, st.data())
def test_corrupt_samples_are_found(task: RepeatCopy, count: int, seed: int, data: st.DataObject) -> None:
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
    inputs.view(3, -1)[0, where] = 0.5
    assert task.check(replace(batch, inputs=inputs)).tolist() == [False, True, True]
    assert not task.check(replace(batch, difficulty=count + 1)).any()
    assert task.check(replace(batch, difficulty=0)).all()


@few
@given(blocks, seeds, splits)
def test_samples_depend_on_nothing_else(count: int, seed: int, split: Split) -> None:
    task = RepeatCopy()
    five, three = task.sample(5, count, seed, split), task.sample(3, count, seed, split)
    end = three.inputs.shape[1]
    assert torch.equal(five.inputs[:3, :end], three.inputs)
    assert torch.equal(five.targets[:3, :end], three.targets)
    assert not five.inputs[:3, end:].any()


@pytest.mark.parametrize(
    ("task", "count", "seed", "split", "golden"),
    [
        (RepeatCopy(), 1, 0, "train", "0ae4b1390790884f"),
        (RepeatCopy(), 8, 1, "valid", "f8a25cdb0b5f1612"),
        (RepeatCopy(every_step=False), 14, 2**40, "test", "bea378a77a5d7a1b"),
        (RepeatCopy(bits=5, shortest=3, longest=3), 4, 3, "test", "9188a6cbd1dfc731"),
    ],
)
def test_the_same_everywhere(task: RepeatCopy, count: int, seed: int, split: Split, golden: str) -> None:
    assert fingerprint(task.sample(20, count, seed, split)) == golden


def test_the_published_layout() -> None:
    batch = RepeatCopy(bits=2).parse("10,01 | 11")
    seen = ["100", "010", "001", "000", "000", "000", "110", "001", "000", "000"]
    wanted = ["000", "000", "000", "100", "010", "001", "000", "000", "110", "001"]
    assert batch.inputs[0].tolist() == [[2 * int(bit) - 1 for bit in row] for row in seen]
    assert batch.targets[0].tolist() == [[int(bit) for bit in row] for row in wanted]
    assert batch.mask is not None
    assert batch.mask.all()
    answers = RepeatCopy(bits=2, every_step=False).parse("10,01 | 11").mask
    assert answers is not None
    assert answers[0, :, 0].tolist() == [False] * 3 + [True] * 3 + [False] * 2 + [True] * 2


def test_lengths_are_spread_evenly() -> None:
    task = RepeatCopy()
    sizes = [len(block.split(",")) for text in contents(task, task.sample(1000, 3, 0)) for block in text.split(" | ")]
    counts = np.bincount(sizes)
    assert len(counts) == 15
    assert counts[:2].sum() == 0
    assert abs(counts[2:] - 3000 / 13).max() < 60


def test_splits() -> None:
    task = RepeatCopy(bits=4, shortest=2, longest=2)
    sets = {split: contents(task, task.sample(3000, 1, 0, split)) for split in SPLITS}
    assert len(set().union(*sets.values())) == sum(map(len, sets.values())) == 256
    for one, other in pairwise(SPLITS):
        assert not contents(RepeatCopy(), RepeatCopy().sample(300, 2, 0, one)) & contents(
            RepeatCopy(), RepeatCopy().sample(300, 2, 1, other)
        )


@few
@given(tasks, blocks, seeds)
def test_text_can_be_parsed(task: RepeatCopy, count: int, seed: int) -> None:
    batch = task.sample(2, count, seed)
    parsed = task.parse(f" {task.text(batch, 1)}\n")
    end = parsed.inputs.shape[1]
    assert torch.equal(parsed.inputs[0], batch.inputs[1, :end])
    assert torch.equal(parsed.targets[0], batch.targets[1, :end])
    assert parsed.difficulty == count
    assert task.show(batch.targets[1], batch, 1).replace(",end", "") == task.text(batch, 1)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=20) | st.text("01,| ", max_size=40))
def test_parse_answers_anything_with_a_problem_or_a_sentence(text: str) -> None:
    task = RepeatCopy(bits=2)
    try:
        problem = "" if task.check(task.parse(text)).all() else "a wrong label"
    except UserError as error:
        problem = str(error)
    assert not problem or (problem.endswith(".") and "\n" not in problem)


@pytest.mark.parametrize("text", ["", "1011", "10110010,", "10110010 | ", "10110012", "10110010;01100001"])
def test_parse_says_what_is_wrong(text: str) -> None:
    with pytest.raises(UserError, match=r"is no vector of 8 bits; type 8 digits 0 or 1, as in 10110010\.$"):
        RepeatCopy().parse(text)


def test_impossible_requests() -> None:
    for count, seed, split in ((0, 0, "train"), (4097, 0, "test"), (3, -1, "test"), (3, 0, "x")):
        with pytest.raises(UserError, match=r"^[^\n]*\.$"):
            RepeatCopy().sample(1, count, seed, split)  # type: ignore[arg-type]
    for options in ({"bits": 0}, {"bits": 33}, {"shortest": 0}, {"shortest": 5, "longest": 4}, {"longest": 1001}):
        with pytest.raises(UserError, match=r"^[^\n]*\.$"):
            RepeatCopy(**options)
    with pytest.raises(UserError, match="8 bits or more"):
        RepeatCopy(bits=1).sample(1, 3, 0)


def test_many_blocks_and_none() -> None:
    assert RepeatCopy().check(RepeatCopy().sample(1, 300, 0)).all()
    empty = RepeatCopy().sample(0, 2, 0)
    assert len(empty) == 0
    assert RepeatCopy().check(empty).shape == (0,)


def test_score_and_shape() -> None:
    task = RepeatCopy()
    assert task.shape == {"inputs": 9, "outputs": 9, "classes": 2}
    batch = task.sample(3, 2, 0)
    assert batch.mask is not None
    classes = torch.where(batch.mask, batch.targets, 1 - batch.targets)  # padding does not count
    classes[1, 0, 3] = 1  # a step of listening
    assert torch.equal(task.predict(sharp(classes), batch), classes)
    assert task.score(sharp(classes), batch).tolist() == [True, False, True]
    answers = RepeatCopy(every_step=False)
    assert answers.score(sharp(classes), answers.sample(3, 2, 0)).all()
    assert task.show(classes[1], batch, 1).count("end") == 2
    assert task.shown([0, 1, 1]) == "01+end"


def test_draw() -> None:
    task = RepeatCopy()
    batch = task.sample(2, 2, 0)
    wrong = batch.targets.clone()
    wrong[1, 2, 3] = 1
    pictures = [task.draw(batch, 1), task.draw(batch, 1, sharp(batch.targets)), task.draw(batch, 1, sharp(wrong))]
    for pixels in pictures:
        assert pixels.dtype == np.uint8
        assert pixels.shape == (14 * 19 + 20, 14 * len(task.steps(batch, 1)) + 20, 3)
    red = [((p[..., 0] > 180) & (p[..., 1] < 60)).sum() for p in pictures]
    assert red[0] == red[1] == 0 < red[2] == 13 * 13
