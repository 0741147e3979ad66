"""Attention with added scores as README.md writes it, for tests: one query of one head after the other."""

from __future__ import annotations

import torch
from torch import Tensor


def naive_read(q: Tensor, kv: Tensor, bias: Tensor | None, padding: Tensor) -> Tensor:
    batch, n, heads, _ = q.shape
    rows = []
    for b in range(batch):
        there = [j for j in range(n) if not padding[b, j]]
        for i in range(n):
            for h in range(heads):
                scores = [0.0 if bias is None else bias[b, h, i, j] for j in there]
                logits = torch.stack([q[b, i, h] @ kv[b, j, h, 0] + s for j, s in zip(there, scores, strict=True)])
                weights = logits.exp() / logits.exp().sum()
                rows.append(torch.stack([w * kv[b, j, h, 1] for w, j in zip(weights, there, strict=True)]).sum(0))
    return torch.stack(rows).view(q.shape)
