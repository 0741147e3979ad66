"""Attention with added scores with PyTorch's own operations: any device, any length."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax_weights(logits: Tensor, padding: Tensor) -> Tensor:
    """Weights [batch, heads, n, n] of the keys that are there."""
    return logits.masked_fill(padding[:, None, None, :], -torch.inf).softmax(-1)


def plain_read(q: Tensor, kv: Tensor, bias: Tensor, padding: Tensor) -> Tensor:
    queries, (keys, values) = q.transpose(1, 2), kv.to(q.dtype).permute(3, 0, 2, 1, 4)
    weights = softmax_weights(queries @ keys.transpose(-1, -2) + bias, padding)
    return (weights.to(q.dtype) @ values).transpose(1, 2)
