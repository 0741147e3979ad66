"""The definition of F.2.1 and Eq. 7.11 as they stand, one token and one expert at a time: slow, and right."""

from __future__ import annotations

import torch
from torch import Tensor


def naive_cvmm(x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    tokens, k = experts.shape
    rows = [(x[t] if x.dim() == 2 else x[t, j]) @ weights[experts[t, j]] for t in range(tokens) for j in range(k)]
    return torch.stack(rows).view(tokens, k, -1)


def naive_feedforward(
    x: Tensor, experts: Tensor, gates: Tensor, up: Tensor, down: Tensor, bias: Tensor | None = None
) -> Tensor:
    rows = []
    for t in range(len(x)):
        y = torch.zeros_like(x[t])
        for e, gate in zip(experts[t], gates[t], strict=True):
            u = x[t] @ up[e] if bias is None else x[t] @ up[e] + bias[e]
            y = y + gate * (u.relu() @ down[e])
        rows.append(y)
    return torch.stack(rows)
