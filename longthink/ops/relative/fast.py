"""Relative attention as flash attention that shifts rows while it loads them. The maths is in README.md."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from longthink.ops.kernels import product_precision
from longthink.ops.tiles import load_rows, store_rows

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _pairs(i, j, n, total):
    """Which keys j the queries i see, and where in a table of scores by distance these pairs are."""
    seen = j[None, :] <= i[:, None] + (total - n)
    return seen, i[:, None] * (total - 1) + (j[None, :] + n - 1)  # row i, column j - i + n - 1


@triton.jit
def _logits(queries, keys, table, i, j, n, total, PRECISION: tl.constexpr):
    """Logits of a tile to base 2."""
    seen, at = _pairs(i, j, n, total)
    s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
    s += tl.load(table + at, mask=seen & (i < n)[:, None], other=0.0).to(tl.float32)
    return tl.where(seen, s * _LOG2_E, float("-inf"))


@triton.jit
def _forward(q, kv, scores, out, sums, n, total, heads, CHANNELS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
             COLUMNS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    sequence, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    first = tl.program_id(1) * ROWS
    i, channel = first + tl.arange(0, ROWS), tl.arange(0, D)
    table = tl.program_id(0).to(tl.int64) * n * total
    queries = load_rows(q, sequence, head, i, n, CHANNELS, heads, channel, CHANNELS)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    y = tl.zeros([ROWS, D], tl.float32)
    end = tl.minimum(total, first + ROWS + total - n)
    for start in range(0, end, COLUMNS):
        j = start + tl.arange(0, COLUMNS)
        keys = load_rows(kv, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS)
        s = _logits(queries, keys, scores + table, i, j, n, total, PRECISION)
        new = tl.maximum(top, tl.max(s, 1))
        p, shrink = tl.exp2(s - new[:, None]), tl.exp2(top - new)
        values = load_rows(kv + CHANNELS, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS)
        mass = mass * shrink + tl.sum(p, 1)
        y = y * shrink[:, None] + tl.dot(p.to(values.dtype), values, input_precision=PRECISION)
        top = new
    store_rows(out, y / mass[:, None], sequence, head, i, n, CHANNELS, heads, channel, CHANNELS)
    tl.store(sums + tl.program_id(0) * n + i, top + tl.log2(mass), mask=i < n)


@triton.jit
def _along_keys(q, kv, scores, out, sums, d_out, d_q, d_scores, deltas, n, total, heads, CHANNELS: tl.constexpr,
                D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    sequence, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    first = tl.program_id(1) * ROWS
    i, channel = first + tl.arange(0, ROWS), tl.arange(0, D)
    table = tl.program_id(0).to(tl.int64) * n * total
    queries = load_rows(q, sequence, head, i, n, CHANNELS, heads, channel, CHANNELS)
    dy = load_rows(d_out, sequence, head, i, n, CHANNELS, heads, channel, CHANNELS)
    y = load_rows(out, sequence, head, i, n, CHANNELS, heads, channel, CHANNELS)
    delta = tl.sum(dy.to(tl.float32) * y.to(tl.float32), 1)
    tl.store(deltas + tl.program_id(0) * n + i, delta, mask=i < n)
    sum_i = tl.load(sums + tl.program_id(0) * n + i, mask=i < n, other=float("inf"))
    d_queries = tl.zeros([ROWS, D], tl.float32)
    end = tl.minimum(total, first + ROWS + total - n)
    for start in range(0, end, COLUMNS):
        j = start + tl.arange(0, COLUMNS)
        keys = load_rows(kv, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS)
        values = load_rows(kv + CHANNELS, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS)
        s = _logits(queries, keys, scores + table, i, j, n, total, PRECISION)
        dp = tl.dot(dy, tl.trans(values), input_precision=PRECISION)
        ds = tl.exp2(s - sum_i[:, None]) * (dp - delta[:, None])
        seen, at = _pairs(i, j, n, total)
        tl.store(d_scores + table + at, ds.to(d_scores.dtype.element_ty), mask=seen & (i < n)[:, None])
        d_queries += tl.dot(ds.to(keys.dtype), keys, input_precision=PRECISION)
    store_rows(d_q, d_queries, sequence, head, i, n, CHANNELS, heads, channel, CHANNELS)
    for start in range(0, n - 1 - first, COLUMNS):  # distances that lie before the first key
        column = start + tl.arange(0, COLUMNS)
        before = (column[None, :] + i[:, None] < n - 1) & (i < n)[:, None]
        zeros = tl.zeros([ROWS, COLUMNS], tl.float32).to(d_scores.dtype.element_ty)
        tl.store(d_scores + table + i[:, None] * total + column[None, :], zeros, mask=before)


@triton.jit
def _along_queries(q, kv, scores, sums, d_out, deltas, d_kv, n, total, heads, CHANNELS: tl.constexpr, D: tl.constexpr,
                   ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    sequence, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    first = tl.program_id(1) * COLUMNS
    j, channel = first + tl.arange(0, COLUMNS), tl.arange(0, D)
    table = tl.program_id(0).to(tl.int64) * n * total
    keys = load_rows(kv, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS)
    values = load_rows(kv + CHANNELS, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS)
    d_keys, d_values = tl.zeros([COLUMNS, D], tl.float32), tl.zeros([COLUMNS, D], tl.float32)
    begin = tl.maximum(0, first - (total - n)) // ROWS * ROWS  # the first tile with a query that sees one of these keys
    for start in range(begin, n, ROWS):
        i = start + tl.arange(0, ROWS)
        queries = load_rows(q, sequence, head, i, n, CHANNELS, heads, channel, CHANNELS)
        dy = load_rows(d_out, sequence, head, i, n, CHANNELS, heads, channel, CHANNELS)
        sum_i = tl.load(sums + tl.program_id(0) * n + i, mask=i < n, other=float("inf"))
        delta = tl.load(deltas + tl.program_id(0) * n + i, mask=i < n, other=0.0)
        s = _logits(queries, keys, scores + table, i, j, n, total, PRECISION)
        p = tl.exp2(s - sum_i[:, None])
        d_values += tl.dot(tl.trans(p.to(dy.dtype)), dy, input_precision=PRECISION)
        ds = p * (tl.dot(dy, tl.trans(values), input_precision=PRECISION) - delta[:, None])
        d_keys += tl.dot(tl.trans(ds.to(queries.dtype)), queries, input_precision=PRECISION)
    store_rows(d_kv, d_keys, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS)
    store_rows(d_kv + CHANNELS, d_values, sequence, head, j, total, 2 * CHANNELS, heads, channel, CHANNELS)


def _sizes(channels: int, kind: torch.dtype, wide: bool = False) -> dict[str, Any]:
    """Tiles; ``wide`` for the forward kernel, which needs fewer registers."""
    d = max(16, triton.next_power_of_2(channels))
    small = kind == torch.float32 or d > 64
    return {
        "CHANNELS": channels,
        "D": d,
        "ROWS": 32 if small else 128 if wide else 64,
        "COLUMNS": 32 if small else 64,
        "PRECISION": product_precision(kind),
        "num_warps": 8 if wide and not small else 4,
    }


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, scores: Tensor) -> Tensor:
        (batch, n, heads, channels), total = q.shape, kv.shape[1]
        q, kv, scores = q.contiguous(), kv.to(q.dtype).contiguous(), scores.contiguous()
        out, sums = torch.empty_like(q), torch.empty(batch, heads, n, dtype=torch.float32, device=q.device)
        sizes = _sizes(channels, q.dtype, wide=True)
        grid = (batch * heads, triton.cdiv(n, sizes["ROWS"]))
        _forward[grid](q, kv, scores, out, sums, n, total, heads, **sizes)
        ctx.save_for_backward(q, kv, scores, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, ...]:
        q, kv, scores, out, sums = ctx.saved_tensors
        (batch, n, heads, channels), total = q.shape, kv.shape[1]
        d_q, d_kv, deltas = torch.empty_like(q), torch.empty_like(kv), torch.empty_like(sums)
        d_scores = torch.empty_like(scores)
        d_out, sizes = d_out.to(q.dtype).contiguous(), _sizes(channels, q.dtype)
        _along_keys[(batch * heads, triton.cdiv(n, sizes["ROWS"]))](
            q, kv, scores, out, sums, d_out, d_q, d_scores, deltas, n, total, heads, **sizes
        )
        _along_queries[(batch * heads, triton.cdiv(total, sizes["COLUMNS"]))](
            q, kv, scores, sums, d_out, deltas, d_kv, n, total, heads, **sizes
        )
        return d_q, d_kv, d_scores


def fast_read(q: Tensor, kv: Tensor, scores: Tensor) -> Tensor:
    result: Tensor = _Read.apply(q, kv, scores)
    return result
