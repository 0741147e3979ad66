"""Geometric attention from queries, keys and values to what is read, in one Triton kernel each way.

A program handles one head of one sequence of at most ``LONGEST`` tokens, whose matching logits fit on chip: they are
never written to memory, and the backward pass computes them again. The maths is in README.md.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST = 64


@triton.jit
def _met_before(x, i, j, N: tl.constexpr):
    """For each query i and key j the sum of x over the keys that i meets before j; x is 0 where there is no key.

    Each side is summed outwards on its own; the other side's part is found at the mirror place of j.
    """
    right = j > i
    outwards = tl.where(
        right, tl.cumsum(tl.where(right, x, 0.0), 1), tl.cumsum(tl.where(j < i, x, 0.0), 1, reverse=True)
    )
    mirror = 2 * i - j + right.to(tl.int32)  # of two equally far keys the right one is met first
    mirror = tl.minimum(tl.maximum(mirror, 0), N - 1)
    return outwards - x + tl.gather(outwards, mirror, 1)


@triton.jit
def _match(queries, keys, direction, padding, sequence, head, n, heads, i, j, N: tl.constexpr, DIRECTED: tl.constexpr,
           PADDED: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
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
    # softplus(x) = max(x, 0) + log(1 + exp(-|x|)): no overflow
    tail = tl.log(1.0 + tl.exp(-tl.abs(x)))
    log_p = tl.minimum(x, 0.0) - tail
    log_rest = tl.where(present, -tl.maximum(x, 0.0) - tail, 0.0)
    a = tl.where(present, tl.exp(log_p + _met_before(log_rest, i, j, N)), 0.0)
    return a, tl.exp(log_p), present


@triton.jit
def _forward(q, kv, direction, padding, out, n, heads, CHANNELS: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
             DIRECTED: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    sequence = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    row, channel = tl.arange(0, N), tl.arange(0, D)
    inside = (row < n)[:, None] & (channel < CHANNELS)[None, :]
    token = ((sequence * n + row) * heads + head)[:, None]
    queries = tl.load(q + token * CHANNELS + channel[None, :], mask=inside, other=0.0)
    keys = tl.load(kv + token * 2 * CHANNELS + channel[None, :], mask=inside, other=0.0)
    values = tl.load(kv + (token * 2 + 1) * CHANNELS + channel[None, :], mask=inside, other=0.0)
    a, _p, _present = _match(queries, keys, direction, padding, sequence, head, n, heads, row[:, None], row[None, :], N,
                             DIRECTED, PADDED, PRECISION)  # fmt: skip
    y = tl.dot(a.to(values.dtype), values, input_precision=PRECISION)
    tl.store(out + token * CHANNELS + channel[None, :], y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(q, kv, direction, padding, d_out, d_q, d_kv, d_direction, n, heads, CHANNELS: tl.constexpr,
              N: tl.constexpr, D: tl.constexpr, DIRECTED: tl.constexpr, PADDED: tl.constexpr,
              PRECISION: tl.constexpr):  # fmt: skip
    sequence = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    row, channel = tl.arange(0, N), tl.arange(0, D)
    i, j = row[:, None], row[None, :]
    inside = (row < n)[:, None] & (channel < CHANNELS)[None, :]
    token = ((sequence * n + row) * heads + head)[:, None]
    queries = tl.load(q + token * CHANNELS + channel[None, :], mask=inside, other=0.0)
    keys = tl.load(kv + token * 2 * CHANNELS + channel[None, :], mask=inside, other=0.0)
    a, p, present = _match(queries, keys, direction, padding, sequence, head, n, heads, i, j, N, DIRECTED, PADDED,
                           PRECISION)  # fmt: skip
    values = tl.load(kv + (token * 2 + 1) * CHANNELS + channel[None, :], mask=inside, other=0.0)
    dy = tl.load(d_out + token * CHANNELS + channel[None, :], mask=inside, other=0.0)
    d_values = tl.dot(tl.trans(a.to(dy.dtype)), dy, input_precision=PRECISION)
    tl.store(d_kv + (token * 2 + 1) * CHANNELS + channel[None, :], d_values.to(d_kv.dtype.element_ty), mask=inside)
    g = tl.dot(dy, tl.trans(values), input_precision=PRECISION) * a
    later = tl.sum(g, 1)[:, None] - g - _met_before(g, i, j, N)
    dx = tl.where(present, g * (1.0 - p) - p * later, 0.0)
    if DIRECTED:
        sides = d_direction + ((sequence * n + row) * heads + head) * 2
        kind = d_direction.dtype.element_ty
        tl.store(sides, tl.sum(tl.where(j > i, 0.0, dx), 1).to(kind), mask=row < n)
        tl.store(sides + 1, tl.sum(tl.where(j > i, dx, 0.0), 1).to(kind), mask=row < n)
    d_queries = tl.dot(dx.to(keys.dtype), keys, input_precision=PRECISION)
    tl.store(d_q + token * CHANNELS + channel[None, :], d_queries.to(d_q.dtype.element_ty), mask=inside)
    d_keys = tl.dot(tl.trans(dx.to(queries.dtype)), queries, input_precision=PRECISION)
    tl.store(d_kv + token * 2 * CHANNELS + channel[None, :], d_keys.to(d_kv.dtype.element_ty), mask=inside)


def _sizes(n: int, channels: int, kind: torch.dtype) -> dict[str, Any]:
    side = max(16, triton.next_power_of_2(n))
    exact = kind == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    return {
        "CHANNELS": channels,
        "N": side,
        "D": max(16, triton.next_power_of_2(channels)),
        "PRECISION": "ieee" if exact else "tf32",
        "num_warps": 8 if side > 32 else 4,
    }


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
