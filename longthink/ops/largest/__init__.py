"""The places of the few largest of some numbers: which experts a token chooses."""

from __future__ import annotations

import torch
from torch import Tensor

from longthink.ops.kernels import can_run

MOST_NUMBERS, MOST_CHOSEN = 1024, 16


def largest(scores: Tensor, k: int) -> Tensor:
    """The places of the k largest of each row, the largest first: [..., n] to [..., k]. No gradient passes.

    Numbers that are minus infinity are chosen when there is nothing else, and never one twice.
    """
    few = k <= scores.shape[-1] <= MOST_NUMBERS and k <= MOST_CHOSEN
    if few and scores.dtype == torch.float32 and scores.numel() and can_run(scores):
        from longthink.ops.largest.fast import fast_largest

        return fast_largest(scores, k)
    return scores.topk(k, dim=-1).indices
