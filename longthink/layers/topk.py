"""The Top-K activation: only the K largest hidden units of each token count (section 7.2.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from longthink.errors import UserError, checked
from longthink.layers.feedforward import Dense, feedforwards


@feedforwards.add("top_k")
class TopK(Dense):
    """A dense layer that keeps ``k`` of its hidden units. Dropout comes before the choice, as in the public code."""

    @checked("the feed-forward kind 'top_k'")
    def __init__(
        self,
        width: int,
        hidden: int,
        k: int = 128,
        activation: str = "relu",
        dropout: float = 0.0,
        output_gain: str = "linear",
    ) -> None:
        super().__init__(width, hidden, activation, dropout, output_gain)
        if not 1 <= k <= hidden:
            raise UserError(f"Top-K keeps between 1 and all {hidden} hidden units, not {k}.")
        self.k = k

    def hidden(self, x: Tensor) -> Tensor:
        return keep_largest(super().hidden(x), self.k)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, k={self.k}"


def keep_largest(u: Tensor, k: int) -> Tensor:
    """The ``k`` largest entries of each row where they are, zero elsewhere (Eq. 7.6 and 7.7)."""
    values, places = u.topk(k, dim=-1, sorted=False)
    return torch.zeros_like(u).scatter(-1, places, values)
