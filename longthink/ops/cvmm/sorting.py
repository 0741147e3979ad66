"""Routes sorted by their experts and cut into tiles, as three small Triton kernels; the host waits for nothing."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longthink.ops.kernels import ceil_div, power_of_two


@triton.jit
def _one_hot(e, lane):
    """1 where a route chose the expert ``lane``, 0 elsewhere: [routes, lanes]."""
    return (e.to(tl.int32)[:, None] == lane[None, :]).to(tl.int32)


@triton.jit(do_not_specialize=["routes", "span"])  # or every number of tokens would compile anew
def _count(experts, counts, routes, span, LANES: tl.constexpr, CHUNK: tl.constexpr):
    """How many of its ``span`` routes chose each expert: a row of counts [blocks, lanes]."""
    block = tl.program_id(0)
    lane = tl.arange(0, LANES)
    end = tl.minimum((block + 1) * span, routes)
    number = tl.zeros([LANES], tl.int32)
    for first in range(block * span, end, CHUNK):
        route = first + tl.arange(0, CHUNK)
        number += tl.sum(_one_hot(tl.load(experts + route, mask=route < end, other=-1), lane), 0)
    tl.store(counts + block * LANES + lane, number)


@triton.jit(do_not_specialize=["tiles"])
def _plan(counts, places, starts, tile_expert, tile_row, tiles, EXPERTS: tl.constexpr, LANES: tl.constexpr,
          BLOCKS: tl.constexpr, AT_ONCE: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """Program e writes where expert e starts, where its routes of each block go, and its tiles of ROWS routes; the one
    after the last, the unused tiles."""
    e = tl.program_id(0)
    lane = tl.arange(0, LANES)
    number = tl.zeros([LANES], tl.int32)
    for block in range(0, BLOCKS, AT_ONCE):
        some = (block + tl.arange(0, AT_ONCE))[:, None] * LANES + lane[None, :]
        number += tl.sum(tl.load(counts + some), 0)
    needed = (number + ROWS - 1) // ROWS
    begin = tl.sum(tl.where(lane < e, number, 0), 0)
    first = tl.sum(tl.where(lane < e, needed, 0), 0)
    mine = tl.where(e == EXPERTS, tiles - first, tl.sum(tl.where(lane == e, needed, 0), 0))
    tl.store(starts + e, begin)
    if e < EXPERTS:
        column = tl.arange(0, BLOCKS) * LANES + e
        own = tl.load(counts + column)
        tl.store(places + column, begin + tl.cumsum(own, 0) - own)
    for done in range(0, mine, CHUNK):
        i = done + tl.arange(0, CHUNK)
        tl.store(tile_expert + first + i, tl.zeros([CHUNK], tl.int32) + e, mask=i < mine)
        tl.store(tile_row + first + i, begin + i * ROWS, mask=i < mine)


@triton.jit(do_not_specialize=["routes", "span"])
def _place(experts, places, order, routes, span, LANES: tl.constexpr, CHUNK: tl.constexpr):
    """Write each route of a block to its place among the sorted ones; those of one expert keep their order."""
    block = tl.program_id(0)
    lane = tl.arange(0, LANES)
    end = tl.minimum((block + 1) * span, routes)
    next_place = tl.load(places + block * LANES + lane)
    for first in range(block * span, end, CHUNK):
        route = first + tl.arange(0, CHUNK)
        chosen = _one_hot(tl.load(experts + route, mask=route < end, other=-1), lane)
        earlier = tl.cumsum(chosen, 0) - chosen
        place = tl.sum(chosen * (earlier + next_place[None, :]), 1)
        tl.store(order + place, route, mask=route < end)
        next_place += tl.sum(chosen, 0)


_BLOCKS = 256  # of routes that are sorted side by side


class Routes(NamedTuple):
    """Routes sorted by expert and cut into tiles, each of one expert."""

    order: Tensor  # [routes]: token * K + k
    starts: Tensor  # [experts + 1]
    tile_expert: Tensor  # [tiles]; the number of experts where a tile is not used
    tile_row: Tensor  # [tiles]: the place of a tile's first route
    k: int
    rows: int  # routes in a tile

    @property
    def experts(self) -> int:
        return len(self.starts) - 1


def sort_routes(experts: Tensor, number: int) -> Routes:
    """A counting sort: blocks of routes are counted, then each knows where its routes go. Nothing is compared."""
    experts = experts.contiguous()
    routes, rows = experts.numel(), _rows(experts.numel(), number)
    tiles = ceil_div(routes, rows) + number  # each expert wastes one at most
    lanes = max(16, power_of_two(number))
    chunk = max(16, min(256, 8192 // lanes))
    span = chunk * ceil_div(routes, chunk * _BLOCKS)

    def empty(*size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32, device=experts.device)

    counts, places = empty(_BLOCKS, lanes), empty(_BLOCKS, lanes)
    order, starts, tile_expert, tile_row = empty(routes), empty(number + 1), empty(tiles), empty(tiles)
    _count[(_BLOCKS,)](experts, counts, routes, span, LANES=lanes, CHUNK=chunk)
    _plan[(number + 1,)](counts, places, starts, tile_expert, tile_row, tiles, EXPERTS=number, LANES=lanes,
                         BLOCKS=_BLOCKS, AT_ONCE=max(1, min(_BLOCKS, 8192 // lanes)), ROWS=rows, CHUNK=128)  # fmt: skip
    _place[(_BLOCKS,)](experts, places, order, routes, span, LANES=lanes, CHUNK=chunk)
    return Routes(order, starts, tile_expert, tile_row, experts.shape[1], rows)


def _rows(routes: int, experts: int) -> int:
    """Routes in a tile: fewer when experts have few, so that not too many rows are multiplied in vain."""
    return 128 if routes >= 128 * experts else 64 if routes >= 64 * experts else 32
