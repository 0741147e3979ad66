"""Attention with added scores in one Triton kernel each way. The maths is in README.md.

A program handles one head of one sequence of at most ``tiles.LONGEST`` tokens, whose logits fit on chip: they are never
written to memory, and the backward pass computes them again.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from longthink.ops.kernels import check_first_derivative
from longthink.ops.tiles import load_rows, store_rows, whole_sizes


@triton.jit
def _pairs(pair, row, n):
    """Where in the table of scores the pairs of a sequence and head are, and which there are: [N, N]."""
    return (pair * n + row)[:, None] * n + row[None, :], (row < n)[:, None] & (row < n)[None, :]


@triton.jit
def _weights(queries, keys, bias, padding, sequence, pair, row, n, BIASED: tl.constexpr, PRECISION: tl.constexpr):
    """[N, N]."""
    x = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
    if BIASED:
        at, inside = _pairs(pair, row, n)
        x += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    absent = tl.load(padding + sequence * n + row, mask=row < n, other=1)
    x = tl.where((absent == 0)[None, :], x, float("-inf"))
    e = tl.exp(x - tl.max(x, 1)[:, None])
    return e / tl.sum(e, 1)[:, None]


@triton.jit
def _forward(q, kv, bias, padding, out, n, heads, BIASED: tl.constexpr, CHANNELS: tl.constexpr, N: tl.constexpr,
             D: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    sequence, head = pair // heads, pair % heads
    row, channel = tl.arange(0, N), tl.arange(0, D)
    queries = load_rows(q, sequence, head, row, n, CHANNELS, heads, channel, CHANNELS)
    keys = load_rows(kv, sequence, head, row, n, 2 * CHANNELS, heads, channel, CHANNELS)
    values = load_rows(kv + CHANNELS, sequence, head, row, n, 2 * CHANNELS, heads, channel, CHANNELS)
    p = _weights(queries, keys, bias, padding, sequence, pair, row, n, BIASED, PRECISION)
    y = tl.dot(p.to(values.dtype), values, input_precision=PRECISION)
    store_rows(out, y, sequence, head, row, n, CHANNELS, heads, channel, CHANNELS)


@triton.jit
def _backward(q, kv, bias, padding, d_out, d_q, d_kv, d_bias, n, heads, BIASED: tl.constexpr, CHANNELS: tl.constexpr,
              N: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    sequence, head = pair // heads, pair % heads
    row, channel = tl.arange(0, N), tl.arange(0, D)
    queries = load_rows(q, sequence, head, row, n, CHANNELS, heads, channel, CHANNELS)
    keys = load_rows(kv, sequence, head, row, n, 2 * CHANNELS, heads, channel, CHANNELS)
    p = _weights(queries, keys, bias, padding, sequence, pair, row, n, BIASED, PRECISION)
    values = load_rows(kv + CHANNELS, sequence, head, row, n, 2 * CHANNELS, heads, channel, CHANNELS)
    dy = load_rows(d_out, sequence, head, row, n, CHANNELS, heads, channel, CHANNELS)
    d_values = tl.dot(tl.trans(p.to(dy.dtype)), dy, input_precision=PRECISION)  # rows past n have dy = 0
    store_rows(d_kv + CHANNELS, d_values, sequence, head, row, n, 2 * CHANNELS, heads, channel, CHANNELS)
    dp = tl.dot(dy, tl.trans(values), input_precision=PRECISION)
    dx = p * (dp - tl.sum(p * dp, 1)[:, None])
    if BIASED:
        at, inside = _pairs(pair, row, n)
        tl.store(d_bias + at, dx.to(d_bias.dtype.element_ty), mask=inside)
    d_queries = tl.dot(dx.to(keys.dtype), keys, input_precision=PRECISION)
    store_rows(d_q, d_queries, sequence, head, row, n, CHANNELS, heads, channel, CHANNELS)
    d_keys = tl.dot(tl.trans(dx.to(queries.dtype)), queries, input_precision=PRECISION)
    store_rows(d_kv, d_keys, sequence, head, row, n, 2 * CHANNELS, heads, channel, CHANNELS)


def _sizes(n: int, channels: int, kind: torch.dtype) -> dict[str, Any]:
    sizes = whole_sizes(n, channels, kind)
    return {**sizes, "num_warps": 1 if sizes["N"] * max(sizes["N"], sizes["D"]) <= 1024 else 4}


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, bias: Tensor | None, padding: Tensor) -> Tensor:
        batch, n, heads, channels = q.shape
        q, kv, bias = q.contiguous(), kv.to(q.dtype).contiguous(), None if bias is None else bias.contiguous()
        absent, out = padding.to(torch.uint8).contiguous(), torch.empty_like(q)
        _forward[(batch * heads,)](q, kv, bias, absent, out, n, heads, BIASED=bias is not None,
                                   **_sizes(n, channels, q.dtype))  # fmt: skip
        ctx.save_for_backward(q, kv, bias, absent)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        check_first_derivative()
        q, kv, bias, absent = ctx.saved_tensors
        batch, n, heads, channels = q.shape
        d_q, d_kv = torch.empty_like(q), torch.empty_like(kv)
        d_bias = None if bias is None else torch.empty_like(bias)
        _backward[(batch * heads,)](q, kv, bias, absent, d_out.to(q.dtype).contiguous(), d_q, d_kv, d_bias, n, heads,
                                    BIASED=bias is not None, **_sizes(n, channels, q.dtype))  # fmt: skip
        return d_q, d_kv, d_bias, None


def fast_read(q: Tensor, kv: Tensor, bias: Tensor | None, padding: Tensor) -> Tensor:
    result: Tensor = _Read.apply(q, kv, bias, padding)
    return result
