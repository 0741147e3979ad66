"""Geometric attention from queries, keys and values to what is read, in one Triton kernel each way.

A program handles one head of one sequence of at most ``tiles.LONGEST`` tokens, whose matching logits fit on chip: they
are never written to memory, and the backward pass computes them again. The maths is in README.md.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from longthink.ops.kernels import check_first_derivative
from longthink.ops.tiles import load_rows, store_rows, whole_sizes


@triton.jit
def _met_before(x, i, j, N: tl.constexpr, PARTS: tl.constexpr):
    """For each query i and key j the sum of x over the keys that i meets before j; x is 0 where there is no key.

    These keys lie between j and its mirror place, so the sum is a difference of two sums from the left. Those are
    products with a triangle of ones: x is taken apart into ``PARTS`` of 8 bits, which bfloat16 holds exactly (0: it
    stays whole, in the interpreter, which cannot multiply bfloat16).
    """
    place = tl.arange(0, N)
    triangle = place[:, None] <= place[None, :]
    if PARTS == 0:
        upto = tl.dot(x, triangle.to(tl.float32), input_precision="ieee")
    else:
        part = x.to(tl.bfloat16)
        upto = tl.dot(part, triangle.to(tl.bfloat16))
        rest = x
        for _ in tl.static_range(PARTS - 1):
            rest -= part.to(tl.float32)
            part = rest.to(tl.bfloat16)
            upto = tl.dot(part, triangle.to(tl.bfloat16), acc=upto)
    mirror = 2 * i - j
    there = tl.gather(upto, tl.minimum(tl.maximum(mirror, 0), N - 1), 1)
    there = tl.where(mirror < 0, 0.0, there)
    return tl.where(j > i, upto - x - there, there - upto)


@triton.jit
def _match(queries, keys, direction, padding, sequence, head, n, heads, i, j, N: tl.constexpr, DIRECTED: tl.constexpr,
           PADDED: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    """Weights A, probabilities P, and which keys are there: [N, N]."""
    x = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
    row = tl.arange(0, N)
    if DIRECTED:
        sides = direction + ((sequence * n + row) * heads + head) * 2
        before = tl.load(sides, mask=row < n, other=0.0).to(tl.float32)
        after = tl.load(sides + 1, mask=row < n, other=0.0).to(tl.float32)
        x += tl.where(j > i, after[:, None], before[:, None])
    present = (j < n) & (i < n) & (i != j)
    if PADDED:
        absent = tl.load(padding + sequence * n + row, mask=row < n, other=1)
        present = present & (absent == 0)[None, :]
    # Logarithms to base 2, which are cheap. softplus(x) = max(x, 0) + log(1 + exp(-|x|)): no overflow
    x *= 1.4426950408889634
    tail = 1.0 + tl.exp2(-tl.abs(x))
    tail = tl.log2(tail) if PARTS == 0 else libdevice.fast_log2f(tail)
    log_p = tl.minimum(x, 0.0) - tail
    # Nothing is left after 2^-100; larger numbers would only cost precision.
    log_rest = tl.where(present, tl.maximum(-tl.maximum(x, 0.0) - tail, -100.0), 0.0)
    a = tl.where(present, tl.exp2(log_p + _met_before(log_rest, i, j, N, PARTS)), 0.0)
    return a, tl.exp2(log_p), present


@triton.jit
def _forward(q, kv, direction, padding, out, n, heads, CHANNELS: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
             DIRECTED: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    sequence = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    row, channel = tl.arange(0, N), tl.arange(0, D)
    queries = load_rows(q, sequence, head, row, n, CHANNELS, heads, channel, CHANNELS)
    keys = load_rows(kv, sequence, head, row, n, 2 * CHANNELS, heads, channel, CHANNELS)
    values = load_rows(kv + CHANNELS, sequence, head, row, n, 2 * CHANNELS, heads, channel, CHANNELS)
    a, _p, _present = _match(queries, keys, direction, padding, sequence, head, n, heads, row[:, None], row[None, :], N,
                             DIRECTED, PADDED, PRECISION, PARTS)  # fmt: skip
    y = tl.dot(a.to(values.dtype), values, input_precision=PRECISION)
    store_rows(out, y, sequence, head, row, n, CHANNELS, heads, channel, CHANNELS)


@triton.jit
def _backward(q, kv, direction, padding, d_out, d_q, d_kv, d_direction, n, heads, CHANNELS: tl.constexpr,
              N: tl.constexpr, D: tl.constexpr, DIRECTED: tl.constexpr, PADDED: tl.constexpr,
              PRECISION: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    sequence = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    row, channel = tl.arange(0, N), tl.arange(0, D)
    i, j = row[:, None], row[None, :]
    queries = load_rows(q, sequence, head, row, n, CHANNELS, heads, channel, CHANNELS)
    keys = load_rows(kv, sequence, head, row, n, 2 * CHANNELS, heads, channel, CHANNELS)
    a, p, present = _match(queries, keys, direction, padding, sequence, head, n, heads, i, j, N, DIRECTED, PADDED,
                           PRECISION, PARTS)  # fmt: skip
    values = load_rows(kv + CHANNELS, sequence, head, row, n, 2 * CHANNELS, heads, channel, CHANNELS)
    dy = load_rows(d_out, sequence, head, row, n, CHANNELS, heads, channel, CHANNELS)
    d_values = tl.dot(tl.trans(a.to(dy.dtype)), dy, input_precision=PRECISION)
    store_rows(d_kv + CHANNELS, d_values, sequence, head, row, n, 2 * CHANNELS, heads, channel, CHANNELS)
    g = tl.dot(dy, tl.trans(values), input_precision=PRECISION) * a
    later = tl.sum(g, 1)[:, None] - g - _met_before(g, i, j, N, PARTS)
    dx = tl.where(present, g * (1.0 - p) - p * later, 0.0)
    if DIRECTED:
        sides = d_direction + ((sequence * n + row) * heads + head) * 2
        kind = d_direction.dtype.element_ty
        tl.store(sides, tl.sum(tl.where(j > i, 0.0, dx), 1).to(kind), mask=row < n)
        tl.store(sides + 1, tl.sum(tl.where(j > i, dx, 0.0), 1).to(kind), mask=row < n)
    d_queries = tl.dot(dx.to(keys.dtype), keys, input_precision=PRECISION)
    store_rows(d_q, d_queries, sequence, head, row, n, CHANNELS, heads, channel, CHANNELS)
    d_keys = tl.dot(tl.trans(dx.to(queries.dtype)), queries, input_precision=PRECISION)
    store_rows(d_kv, d_keys, sequence, head, row, n, 2 * CHANNELS, heads, channel, CHANNELS)


def _sizes(n: int, channels: int, kind: torch.dtype) -> dict[str, Any]:
    parts = 0 if triton.knobs.runtime.interpret else 3 if kind == torch.float32 else 2
    return {**whole_sizes(n, channels, kind), "PARTS": parts, "num_warps": 4}


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, direction: Tensor | None, padding: Tensor | None) -> Tensor:
        batch, n, heads, channels = q.shape
        q, kv = q.contiguous(), kv.to(q.dtype).contiguous()
        direction = None if direction is None else direction.contiguous()
        absent = None if padding is None else padding.to(torch.uint8).contiguous()
        out = torch.empty_like(q)
        _forward[(batch * heads,)](q, kv, direction, absent, out, n, heads, DIRECTED=direction is not None,
                                   PADDED=absent is not None, **_sizes(n, channels, q.dtype))  # fmt: skip
        ctx.save_for_backward(q, kv, direction, absent)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        check_first_derivative()
        q, kv, direction, absent = ctx.saved_tensors
        batch, n, heads, channels = q.shape
        d_q, d_kv = torch.empty_like(q), torch.empty_like(kv)
        d_direction = None if direction is None else torch.empty_like(direction)
        _backward[(batch * heads,)](q, kv, direction, absent, d_out.to(q.dtype).contiguous(), d_q, d_kv, d_direction, n,
                                    heads, DIRECTED=direction is not None, PADDED=absent is not None,
                                    **_sizes(n, channels, q.dtype))  # fmt: skip
        return d_q, d_kv, d_direction, None


def fused_read(q: Tensor, kv: Tensor, direction: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
    result: Tensor = _Read.apply(q, kv, direction, padding)
    return result
