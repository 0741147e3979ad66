"""What Triton kernels of attention have in common: the rows of one head of one sequence, and which sequences are short
enough for one program to keep all of it on chip."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from longthink.ops.kernels import power_of_two, product_precision

LONGEST = 64


@triton.jit
def load_rows(base, sequence, head, place, length, stride, heads, channel, CHANNELS: tl.constexpr,
              INSIDE: tl.constexpr = False):  # fmt: skip
    """Vectors [places, D] of one head of one sequence out of [batch, length, heads, stride]; zeros outside.

    ``INSIDE`` where all of the places are known to be there.
    """
    at = ((sequence * length + place) * heads + head)[:, None] * stride + channel[None, :]
    if INSIDE and channel.shape[0] == CHANNELS:
        return tl.load(base + at)
    return tl.load(base + at, mask=(place < length)[:, None] & (channel < CHANNELS)[None, :], other=0.0)


@triton.jit
def store_rows(base, values, sequence, head, place, length, stride, heads, channel, CHANNELS: tl.constexpr):
    inside = (place < length)[:, None] & (channel < CHANNELS)[None, :]
    at = ((sequence * length + place) * heads + head)[:, None] * stride + channel[None, :]
    tl.store(base + at, values.to(base.dtype.element_ty), mask=inside)


def fits(q: Tensor) -> bool:
    """Whether the queries, keys, values and gradients of one head of one sequence have room in one program."""
    n, channels = q.shape[1], q.shape[3]
    sizes = whole_sizes(n, channels, q.dtype)
    gpu: Any = torch.cuda.get_device_properties(q.device)
    return n <= LONGEST and 5 * sizes["N"] * sizes["D"] * q.element_size() <= gpu.shared_memory_per_block_optin


def whole_sizes(n: int, channels: int, kind: torch.dtype) -> dict[str, Any]:
    """Of the one tile that is a whole sequence."""
    return {
        "CHANNELS": channels,
        "N": max(16, power_of_two(n)),
        "D": max(16, power_of_two(channels)),
        "PRECISION": product_precision(kind),
    }
