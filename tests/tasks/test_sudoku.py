from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from longthink.errors import UserError
from longthink.tasks.base import SPLITS, Batch, Split, task
from longthink.tasks.sudoku import FEWEST_GENERATED, Sudoku, _digest, load_puzzles

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "sudoku" / "sudoku17.csv.zst"
PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
ANSWER = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
SUDOKU = Sudoku()

seeds = st.integers(0, 2**63)
givens = st.integers(24, 80)
splits = st.sampled_from(SPLITS)


def digits(batch: Batch) -> np.ndarray:
    return batch.inputs.argmax(1).flatten(1).to(torch.uint8).numpy()


def fingerprint(batch: Batch) -> str:
    answers = (batch.targets + 1).to(torch.uint8).numpy()
    return hashlib.sha256(digits(batch).tobytes() + answers.tobytes()).hexdigest()[:16]


def renamed(batch: Batch) -> set[bytes]:
    """The solutions after their digits are renamed so that the first row is 1 to 9."""
    answers = batch.targets.flatten(1).numpy()
    return {np.argsort(answer[:9])[answer].astype(np.uint8).tobytes() for answer in answers}


@settings(max_examples=25, deadline=None)
@given(givens, seeds, splits)
def test_labels_are_right_and_unique(difficulty: int, seed: int, split: Split) -> None:
    batch = SUDOKU.sample(2, difficulty, seed, split)
    assert batch.inputs.shape == (2, 10, 9, 9)
    assert batch.inputs.dtype == torch.float32
    assert batch.targets.shape == (2, 9, 9)
    assert batch.difficulty == difficulty
    assert (np.count_nonzero(digits(batch), axis=1) == difficulty).all()
    assert SUDOKU.check(batch).all()


@settings(max_examples=15, deadline=None)
@given(givens, seeds, splits)
def test_samples_do_not_depend_on_their_number(difficulty: int, seed: int, split: Split) -> None:
    few, many = SUDOKU.sample(3, difficulty, seed, split), SUDOKU.sample(5, difficulty, seed, split)[:3]
    assert torch.equal(few.inputs, many.inputs)
    assert torch.equal(few.targets, many.targets)


@pytest.mark.parametrize(
    ("difficulty", "seed", "split", "golden"),
    [
        (60, 0, "train", "16fbe23cd1642c23"),
        (40, 1, "valid", "e7cf429666a8682e"),
        (30, 0, "test", "83cdcd8d9189ae5a"),
        (24, 2**40, "test", "2bac0afc6d65f4d2"),
        (22, 0, "train", "3604af45d9bc5bb6"),
    ],
)
def test_the_same_everywhere(difficulty: int, seed: int, split: Split, golden: str) -> None:
    assert fingerprint(SUDOKU.sample(8, difficulty, seed, split)) == golden


def test_splits_and_seeds_differ() -> None:
    grids = [renamed(SUDOKU.sample(400, 60, 0, split)) for split in SPLITS]
    assert all(len(grid) == 400 for grid in grids)
    assert len(set.union(*grids)) == 3 * 400
    assert fingerprint(SUDOKU.sample(3, 40, 0)) != fingerprint(SUDOKU.sample(3, 40, 1))
    assert renamed(SUDOKU.sample(3, 40, 0)).isdisjoint(renamed(SUDOKU.sample(3, 41, 0)))


def test_the_split_ignores_the_names_of_digits() -> None:
    grid = np.frombuffer(ANSWER.encode(), np.uint8) - ord("0")
    names = np.array([0, 4, 9, 1, 3, 2, 8, 6, 5, 7], np.uint8)
    assert _digest(grid) == _digest(names[grid])
    assert _digest(grid) != _digest(grid.reshape(9, 9).T.copy().reshape(81))


def test_digits_and_blanks_are_spread_evenly() -> None:
    batch = SUDOKU.sample(3000, 40, 0)
    per_cell = torch.nn.functional.one_hot(batch.targets, 9).float().mean(0)  # [9, 9, 9]
    assert (per_cell - 1 / 9).abs().max() < 0.03
    blank = batch.inputs[:, 0].mean(0)
    assert (blank - 41 / 81).abs().max() < 0.06


@settings(max_examples=15, deadline=None)
@given(seeds, st.integers(0, 80), st.integers(1, 8))
def test_corrupt_labels_are_found(seed: int, cell: int, shift: int) -> None:
    batch = SUDOKU.sample(1, 30, seed)
    where = (0, cell // 9, cell % 9)
    targets = batch.targets.clone()
    targets[where] = (targets[where] + shift) % 9
    assert not SUDOKU.check(Batch(batch.inputs, targets)).any()


def test_check_finds_puzzles_that_are_not_unique_and_answers_to_others() -> None:
    batch = SUDOKU.parse(PUZZLE)
    assert SUDOKU.check(batch).all()
    blank = torch.zeros_like(batch.inputs)
    blank[:, 0] = 1
    assert not SUDOKU.check(Batch(blank, batch.targets)).any()
    assert not SUDOKU.check(Batch(batch.inputs, SUDOKU.sample(1, 30, 0).targets)).any()
    assert not SUDOKU.check(Batch(batch.inputs * 2, batch.targets)).any()


def test_score() -> None:
    batch = SUDOKU.sample(3, 30, 0)
    logits = torch.nn.functional.one_hot(batch.targets, 9).movedim(3, 1).float()
    logits[1, :, 4, 4] = logits[1, :, 4, 4].roll(1)
    assert SUDOKU.score(logits, batch).tolist() == [True, False, True]


@settings(max_examples=15, deadline=None)
@given(givens, seeds, st.data())
def test_parse_reads_any_layout(difficulty: int, seed: int, data: st.DataObject) -> None:
    batch = SUDOKU.sample(1, difficulty, seed)
    blank = data.draw(st.sampled_from(".0"))
    between = data.draw(st.lists(st.sampled_from(["", " ", "\n", "|", "\t", "--+--"]), min_size=81, max_size=81))
    cells = "".join(map(str, digits(batch)[0])).replace("0", blank)
    parsed = SUDOKU.parse("".join(cell + gap for cell, gap in zip(cells, between, strict=True)))
    assert torch.equal(parsed.inputs, batch.inputs)
    assert torch.equal(parsed.targets, batch.targets)
    assert parsed.difficulty == difficulty


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=100) | st.text("0123456789.|", min_size=75, max_size=90))
def test_parse_answers_anything_with_a_sudoku_or_a_sentence(text: str) -> None:
    try:
        problem = "" if SUDOKU.check(SUDOKU.parse(text)).all() else "a wrong label"
    except UserError as error:
        problem = str(error)
    assert not problem or (problem.endswith(".") and "\n" not in problem)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "81 cells, not 0"),
        (PUZZLE[:-1], "81 cells, not 80"),
        (PUZZLE[:5] + "x" + PUZZLE[6:], "Character 6 is 'x'"),
        (PUZZLE[:5] + "²" + PUZZLE[6:], "Character 6 is '²'"),
        ("55" + "." * 79, "The digit 5 is given twice in row 1"),
        ("5........5" + "." * 71, "The digit 5 is given twice in column 1"),
        ("." * 60 + "7........." + "7" + "." * 10, "The digit 7 is given twice in box 9"),
        ("12345678." + "." * 8 + "9" + "." * 63, "no solution"),
        ("." * 81, "several solutions with its 0 given cells"),
        ("0" + PUZZLE[1:4] + "0" * 77, "several solutions"),
    ],
)
def test_parse_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*\.$") as caught:
        SUDOKU.parse(text)
    assert says in str(caught.value)


def test_show_can_be_parsed() -> None:
    batch = SUDOKU.parse(PUZZLE)
    text = SUDOKU.show(batch.targets[0], batch)
    assert text.splitlines()[0] == "534 678 912"
    assert len(text.splitlines()) == 9
    assert "".join(text.split()) == ANSWER
    assert SUDOKU.parse(text).difficulty == 81


def test_draw() -> None:
    batch = SUDOKU.sample(2, 30, 0)
    right = torch.nn.functional.one_hot(batch.targets, 9).movedim(3, 1).float()
    picture = SUDOKU.draw(batch, 1)
    assert picture.shape == (600, 600, 3)
    assert picture.dtype == np.uint8
    assert np.array_equal(picture, SUDOKU.draw(batch, 1, right))
    wrong = SUDOKU.draw(batch, 1, right.roll(1, 1)).astype(int)
    red = (wrong[..., 0] - wrong[..., 1]) > 100
    assert red.sum() > 3000
    assert not ((picture[..., 0].astype(int) - picture[..., 1]) > 100).any()


@pytest.mark.parametrize("difficulty", [0, 1, 17, FEWEST_GENERATED - 1, 81, 1000])
def test_impossible_requests(difficulty: int) -> None:
    with pytest.raises(UserError, match=r"\.$"):
        SUDOKU.sample(1, difficulty, 0)


def test_an_empty_batch() -> None:
    assert len(SUDOKU.sample(0, 30, 0)) == 0
    assert SUDOKU.check(SUDOKU.sample(0, 30, 0)).shape == (0,)
    assert task("sudoku") == SUDOKU


def test_files(tmp_path: Path) -> None:
    header = tmp_path / "header.csv"
    header.write_text(f"source,question,answer,rating\nhand,{PUZZLE.replace('0', '.')},{ANSWER},0\n")
    lines = tmp_path / "lines.txt"
    lines.write_bytes(f"# easy\r\n{PUZZLE}\r\n\r\n{ANSWER}".encode())
    packed = tmp_path / "two_frames.csv.zst"
    compress = zstandard.ZstdCompressor().compress
    packed.write_bytes(compress(f"puzzle\n{PUZZLE[:40]}".encode()) + compress(f"{PUZZLE[40:]}\n".encode()))
    expected = SUDOKU.parse(PUZZLE)
    for path in (header, packed):
        batch = load_puzzles(path)
        assert torch.equal(batch.inputs, expected.inputs)
        assert torch.equal(batch.targets, expected.targets)
        assert batch.difficulty == 30
    assert len(load_puzzles(lines)) == 2
    assert load_puzzles(lines).difficulty == 0
    assert load_puzzles(lines, limit=1).difficulty == 30


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no puzzles in bad.csv"),
        ("a,b\n1,2\n", "Line 1 of bad.csv is neither a puzzle nor a header"),
        (
            f"puzzle,solution\n{PUZZLE},{ANSWER}\n{PUZZLE},{ANSWER[:50]}\n",
            "Line 3 of bad.csv: A sudoku has 81",
        ),
        (
            f"puzzle,solution\n{PUZZLE},{ANSWER}\n{PUZZLE[:30]}",
            "Line 3 of bad.csv has 1 columns instead of 2",
        ),
        (f"puzzle,solution\n{PUZZLE},{ANSWER[::-1]}\n", "Line 2 of bad.csv: the solution in the file"),
        (f"{PUZZLE}\n{'.' * 81}\n", "Line 2 of bad.csv: This sudoku has several solutions"),
        (f"{PUZZLE}\n55{'.' * 79}\n", "Line 2 of bad.csv: The digit 5 is given twice in row 1"),
        (f"{PUZZLE}\n{PUZZLE[:9]}?{PUZZLE[10:]}\n", "Line 2 of bad.csv: Character 10 is '?'"),
        (f"{PUZZLE}\n".encode() + b"\xff\xfe\n", "Line 2 of bad.csv is not text"),
    ],
)
def test_bad_files(tmp_path: Path, content: str | bytes, says: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=r"^[^\n]*\.$") as caught:
        load_puzzles(path)
    assert says in str(caught.value)


def test_damaged_archives(tmp_path: Path) -> None:
    whole = zstandard.ZstdCompressor().compress(f"{PUZZLE}\n".encode() * 3)
    path = tmp_path / "bad.zst"
    path.write_bytes(whole[:-5])
    with pytest.raises(UserError, match=r"bad\.zst is damaged after line \d \(it is cut short"):
        load_puzzles(path)
    path.write_bytes(whole[:8] + b"\xff" * 20 + whole[28:])
    with pytest.raises(UserError, match=r"bad\.zst is damaged after line 0 \(its compressed data"):
        load_puzzles(path)
    with pytest.raises(UserError, match="There is no file"):
        load_puzzles(tmp_path / "absent.csv")


@pytest.mark.skipif(not REAL.exists(), reason="the file of 17-clue puzzles is not in ../shared/data")
def test_the_real_17_clue_puzzles() -> None:
    batch = load_puzzles(REAL)  # every solution in the file is compared with ours
    assert len(batch) == 44151
    assert batch.difficulty == 17
    assert SUDOKU.check(batch[::1000]).all()
