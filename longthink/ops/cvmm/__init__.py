"""Conditional vector-matrix multiplication (F.2.1): each vector is multiplied by matrices chosen for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longthink.ops.cvmm import plain
from longthink.ops.cvmm.plain import plain_cvmm, plain_feedforward
from longthink.ops.kernels import can_run


def cvmm(x: Tensor, experts: Tensor, weights: Tensor, routes: Any = None) -> Tensor:
    """x W[e] for every chosen expert: [tokens, K, outputs].

    ``x`` is [tokens, inputs], or [tokens, K, inputs] with a vector for each choice; ``experts`` [tokens, K];
    ``weights`` [experts, inputs, outputs]. Any number of tokens may choose an expert, none too. ``routes``: the same
    choices as ``sorted_routes`` gave them for an ``x`` of this kind, where several products share them.
    """
    kind = _kind(x)
    routes = sorted_routes(x, experts, len(weights)) if routes is None else routes
    if _fast(x, kind):
        from longthink.ops.cvmm.fast import fast_cvmm

        return fast_cvmm(x, experts, weights, kind, routes)
    return plain_cvmm(x.to(kind), experts, weights.to(kind), routes)


def sorted_routes(x: Tensor, experts: Tensor, number: int) -> Any:
    """The choices in order of their experts, for products of ``x`` with the matrices of this ``number`` of experts."""
    if _fast(x, _kind(x)):
        from longthink.ops.cvmm.sorting import sort_routes

        return sort_routes(experts, number)
    return plain.sort_routes(experts, number)


def expert_feedforward(
    x: Tensor, experts: Tensor, gates: Tensor, up: Tensor, down: Tensor, bias: Tensor | None = None
) -> Tensor:
    """sum over k of gates[k] relu(x up[e_k] + bias[e_k]) down[e_k] (Eq. 7.11): [tokens, width].

    ``x`` [tokens, width], ``experts`` and ``gates`` [tokens, K], ``up`` [experts, width, size], ``down`` [experts,
    size, width], ``bias`` [experts, size].
    """
    kind = _kind(x)
    if _fast(x, kind):
        from longthink.ops.cvmm.fast import fast_feedforward

        return fast_feedforward(x, experts, gates, up, down, bias, kind)
    cast = None if bias is None else bias.to(kind)
    return plain_feedforward(x.to(kind), experts, gates, up.to(kind), down.to(kind), cast)


def _fast(x: Tensor, kind: torch.dtype) -> bool:
    return len(x) > 0 and can_run(x, kind)


def _kind(x: Tensor) -> torch.dtype:
    """The precision to compute in: under autocast, what a linear layer would use."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return x.dtype
