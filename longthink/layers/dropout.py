"""Random numbers for layers, which cost next to nothing where they are compiled.

A compiled step is made of few kernels, and its backward pass makes the masks again. With PyTorch's generator, ten
rounds a number, that takes longer than reading and writing the tensors. There each number is a hash of its place and of
a seed. Everywhere else this is PyTorch's dropout.

Seeds are drawn once a call, or come from outside (``with_seeds``): then these numbers are the same whenever they are
made, and a backward pass may make them again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

T = TypeVar("T")
ENOUGH_SEEDS = 16
"""More than the layers of any step ask for."""


class _Seeds:
    """Numbers from 0 to 1, one for each call that asks."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers, self.used = numbers, 0

    def next(self) -> Tensor:
        self.used += 1
        return self.numbers[self.used - 1]


_seeds: _Seeds | None = None


def with_seeds(numbers: Tensor, function: Callable[..., T], *arguments: object) -> T:
    """Call the function; what it compiles takes its seeds from these numbers, in the order of the calls."""
    global _seeds
    before, _seeds = _seeds, _Seeds(numbers)
    try:
        return function(*arguments)
    finally:
        _seeds = before


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    if not training or p == 0:
        return x
    if p == 1 or not torch.compiler.is_compiling():
        return F.dropout(x, p)
    return torch.where(_kept(x.shape, p, x.device), x * (1 / (1 - p)), 0.0)


def keep_mask(shape: tuple[int, ...], p: float, device: torch.device) -> Tensor:
    """A mask of this shape that is False with probability p."""
    if torch.compiler.is_compiling():
        return _kept(shape, p, device)
    return torch.rand(shape, device=device) >= p


def _kept(shape: tuple[int, ...], p: float, device: torch.device) -> Tensor:
    number = torch.rand(1, device=device) if _seeds is None else _seeds.next()
    seed = (number * 2**24).to(torch.int32) << 8  # 24 bits are all that a float32 has
    size = math.prod(shape)
    places = torch.arange(size, dtype=torch.int32 if size <= 2**31 else torch.int64, device=device).to(torch.int32)
    return (hashed(places ^ seed) >= round(p * 2**32) - 2**31).view(shape)


def hashed(x: Tensor) -> Tensor:
    """Every bit of the result depends on all bits of the int32 (the last steps of MurmurHash3)."""
    x = (x ^ _shifted(x, 16)) * -0x7A143595  # 0x85EBCA6B as a signed number
    x = (x ^ _shifted(x, 13)) * -0x3D4D51CB  # 0xC2B2AE35
    return x ^ _shifted(x, 16)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)
