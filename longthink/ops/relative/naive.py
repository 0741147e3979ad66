"""Relative attention as README.md writes it, for tests: one query of one head after the other."""

from __future__ import annotations

import torch
from torch import Tensor


def naive_read(q: Tensor, kv: Tensor, scores: Tensor) -> Tensor:
    (batch, n, heads, _), total = q.shape, kv.shape[1]
    rows = []
    for b in range(batch):
        for i in range(n):
            for h in range(heads):
                seen = range(i + total - n + 1)
                logits = torch.stack([q[b, i, h] @ kv[b, j, h, 0] + scores[b, h, i, j - i + n - 1] for j in seen])
                weights = logits.softmax(0)
                rows.append(torch.stack([weights[j] * kv[b, j, h, 1] for j in seen]).sum(0))
    return torch.stack(rows).view(q.shape)
