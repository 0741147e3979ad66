"""Conditional multiplication with PyTorch's own operations: any device, any precision, deterministic.

A route is one choice of one token. Routes are sorted by expert once, so that each expert multiplies one block of rows.
(``torch.nn.functional.grouped_mm`` would save the loop over experts, but takes half precision and aligned sizes alone.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Sorted(NamedTuple):
    """Routes in the order of their experts."""

    order: Tensor  # [routes]: token * K + k
    back: Tensor  # [routes]: where each route went
    counts: list[int]  # routes of each expert


def sort_routes(experts: Tensor, number: int) -> Sorted:
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    return Sorted(order, order.argsort(), torch.bincount(flat, minlength=number).tolist())


def plain_cvmm(x: Tensor, experts: Tensor, weights: Tensor, routes: Sorted | None = None) -> Tensor:
    routes = routes or sort_routes(experts, len(weights))
    rows = x[routes.order // experts.shape[1]] if x.dim() == 2 else x.flatten(0, 1)[routes.order]
    return _grouped(rows, routes.counts, weights)[routes.back].unflatten(0, experts.shape)


def plain_feedforward(
    x: Tensor, experts: Tensor, gates: Tensor, up: Tensor, down: Tensor, bias: Tensor | None = None
) -> Tensor:
    routes = sort_routes(experts, len(up))
    u = _grouped(x[routes.order // experts.shape[1]], routes.counts, up)
    if bias is not None:
        u = u + bias[experts.flatten()[routes.order]]
    y = _grouped(u.relu(), routes.counts, down)[routes.back].unflatten(0, experts.shape)
    return (y * gates[..., None]).sum(1).to(x.dtype)


def _grouped(rows: Tensor, counts: list[int], weights: Tensor) -> Tensor:
    if len(rows) == 0:
        return rows @ weights[0]
    parts = zip(rows.split(counts), weights.unbind(), counts, strict=True)
    return torch.cat([part @ w for part, w, count in parts if count])  # most of many experts may have no rows
