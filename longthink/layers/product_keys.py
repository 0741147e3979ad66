"""Product-key memory: n x n key-value pairs whose keys are all pairs of n half-keys (section 7.2.2).

The key of value n a + b is half-key a of the first half of the query beside half-key b of the second, so its score is
the sum of two numbers, and the best of all n^2 are found among the best of each half. (Eq. 7.8 numbers the values the
other way round; the numbering here follows the public code.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longthink.errors import UserError, checked, unknown
from longthink.layers.feedforward import FeedForward, check_tokens, feedforwards, named, note_active


def softmax(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "softmax": softmax}


@feedforwards.add("product_keys")
class ProductKeys(FeedForward):
    """Several heads read one table of ``hidden`` values.

    With ``k``, each head takes its k best values, and the activation sees the chosen scores of all heads together. With
    ``k=None`` all values are read and scores are summed over the heads first: this is what the published results ran,
    whose k of 128 was larger than their 46 to 89 half-keys.
    """

    @checked("the feed-forward kind 'product_keys'")
    def __init__(
        self,
        width: int,
        hidden: int,
        k: int | None = None,
        heads: int = 4,
        activation: str = "relu",
        project_query: bool = False,
        layers: int = 1,
    ) -> None:
        super().__init__()
        self.half_keys = math.isqrt(max(hidden, 0))
        if self.half_keys**2 != hidden or hidden < 1:
            near = max(1, round(math.sqrt(max(hidden, 0)))) ** 2
            raise UserError(f"A product-key memory holds a square number of values, such as {near}, not {hidden}.")
        if width % 2:
            raise UserError(f"Product keys split the width in two halves, so it must be even, not {width}.")
        if k is not None and not 1 <= k <= hidden:
            raise UserError(f"Each head chooses between 1 and all {hidden} values, not {k}.")
        if heads < 1 or layers < 1 or width < 1:
            raise UserError(f"Heads ({heads}), layers ({layers}) and width ({width}) must be 1 or more.")
        if activation not in ACTIVATIONS:
            raise unknown("activation of a product-key memory", activation, ACTIVATIONS)
        self.k, self.heads, self.activation = k, heads, ACTIVATIONS[activation]
        self.query = nn.Linear(width, heads * width, bias=False) if project_query else None
        self.keys = nn.Parameter(torch.empty(2, heads, self.half_keys, width // 2))
        self.values = nn.Parameter(torch.empty(hidden, width))
        # As the dense layer that it approximates (section 7.4). Summed over heads, a score has as many times the
        # variance.
        summed = heads if k is None else 1
        nn.init.normal_(self.keys, std=math.sqrt(2 / (width * layers * summed)))
        nn.init.normal_(self.values, std=math.sqrt(2 / (hidden * layers)))

    @property
    def units(self) -> int:
        return len(self.values)

    def forward(self, x: Tensor) -> Tensor:
        check_tokens(x, self.values.shape[-1])
        first, second = self.half_scores(x)
        if self.k is None:
            u = self.activation((first.sum(-2)[..., :, None] + second.sum(-2)[..., None, :]).flatten(-2))
            note_active(u)
            return u @ self.values
        scores, chosen = best_pairs(first, second, self.k)
        u = self.activation(scores.flatten(-2))
        note_active(u)
        weights = u.flatten(0, -2)
        read = F.embedding_bag(
            chosen.flatten(-2).flatten(0, -2),
            self.values.to(weights.dtype),
            mode="sum",
            per_sample_weights=weights,
        )
        return read.view(x.shape)

    def half_scores(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """u_a and u_b of Eq. 7.8: [batch, n, heads, half-keys] each."""
        if self.query is None:
            first, second = x.chunk(2, -1)
            scores = [
                torch.einsum("...d,hnd->...hn", q, keys) for q, keys in zip((first, second), self.keys, strict=True)
            ]
        else:
            halves = self.query(x).unflatten(-1, (self.heads, 2, -1)).unbind(-2)
            scores = [torch.einsum("...hd,hnd->...hn", q, keys) for q, keys in zip(halves, self.keys, strict=True)]
        return scores[0], scores[1]

    def extra_repr(self) -> str:
        values, width = self.values.shape[-2:]
        choice = f"k={self.k}, heads={self.heads}, activation={named(self.activation)}"
        return f"width={width}, values={values}, half_keys={self.half_keys}, {choice}"


def best_pairs(first: Tensor, second: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Scores and numbers of the ``k`` best sums of one entry of ``first`` [..., n] and one of ``second`` [..., n].

    A pair among the k best has both its parts among the k best of their halves: only k^2 sums are looked at.
    """
    n = first.shape[-1]
    a, row = first.topk(min(k, n), dim=-1)
    b, column = second.topk(min(k, n), dim=-1)
    scores, pair = (a[..., :, None] + b[..., None, :]).flatten(-2).topk(k, dim=-1)
    numbers = (row[..., :, None] * n + column[..., None, :]).flatten(-2)
    return scores, numbers.gather(-1, pair)
