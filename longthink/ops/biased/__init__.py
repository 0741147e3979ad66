"""Softmax attention over short sequences; each pair of query and key may have a score of its own."""

from __future__ import annotations

from torch import Tensor

from longthink.ops.biased.plain import plain_read, softmax_weights
from longthink.ops.kernels import can_run

__all__ = ["biased_read", "softmax_weights"]


def biased_read(q: Tensor, kv: Tensor, bias: Tensor | None, padding: Tensor) -> Tensor:
    """What queries [batch, n, heads, channels] read from keys and values [batch, n, heads, 2, channels]: as queries.

    ``bias`` [batch, heads, n, n] (query, key) is added to the products, if any; ``padding`` [batch, n] is True where
    there is no key, and every sequence must have one. The weights are never stored where the sequence is short enough.
    """
    if can_run(q):
        from longthink.ops.biased.fast import fast_read
        from longthink.ops.tiles import fits

        if fits(q):
            return fast_read(q, kv, bias, padding)
    return plain_read(q, kv, bias, padding)
