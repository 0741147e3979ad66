"""Attention with added scores with PyTorch's own operations: any device, any length."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def softmax_weights(logits: Tensor, padding: Tensor) -> Tensor:
    """Weights [batch, heads, n, n] of the keys that are there."""
    return logits.masked_fill(padding[:, None, None, :], -torch.inf).softmax(-1)


def plain_read(q: Tensor, kv: Tensor, bias: Tensor | None, padding: Tensor) -> Tensor:
    queries, (keys, values) = q.transpose(1, 2), kv.to(q.dtype).permute(3, 0, 2, 1, 4)
    if bias is None:  # PyTorch's own attention never stores the weights either
        there = ~padding[:, None, None, :]
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=there, scale=1.0).transpose(1, 2)
    weights = softmax_weights(queries @ keys.transpose(-1, -2) + bias, padding)
    return (weights.to(q.dtype) @ values).transpose(1, 2)
