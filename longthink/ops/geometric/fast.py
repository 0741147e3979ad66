"""Geometric attention as a Triton kernel, forward and backward.

A program handles a block of queries of one head. Rows are loaded in the order in which the query meets the keys, so
that the product over the closer keys is a running sum along the block; rows longer than a block carry the sum on. Half
precision in and out, float32 inside. The maths is in README.md.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from longthink.ops.geometric.plain import plain_weights
from longthink.ops.kernels import ceil_div, check_first_derivative, power_of_two


@triton.jit
def _keys(head, i, start, n, BLOCK: tl.constexpr):
    """For one block of ranks the keys, which of them there are, where their pairs are, and who is to the right:
    [ROWS, BLOCK]."""
    r = start + tl.arange(0, BLOCK)
    distance = (r // 2 + 1)[None, :]
    right = (r % 2 == 0)[None, :]
    key = tl.where(right, i[:, None] + distance, i[:, None] - distance)
    there = (key >= 0) & (key < n) & (i[:, None] < n)
    return key, there, (head * n + i[:, None]) * n + key, right


@triton.jit
def _load_block(logits, direction, padding, head, i, key, there, place, right, n, heads, DIRECTED: tl.constexpr,
                PADDED: tl.constexpr):  # fmt: skip
    """Log P, log(1 - P), and which keys are no padding: [ROWS, BLOCK].

    What is left after a key is cut where float32 has no smaller number: running sums keep their digits and stay finite.
    """
    x = tl.load(logits + place, mask=there, other=0.0).to(tl.float32)
    if DIRECTED:
        sides = direction + (head * n + i) * 2
        before = tl.load(sides, mask=i < n, other=0.0).to(tl.float32)
        after = tl.load(sides + 1, mask=i < n, other=0.0).to(tl.float32)
        x += tl.where(right, after[:, None], before[:, None])
    present = there
    if PADDED:
        absent = tl.load(padding + (head // heads) * n + key, mask=there, other=1)
        present = there & (absent == 0)
    # softplus(x) = max(x, 0) + log(1 + exp(-|x|)): no overflow
    tail = tl.log(1.0 + tl.exp(-tl.abs(x)))
    log_p = tl.minimum(x, 0.0) - tail
    log_rest = tl.where(present, tl.maximum(-tl.maximum(x, 0.0) - tail, -104.0), 0.0)
    return log_p, log_rest, present


@triton.jit
def _forward(logits, direction, padding, weights, n, heads, ROWS: tl.constexpr, BLOCK: tl.constexpr,
             DIRECTED: tl.constexpr, PADDED: tl.constexpr):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    carried = tl.zeros([ROWS], tl.float32)
    start = 0
    while start < 2 * n - 2:  # the interpreter takes no range() of a run-time length
        key, there, place, right = _keys(head, i, start, n, BLOCK)
        log_p, log_rest, present = _load_block(
            logits, direction, padding, head, i, key, there, place, right, n, heads, DIRECTED, PADDED)  # fmt: skip
        passed = carried[:, None] + tl.cumsum(log_rest, 1) - log_rest
        a = tl.where(present, tl.exp(log_p + passed), 0.0)
        tl.store(weights + place, a.to(weights.dtype.element_ty), mask=there)
        carried += tl.sum(log_rest, 1)
        start += BLOCK
    zero = tl.zeros([ROWS], tl.float32).to(weights.dtype.element_ty)
    tl.store(weights + (head * n + i) * n + i, zero, mask=i < n)


@triton.jit
def _backward(logits, direction, padding, d_weights, d_logits, d_direction, n, heads, ROWS: tl.constexpr,
              BLOCK: tl.constexpr, DIRECTED: tl.constexpr, PADDED: tl.constexpr):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    # First pass: the sum of g = dA * A over the row.
    carried = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    start = 0
    while start < 2 * n - 2:  # the interpreter takes no range() of a run-time length
        key, there, place, right = _keys(head, i, start, n, BLOCK)
        log_p, log_rest, present = _load_block(
            logits, direction, padding, head, i, key, there, place, right, n, heads, DIRECTED, PADDED)  # fmt: skip
        passed = carried[:, None] + tl.cumsum(log_rest, 1) - log_rest
        a = tl.where(present, tl.exp(log_p + passed), 0.0)
        total += tl.sum(tl.load(d_weights + place, mask=there, other=0.0).to(tl.float32) * a, 1)
        carried += tl.sum(log_rest, 1)
        start += BLOCK
    # Second pass: dx = g (1 - P) - P * (sum of g over the keys that come later).
    carried = tl.zeros([ROWS], tl.float32)
    seen = tl.zeros([ROWS], tl.float32)
    d_before = tl.zeros([ROWS], tl.float32)
    d_after = tl.zeros([ROWS], tl.float32)
    start = 0
    while start < 2 * n - 2:  # the interpreter takes no range() of a run-time length
        key, there, place, right = _keys(head, i, start, n, BLOCK)
        log_p, log_rest, present = _load_block(
            logits, direction, padding, head, i, key, there, place, right, n, heads, DIRECTED, PADDED)  # fmt: skip
        passed = carried[:, None] + tl.cumsum(log_rest, 1) - log_rest
        p = tl.exp(log_p)
        a = tl.where(present, tl.exp(log_p + passed), 0.0)
        g = tl.load(d_weights + place, mask=there, other=0.0).to(tl.float32) * a
        later = total[:, None] - seen[:, None] - tl.cumsum(g, 1)
        dx = tl.where(present, g * (1.0 - p) - p * later, 0.0)
        tl.store(d_logits + place, dx.to(d_logits.dtype.element_ty), mask=there)
        if DIRECTED:
            d_after += tl.sum(tl.where(right, dx, 0.0), 1)
            d_before += tl.sum(tl.where(right, 0.0, dx), 1)
        carried += tl.sum(log_rest, 1)
        seen += tl.sum(g, 1)
        start += BLOCK
    zero = tl.zeros([ROWS], tl.float32)
    tl.store(d_logits + (head * n + i) * n + i, zero.to(d_logits.dtype.element_ty), mask=i < n)
    if DIRECTED:
        sides = d_direction + (head * n + i) * 2
        tl.store(sides, d_before.to(d_direction.dtype.element_ty), mask=i < n)
        tl.store(sides + 1, d_after.to(d_direction.dtype.element_ty), mask=i < n)


def _blocks(n: int) -> tuple[int, int, int]:
    """Queries and ranks a program handles, and its warps: about 4,096 numbers at a time."""
    block = min(1024, max(16, power_of_two(max(1, 2 * n - 2))))
    rows = max(1, min(power_of_two(n), 4096 // block))
    return rows, block, 4


class _Geometric(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, direction: Tensor | None, padding: Tensor | None) -> Tensor:
        batch, heads, n, _ = logits.shape
        logits = logits.contiguous()
        direction = None if direction is None else direction.contiguous()
        absent = None if padding is None else padding.to(torch.uint8).contiguous()
        weights = torch.empty_like(logits)
        rows, block, warps = _blocks(n)
        grid = (batch * heads, ceil_div(n, rows))
        _forward[grid](logits, direction, absent, weights, n, heads, ROWS=rows, BLOCK=block,
                       DIRECTED=direction is not None, PADDED=absent is not None, num_warps=warps)  # fmt: skip
        ctx.save_for_backward(logits, direction, absent)
        return weights

    @staticmethod
    def backward(ctx: Any, d_weights: Tensor) -> tuple[Tensor, Tensor | None, None]:
        check_first_derivative()
        logits, direction, absent = ctx.saved_tensors
        batch, heads, n, _ = logits.shape
        d_logits = torch.empty_like(logits)
        d_direction = None if direction is None else torch.empty_like(direction)
        rows, block, warps = _blocks(n)
        grid = (batch * heads, ceil_div(n, rows))
        _backward[grid](logits, direction, absent, d_weights.contiguous(), d_logits, d_direction, n, heads, ROWS=rows,
                        BLOCK=block, DIRECTED=direction is not None, PADDED=absent is not None,
                        num_warps=warps)  # fmt: skip
        return d_logits, d_direction, None


def fast_weights(logits: Tensor, direction: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
    if logits.shape[-1] < 2:  # nobody to look at
        return plain_weights(logits, direction, padding)
    result: Tensor = _Geometric.apply(logits, direction, padding)
    return result
