"""Attention with relative positions to a block and what came before it (Transformer-XL)."""

from __future__ import annotations

from torch import Tensor

from longthink.ops.kernels import can_run
from longthink.ops.relative.plain import by_past_distance, may_see, plain_read, visible_scores

__all__ = ["by_past_distance", "may_see", "relative_read", "visible_scores"]

MOST_CHANNELS = 128


def relative_read(q: Tensor, kv: Tensor, scores: Tensor) -> Tensor:
    """What queries [batch, n, heads, channels] read from keys and values [batch, total, heads, 2, channels].

    The queries are the last n of the total positions, and see themselves and all before. ``scores`` [batch, heads, n,
    total] are added to the logits by distance: the last column is that of a position's own.
    """
    fits = q.shape[-1] <= MOST_CHANNELS and q.shape[1] * kv.shape[1] < 2**31
    if fits and can_run(q):
        from longthink.ops.relative.fast import fast_read

        return fast_read(q, kv, scores)
    return plain_read(q, kv, scores)
