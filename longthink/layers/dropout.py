"""Dropout that costs next to nothing where it is compiled.

A compiled step is made of few kernels, and its backward pass makes the masks again. With PyTorch's generator, ten
rounds a number, that takes longer than reading and writing the tensors. There each number is a hash of its place and of
a seed, which is drawn once a call. Everywhere else this is PyTorch's dropout.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    if not training or p == 0:
        return x
    if p == 1 or not torch.compiler.is_compiling() or x.numel() >= 2**31:
        return F.dropout(x, p)
    seed = (torch.rand(1, device=x.device) * 2**24).to(torch.int32) << 8  # 24 bits are all that a float32 has
    kept = hashed(torch.arange(x.numel(), dtype=torch.int32, device=x.device) ^ seed).view(x.shape)
    return torch.where(kept >= round(p * 2**32) - 2**31, x * (1 / (1 - p)), 0.0)


def hashed(x: Tensor) -> Tensor:
    """Every bit of the result depends on all bits of the int32 (the last steps of MurmurHash3)."""
    x = (x ^ _shifted(x, 16)) * -0x7A143595  # 0x85EBCA6B as a signed number
    x = (x ^ _shifted(x, 13)) * -0x3D4D51CB  # 0xC2B2AE35
    return x ^ _shifted(x, 16)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)
