"""Eq. 5.7 and 5.8 as they stand, one product at a time: slow, and right."""

from __future__ import annotations

import torch
from torch import Tensor


def naive_weights(logits: Tensor, direction: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
    """A[i, j] = P[i, j] * product of 1 - P[i, k] over the k that are closer to i than j is."""
    n = logits.shape[-1]
    if direction is not None:
        after = torch.arange(n)[:, None] < torch.arange(n)  # j > i
        logits = logits + torch.where(after, direction[..., 1:], direction[..., :1])
    p = logits.sigmoid()  # Eq. 5.6
    if padding is not None:
        p = p.masked_fill(padding[:, None, None, :], 0.0)
    zero = 0 * p[..., 0, 0]
    rows = []
    for i in range(n):
        row = []
        for j in range(n):
            if i == j:  # the diagonal is zeroed explicitly
                row.append(zero)
                continue
            weight = p[..., i, j]
            for k in range(n):
                closer = abs(i - k) < abs(i - j) if i < j else abs(i - k) <= abs(i - j)  # Eq. 5.8: right comes first
                if k not in (i, j) and closer:
                    weight = weight * (1 - p[..., i, k])
            row.append(weight)
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, -2)
