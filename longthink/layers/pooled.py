"""Sums over the whole batch where several devices share it, gradients included.

Of a loss that all devices compute alike from such sums, the mean of their gradients is that for the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def pooled(own: Tensor, training: bool) -> Tensor:
    """The sum of what all devices have; each must ask for it. In evaluation, and alone, a device keeps its own."""
    return _sum(own) if several(training) else own


def log_sum(each: Tensor, training: bool) -> Tensor:
    """Log of the sum of exp(each) [tokens, experts] over the tokens of all devices."""
    own = each.logsumexp(0)
    if not several(training):
        return own
    most = _largest(own.detach())  # a sum of very small numbers would be zero
    return pooled((own - most).exp(), training).log() + most


def several(training: bool) -> bool:
    """Do devices share the batch?"""
    if not (training and torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    return torch.distributed.get_world_size() > 1


class _Sum(torch.autograd.Function):
    """Over all devices, of values and of gradients."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        total = own.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        torch.distributed.all_reduce(total)
        return total


@torch.compiler.disable  # a collective is no part of a compiled graph
def _largest(own: Tensor) -> Tensor:
    """Of all devices; zero where all have nothing."""
    most = own.clone()
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    return most.masked_fill(most == -torch.inf, 0.0)


@torch.compiler.disable
def _sum(own: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(own)
    return total
