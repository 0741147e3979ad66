"""Geometric attention (Eq. 5.6-5.9): each query takes the closest key that matches."""

from __future__ import annotations

from torch import Tensor

from longthink.ops.geometric.plain import plain_read, plain_weights
from longthink.ops.kernels import can_run


def geometric_weights(logits: Tensor, direction: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
    """Attention weights [batch, heads, n, n] from matching logits of the same shape (query, key).

    ``direction`` [batch, heads, n, 2] is added to a query's logits for the keys before (0) and after it (1), Eq. 5.9.
    ``padding`` [batch, n] is True for keys that are not there. Rows do not sum to one: what is left is "no match".
    """
    if can_run(logits):
        from longthink.ops.geometric.fast import fast_weights

        return fast_weights(logits, direction, padding)
    return plain_weights(logits, direction, padding)


def geometric_read(q: Tensor, kv: Tensor, direction: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
    """What queries [batch, n, heads, channels] read from keys and values [batch, n, heads, 2, channels]: as queries.

    ``direction`` is [batch, n, heads, 2] here. The weights are never stored where the sequence is short enough.
    """
    if can_run(q):
        from longthink.ops.geometric.fused import fused_read
        from longthink.ops.tiles import fits

        if fits(q):
            return fused_read(q, kv, direction, padding)
    return plain_read(q, kv, direction, padding, geometric_weights)
