"""What the page shows is what the network thinks, and a script always gives the same frames."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad

import longthink as lt
from longthink.errors import UserError
from longthink.explore.frames import Frame, chances
from longthink.explore.messages import Change, Script, Wanted
from longthink.explore.problems import Posed, describe, how_right, posed, warm_up
from longthink.explore.shelf import Shelf
from longthink.explore.thoughts import Kept, Memory, Thoughts
from longthink.inspect.attention import attention_maps
from longthink.tasks.maze_carving import make_mazes
from longthink.tasks.sudoku import _fill, _solve_all

BITS = Wanted(text="1011001110100101")
FLIPPED = Wanted(text="0011001110100101")
DEEP = "(" * 20 + "1" + "+1)" * 20
ENDLESS = ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4........."
"""It has no solution, and its few digits leave a search for one nearly without end."""


def frames(thoughts: Thoughts, script: Script, until: int, first: int = 0) -> list[Frame]:
    thoughts.follow(thoughts.plan(script))
    return list(islice(shown(thoughts.frames(first)), until - first + 1))


def shown(work: Iterator[Frame | None]) -> Iterator[Frame]:
    return (frame for frame in work if frame is not None)


def same(one: list[Frame], other: list[Frame]) -> bool:
    return len(one) == len(other) and all(
        (a.step, a.right, a.correct, a.confidence) == (b.step, b.right, b.correct, b.confidence)
        and np.array_equal(a.change, b.change, equal_nan=True)
        and all(map(np.array_equal, a.sections, b.sections))
        for a, b in zip(one, other, strict=True)
    )


@pytest.fixture(scope="module")
def shelf(runs: Path) -> Shelf:
    return Shelf(runs)


def test_frames_are_the_moments_of_the_loop(shelf: Shelf) -> None:
    model, task, _ = lt.load("mazes")
    batch = task.sample(1, 9, 5)
    found = frames(Thoughts(shelf), Script("mazes", Wanted(size=9, seed=5)), 12)
    assert [frame.step for frame in found] == list(range(13))
    for frame, moment in zip(found[1:], lt.unfold(model, batch.inputs, 12), strict=True):
        marked = task.predict(moment.logits, batch)[0, 3:-3, 3:-3].bool()
        free = batch.mask[0, 3:-3, 3:-3]
        assert torch.equal(torch.from_numpy(frame.sections[0] >= 128) & free, marked)
        assert frame.right == bool(task.score(moment.logits, batch))
        assert frame.change == pytest.approx(float(moment.change))
    assert found[-1].right
    assert found[-1].correct == 1.0


def test_a_flipped_bit_is_looked_at_again_and_thoughts_are_kept(shelf: Shelf) -> None:
    model, task, _ = lt.load("prefix_sums")
    before, after = task.parse(BITS.text), task.parse(FLIPPED.text)
    script = Script("prefix_sums", BITS, (Change(20, "problem", problem=FLIPPED),))
    found = frames(Thoughts(shelf), script, 50)
    for moment in lt.unfold(model, before.inputs, 50):
        if moment.count == 20:
            moment.context = model.look(after.inputs)
    expected = chances(moment.logits.softmax(1)[0, 1])
    assert np.array_equal(found[50].sections[0], expected)
    assert found[19].right
    assert not found[20].right  # the old answer to the new problem
    assert found[50].right


CHANGES = (
    Change(3, "noise", 7, 2.0),
    Change(6, "swapped", 3),
    Change(6, "problem", problem=FLIPPED),
    Change(9, "zeros"),
)


def test_a_script_gives_the_same_frames_however_one_comes_to_it(shelf: Shelf) -> None:
    script = Script("prefix_sums", BITS, CHANGES)
    whole = frames(Thoughts(shelf), script, 40)
    assert same(whole, frames(Thoughts(shelf), script, 40))
    assert same(whole[17:], frames(Thoughts(shelf), script, 40, first=17))  # as a link that was opened later
    lived = Thoughts(shelf)  # as somebody who pressed one button after the other, and went back now and then
    for count, change in enumerate(CHANGES):
        frames(lived, Script("prefix_sums", BITS, CHANGES[:count]), change.step + 20)
    assert same(whole[9:], frames(lived, script, 40, first=9))
    assert same(whole[2:], frames(lived, script, 40, first=2))


def test_each_kind_of_change_does_something_and_its_seed_matters(shelf: Shelf) -> None:
    def after(*changes: Change) -> bytes:
        found = frames(Thoughts(shelf), Script("prefix_sums", BITS, changes), 4)
        return found[4].sections[0].tobytes()

    noise = [after(Change(3, "noise", seed)) for seed in (1, 1, 2)]
    other = [after(Change(3, "swapped", seed)) for seed in (1, 1, 2)]
    assert noise[0] == noise[1]
    assert other[0] == other[1]
    assert len({after(), after(Change(3, "zeros")), noise[0], noise[2], other[0], other[2]}) == 6


def test_thoughts_of_another_expression_have_its_length(shelf: Shelf) -> None:
    name, text = "group/listops-toy", Wanted(text="[MAX 2 [MIN 9 4] 0]")
    plain, other = (frames(Thoughts(shelf), Script(name, text, c), 3) for c in ((), (Change(2, "swapped", 1),)))
    assert same(plain[:2], other[:2])
    assert not same(plain[2:], other[2:])


def test_zeros_show_no_path_where_nothing_is_likelier_than_not(shelf: Shelf) -> None:
    found = frames(Thoughts(shelf), Script("mazes", Wanted(size=9), (Change(2, "zeros"),)), 2)
    assert (found[2].sections[0] == 127).all()


def test_where_several_paths_are_shortest_one_or_all_are_right(runs: Path) -> None:
    loaded = Shelf(runs).load("group/mazes-toy")
    rows = ["#######", "#S....#", "#.....#", "#....G#", "#.....#", "#.....#", "#######"]
    problem = posed(loaded, Wanted(text="\n".join(rows)))
    assert describe(problem)["several"]

    def judged(*marked: str) -> tuple[bool | None, float]:
        cells = torch.tensor([[letter == "*" for letter in row] for row in marked]).float()
        pixels = pad(cells.repeat_interleave(2, 0).repeat_interleave(2, 1), (3,) * 4)
        return how_right(problem, torch.stack([0.5 - pixels, pixels - 0.5])[None])

    assert judged("*****", "....*", "....*", ".....", ".....") == (True, 1.0)
    assert judged("*....", "*....", "*****", ".....", ".....") == (True, 1.0)
    assert judged("*****", "*****", "*****", ".....", ".....") == (True, 1.0)
    assert judged("*****", "*****", "*****", "*....", ".....") == (False, pytest.approx(24 / 25))
    assert judged("*****", "*****", "*****", "*****", "*****") == (False, pytest.approx(15 / 25))
    tree = posed(loaded, Wanted(size=9, seed=3))
    assert tree.all_shortest is None
    assert not describe(tree)["several"]
    path = loaded.task.all_shortest(tree.batch)  # of one path, its own cells
    assert torch.equal(path, tree.batch.targets.bool())


@pytest.mark.parametrize(
    "typed",
    [
        "r1bqkb1r/pppp1ppp/2n2n2/4p2Q/2B1P3/8/PPPP1PPP/RNB1K1NR w KQkq - 0 1",
        "8/8/8/8/k1Pp4/8/8/K7 b - c3 0 1",
    ],
)
def test_a_position_keeps_castling_and_en_passant(shelf: Shelf, typed: str) -> None:
    assert describe(posed(shelf.load("group/chess-toy"), Wanted(text=f" {typed}\n")))["text"] == typed


def test_so_does_a_puzzle(tmp_path: Path) -> None:
    fen = "rnbqkbnr/ppp1pppp/8/8/3p4/4P3/PPPP1PPP/RNBQKBNR w KQkq - 0 3"
    (tmp_path / "puzzles.csv").write_text(f"FEN,Moves,Rating\n{fen},c2c4 d4c3,1500\n")
    chess = lt.task("chess", puzzles=str(tmp_path / "puzzles.csv"))
    batch = chess.ranks(0, 1)
    text = describe(Posed(chess, batch))["text"]
    assert text == "rnbqkbnr/ppp1pppp/8/8/2Pp4/4P3/PP1P1PPP/RNBQKBNR b KQkq c3 0 3"
    assert text.split()[:2] == chess.text(batch).split()[:2]


def test_everything_that_is_compiled_can_be_warmed_up() -> None:
    warm_up()
    assert all(one.signatures for one in (make_mazes, _fill, _solve_all))


def test_planning_comes_in_pieces(shelf: Shelf) -> None:
    changes = tuple(Change(step, "problem", problem=Wanted(size=16, seed=step)) for step in range(1, 5))
    pieces = list(Thoughts(shelf).planning(Script("prefix_sums", BITS, (*changes, Change(5, "swapped")))))
    assert pieces[:-1] == [None] * 6
    assert set(pieces[-1].problems) == {BITS, *(change.problem for change in changes)}


def test_gates_and_attention_are_those_of_the_inspection(shelf: Shelf, runs: Path) -> None:
    name = "group/listops-toy"
    model, task, _ = lt.load(runs / name)
    text = "[MAX 2 [MIN 9 4] 0]"
    maps = attention_maps(model, task.parse(text).inputs, 3)
    thoughts = Thoughts(shelf)
    about = thoughts.follow(thoughts.plan(Script(name, Wanted(text=text))))
    shapes = {section["name"]: section["shape"] for section in about["sections"]}
    assert shapes == {"chance": [10], "answer": [1], "gate": [10], "attention": [2, 10, 10]}
    assert about["problems"][0]["columns"] == ["⊢", "[MAX", "2", "[MIN", "9", "4", "]", "0", "]", "⊣"]
    last = list(islice(shown(thoughts.frames(0)), 4))[3]
    assert np.array_equal(last.sections[2], chances(maps.gate[2]))
    assert np.array_equal(last.sections[3], chances(maps.attention[2]))


def test_a_feed_forward_network_ends_with_its_blocks(shelf: Shelf) -> None:
    thoughts = Thoughts(shelf)
    about = thoughts.follow(thoughts.plan(Script("group/prefix-ff", Wanted(size=8))))
    assert about["most_steps"] == 3
    assert [frame.step for frame in shown(thoughts.frames(0))] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (Script("nobody", Wanted()), "no network named 'nobody'"),
        (Script("../runs", Wanted()), "no network named"),
        (Script("mazes", Wanted(text="/etc/passwd")), "several lines"),
        (Script("mazes", Wanted(text="pyproject.toml\n")), "several lines"),
        (Script("mazes", Wanted(text="#" * 500 + "\n#")), "up to 101 cells a side"),
        (Script("mazes", Wanted(size=999)), "odd number of cells a side from 3 to 101, not 999"),
        (Script("mazes", Wanted(size=8)), "odd number of cells a side from 3 to 101, not 8"),
        (Script("mazes", Wanted(size=-3)), "from 3 to 101, not -3"),
        (Script("mazes", Wanted(size=1)), "from 3 to 101, not 1"),
        (Script("prefix_sums", Wanted(size=2)), "bits from 4 to 2048, not 2"),
        (Script("group/listops-toy", Wanted(size=60)), "depth from 1 to 16, not 60"),
        (Script("group/arithmetic-toy", Wanted(size=13)), "depth from 1 to 12, not 13"),
        (Script("group/ctl-toy", Wanted(size=1)), "depth from 2 to 119, not 1"),
        (Script("group/sudoku-toy", Wanted(size=10)), "given cells from 22 to 80, not 10"),
        (Script("group/chess-toy", Wanted(size=11)), "by rating go from 1 to 10, not 11"),
        (Script("group/listops-toy", Wanted(style="kruskal")), "Only mazes have a style; listops has none"),
        (Script("mazes", Wanted(size=9, style="krusky")), "did you mean 'kruskal'"),
        (Script("prefix_sums", Wanted(text="1" * 3000)), "up to 2048 bits"),
        (Script("prefix_sums", Wanted(text="10a")), "type bits"),
        (Script("prefix_sums", BITS, (Change(3, "problem", problem=Wanted(text="11")),)), "keeps its size: 16, not 2"),
        (Script("group/listops-toy", Wanted(text="[MAX 1 2")), "never closed"),
        (Script("group/arithmetic-toy", Wanted(text="(" * 500)), "up to 120 tokens"),
        (Script("mazes", Wanted(text="S.\n.G\n"), (Change(2, "swapped"),)), "put noise or zeros"),
        (Script("group/arithmetic-toy", Wanted(text="5"), (Change(2, "swapped"),)), "put noise or zeros"),
        (Script("group/arithmetic-toy", Wanted(text=DEEP), (Change(2, "swapped"),)), "put noise or zeros"),
        (Script("group/listops-toy", Wanted(text=f"[MAX{' 1' * 60}]"), (Change(2, "swapped"),)), "put noise or zeros"),
        (Script("group/sudoku-toy", Wanted(text="." * 81)), "several solutions"),
        (Script("group/sudoku-toy", Wanted(text=ENDLESS)), "too long to check"),
        (Script("group/chess-toy", Wanted(text="nonsense")), "not a position"),
    ],
)
def test_what_is_refused_leaves_the_thought_as_it_was(shelf: Shelf, script: Script, words: str) -> None:
    thoughts = Thoughts(shelf)
    good = Script("prefix_sums", BITS)
    before = frames(thoughts, good, 3)
    with pytest.raises(UserError, match=words):
        thoughts.follow(thoughts.plan(script))
    assert same(before, list(islice(shown(thoughts.frames(0)), 4)))


@pytest.mark.parametrize(
    ("weights", "problem", "shapes"),
    [
        ("group/sudoku-toy", Wanted(size=40), [[9, 9, 9], [81]]),
        ("group/chess-toy", Wanted(text="6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"), [[8, 8], [64]]),
        ("group/ctl-toy", Wanted(), [[8], [1], [7], [2, 7, 7]]),
        ("group/arithmetic-toy", Wanted(text="((4*7)+2)"), [[10], [1], [11], [2, 11, 11]]),
    ],
)
def test_every_task_has_frames(shelf: Shelf, weights: str, problem: Wanted, shapes: list[list[int]]) -> None:
    thoughts = Thoughts(shelf)
    about = thoughts.follow(thoughts.plan(Script(weights, problem)))
    assert [section["shape"] for section in about["sections"]] == shapes
    assert about["flops"] > 0
    for frame in islice(shown(thoughts.frames(0)), 3):
        assert [list(section.shape) for section in frame.sections] == shapes
        assert len(frame.to_bytes(1)) == 28 + sum(int(np.prod(shape)) for shape in shapes)
        assert frame.right is None if "chess" in weights else frame.right is not None


@given(st.lists(st.floats(0, 1, width=32), min_size=1))
def test_a_byte_is_128_or_more_exactly_above_one_half(probabilities: list[float]) -> None:
    values = torch.tensor(probabilities)
    assert (chances(values) >= 128).tolist() == (values > 0.5).tolist()
    assert (np.abs((chances(values).astype(float) + 1) / 256 - values.numpy()) <= 1 / 256).all()


def test_what_is_no_number_becomes_a_byte() -> None:
    assert chances(torch.tensor([float("nan"), float("inf"), -float("inf")])).tolist() == [0, 255, 0]
    frame = Frame(1, None, float("nan"), 1e300, float("inf"), False, 1.0, ())
    assert len(frame.to_bytes(2**32 - 1)) == 28


@settings(max_examples=30)
@given(st.integers(1, 400), st.integers(1, 4000))
def test_memory_is_bounded_and_has_the_beginning_and_the_end(steps: int, most_bytes: int) -> None:
    memory = Memory(most_bytes)
    for step in range(steps + 1):
        memory.keep(Kept(step, torch.zeros(5), 0.0, 0.0, {}))
        assert len(memory.kept) <= max(2, min(most_bytes // 20, 48))
    assert {0, steps} <= set(memory.kept)
    assert memory.nearest(steps).step == steps
    memory.forget_after(steps // 2)
    assert max(memory.kept) <= steps // 2
    assert memory.nearest(steps).step == max(memory.kept)
