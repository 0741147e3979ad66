"""Relative attention as flash attention that shifts rows while it loads them. The maths is in README.md."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from longthink.ops.kernels import ceil_div, check_first_derivative, power_of_two, product_precision
from longthink.ops.tiles import load_rows, store_rows

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _rows_of(table, i, n, total):
    """Where in a table of scores by distance, [n, total], the rows of queries i have key 0: [queries, 1].

    That of key j is j further on: row i, column j - i + n - 1.
    """
    return table + (i.to(tl.int64) * (total - 1) + (n - 1))[:, None]


@triton.jit
def _sees(i, j, n, total):
    """Which keys j the queries i see: those up to their own place."""
    return (j[None, :] <= i[:, None] + (total - n)) & (i < n)[:, None]


@triton.jit
def _logits(queries, keys, rows, i, start, n, total, WHOLE: tl.constexpr, PRECISION: tl.constexpr):
    """Logits of a tile to base 2. In a ``WHOLE`` one all queries are there and see all keys, so nothing is masked."""
    key = tl.arange(0, keys.shape[0])
    s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
    at = rows + start + key[None, :]
    if WHOLE:
        return (s + tl.load(at).to(tl.float32)) * _LOG2_E
    seen = _sees(i, start + key, n, total)
    s += tl.load(at, mask=seen, other=0.0).to(tl.float32)
    # Queries that are not there see something, or their sums would be those of nothing.
    return tl.where(seen | (i >= n)[:, None], s * _LOG2_E, float("-inf"))


@triton.jit
def _read_keys(queries, kv, rows, y, mass, top, sequence, head, i, start, n, total, heads, channel,
               CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr,
               PRECISION: tl.constexpr):  # fmt: skip
    """What the queries of a tile have read, its sum of weights and their maximum, with some keys more."""
    j = start + tl.arange(0, COLUMNS)
    keys = load_rows(kv, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS, WHOLE)
    s = _logits(queries, keys, rows, i, start, n, total, WHOLE, PRECISION)
    new = tl.maximum(top, tl.max(s, 1))
    p, shrink = tl.exp2(s - new[:, None]), tl.exp2(top - new)
    values = load_rows(kv + CHANNELS, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS, WHOLE)
    y = y * shrink[:, None] + tl.dot(p.to(values.dtype), values, input_precision=PRECISION)
    return y, mass * shrink + tl.sum(p, 1), new


@triton.jit
def _keys_seen(first, n, total, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Keys up to the first of these are seen by all queries of a tile, in whole tiles; up to the second by some."""
    whole = tl.where(first + ROWS <= n, (first + total - n + 1) // COLUMNS * COLUMNS, 0)
    return whole, tl.minimum(total, first + ROWS + total - n)


@triton.jit
def _forward(q, kv, scores, out, sums, n, total, heads, CHANNELS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
             COLUMNS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    sequence, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    first = tl.program_id(1) * ROWS
    i, channel = first + tl.arange(0, ROWS), tl.arange(0, D)
    rows = _rows_of(scores + tl.program_id(0).to(tl.int64) * n * total, i, n, total)
    queries = load_rows(q, sequence, head, i, n, CHANNELS, heads, channel, CHANNELS)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    y = tl.zeros([ROWS, D], tl.float32)
    whole, end = _keys_seen(first, n, total, ROWS, COLUMNS)
    for start in range(0, whole, COLUMNS):
        y, mass, top = _read_keys(queries, kv, rows, y, mass, top, sequence, head, i, start, n, total, heads, channel,
                                  CHANNELS, COLUMNS, True, PRECISION)  # fmt: skip
    for start in range(whole, end, COLUMNS):
        y, mass, top = _read_keys(queries, kv, rows, y, mass, top, sequence, head, i, start, n, total, heads, channel,
                                  CHANNELS, COLUMNS, False, PRECISION)  # fmt: skip
    store_rows(out, y / mass[:, None], sequence, head, i, n, CHANNELS, heads, channel, CHANNELS)
    tl.store(sums + tl.program_id(0) * n + i, top + tl.log2(mass), mask=i < n)


@triton.jit
def _query_gradient(queries, dy, kv, rows, d_rows, d_queries, sum_i, delta, sequence, head, i, start, n, total, heads,
                    channel, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr,
                    PRECISION: tl.constexpr):  # fmt: skip
    """With what comes from some keys more; and the gradients of these pairs' scores."""
    key = tl.arange(0, COLUMNS)
    j = start + key
    keys = load_rows(kv, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS, WHOLE)
    values = load_rows(kv + CHANNELS, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS, WHOLE)
    s = _logits(queries, keys, rows, i, start, n, total, WHOLE, PRECISION)
    dp = tl.dot(dy, tl.trans(values), input_precision=PRECISION)
    ds = tl.exp2(s - sum_i[:, None]) * (dp - delta[:, None])
    at = d_rows + start + key[None, :]
    if WHOLE:
        tl.store(at, ds.to(keys.dtype))
    else:
        tl.store(at, ds.to(keys.dtype), mask=_sees(i, j, n, total))
    return d_queries + tl.dot(ds.to(keys.dtype), keys, input_precision=PRECISION)


@triton.jit
def _along_keys(q, kv, scores, out, sums, d_out, d_q, d_scores, deltas, n, total, heads, CHANNELS: tl.constexpr,
                D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    sequence, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    first = tl.program_id(1) * ROWS
    i, channel = first + tl.arange(0, ROWS), tl.arange(0, D)
    own = tl.program_id(0).to(tl.int64) * n * total
    queries = load_rows(q, sequence, head, i, n, CHANNELS, heads, channel, CHANNELS)
    dy = load_rows(d_out, sequence, head, i, n, CHANNELS, heads, channel, CHANNELS)
    y = load_rows(out, sequence, head, i, n, CHANNELS, heads, channel, CHANNELS)
    delta = tl.sum(dy.to(tl.float32) * y.to(tl.float32), 1)
    tl.store(deltas + tl.program_id(0) * n + i, delta, mask=i < n)
    sum_i = tl.load(sums + tl.program_id(0) * n + i, mask=i < n, other=float("inf"))
    d_queries = tl.zeros([ROWS, D], tl.float32)
    rows, d_rows = _rows_of(scores + own, i, n, total), _rows_of(d_scores + own, i, n, total)
    whole, end = _keys_seen(first, n, total, ROWS, COLUMNS)
    for start in range(0, whole, COLUMNS):
        d_queries = _query_gradient(queries, dy, kv, rows, d_rows, d_queries, sum_i, delta, sequence, head, i, start,
                                    n, total, heads, channel, CHANNELS, COLUMNS, True, PRECISION)  # fmt: skip
    for start in range(whole, end, COLUMNS):
        d_queries = _query_gradient(queries, dy, kv, rows, d_rows, d_queries, sum_i, delta, sequence, head, i, start,
                                    n, total, heads, channel, CHANNELS, COLUMNS, False, PRECISION)  # fmt: skip
    store_rows(d_q, d_queries, sequence, head, i, n, CHANNELS, heads, channel, CHANNELS)
    for start in range(0, n - 1 - first, COLUMNS):  # distances that lie before the first key
        column = start + tl.arange(0, COLUMNS)
        before = (column[None, :] + i[:, None] < n - 1) & (i < n)[:, None]
        zeros = tl.zeros([ROWS, COLUMNS], tl.float32).to(d_scores.dtype.element_ty)
        tl.store(d_scores + own + i[:, None] * total + column[None, :], zeros, mask=before)


@triton.jit
def _key_gradient(q, d_out, keys, values, table, sums, deltas, d_keys, d_values, sequence, head, start, first, n, total,
                  heads, channel, CHANNELS: tl.constexpr, ROWS: tl.constexpr, WHOLE: tl.constexpr,
                  PRECISION: tl.constexpr):  # fmt: skip
    """Of keys and values, with what comes from some queries more."""
    i = start + tl.arange(0, ROWS)
    queries = load_rows(q, sequence, head, i, n, CHANNELS, heads, channel, CHANNELS, WHOLE)
    dy = load_rows(d_out, sequence, head, i, n, CHANNELS, heads, channel, CHANNELS, WHOLE)
    sum_i = tl.load(sums + i, mask=i < n, other=float("inf"))
    delta = tl.load(deltas + i, mask=i < n, other=0.0)
    s = _logits(queries, keys, _rows_of(table, i, n, total), i, first, n, total, WHOLE, PRECISION)
    p = tl.exp2(s - sum_i[:, None])
    d_values += tl.dot(tl.trans(p.to(dy.dtype)), dy, input_precision=PRECISION)
    ds = p * (tl.dot(dy, tl.trans(values), input_precision=PRECISION) - delta[:, None])
    return d_keys + tl.dot(tl.trans(ds.to(queries.dtype)), queries, input_precision=PRECISION), d_values


@triton.jit
def _along_queries(q, kv, scores, sums, d_out, deltas, d_kv, n, total, heads, CHANNELS: tl.constexpr, D: tl.constexpr,
                   ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    sequence, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    first = tl.program_id(1) * COLUMNS
    j, channel = first + tl.arange(0, COLUMNS), tl.arange(0, D)
    own = tl.program_id(0).to(tl.int64) * n
    table, own_sums, own_deltas = scores + own * total, sums + own, deltas + own
    keys = load_rows(kv, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS)
    values = load_rows(kv + CHANNELS, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS)
    d_keys, d_values = tl.zeros([COLUMNS, D], tl.float32), tl.zeros([COLUMNS, D], tl.float32)
    # Tiles with a query that sees one of these keys, and the first of which all queries see all of them.
    begin = tl.maximum(0, first - (total - n)) // ROWS * ROWS
    whole = (tl.maximum(0, first + COLUMNS - 1 - (total - n)) + ROWS - 1) // ROWS * ROWS
    last = n // ROWS * ROWS  # then comes what is no whole tile
    whole = tl.where(first + COLUMNS <= total, tl.minimum(whole, last), last)
    for start in range(begin, whole, ROWS):
        d_keys, d_values = _key_gradient(q, d_out, keys, values, table, own_sums, own_deltas, d_keys, d_values,
                                         sequence, head, start, first, n, total, heads, channel, CHANNELS, ROWS, False,
                                         PRECISION)  # fmt: skip
    for start in range(whole, last, ROWS):
        d_keys, d_values = _key_gradient(q, d_out, keys, values, table, own_sums, own_deltas, d_keys, d_values,
                                         sequence, head, start, first, n, total, heads, channel, CHANNELS, ROWS, True,
                                         PRECISION)  # fmt: skip
    for start in range(last, n, ROWS):
        d_keys, d_values = _key_gradient(q, d_out, keys, values, table, own_sums, own_deltas, d_keys, d_values,
                                         sequence, head, start, first, n, total, heads, channel, CHANNELS, ROWS, False,
                                         PRECISION)  # fmt: skip
    store_rows(d_kv, d_keys, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS)
    store_rows(d_kv + CHANNELS, d_values, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS)


# Queries and keys of a tile, warps, stages: the fastest on an H200 in half precision with heads of 64 channels.
_TILES = {"forward": (128, 64, 8, 1), "along keys": (64, 64, 4, 1), "along queries": (64, 64, 4, 1)}


def _sizes(kernel: str, channels: int, kind: torch.dtype) -> dict[str, Any]:
    d = max(16, power_of_two(channels))
    rows, columns, warps, stages = _TILES[kernel]
    if kind == torch.float32 or d > 64:
        rows, columns, warps = 32, 32, 4
    elif d > channels:  # rows that fill no tile are loaded number by number
        columns = 32
    return {
        "CHANNELS": channels,
        "D": d,
        "ROWS": rows,
        "COLUMNS": columns,
        "PRECISION": product_precision(kind),
        "num_warps": warps,
        "num_stages": stages,
    }


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, scores: Tensor) -> Tensor:
        (batch, n, heads, channels), total = q.shape, kv.shape[1]
        q, kv, scores = q.contiguous(), kv.to(q.dtype).contiguous(), scores.contiguous()
        out, sums = torch.empty_like(q), torch.empty(batch, heads, n, dtype=torch.float32, device=q.device)
        sizes = _sizes("forward", channels, q.dtype)
        grid = (batch * heads, ceil_div(n, sizes["ROWS"]))
        _forward[grid](q, kv, scores, out, sums, n, total, heads, **sizes)
        ctx.save_for_backward(q, kv, scores, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, ...]:
        check_first_derivative()
        q, kv, scores, out, sums = ctx.saved_tensors
        (batch, n, heads, channels), total = q.shape, kv.shape[1]
        d_q, d_kv, deltas = torch.empty_like(q), torch.empty_like(kv), torch.empty_like(sums)
        d_scores = torch.empty_like(scores)
        d_out, sizes = d_out.to(q.dtype).contiguous(), _sizes("along keys", channels, q.dtype)
        tiles = (batch * heads, ceil_div(n, sizes["ROWS"]))
        _along_keys[tiles](q, kv, scores, out, sums, d_out, d_q, d_scores, deltas, n, total, heads, **sizes)
        sizes = _sizes("along queries", channels, q.dtype)
        tiles = (batch * heads, ceil_div(total, sizes["COLUMNS"]))
        _along_queries[tiles](q, kv, scores, sums, d_out, deltas, d_kv, n, total, heads, **sizes)
        return d_q, d_kv, d_scores


def fast_read(q: Tensor, kv: Tensor, scores: Tensor) -> Tensor:
    result: Tensor = _Read.apply(q, kv, scores)
    return result
