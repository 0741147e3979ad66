"""Conditional multiplication as Triton kernels, forward and backward; the design is in README.md.

Three kernels multiply: rows by their experts' matrices (``_grouped``), the same with the gradient of the gated ReLU
(``_hidden_gradient``), and the transposed product of two sets of rows for each expert (``_weight_gradient``). Rows are
read where they lie and written where they belong, through the sorted routes; nothing is gathered into a copy, no sum is
atomic, and the host never waits for the device.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from longthink.ops.cvmm.sorting import Routes, sort_routes
from longthink.ops.kernels import ceil_div, check_first_derivative, power_of_two, product_precision


@triton.jit(do_not_specialize=["numbers"])
def _sum_routes(parts, total, numbers, first, width, K: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Columns of total [tokens, width] from the first on = the sum over k of parts [tokens, K, COLUMNS], in float32."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    token, column = at // COLUMNS, at % COLUMNS
    inside = at < numbers
    y = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(K):
        y += tl.load(parts + (token * K + k) * COLUMNS + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(total + token * width + first + column, y.to(total.dtype.element_ty), mask=inside)


@triton.jit
def _row(place, route, WHERE: tl.constexpr, K: tl.constexpr):
    """The row of a tensor that holds a token, a route (token, k), or the sorted routes in their places."""
    if WHERE == "token":
        return (route // K).to(tl.int64)
    elif WHERE == "route":
        return route.to(tl.int64)
    else:
        return place.to(tl.int64)


@triton.jit
def _multiply(rows, row, matrix, stride_in, stride_out, column, IN: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr,
              COLUMNS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Rows [ROWS, IN] times columns of a matrix [IN, OUT]: [ROWS, COLUMNS] in float32."""
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, IN, STEP):
        i = first + tl.arange(0, STEP)
        left = rows + row[:, None] * IN + i[None, :]
        right = matrix + i[:, None] * stride_in + column[None, :] * stride_out
        if IN % STEP == 0 and OUT % COLUMNS == 0:
            a = tl.load(left)
            b = tl.load(right)
        else:
            a = tl.load(left, mask=(i < IN)[None, :], other=0.0)
            b = tl.load(right, mask=(i < IN)[:, None] & (column < OUT)[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def _grouped(rows, weights, bias, gates, out, order, starts, tile_expert, tile_row, stride_expert, stride_in,
             stride_out, K: tl.constexpr, EXPERTS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
             FROM: tl.constexpr, TO: tl.constexpr, RELU: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr,
             PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """out = gate * relu(rows W[e] + bias[e]), each part optional; a program has one tile of routes, some columns."""
    parts: tl.constexpr = (OUT + COLUMNS - 1) // COLUMNS
    tile = tl.program_id(0) // parts  # neighbours share their rows
    column = (tl.program_id(0) % parts) * COLUMNS + tl.arange(0, COLUMNS)
    e = tl.load(tile_expert + tile)
    if e < EXPERTS:
        begin = tl.load(tile_row + tile)
        place = begin + tl.arange(0, ROWS)
        mine = place < tl.load(starts + e + 1)
        place = tl.where(mine, place, begin)  # rows beyond the expert's last repeat one of its own and are not stored
        route = tl.load(order + place).to(tl.int32)
        y = _multiply(rows, _row(place, route, FROM, K), weights + e.to(tl.int64) * stride_expert, stride_in,
                      stride_out, column, IN, OUT, ROWS, COLUMNS, STEP, PRECISION)  # fmt: skip
        if BIASED:
            y += tl.load(bias + e * OUT + column, mask=column < OUT, other=0.0).to(tl.float32)[None, :]
        if RELU:
            y = tl.maximum(y, 0.0)
        if GATED:
            y *= tl.load(gates + route).to(tl.float32)[:, None]
        target = out + _row(place, route, TO, K)[:, None] * OUT + column[None, :]
        tl.store(target, y.to(out.dtype.element_ty), mask=mine[:, None] & (column < OUT)[None, :])


@triton.jit
def _hidden_gradient(d_out, down, hidden, gates, d_gates, d_hidden, gated, order, starts, tile_expert, tile_row,
                     K: tl.constexpr, EXPERTS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr,
                     PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                     STEP: tl.constexpr):  # fmt: skip
    """With v = d_out down[e]^T: d_gate = h . v, d_hidden = gate v where h > 0; and gate h for the weights' gradient."""
    tile = tl.program_id(0)
    e = tl.load(tile_expert + tile)
    if e < EXPERTS:
        begin = tl.load(tile_row + tile)
        row = tl.arange(0, ROWS)
        mine = begin + row < tl.load(starts + e + 1)
        route = tl.load(order + tl.where(mine, begin + row, begin)).to(tl.int32)
        own = begin.to(tl.int64) * SIZE  # a tile's hidden rows lie together: short offsets from here save registers
        gate = tl.load(gates + route).to(tl.float32)[:, None]
        token = (route // K).to(tl.int64)
        d_gate = tl.zeros([ROWS], tl.float32)
        for first in tl.static_range(0, SIZE, COLUMNS):  # mostly once
            column = first + tl.arange(0, COLUMNS)
            v = _multiply(d_out, token, down + e.to(tl.int64) * SIZE * WIDTH, 1, WIDTH, column, WIDTH, SIZE, ROWS,
                          COLUMNS, STEP, PRECISION)  # fmt: skip
            at = row[:, None] * SIZE + column[None, :]
            inside = mine[:, None] & (column < SIZE)[None, :]
            h = tl.load(hidden + own + at, mask=inside, other=0.0).to(tl.float32)
            d_gate += tl.sum(h * v, 1)
            kind = d_hidden.dtype.element_ty
            tl.store(d_hidden + own + at, tl.where(h > 0, gate * v, 0.0).to(kind), mask=inside)
            tl.store(gated + own + at, (gate * h).to(kind), mask=inside)
        tl.store(d_gates + route, d_gate.to(d_gates.dtype.element_ty), mask=mine)


@triton.jit
def _weight_gradient(left, right, d_weights, d_bias, order, starts, K: tl.constexpr, IN: tl.constexpr,
                     OUT: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, BIASED: tl.constexpr,
                     PRECISION: tl.constexpr, INPUTS: tl.constexpr, COLUMNS: tl.constexpr,
                     STEP: tl.constexpr):  # fmt: skip
    """d_weights[e] = left^T right over the routes of e; a program sums one tile of it over all of them, in order."""
    parts: tl.constexpr = (OUT + COLUMNS - 1) // COLUMNS
    tiles: tl.constexpr = parts * ((IN + INPUTS - 1) // INPUTS)
    e = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    i = (tile // parts) * INPUTS + tl.arange(0, INPUTS)
    column = (tile % parts) * COLUMNS + tl.arange(0, COLUMNS)
    end = tl.load(starts + e + 1)
    total = tl.zeros([INPUTS, COLUMNS], tl.float32)
    bias = tl.zeros([COLUMNS], tl.float32)
    for first in range(tl.load(starts + e), end, STEP):
        place = first + tl.arange(0, STEP)
        mine = place < end
        route = tl.load(order + place, mask=mine, other=0).to(tl.int32)
        a = tl.load(left + _row(place, route, LEFT, K)[:, None] * IN + i[None, :],
                    mask=mine[:, None] & (i < IN)[None, :], other=0.0)  # fmt: skip
        b = tl.load(right + _row(place, route, RIGHT, K)[:, None] * OUT + column[None, :],
                    mask=mine[:, None] & (column < OUT)[None, :], other=0.0)  # fmt: skip
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
        if BIASED:
            bias += tl.sum(b.to(tl.float32), 0)
    at = (e.to(tl.int64) * IN + i[:, None]) * OUT + column[None, :]
    tl.store(d_weights + at, total.to(d_weights.dtype.element_ty), mask=(i < IN)[:, None] & (column < OUT)[None, :])
    if BIASED:
        first_of_column = (column < OUT) & (tile // parts == 0)
        tl.store(d_bias + e * OUT + column, bias.to(d_bias.dtype.element_ty), mask=first_of_column)


_BUFFER = 4
"""How much larger than a sum over routes the memory may be that it goes through."""


def _tile(outputs: int) -> int:
    return min(128, max(16, power_of_two(outputs)))


def _options(kind: torch.dtype) -> dict[str, Any]:
    """Inputs summed at a time and the pipeline: about 100 kB of shared memory, two programs a multiprocessor."""
    return {
        "STEP": 32 if kind == torch.float32 else 64,
        "PRECISION": product_precision(kind),
        "num_warps": 8,
        "num_stages": 3,
    }


def _multiply_rows(
    rows: Tensor,
    weights: Tensor,
    out: Tensor,
    routes: Routes,
    source: str,
    target: str,
    bias: Tensor | None = None,
    gates: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """``weights`` [experts, inputs, outputs] may be a transposed view."""
    _, inputs, outputs = weights.shape
    columns = _tile(outputs)
    grid = (len(routes.tile_expert) * ceil_div(outputs, columns),)
    _grouped[grid](rows, weights, bias, gates, out, routes.order, routes.starts, routes.tile_expert, routes.tile_row,
                   *weights.stride(), K=routes.k, EXPERTS=routes.experts, IN=inputs, OUT=outputs, FROM=source,
                   TO=target, RELU=relu, BIASED=bias is not None, GATED=gates is not None, ROWS=routes.rows,
                   COLUMNS=columns, **_options(rows.dtype))  # fmt: skip
    return out


def _multiply_and_sum(
    rows: Tensor, weights: Tensor, routes: Routes, kind: torch.dtype, gates: Tensor | None = None
) -> Tensor:
    """The products of each token's K routes, added up in a fixed order: [tokens, outputs].

    They go through a buffer of at most about ``_BUFFER`` times the size of the sum: some of the columns at a time.
    """
    tokens, outputs = len(rows) // routes.k, weights.shape[2]
    # Few choices fit as they are, whatever the width; otherwise rounds of whole tiles.
    step = outputs if routes.k <= _BUFFER else min(outputs, 128 * max(1, _BUFFER * outputs // (128 * routes.k)))
    total = torch.empty(tokens, outputs, dtype=kind, device=rows.device)
    parts = torch.empty(tokens, routes.k, step, dtype=rows.dtype, device=rows.device)
    for first in range(0, outputs, step):
        some = weights[:, :, first : first + step]
        columns = some.shape[2]  # fewer in the last round, which then leaves the end of the buffer alone
        _multiply_rows(rows, some, parts, routes, "place", "route", gates=gates)
        numbers = tokens * columns
        _sum_routes[(ceil_div(numbers, 1024),)](parts, total, numbers, first, outputs, K=routes.k,
                                                   COLUMNS=columns, BLOCK=1024)  # fmt: skip
    return total


def _sum_products(
    left: Tensor, right: Tensor, like: Tensor, routes: Routes, at_left: str, at_right: str, bias: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """The gradients of weights and of a bias, in their own precision."""
    d_weights = torch.empty_like(like, memory_format=torch.contiguous_format)
    d_bias = None if bias is None else torch.empty_like(bias, memory_format=torch.contiguous_format)
    experts, inputs, outputs = like.shape
    columns = _tile(outputs)
    # Half a tile when there are too few experts to fill the device.
    height = min(_tile(inputs), 128 if experts * ceil_div(inputs, 128) * ceil_div(outputs, 128) >= 256 else 64)
    grid = (experts * ceil_div(inputs, height) * ceil_div(outputs, columns),)
    options = _options(left.dtype)
    if left.dtype != torch.float32:  # with 8 warps the compiler serialises the products of this loop
        options |= {"num_warps": 4, "num_stages": 5}
    _weight_gradient[grid](left, right, d_weights, d_bias, routes.order, routes.starts, K=routes.k, IN=inputs,
                           OUT=outputs, LEFT=at_left, RIGHT=at_right, BIASED=bias is not None, INPUTS=height,
                           COLUMNS=columns, **options)  # fmt: skip
    return d_weights, d_bias


class _Conditional(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: Tensor,
        kind: torch.dtype,
        order: Tensor,
        starts: Tensor,
        tile_expert: Tensor,
        tile_row: Tensor,
        k: int,
        rows_a_tile: int,
    ) -> Tensor:
        routes = Routes(order, starts, tile_expert, tile_row, k, rows_a_tile)
        rows, matrices = x.to(kind).contiguous(), weights.to(kind).contiguous()
        source = "token" if x.dim() == 2 else "route"
        out = torch.empty(len(x), routes.k, weights.shape[2], dtype=kind, device=x.device)
        _multiply_rows(rows, matrices, out, routes, source, "route")
        ctx.save_for_backward(rows, matrices, weights, *routes[:4])
        ctx.rest, ctx.source, ctx.kind = routes[4:], source, x.dtype
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        check_first_derivative()
        rows, matrices, weights, *tensors = ctx.saved_tensors
        routes = Routes(*tensors, *ctx.rest)
        d_out = d_out.to(rows.dtype).contiguous()
        d_x = d_weights = None
        if ctx.needs_input_grad[0]:
            d_x = torch.empty(*d_out.shape[:2], rows.shape[-1], dtype=rows.dtype, device=rows.device)
            _multiply_rows(d_out, matrices.mT, d_x, routes, "route", "route")
            d_x = d_x.sum(1, dtype=ctx.kind) if ctx.source == "token" else d_x.to(ctx.kind)
        if ctx.needs_input_grad[1]:
            d_weights, _ = _sum_products(rows, d_out, weights, routes, ctx.source, "route")
        return d_x, d_weights, None, None, None, None, None, None, None


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        experts: Tensor,
        gates: Tensor,
        up: Tensor,
        down: Tensor,
        bias: Tensor | None,
        kind: torch.dtype,
    ) -> Tensor:
        routes = sort_routes(experts, len(up))
        gates = gates.contiguous()
        rows, first, second = x.to(kind).contiguous(), up.to(kind).contiguous(), down.to(kind).contiguous()
        shift = None if bias is None else bias.contiguous()
        hidden = torch.empty(experts.numel(), up.shape[2], dtype=kind, device=x.device)  # in sorted order
        _multiply_rows(rows, first, hidden, routes, "token", "place", bias=shift, relu=True)
        ctx.save_for_backward(rows, hidden, gates, first, second, up, down, bias, *routes[:4])
        ctx.rest, ctx.kind = routes[4:], x.dtype
        return _multiply_and_sum(hidden, second, routes, kind, gates)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        check_first_derivative()
        rows, hidden, gates, first, second, up, down, bias, *tensors = ctx.saved_tensors
        routes = Routes(*tensors, *ctx.rest)
        d_out = d_out.to(rows.dtype).contiguous()
        d_gates, d_hidden, gated = torch.empty_like(gates), torch.empty_like(hidden), torch.empty_like(hidden)
        _, size, width = second.shape
        _hidden_gradient[(len(routes.tile_expert),)](
            d_out, second, hidden, gates, d_gates, d_hidden, gated, routes.order, routes.starts, routes.tile_expert,
            routes.tile_row, K=routes.k, EXPERTS=routes.experts, WIDTH=width, SIZE=size, ROWS=routes.rows,
            COLUMNS=_tile(size), **_options(rows.dtype))  # fmt: skip
        d_down, _ = _sum_products(gated, d_out, down, routes, "place", "token")
        del gated  # whose memory the buffer of the next may use
        d_x = _multiply_and_sum(d_hidden, first.mT, routes, ctx.kind) if ctx.needs_input_grad[0] else None
        d_up, d_bias = _sum_products(rows, d_hidden, up, routes, "token", "place", bias)
        return d_x, None, d_gates, d_up, d_down, d_bias, None


def fast_cvmm(
    x: Tensor, experts: Tensor, weights: Tensor, kind: torch.dtype | None = None, routes: Routes | None = None
) -> Tensor:
    """``kind`` is the precision to multiply in; the gradients have the precision of what they belong to."""
    routes = routes or sort_routes(experts, len(weights))
    result: Tensor = _Conditional.apply(x, weights, kind or x.dtype, *routes)
    return result


def fast_feedforward(
    x: Tensor,
    experts: Tensor,
    gates: Tensor,
    up: Tensor,
    down: Tensor,
    bias: Tensor | None = None,
    kind: torch.dtype | None = None,
) -> Tensor:
    result: Tensor = _FeedForward.apply(x, experts, gates, up, down, bias, kind or x.dtype)
    return result
