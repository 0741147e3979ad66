from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longthink.errors import UserError
from longthink.tasks.base import SPLITS, Batch, Split, task
from longthink.tasks.mazes import LARGEST, Mazes

STYLES = ("depth_first", "kruskal", "wilson", "percolation", "rooms", "loops")
TREES = ("depth_first", "kruskal", "wilson")

styles = st.sampled_from(STYLES)
sizes = st.integers(1, 12).map(lambda k: 2 * k + 1)
seeds = st.integers(0, 2**40)
splits = st.sampled_from(SPLITS)
few = settings(max_examples=40, deadline=None)


def cells(pixels: Tensor) -> np.ndarray:
    """One pixel of each cell: [..., side, side]."""
    return pixels[..., 3:-3:2, 3:-3:2].numpy()


def free_cells(inputs: Tensor) -> np.ndarray:
    return cells(inputs.amax(-3) > 0)


def logits_for(classes: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(classes.long(), 2).movedim(-1, 1).float()


def answer(drawing: str) -> Tensor:
    """The classes that a drawing with stars stands for; S and G count as marked."""
    marks = np.array([[letter in "*SG" for letter in line] for line in drawing.split("\n")])
    return torch.from_numpy(np.pad(marks.repeat(2, 0).repeat(2, 1), 3))[None].long()


def contents(batch: Batch) -> set[bytes]:
    return {picture.tobytes() for picture in batch.inputs.numpy().astype(np.uint8)}


def random_shortest_path(free: np.ndarray, start: tuple[int, int], goal: tuple[int, int], seed: int) -> np.ndarray:
    """Breadth first in plain Python, with the neighbours in random order when it walks back."""
    rng = np.random.default_rng(seed)
    far = {start: 0}
    queue = deque([start])
    while queue:
        y, x = queue.popleft()
        for there in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
            inside = 0 <= there[0] < len(free) and 0 <= there[1] < len(free)
            if inside and free[there] and there not in far:
                far[there] = far[y, x] + 1
                queue.append(there)
    marks = np.zeros(free.shape, bool)
    here = goal
    marks[here] = True
    while here != start:
        y, x = here
        around = ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1))
        nearer = [there for there in around if far.get(there, -1) == far[here] - 1]
        here = nearer[rng.integers(len(nearer))]
        marks[here] = True
    return marks


@few
@given(styles, sizes, seeds, splits)
def test_labels_are_right(style: str, size: int, seed: int, split: Split) -> None:
    mazes = Mazes(style)
    batch = mazes.sample(4, size, seed, split)
    assert mazes.check(batch).all()
    assert mazes.score(logits_for(batch.targets), batch).all()
    assert not mazes.score(logits_for(1 - batch.targets), batch).any()


@few
@given(styles, sizes, seeds, splits)
def test_pictures(style: str, size: int, seed: int, split: Split) -> None:
    batch = Mazes(style).sample(3, size, seed, split)
    side = 2 * size + 6
    assert batch.inputs.shape == (3, 3, side, side)
    assert batch.inputs.dtype == torch.float32
    assert batch.targets.shape == (3, side, side)
    assert batch.targets.dtype == torch.int64
    assert batch.difficulty == size
    assert batch.mask is not None
    assert torch.equal(batch.mask, batch.inputs.amax(1) > 0)
    assert not (batch.targets.bool() & ~batch.mask).any()
    border = batch.inputs.clone()
    border[:, :, 3:-3, 3:-3] = 0
    assert not border.any()
    for picture, target in zip(batch.inputs, batch.targets, strict=True):
        small = cells(picture)
        assert np.array_equal(small.repeat(2, 1).repeat(2, 2), picture[:, 3:-3, 3:-3].numpy())
        colours = Counter(map(tuple, small.reshape(3, -1).T.tolist()))
        assert colours[0, 1, 0] == colours[1, 0, 0] == 1
        assert set(colours) <= {(0, 0, 0), (1, 1, 1), (0, 1, 0), (1, 0, 0)}
        assert small[:, ::2, ::2].any(0).all()  # rooms are never walls
        ends = small[:, ::2, ::2].sum(0) == 1
        assert ends.sum() == 2
        assert cells(target)[::2, ::2][ends].all()


@few
@given(styles, sizes, seeds, splits)
def test_samples_depend_on_nothing_else(style: str, size: int, seed: int, split: Split) -> None:
    mazes = Mazes(style)
    five, three = mazes.sample(5, size, seed, split), mazes.sample(3, size, seed, split)
    assert torch.equal(five.inputs[:3], three.inputs)
    assert torch.equal(five.targets[:3], three.targets)
    assert len(mazes.sample(0, size, seed, split)) == 0


@few
@given(styles, sizes, seeds)
def test_splits_share_no_maze(style: str, size: int, seed: int) -> None:
    train, valid, test = (contents(Mazes(style).sample(50, size, seed, split)) for split in SPLITS)
    assert not train & valid
    assert not train & test
    assert not valid & test


def test_styles_share_splits() -> None:
    # At size 3 there are so few mazes that all styles meet.
    train = set().union(*(contents(Mazes(style).sample(500, 3, 0, "train")) for style in TREES))
    test = set().union(*(contents(Mazes(style).sample(500, 3, 0, "test")) for style in STYLES))
    assert train
    assert not train & test


@few
@given(st.sampled_from(TREES), sizes, seeds)
def test_trees(style: str, size: int, seed: int) -> None:
    batch = Mazes(style).sample(3, size, seed)
    rooms = ((size + 1) // 2) ** 2
    free = free_cells(batch.inputs)
    assert not free[:, 1::2, 1::2].any()
    assert (free.sum((1, 2)) == rooms + rooms - 1).all()
    assert batch.info == {}


@few
@given(sizes, seeds, st.floats(0, 0.9))
def test_loops_open_the_stated_fraction(size: int, seed: int, loops: float) -> None:
    try:
        free = free_cells(Mazes(loops=loops).sample(2, size, seed).inputs)
    except UserError:
        assert size == 3  # so few mazes that a split can be empty
        return
    c = (size + 1) // 2
    closed = 2 * c * (c - 1) - (c * c - 1)
    assert (free.sum((1, 2)) == 2 * c * c - 1 + int(loops * closed + 0.5)).all()


@pytest.mark.parametrize("style", STYLES)
def test_seeds_and_styles_differ(style: str) -> None:
    mazes = Mazes(style)
    sets = [contents(mazes.sample(50, 13, seed, split)) for seed in (0, 1, 2**40) for split in SPLITS]
    sets += [contents(Mazes(other).sample(50, 13, 0)) for other in STYLES if other != style]
    sets.append(contents(Mazes(mazes.style, 0.5).sample(50, 13, 0)))
    assert len(set().union(*sets)) == 50 * len(sets)


def test_train_and_test_do_not_share_walls() -> None:
    train, test = (free_cells(Mazes().sample(200, 13, 0, split).inputs) for split in ("train", "test"))
    assert not {walls.tobytes() for walls in train} & {walls.tobytes() for walls in test}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("split", SPLITS)
def test_start_and_goal_are_everywhere(style: str, split: Split) -> None:
    small = cells(Mazes(style).sample(5000, 9, 3, split).inputs)[:, :, ::2, ::2]
    for channel in (0, 1):  # red is missing at the start, green at the goal
        places = (small.any(1) & (small[:, channel] == 0)).sum(0)
        assert places.sum() == 5000
        # 200 in each room on average; in percolation, a corner is seldomer in the largest part.
        slack = 130 if style == "percolation" else 60
        assert (abs(places - 200) < slack).all()


def test_wilson_trees_are_equally_likely() -> None:
    free = free_cells(Mazes("wilson").sample(20_000, 5, 0, "train").inputs)
    counts = Counter(walls.tobytes() for walls in free)
    assert len(counts) == 192  # all spanning trees of the 3 x 3 grid
    assert max(counts.values()) < 160  # 104 on average
    assert min(counts.values()) > 60


def test_percolation_has_parts_out_of_reach() -> None:
    mazes = Mazes("percolation")
    reached = total = 0
    for maze in mazes.sample(20, 21, 0).inputs:
        free = free_cells(maze)
        seen = (cells(maze)[0] == 0) & free
        while True:
            wider = np.pad(seen, 1)
            grown = free & (seen | wider[2:, 1:-1] | wider[:-2, 1:-1] | wider[1:-1, 2:] | wider[1:-1, :-2])
            if (grown == seen).all():
                break
            seen = grown
        reached, total = reached + seen.sum(), total + free.sum()
    assert 0.6 < reached / total < 0.95


def test_rooms_have_halls() -> None:
    free = free_cells(Mazes("rooms").sample(20, 21, 0).inputs)
    assert free[:, 1::2, 1::2].any((1, 2)).all()


def test_short_name_for_loops() -> None:
    assert Mazes("loops") == Mazes("depth_first", 0.1)
    assert Mazes("loops", 0.3) == Mazes("depth_first", 0.3)
    assert task("mazes", style="loops") == Mazes(loops=0.1)


GOLDEN = {
    "depth_first": "12d827ab508b9b47",
    "kruskal": "1313e74e6318e0a5",
    "wilson": "d1455f4d0af9f640",
    "percolation": "3aea30cf86b150aa",
    "rooms": "7172a76d0d2f7a6b",
    "loops": "a098fea126499089",
}


@pytest.mark.parametrize("style", STYLES)
def test_golden(style: str) -> None:
    digest = sha256()
    for size, split in ((3, "valid"), (9, "train"), (33, "test")):
        batch = Mazes(style).sample(4, size, 7, split)  # type: ignore[arg-type]
        digest.update(batch.inputs.numpy().astype(np.uint8).tobytes())
        digest.update(batch.targets.numpy().astype(np.uint8).tobytes())
    assert digest.hexdigest()[:16] == GOLDEN[style]


def test_large() -> None:
    mazes = Mazes()
    batch = mazes.sample(1, 1001, 0, "train")
    assert batch.inputs.shape == (1, 3, 2008, 2008)
    assert batch.targets.sum() > 4000
    assert mazes.draw(batch).shape == (2006, 2006, 3)


@few
@given(styles, st.integers(2, 10).map(lambda k: 2 * k + 1), seeds, st.data())
def test_check_finds_corruption(style: str, size: int, seed: int, data: st.DataObject) -> None:
    mazes = Mazes(style)
    batch = mazes.sample(3, size, seed)
    row = data.draw(st.integers(0, 2))
    y, x = (data.draw(st.integers(0, 2 * size + 5)) for _ in range(2))
    expected = [i != row for i in range(3)]

    targets = batch.targets.clone()
    targets[row, y, x] = 1 - targets[row, y, x]
    assert mazes.check(replace(batch, targets=targets)).tolist() == expected

    inputs = batch.inputs.clone()
    inputs[row, data.draw(st.integers(0, 2)), y, x] += 1
    assert mazes.check(replace(batch, inputs=inputs)).tolist() == expected

    assert batch.mask is not None
    mask = batch.mask.clone()
    mask[row, y, x] = ~mask[row, y, x]
    assert mazes.check(replace(batch, mask=mask)).tolist() == expected

    targets = batch.targets.clone()
    cell_y, cell_x = (3 + 2 * data.draw(st.integers(0, size - 1)) for _ in range(2))
    block = (row, slice(cell_y, cell_y + 2), slice(cell_x, cell_x + 2))
    targets[block] = 1 - targets[block]
    assert mazes.check(replace(batch, targets=targets)).tolist() == expected


def test_check_refuses_a_detour() -> None:
    mazes = Mazes()
    batch = mazes.parse("S....\n.#.#.\n.#.#.\n.#.#.\n...#G")
    detour = "S.***\n*#*#*\n*#*#*\n*#*#*\n***#G"
    assert mazes.check(batch).all()
    assert not mazes.check(replace(batch, targets=answer(detour))).any()
    assert not mazes.score(logits_for(answer(detour)), batch).any()


RING = "S....\n.###.\n.###.\n.###.\n....G"


@pytest.mark.parametrize(
    ("drawing", "right"),
    [
        ("S****\n.###*\n.###*\n.###*\n....G", True),
        ("S....\n*###.\n*###.\n*###.\n****G", True),
        ("S****\n*###*\n*###*\n*###*\n****G", False),  # both
        ("S....\n*###.\n*###.\n*###.\n***.G", False),  # broken
        ("S*...\n*###.\n*###.\n*###.\n****G", False),  # a cell too much
        ("S*...\n*###.\n*###.\n*###.\n***.G", False),  # the right number, but broken
        ("S....\n.###.\n.###.\n.###.\n....G", False),
    ],
)
def test_score_on_a_ring(drawing: str, right: bool) -> None:
    mazes = Mazes()
    batch = mazes.parse(RING)
    assert mazes.score(logits_for(answer(drawing)), batch).tolist() == [right]
    if right:
        assert mazes.check(replace(batch, targets=answer(drawing))).tolist() == [True]
        assert mazes.show(answer(drawing)[0], batch).count("*") == 7


def test_score_refuses_single_pixels() -> None:
    mazes = Mazes()
    batch = mazes.parse(RING)
    for drawing in ("S****\n.###*\n.###*\n.###*\n....G", "S....\n*###.\n*###.\n*###.\n****G"):
        for y, x, right in ((3, 3, False), (7, 3, False), (4, 12, False), (6, 6, True), (0, 0, True)):
            classes = answer(drawing)
            classes[0, y, x] = 1 - classes[0, y, x]
            assert mazes.score(logits_for(classes), batch).tolist() == [right]  # walls and border do not count


def test_score_refuses_a_ring_beside_the_path() -> None:
    mazes = Mazes()
    batch = mazes.parse("S..\n...\n..G")
    assert mazes.score(logits_for(answer("S**\n..*\n..G")), batch).all()
    assert mazes.score(logits_for(answer("S*.\n.**\n..G")), batch).all()
    batch = mazes.parse("......S\n.......\n.......\n.......\n.......\n.......\n......G")
    straight = "......S\n......*\n......*\n......*\n......*\n......*\n......G"
    assert mazes.score(logits_for(answer(straight)), batch).all()
    ring = "......S\n***...*\n*.*...*\n***...*\n......*\n......*\n......G"
    assert not mazes.score(logits_for(answer(ring)), batch).any()


@few
@given(st.sampled_from(("percolation", "rooms", "loops")), sizes, seeds)
def test_score_accepts_every_shortest_path(style: str, size: int, seed: int) -> None:
    mazes = Mazes(style)
    batch = mazes.sample(1, size, seed)
    small = cells(batch.inputs[0])
    free = free_cells(batch.inputs[0])
    (start,), (goal,) = (np.argwhere(free & (small[channel] == 0)).tolist() for channel in (0, 1))
    for attempt in range(4):
        marks = random_shortest_path(free, (start[0], start[1]), (goal[0], goal[1]), attempt)
        classes = torch.from_numpy(np.pad(marks.repeat(2, 0).repeat(2, 1), 3))[None].long()
        assert mazes.score(logits_for(classes), batch).all()
        assert mazes.check(replace(batch, targets=classes)).all()
        if not torch.equal(classes, batch.targets):
            assert batch.info["several"].all()


@pytest.mark.parametrize("style", ["depth_first", "loops"])
def test_score_stays_on_its_device(style: str) -> None:
    # Mixing devices fails on meta tensors just as it does on a GPU, and so does a look at a value.
    batch = Mazes(style).sample(3, 9, 0)
    result = Mazes(style).score(logits_for(batch.targets).to("meta"), batch.to("meta"))
    assert result.device.type == "meta"
    assert result.shape == (3,)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_score_on_a_gpu() -> None:
    for style in STYLES:
        batch = Mazes(style).sample(20, 13, 0).to("cuda")
        assert Mazes(style).score(logits_for(batch.targets), batch).all()
        assert Mazes(style).check(batch).all()


@few
@given(styles, sizes, seeds)
def test_show_and_parse(style: str, size: int, seed: int) -> None:
    mazes = Mazes(style)
    batch = mazes.sample(2, size, seed)
    text = mazes.show(batch.targets[1], batch, 1)
    again = mazes.parse(text)
    assert again.difficulty == size
    assert torch.equal(again.inputs[0], batch.inputs[1])
    assert torch.equal(again.targets[0], batch.targets[1])
    assert mazes.show(again.targets[0], again) == text
    without_border = "\n".join(line[1:-1] for line in text.split("\n")[1:-1])
    assert torch.equal(mazes.parse(without_border.replace(" ", ".")).inputs, again.inputs)


def test_show_marks_parts_of_cells() -> None:
    mazes = Mazes()
    batch = mazes.parse("S.\n.G")
    classes = batch.targets[0].clone() * 0
    classes[3, 5] = 1
    assert mazes.show(classes, batch) == "####\n#S+#\n# G#\n####"


def test_parse_reads_files(tmp_path: Path) -> None:
    file = tmp_path / "maze.txt"
    file.write_text("\n#####\n#S  #\n### #\n#G  #\n#####\n\n", "utf-8")
    batch = Mazes().parse(str(file))
    assert batch.difficulty == 3
    assert batch.targets.sum() == 4 * 7
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read"):
        Mazes().parse(str(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "neither a maze nor a file"),
        ("\n\n", "neither a maze nor a file"),
        ("nowhere.txt", "neither a maze nor a file"),
        ("S.G", "neither a maze nor a file"),
        ("x" * 5000, "cannot be read"),
        ("S.\nxG", "Line 2, column 1 is 'x'"),
        ("\nS.\n.G\n.\t", "Line 4, column 2"),
        ("S.\nSG", "Line 2, column 1 is a second S"),
        ("S..\n.G\n...", "Line 2 has 2 characters and line 1 has 3"),
        ("S.\n..", "no goal"),
        ("..\n.G", "no start"),
        ("S.\n..\n.G", "3 lines of 2 characters"),
        ("S#.\n##.\n..G", "No path leads from S to G"),
    ],
)
def test_parse_complains(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Mazes().parse(text)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("size", [-1, 0, 1, 2, 8, LARGEST + 2, 10**9 + 1])
def test_sizes_that_make_no_sense(size: int) -> None:
    with pytest.raises(UserError, match="Choose an odd maze size from 3 to"):
        Mazes().sample(1, size, 0)


def test_other_complaints() -> None:
    with pytest.raises(UserError, match="did you mean 'kruskal'"):
        Mazes("kruskall")
    with pytest.raises(UserError, match="fraction of loops"):
        Mazes(loops=1.5)
    with pytest.raises(UserError, match="fraction of loops"):
        Mazes(loops=float("nan"))
    with pytest.raises(UserError, match="openness must be"):
        Mazes("percolation", openness=0.0)
    with pytest.raises(UserError, match="Only percolation"):
        Mazes("wilson", openness=0.7)
    with pytest.raises(UserError, match="no split"):
        Mazes().sample(1, 9, 0, "dev")  # type: ignore[arg-type]


def test_draw() -> None:
    mazes = Mazes()
    batch = mazes.sample(2, 9, 0)
    truth = mazes.draw(batch, 1)
    assert truth.dtype == np.uint8
    assert truth.shape == (594, 594, 3)
    sure = mazes.draw(batch, 1, 100 * logits_for(batch.targets))
    assert np.array_equal(truth, sure)
    blank = mazes.draw(batch, 1, torch.zeros(2, 2, 24, 24, requires_grad=True))
    assert len(np.unique(blank.reshape(-1, 3), axis=0)) == 4  # wall, start, goal and one shade: the truth is not drawn
