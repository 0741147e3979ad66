"""Relative attention with PyTorch's own operations: any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def plain_read(q: Tensor, kv: Tensor, scores: Tensor) -> Tensor:
    queries, (keys, values) = q.transpose(1, 2), kv.to(q.dtype).permute(3, 0, 2, 1, 4)
    bias = visible_scores(scores).to(q.dtype)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, scale=1.0).transpose(1, 2)


def visible_scores(scores: Tensor) -> Tensor:
    """Scores by key, minus infinity for the keys after each query: [..., n, total]."""
    hidden = ~may_see(scores.shape[-2], scores.shape[-1], scores.device)
    return by_past_distance(scores).masked_fill(hidden, -torch.inf)


def may_see(n: int, total: int, device: torch.device) -> Tensor:
    """Which of ``total`` positions each of the last ``n`` may look at: itself and all before it. bool [n, total]."""
    return torch.ones(n, total, dtype=torch.bool, device=device).tril(total - n)


def by_past_distance(scores: Tensor) -> Tensor:
    """From scores by distance [..., n, total] to scores by key: out[i, j] is the score of j - i - (total - n).

    Column r of the input is the distance r - (total - 1): the last one is 0, a position's own. Keys that lie after
    their query get some other number of the table; nobody may see them.
    """
    *_, n, total = scores.shape
    # With a column before them, entry (i, j) lies at flat place n + i total + j: drop n numbers, and cut rows anew.
    flat = F.pad(scores, (1, 0)).flatten(-2)
    return flat[..., n:].unflatten(-1, (n, total))
