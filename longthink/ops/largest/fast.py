"""The k largest of many short rows as one kernel: k times the maximum, in registers."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from longthink.ops.kernels import ceil_div, check_first_derivative, power_of_two

_TAKEN = tl.constexpr(-(2**63))


@triton.jit(do_not_specialize=["rows"])
def _largest(numbers, places, values, kept, rows, N: tl.constexpr, K: tl.constexpr, LANES: tl.constexpr,
             ROWS: tl.constexpr, SIGMOID: tl.constexpr, GROUPS: tl.constexpr):  # fmt: skip
    """The places of the k largest of each row; of sigmoids, their values too.

    Of those, ``kept`` [GROUPS, N] says which count, group by group in turns of rows; there is none if GROUPS is 0.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, LANES)
    there = (row < rows)[:, None] & (lane < N)[None, :]
    x = tl.load(numbers + row[:, None] * N + lane[None, :], mask=there, other=0.0).to(tl.float32)
    if SIGMOID:
        x = 1 / (1 + tl.exp(-x))
    if GROUPS > 0:
        counts = tl.load(kept + (row % GROUPS)[:, None] * N + lane[None, :], mask=there, other=0) != 0
        x = tl.where(counts, x, float("-inf"))
    x += 0.0  # zero has one sign
    bits = x.to(tl.int32, bitcast=True)
    # Whole numbers in the order of the floats, and of equals the first is the largest: one number says value and place.
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ordered = tl.where(x == x, ordered, 0x7FFFFFFF).to(tl.int64)  # not a number: the largest, as in torch
    left = tl.where(there, (ordered << 32) | (LANES - 1 - lane)[None, :], _TAKEN)
    for k in tl.static_range(K):
        best = tl.max(left, 1)
        is_best = left == best[:, None]
        tl.store(places + row * K + k, LANES - 1 - (best & 0xFFFFFFFF), mask=row < rows)
        if SIGMOID:
            value = tl.sum(tl.where(is_best & there, x, 0.0), 1)
            tl.store(values + row * K + k, tl.where(value == float("-inf"), 0.0, value), mask=row < rows)
        left = tl.where(is_best, _TAKEN, left)


@triton.jit(do_not_specialize=["rows"])
def _sigmoid_gradient(places, values, d_values, d_numbers, rows, N: tl.constexpr, K: tl.constexpr,
                      LANES: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """d_numbers = s (1 - s) d_value at the places that were chosen, zero elsewhere."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, LANES)
    total = tl.zeros([ROWS, LANES], tl.float32)
    for k in tl.static_range(K):
        at = row * K + k
        s = tl.load(values + at, mask=row < rows, other=0.0)
        d = tl.load(d_values + at, mask=row < rows, other=0.0) * s * (1 - s)
        place = tl.load(places + at, mask=row < rows, other=-1).to(tl.int32)
        total += tl.where(place[:, None] == lane[None, :], d[:, None], 0.0)
    inside = (row < rows)[:, None] & (lane < N)[None, :]
    tl.store(d_numbers + row[:, None] * N + lane[None, :], total.to(d_numbers.dtype.element_ty), mask=inside)


def fast_largest(scores: Tensor, k: int) -> Tensor:
    rows = scores.contiguous()
    places = torch.empty(*scores.shape[:-1], k, dtype=torch.int64, device=scores.device)
    sizes = _sizes(rows, k)
    _largest[_grid(sizes)](rows, places, None, None, **sizes, SIGMOID=False, GROUPS=0)
    return places


def fast_sigmoids(logits: Tensor, k: int, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
    places, values = _Sigmoids.apply(logits, k, kept)
    return places, values


class _Sigmoids(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, k: int, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        rows = logits.contiguous()
        places = torch.empty(*logits.shape[:-1], k, dtype=torch.int64, device=logits.device)
        values = torch.empty(*logits.shape[:-1], k, dtype=torch.float32, device=logits.device)
        sizes, counted = _sizes(rows, k), None if kept is None else kept.contiguous()
        groups = 0 if counted is None else counted.numel() // logits.shape[-1]
        _largest[_grid(sizes)](rows, places, values, counted, **sizes, SIGMOID=True, GROUPS=groups)
        ctx.save_for_backward(places, values)
        ctx.n, ctx.kind = logits.shape[-1], logits.dtype
        ctx.set_materialize_grads(False)
        return places, values

    @staticmethod
    def backward(ctx: Any, _: None, d_values: Tensor) -> tuple[Tensor, None, None]:
        check_first_derivative()
        places, values = ctx.saved_tensors
        d_logits = torch.empty(*places.shape[:-1], ctx.n, dtype=ctx.kind, device=places.device)
        sizes = _sizes(d_logits, places.shape[-1])
        _sigmoid_gradient[_grid(sizes)](places, values, d_values.contiguous(), d_logits, **sizes)
        return d_logits, None, None


def _sizes(rows: Tensor, k: int) -> dict[str, int]:
    n = rows.shape[-1]
    lanes = max(16, power_of_two(n))
    return {"rows": rows.numel() // n, "N": n, "K": k, "LANES": lanes, "ROWS": max(1, 1024 // lanes)}


def _grid(sizes: dict[str, int]) -> tuple[int]:
    return (ceil_div(sizes["rows"], sizes["ROWS"]),)
