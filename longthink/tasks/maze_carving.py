"""Mazes as numba code: carve, solve and render.

A maze of side s has c = (s + 1) / 2 rooms a side, at the cells whose row and column are even; the cells
between two rooms are passages (open or walled), the others pillars. While it is made, it is a flat array of
bytes with two more cells of wall on every side, so that no step to a neighbour needs a bounds check.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from longthink.tasks.rng import absorb, below, chance, split_code, stream

STYLES: tuple[str, ...] = ("depth_first", "kruskal", "wilson", "percolation", "rooms")
TREES: tuple[str, ...] = STYLES[:3]  # exactly one way between any two rooms
_DEPTH_FIRST, _KRUSKAL, _WILSON, _PERCOLATION, _ROOMS = range(5)

_WALL, _FREE, _PATH, _UNSEEN = range(4)
_MARGIN = 2
_BORDER = 3  # pixels

_GOALS_TRIED = 64
_MAZES_TRIED = 1000
_WIDEST_HALL = 6


@njit(cache=True, nogil=True)
def make_mazes(
    seed: np.uint64,
    wanted_split: int,
    style: int,
    loops: float,
    openness: float,
    inputs: np.ndarray,
    targets: np.ndarray,
    mask: np.ndarray,
    several: np.ndarray,
) -> bool:
    """Fill arrays of zeros with mazes of one split; False if no such maze was found."""
    n = len(inputs)
    side = (inputs.shape[2] - 2 * _BORDER) // 2
    width = side + 2 * _MARGIN
    rooms, passages = _places(side)
    grid = np.zeros(width * width, np.uint8)
    far = np.empty(width * width, np.int32)
    queue = np.empty(width * width, np.int32)
    members = rooms.copy()  # the rooms that start and goal are chosen from
    order = np.arange(len(passages)).astype(np.int32)
    for i in range(n):
        state = stream(seed, i)
        start, goal = 0, 0
        found = False
        for _ in range(_MAZES_TRIED):
            start = int(rooms[below(state, len(rooms))])
            count = len(rooms)
            grid[:] = _WALL
            for room in rooms:
                grid[room] = _UNSEEN
            if style == _DEPTH_FIRST:
                _carve_depth_first(grid, width, start, state, queue)
            elif style == _WILSON:
                _carve_wilson(grid, width, rooms, state, queue)
            elif style == _PERCOLATION:
                _carve_percolation(grid, rooms, passages, openness, state)
            else:
                for room in rooms:
                    queue[room] = room
                if style == _ROOMS:
                    _open_halls(grid, width, side, state, queue)
                _carve_kruskal(grid, width, rooms, passages, order, state, queue)
            if loops > 0:
                _open_loops(grid, passages, loops, state)
            if style == _PERCOLATION:
                count = _largest_part(grid, width, rooms, members, far, queue)
                if count < 2:
                    continue
                start = int(members[below(state, count)])
            walls = _digest(grid, width, side)
            # Another maze for each wrong split would cost two to four times as much: move the goal instead.
            for _ in range(_GOALS_TRIED):
                goal = int(members[below(state, count)])
                # The label does not change when start and goal are swapped, so the split does not either.
                digest = absorb(absorb(walls, min(start, goal)), max(start, goal))
                found = goal != start and split_code(digest) == wanted_split
                if found:
                    break
            if found:
                break
        if not found:
            return False
        far[:] = -1
        _spread(grid, width, start, goal, far, queue)
        several[i] = _mark_path(grid, width, start, goal, far)
        _render(grid, width, side, start, goal, inputs[i], targets[i], mask[i])
    return True


@njit(cache=True)
def solve_maze(
    grid: np.ndarray,
    start: int,
    goal: int,
    inputs: np.ndarray,
    targets: np.ndarray,
    mask: np.ndarray,
    several: np.ndarray,
) -> bool:
    """Fill arrays of one sample from a maze made by ``lay_out``; False if no path leads to the goal."""
    side = (inputs.shape[2] - 2 * _BORDER) // 2
    width = side + 2 * _MARGIN
    far = np.full(width * width, -1, np.int32)
    queue = np.empty(width * width, np.int32)
    _spread(grid, width, start, goal, far, queue)
    if far[goal] < 0:
        return False
    several[0] = _mark_path(grid, width, start, goal, far)
    _render(grid, width, side, start, goal, inputs[0], targets[0], mask[0])
    return True


def lay_out(free: np.ndarray, *places: tuple[int, int]) -> tuple[np.ndarray, list[int]]:
    """The flat array of a maze (bool [side, side]), and where in it some rows and columns are."""
    grid = np.pad(free.astype(np.uint8), _MARGIN)
    return grid.ravel(), [(y + _MARGIN) * len(grid) + x + _MARGIN for y, x in places]


@njit(cache=True)
def _places(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the rooms are, and the passages: all that join left and right, then all that join up and down."""
    c = (side + 1) // 2
    width = side + 2 * _MARGIN
    rooms = np.empty(c * c, np.int32)
    passages = np.empty(2 * c * (c - 1), np.int32)
    a, b = 0, len(passages) // 2
    for y in range(c):
        for x in range(c):
            room = (2 * y + _MARGIN) * width + 2 * x + _MARGIN
            rooms[y * c + x] = room
            if x < c - 1:
                passages[a] = room + 1
                a += 1
            if y < c - 1:
                passages[b] = room + width
                b += 1
    return rooms, passages


@njit(cache=True)
def _carve_depth_first(grid: np.ndarray, width: int, root: int, state: np.ndarray, stack: np.ndarray) -> None:
    """The recursive backtracker, as published."""
    choices = np.empty(4, np.int64)
    grid[root] = _FREE
    stack[0] = root
    height = 1
    while height > 0:
        room = int(stack[height - 1])
        count = 0
        for step in (-width, -1, 1, width):
            if grid[room + 2 * step] == _UNSEEN:
                choices[count] = step
                count += 1
        if count == 0:
            height -= 1
            continue
        step = choices[below(state, count)]
        grid[room + step] = _FREE
        grid[room + 2 * step] = _FREE
        stack[height] = room + 2 * step
        height += 1


@njit(cache=True)
def _carve_wilson(grid: np.ndarray, width: int, rooms: np.ndarray, state: np.ndarray, taken: np.ndarray) -> None:
    """Loop-erased random walks: every spanning tree is equally likely."""
    grid[rooms[len(rooms) // 2]] = _FREE
    for first in rooms:
        room = int(first)
        while grid[room] == _UNSEEN:
            way = below(state, 4)
            step = (-width, -1, 1, width)[way]
            if grid[room + 2 * step] != _WALL:  # where a room could be, wall means outside
                taken[room] = step  # overwritten on a later visit, which is what erases a loop
                room += 2 * step
        room = int(first)
        while grid[room] == _UNSEEN:
            step = int(taken[room])
            grid[room] = _FREE
            grid[room + step] = _FREE
            room += 2 * step


@njit(cache=True)
def _carve_kruskal(
    grid: np.ndarray,
    width: int,
    rooms: np.ndarray,
    passages: np.ndarray,
    order: np.ndarray,
    state: np.ndarray,
    leader: np.ndarray,
) -> None:
    """In random order, open each passage whose rooms are not yet joined. ``leader`` may join some already."""
    for room in rooms:
        grid[room] = _FREE
    for k in range(len(order)):  # sample i must not depend on the order that sample i - 1 left behind
        order[k] = k
    for k in range(len(order) - 1, -1, -1):
        other = below(state, k + 1)
        choice = order[other]
        order[other] = order[k]
        passage = int(passages[choice])
        across = 1 if choice < len(order) // 2 else width
        a = _leader_of(leader, passage - across)
        b = _leader_of(leader, passage + across)
        if a != b:
            leader[a] = b
            grid[passage] = _FREE


@njit(cache=True)
def _leader_of(leader: np.ndarray, room: int) -> int:
    while leader[room] != room:
        leader[room] = leader[leader[room]]
        room = int(leader[room])
    return room


@njit(cache=True)
def _carve_percolation(
    grid: np.ndarray, rooms: np.ndarray, passages: np.ndarray, openness: float, state: np.ndarray
) -> None:
    for room in rooms:
        grid[room] = _FREE
    for passage in passages:
        if chance(state) < openness:
            grid[passage] = _FREE


@njit(cache=True)
def _open_halls(grid: np.ndarray, width: int, side: int, state: np.ndarray, leader: np.ndarray) -> None:
    """Rectangles without inner walls or pillars, which never overlap."""
    c = (side + 1) // 2
    widest = max(2, min(_WIDEST_HALL, c // 2))
    for _ in range(max(1, c * c // 6)):
        rows, columns = int(1 + below(state, widest)), int(1 + below(state, widest))
        y, x = below(state, c - rows + 1), below(state, c - columns + 1)
        corner = (2 * y + _MARGIN) * width + 2 * x + _MARGIN
        taken = False
        for dy in range(rows):
            for dx in range(columns):
                taken |= grid[corner + 2 * dy * width + 2 * dx] != _UNSEEN
        if taken:
            continue
        for dy in range(2 * rows - 1):
            for dx in range(2 * columns - 1):
                cell = corner + dy * width + dx
                grid[cell] = _FREE
                leader[cell] = corner


@njit(cache=True)
def _open_loops(grid: np.ndarray, passages: np.ndarray, loops: float, state: np.ndarray) -> None:
    """Open exactly this fraction of the closed passages, every choice of them equally likely."""
    closed = 0
    for passage in passages:
        closed += grid[passage] == _WALL
    wanted = int(loops * closed + 0.5)
    for passage in passages:
        if grid[passage] == _WALL:
            if below(state, closed) < wanted:
                grid[passage] = _FREE
                wanted -= 1
            closed -= 1


@njit(cache=True)
def _largest_part(
    grid: np.ndarray, width: int, rooms: np.ndarray, members: np.ndarray, far: np.ndarray, queue: np.ndarray
) -> int:
    """Put the rooms of the largest connected part first in ``members`` and count them."""
    far[:] = -1
    largest, source = 0, 0
    for room in rooms:
        if far[room] < 0:
            cells = _spread(grid, width, int(room), -1, far, queue)
            if cells > largest:
                largest, source = cells, int(room)
    far[:] = -1
    _spread(grid, width, source, -1, far, queue)
    count = 0
    for room in rooms:
        if far[room] >= 0:
            members[count] = room
            count += 1
    return count


@njit(cache=True)
def _digest(grid: np.ndarray, width: int, side: int) -> np.uint64:
    """The walls as one number: the same for the same walls, whatever style they come from."""
    digest = absorb(np.uint64(0), side)
    word, bits = np.uint64(0), 0
    for y in range(_MARGIN, side + _MARGIN):
        for cell in range(y * width + _MARGIN, y * width + _MARGIN + side):
            word = (word << np.uint64(1)) | np.uint64(grid[cell] != _WALL)
            bits += 1
            if bits == 64:
                digest = absorb(digest, int(word))
                word, bits = np.uint64(0), 0
    return absorb(digest, int(word))


@njit(cache=True)
def _spread(grid: np.ndarray, width: int, source: int, target: int, far: np.ndarray, queue: np.ndarray) -> int:
    """Breadth first: write distances over -1 in ``far`` until the target is met; how many cells were met."""
    far[source] = 0
    queue[0] = source
    head, tail = 0, 1
    while head < tail:
        cell = int(queue[head])
        head += 1
        for step in (-width, -1, 1, width):
            neighbour = cell + step
            if grid[neighbour] != _WALL and far[neighbour] < 0:
                far[neighbour] = far[cell] + 1
                queue[tail] = neighbour
                tail += 1
                if neighbour == target:
                    return tail
    return tail


@njit(cache=True)
def _mark_path(grid: np.ndarray, width: int, start: int, goal: int, far: np.ndarray) -> bool:
    """Walk back from the goal, always to the first neighbour that is nearer. Was there ever a choice?"""
    cell = goal
    several = False
    grid[cell] = _PATH
    while cell != start:
        nearer = far[cell] - 1
        count, following = 0, cell
        for step in (-width, -1, 1, width):
            if far[cell + step] == nearer:
                if count == 0:
                    following = cell + step
                count += 1
        several |= count > 1
        cell = following
        grid[cell] = _PATH
    return several


@njit(cache=True)
def _render(
    grid: np.ndarray,
    width: int,
    side: int,
    start: int,
    goal: int,
    inputs: np.ndarray,
    targets: np.ndarray,
    mask: np.ndarray,
) -> None:
    """Two pixels a cell. Start is green and goal red, as in the public data (the text swaps the colours)."""
    for y in range(side):
        base = (y + _MARGIN) * width + _MARGIN
        for row in range(2 * y + _BORDER, 2 * y + _BORDER + 2):
            for x in range(side):
                cell = base + x
                if grid[cell] == _WALL:
                    continue
                red = np.float32(cell != start)
                green = np.float32(cell != goal)
                blue = red * green
                on_path = int(grid[cell] == _PATH)
                column = 2 * x + _BORDER
                inputs[0, row, column] = red
                inputs[0, row, column + 1] = red
                inputs[1, row, column] = green
                inputs[1, row, column + 1] = green
                inputs[2, row, column] = blue
                inputs[2, row, column + 1] = blue
                targets[row, column] = on_path
                targets[row, column + 1] = on_path
                mask[row, column] = True
                mask[row, column + 1] = True
