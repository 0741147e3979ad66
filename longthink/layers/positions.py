"""Sinusoidal encodings of absolute and relative positions."""

from __future__ import annotations

import torch
from torch import Tensor


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Sine in even and cosine in odd channels, frequencies 10000^(-2k / width): [len(positions), width]."""
    k = torch.arange(0, width, 2, device=positions.device)
    frequency = torch.exp(-torch.log(torch.tensor(10_000.0)) * k / width)
    angle = positions[:, None].double() * frequency.double()
    encoding = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :width]
    return encoding.to(torch.get_default_dtype())


def relative_sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """Row r encodes the distance r - (length - 1), from -(length - 1) to length - 1: [2 length - 1, width]."""
    return sinusoids(torch.arange(1 - length, length, device=device), width)


def by_distance(scores: Tensor) -> Tensor:
    """From scores by distance [..., n, 2n - 1] to scores by key [..., n, n]: out[i, j] is the score of j - i."""
    n = scores.shape[-2]
    if n == 1:
        return scores
    # Entry (i, j) lies at flat place i (2n - 1) + (n - 1) - i + j: in rows of 2n - 2 numbers, the first at n - 1.
    flat = scores.flatten(-2)[..., n - 1 : n - 1 + n * (2 * n - 2)]
    return flat.unflatten(-1, (n, 2 * n - 2))[..., :n]
