"""Geometric attention (Eq. 5.6-5.9): each query takes the closest key that matches."""

from __future__ import annotations

from torch import Tensor

from longthink.ops.geometric.plain import plain_weights


def geometric_weights(logits: Tensor, direction: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
    """Attention weights [batch, heads, n, n] from matching logits of the same shape (query, key).

    ``direction`` [batch, heads, n, 2] is added to a query's logits for the keys before (0) and after it (1), Eq. 5.9.
    ``padding`` [batch, n] is True for keys that are not there. Rows do not sum to one: what is left is "no match".
    """
    if logits.is_cuda:
        try:
            from longthink.ops.geometric.fast import fast_weights
        except ImportError:  # a GPU without Triton
            return plain_weights(logits, direction, padding)
        return fast_weights(logits, direction, padding)
    return plain_weights(logits, direction, padding)
