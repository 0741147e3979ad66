"""The places of the few largest of some numbers: which experts a token chooses, and how much it asks of them."""

from __future__ import annotations

import torch
from torch import Tensor

from longthink.ops.kernels import can_run, precise

MOST_NUMBERS, MOST_CHOSEN = 1024, 16


def largest(scores: Tensor, k: int) -> Tensor:
    """The places of the k largest of each row, the largest first: [..., n] to [..., k]. No gradient passes.

    Numbers that are minus infinity are chosen when there is nothing else, and never one twice.
    """
    if scores.dtype == torch.float32 and _fits(scores, k):
        from longthink.ops.largest.fast import fast_largest

        return fast_largest(scores, k)
    return scores.topk(k, dim=-1).indices


def largest_sigmoids(logits: Tensor, k: int, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The places of the k largest sigmoids of each row and, with gradient, their values in float32 at least.

    ``kept`` has the shape of the last dimensions of ``logits`` [..., n]: where it is False, a number is chosen when
    there is nothing else, and counts as zero.
    """
    if _fits(logits, k):
        from longthink.ops.largest.fast import fast_sigmoids

        return fast_sigmoids(logits, k, kept)
    return plain_sigmoids(logits, k, kept)


def plain_sigmoids(logits: Tensor, k: int, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
    scores = precise(logits).sigmoid()
    ranking = scores.detach()
    if kept is not None:
        scores, ranking = scores * kept, ranking.masked_fill(~kept, -torch.inf)
    places = largest(ranking, k)
    return places, scores.gather(-1, places)


def _fits(numbers: Tensor, k: int) -> bool:
    few = k <= numbers.shape[-1] <= MOST_NUMBERS and k <= MOST_CHOSEN
    return few and numbers.numel() > 0 and can_run(numbers)
