from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from longthink.errors import UserError
from longthink.tasks.base import SPLITS, Batch, Split
from longthink.tasks.listops import ListOps, load_listops
from tests.fixtures import real_data

LISTOPS = ListOps()

depths = st.integers(1, 12)
seeds = st.integers(0, 2**63)
splits = st.sampled_from(SPLITS)
few = settings(max_examples=30, deadline=None)


def fingerprint(batch: Batch) -> str:
    numbers = batch.inputs.numpy().astype("<i8").tobytes() + batch.targets.numpy().astype("<i8").tobytes()
    return sha256(numbers).hexdigest()[:16]


def texts(batch: Batch) -> list[str]:
    return [LISTOPS.text(batch, i) for i in range(len(batch))]


Tree = int | list  # a digit, or an operator's name and its arguments


def tree_of(text: str) -> Tree:
    """Read it as Python: [MAX 2 9] becomes ["MAX",2,9]."""
    for name in ("MIN", "MAX", "MED", "SM"):
        text = text.replace(f"[{name}", f"['{name}'")
    tree: Tree = eval(text.replace(" ", ","))
    return tree


def value_of(tree: Tree) -> int:
    if isinstance(tree, int):
        return tree
    values = [value_of(argument) for argument in tree[1:]]
    return {"MIN": min(values), "MAX": max(values), "MED": int(median(values)), "SM": sum(values) % 10}[tree[0]]


def prunings(tree: Tree) -> list[int]:
    """The depths of all trees that are left when each operation keeps only what it selects (D.3.2), ties either way."""
    if isinstance(tree, int):
        return [0]
    branches = tree[1:]
    values = [value_of(branch) for branch in branches]
    order = sorted(values)
    middle = order[(len(order) - 1) // 2 : len(order) // 2 + 1]
    kept = {"MIN": order[:1], "MAX": order[-1:], "MED": middle, "SM": order}[tree[0]]
    found = set()
    for chosen in combinations(range(len(branches)), len(kept)):
        if sorted(values[i] for i in chosen) == kept:
            found.add(1 + max(min(prunings(branches[i])) for i in chosen))
    return sorted(found)


def arities(tree: Tree) -> set[int]:
    return set() if isinstance(tree, int) else {len(tree) - 1}.union(*map(arities, tree[1:]))


def shape_depth(tree: Tree) -> int:
    return 0 if isinstance(tree, int) else 1 + max(map(shape_depth, tree[1:]))


@few
@given(depths, seeds, splits, st.sampled_from((None, 50, 100)))
def test_labels_are_right(depth: int, seed: int, split: Split, longest: int | None) -> None:
    task = ListOps(longest)
    batch = task.sample(20, depth, seed, split)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.targets.shape == (20,)
    assert batch.mask is None
    assert batch.difficulty == depth
    assert longest is None or batch.inputs.shape[1] <= longest
    assert batch.inputs[:, -1].any()  # no more padding than the longest needs
    assert task.check(batch).all()


@few
@given(st.integers(1, 8), seeds, splits)
def test_depth_is_really_needed(depth: int, seed: int, split: Split) -> None:
    for text, answer in zip(
        texts(batch := LISTOPS.sample(10, depth, seed, split)), batch.targets.tolist(), strict=True
    ):
        tree = tree_of(text)
        assert value_of(tree) == answer
        assert min(prunings(tree)) == depth
        assert depth <= shape_depth(tree) <= max(5, depth)
        assert arities(tree) <= {2, 3, 4, 5}


@few
@given(depths, seeds, st.integers(1, 9))
def test_corrupt_labels_are_found(depth: int, seed: int, shift: int) -> None:
    batch = LISTOPS.sample(5, depth, seed)
    assert not LISTOPS.check(replace(batch, targets=(batch.targets + shift) % 10)).any()
    assert not LISTOPS.check(replace(batch, difficulty=depth + 1)).any()
    assert LISTOPS.check(replace(batch, difficulty=0)).all()


@pytest.mark.parametrize("row", [[0], [11, 1], [1, 1], [11, 1, 0, 1, 15], [16], [-1], [15], [11, 15]])
def test_check_finds_rows_that_are_no_problems(row: list[int]) -> None:
    assert not LISTOPS.check(Batch(torch.tensor([row]), torch.tensor([0]))).any()


@few
@given(depths, seeds, splits, st.sampled_from((None, 50)))
def test_samples_depend_on_nothing_else(depth: int, seed: int, split: Split, longest: int | None) -> None:
    task = ListOps(longest)
    five, three = task.sample(5, depth, seed, split), task.sample(3, depth, seed, split)
    assert texts(five)[:3] == texts(three)
    assert torch.equal(five.targets[:3], three.targets)


@pytest.mark.parametrize(
    ("task", "depth", "seed", "split", "golden"),
    [
        (LISTOPS, 0, 0, "train", "6edceee69e9b67bd"),
        (LISTOPS, 1, 0, "train", "025cb3adaca11605"),
        (LISTOPS, 5, 1, "train", "8b6ca7d58042f400"),
        (LISTOPS, 8, 0, "valid", "b3b60d6383f2d20f"),
        (ListOps(None), 20, 2**40, "test", "506e139a50d28e44"),
    ],
)
def test_the_same_everywhere(task: ListOps, depth: int, seed: int, split: Split, golden: str) -> None:
    assert fingerprint(task.sample(50, depth, seed, split)) == golden


def test_splits() -> None:
    small = {split: set(texts(ListOps(4).sample(5000, 1, 0, split))) for split in SPLITS}
    assert len(set().union(*small.values())) == sum(map(len, small.values())) == 400
    assert 160 < len(small["train"]) < 240
    for one, other in pairwise(SPLITS):  # of tasks with other options too
        assert not set(texts(LISTOPS.sample(3000, 1, 0, one))) & set(texts(ListOps(None).sample(3000, 1, 1, other)))


def test_all_digits_are_for_training() -> None:
    batch = LISTOPS.sample(200, 0, 0, "train")
    assert set(texts(batch)) == set("0123456789")
    assert LISTOPS.check(batch).all()
    with pytest.raises(UserError, match=r"depth 0 are all for training; choose depth 1 or more for the valid split\.$"):
        LISTOPS.sample(1, 0, 0, "valid")


@pytest.mark.parametrize("depth", [1, 3, 5, 8])
def test_no_shortcut(depth: int) -> None:
    batch = LISTOPS.sample(3000, depth, 0, "train")
    answers = torch.bincount(batch.targets, minlength=10) / 3000
    assert answers.min() > 0.05
    assert answers.max() < 0.16
    digits = torch.stack([(batch.inputs == 1 + digit).sum(1) for digit in range(10)], 1)
    assert (digits.argmax(1) == batch.targets).float().mean() < (0.4 if depth == 1 else 0.2)
    counts = torch.bincount(batch.inputs.flatten(), minlength=16)
    assert counts[11:15].min() / counts[11:15].max() > 0.35  # operators
    assert counts[1:11].min() / counts[1:11].max() > 0.8  # digits


def test_brackets_do_not_tell_the_depth() -> None:
    shapes = [shape_depth(tree_of(text)) for text in texts(LISTOPS.sample(2000, 2, 0))]
    assert {2, 3, 4, 5} == set(shapes)
    assert shapes.count(2) < 1400


def test_splits_have_the_same_distribution() -> None:
    lengths = [(LISTOPS.sample(1000, 8, 0, split).inputs > 0).sum(1).float() for split in ("train", "test")]
    assert (lengths[0].mean() - lengths[1].mean()).abs() < 1  # standard error 0.3
    assert (lengths[0].std() - lengths[1].std()).abs() < 0.8


@few
@given(depths, seeds)
def test_text_can_be_parsed(depth: int, seed: int) -> None:
    batch = LISTOPS.sample(1, depth, seed)
    text = LISTOPS.text(batch)
    for typed in (
        text,
        text.replace("]", " ] ").replace("[", " [ "),
        text.lower().replace("[", "\n["),
        text.replace(" [", "["),
    ):
        parsed = LISTOPS.parse(typed)
        assert torch.equal(parsed.inputs, batch.inputs)
        assert torch.equal(parsed.targets, batch.targets)
        assert parsed.difficulty == depth


@pytest.mark.parametrize(
    ("text", "answer", "depth"),
    [
        ("[MED 4 8 5 [MAX 8 4 9]]", "6", 1),  # 5 and 8 are selected, and there is a shallow 8
        ("[MED 4 8 5 [MAX 7 4 3]]", "6", 2),
        ("[MED 4 7 5 [MAX 7 4 3]]", "6", 1),
        ("[MED 7 7 5 [MAX 7 4 3]]", "7", 1),
        ("[MED 9 7 5 [MAX 7 4 3]]", "7", 2),
        ("[SM [MAX 2 9] 3 [MED 1 4 8]]", "6", 2),
        ("[MAX 3 [MIN 9 [SM 1 2]]]", "3", 1),  # both are 3
        ("[MAX 2 [MIN 9 [SM 1 2]]]", "3", 3),
        ("[MIN [SM [SM 1 2] 8] 0]", "0", 1),
        ("[MED 1 2]", "1", 1),
        ("[SM 5]", "5", 1),
        ("[MAX 1 2 3 4 5 6 7]", "7", 1),
        ("4", "4", 0),
    ],
)
def test_values_and_depths(text: str, answer: str, depth: int) -> None:
    batch = LISTOPS.parse(text)
    assert LISTOPS.show(batch.targets[0], batch) == answer
    assert batch.difficulty == depth
    assert min(prunings(tree_of(text))) == depth


@settings(max_examples=100, deadline=None)
@given(
    st.text(max_size=20)
    | st.lists(st.sampled_from(["[SM ", "[MIN", "]", " 4", "5 ", "[", "X"]), max_size=8).map("".join)
)
def test_parse_answers_anything_with_a_problem_or_a_sentence(text: str) -> None:
    try:
        problem = "" if LISTOPS.check(LISTOPS.parse(text)).all() else "a wrong label"
    except UserError as error:
        problem = str(error)
    assert not problem or (problem.endswith(".") and "\n" not in problem)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "There is no expression"),
        ("[MAX 2 9", "Token 1, '[MAX', is never closed; add its ]"),
        ("[SM 1 [MAX 2 9]", "Token 1, '[SM', is never closed"),
        ("[SM 1 [MAX 2 9", "Token 3, '[MAX', is never closed"),
        ("[SM 1 [AVG 2 9]]", "Token 3, '[AVG', is not an operator; they are [MIN, [MAX, [MED and [SM"),
        ("[ 2 9]", "Token 1, '[', is not an operator"),
        ("[MAX]", "Token 2, ']', closes [MAX without arguments"),
        ("[SM 1 [MAX ]]", "Token 4, ']', closes [MAX without arguments"),
        ("[MAX 2 9] 3", "Token 5, '3', comes after the end"),
        ("[MAX 2 9]]", "Token 5, ']', comes after the end"),
        ("]", "Token 1, ']', closes nothing"),
        ("[MAX 2 10]", "Token 3, '10', is not a digit, operator or ]; numbers have one digit"),
        ("MAX 2 9]", "Token 1, 'MAX', is not a digit"),
        ("[FIRST 1 2]", "Token 1, '[FIRST', is not an operator"),
        ("[sm ß 3]", "Token 2, 'ß', is not a digit"),
        ("nofile.txt", "Token 1, 'nofile.txt', is not a digit"),
    ],
)
def test_parse_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*\.$") as caught:
        LISTOPS.parse(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("depth", "seed", "split", "says"),
    [
        (-1, 0, "train", "goes from 0 to 10000, not -1"),
        (10_001, 0, "test", "goes from 0"),
        (17, 0, "test", "Depth 17 takes at least 52 tokens and the longest problem may have 50"),
        (3, -1, "test", "seed"),
        (3, 0, "x", "split"),
    ],
)
def test_impossible_requests(depth: int, seed: int, split: Split, says: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*\.$") as caught:
        LISTOPS.sample(1, depth, seed, split)
    assert says in str(caught.value)
    with pytest.raises(UserError, match="longest"):
        ListOps(longest=0)


def test_very_deep_and_empty() -> None:
    deep = ListOps(longest=None)
    assert deep.check(deep.sample(1, 1000, 0)).all()
    tight = ListOps(longest=37)  # not one token more than depth 12 needs
    assert tight.check(tight.sample(20, 12, 0)).all()
    assert len(LISTOPS.sample(0, 5, 0)) == 0
    assert LISTOPS.check(LISTOPS.sample(0, 5, 0)).shape == (0,)


def test_score_and_shape() -> None:
    assert LISTOPS.shape == {"vocabulary": 16, "classes": 10}
    assert LISTOPS.tokens[0] == "<pad>"
    batch = LISTOPS.sample(3, 5, 0)
    logits = torch.nn.functional.one_hot(batch.targets, 10).float()
    assert torch.equal(LISTOPS.predict(logits, batch), batch.targets)
    logits[1] = logits[1].roll(1)
    assert LISTOPS.score(logits, batch).tolist() == [True, False, True]


def test_draw() -> None:
    batch = LISTOPS.sample(2, 5, 0)
    logits = 9.0 * torch.nn.functional.one_hot(batch.targets, 10)
    drawn = [LISTOPS.draw(batch, 1), LISTOPS.draw(batch, 1, logits), LISTOPS.draw(batch, 1, logits.roll(1, 1))]
    assert all(pixels.dtype == np.uint8 and pixels.shape[1:] == (900, 3) for pixels in drawn)
    red = [(pixels[..., 0].astype(int) - pixels[..., 1] > 100).sum() for pixels in drawn]
    assert red[0] == red[1] == 0 < 1000 < red[2]


@lru_cache
def original_files() -> dict[str, bytes]:
    packed = zstandard.ZstdDecompressor().stream_reader(real_data("listops/listops_tests.tar.zst").read_bytes()).read()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        found = {Path(member.name).name: archive.extractfile(member) for member in archive if member.isfile()}
        return {name: file.read() for name, file in found.items() if file is not None}


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("test_d20s.tsv", 10_000),
        ("test_d5f.tsv", 5058),
        ("test_d5c.tsv", 2771),
        ("test_d5p.tsv", 6660),
        ("test_d8.tsv", 1476),
        ("test_d14.tsv", 1183),
        ("test_d20.tsv", 973),
    ],
)
def test_original_labels(name: str, ours: int, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(original_files()[name])
    batch = load_listops(path)  # compares all labels, those of the problems that it leaves out too
    assert len(batch) == ours
    assert batch.difficulty == 0
    assert LISTOPS.check(batch[:500]).all()
    assert torch.equal(LISTOPS.parse(LISTOPS.text(batch, 3)).targets[0], batch.targets[3])


def test_load_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "some.tsv"
    good = "9\t( ( ( [MAX 2 ) 9 ) ] )\n"
    for text, says in [
        (good + "8\t( ( ( [MAX 2 ) 9 ) ] )\n", "Line 2 of some.tsv says 8 and the value is 9"),
        (good + "9 [MAX 2 9 ]\n", "Line 2 of some.tsv is not a digit, a tab and an expression"),
        ("9\t( ( [MAX 2 ) 9\n", "Line 1 of some.tsv: Token 1, '[MAX', is never closed"),
        ("2\t( ( ( [FIRST 2 ) 9 ) ] )\n", "no problems in some.tsv"),
        ("", "no problems in some.tsv"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=r"^[^\n]*\.$") as caught:
            load_listops(path)
        assert says in str(caught.value)
    path.write_text(good + "broken")
    assert load_listops(path, limit=1).targets.tolist() == [9]
    with pytest.raises(UserError, match="There is no file"):
        load_listops(tmp_path / "absent.tsv")
