"""Feed-forward kinds: what a layer computes for each token on its own, [batch, n, width] to the same shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longthink.errors import UserError, check_options, checked, unknown
from longthink.layers.dropout import dropout
from longthink.layers.linear import Linear
from longthink.registry import Registry
from longthink.think import note, wanted

feedforwards: Registry[Callable[..., FeedForward]] = Registry("feed-forward kind")
"""Every kind is made by ``feedforwards[name](width, hidden, ...)``; ``hidden`` is d_ff, the number of hidden units."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}
_GAINS = {"relu": math.sqrt(2), "gelu": math.sqrt(2), "tanh": 5 / 3, "linear": 1.0}


class FeedForward(nn.Module):
    """What the kinds share: some ask for a term in the loss, which keeps their parts in use."""

    def forward_with_balance(self, x: Tensor, padding: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The output, and a scalar to add to the loss, already weighted; zero for kinds that ask for nothing.

        ``padding`` [batch, n] is True where there is no token, for kinds in which tokens compete.
        """
        return self(x), torch.zeros((), device=x.device)

    @property
    def units(self) -> int | None:
        """How many hidden units it has, active or not; None where it does not note how many are (``note_active``)."""
        return None


def feedforward(
    kind: str, width: int, hidden: int, usual: Mapping[str, Any], given: Mapping[str, Any] | None = None
) -> FeedForward:
    """A new layer of this kind with its model's ``usual`` options, and others where somebody gave them; a sentence
    where it does not take these."""
    make = feedforwards[kind]
    check_options(f"the feed-forward kind {kind!r}", make, given or {}, filled=("width", "hidden"))
    return make(width, hidden, **{**usual, **(given or {})})


@feedforwards.add("dense")
class Dense(FeedForward):
    """W2 act(W1 x + b1) + b2 (Eq. 5.5). ``noted=False`` where another layer's active units are of interest."""

    @checked("the feed-forward kind 'dense'")
    def __init__(
        self,
        width: int,
        hidden: int,
        activation: str = "relu",
        dropout: float = 0.0,
        output_gain: str = "linear",
        output_bias: float = 0.0,
        noted: bool = True,
    ) -> None:
        super().__init__()
        if width < 1 or hidden < 1:
            raise UserError(f"The width ({width}) and the number of hidden units ({hidden}) must be 1 or more.")
        if activation not in ACTIVATIONS:
            raise unknown("activation", activation, ACTIVATIONS)
        if output_gain not in _GAINS:
            raise unknown("output_gain", output_gain, _GAINS)
        self.up, self.down = Linear(width, hidden), Linear(hidden, width)
        self.activation, self.dropout, self.noted = ACTIVATIONS[activation], dropout, noted
        nn.init.xavier_uniform_(self.up.weight, _GAINS[activation])
        nn.init.xavier_uniform_(self.down.weight, _GAINS[output_gain])
        nn.init.zeros_(self.up.bias)
        nn.init.constant_(self.down.bias, output_bias)

    def hidden(self, x: Tensor) -> Tensor:
        """u of Eq. 7.1: the contributions of the key-value pairs."""
        return dropout(self.activation(self.up(x)), self.dropout, self.training)

    @property
    def units(self) -> int | None:
        return self.up.out_features if self.noted else None

    def forward(self, x: Tensor) -> Tensor:
        u = self.hidden(x)
        if self.noted:
            note_active(u)
        return self.down(u)

    def extra_repr(self) -> str:
        sizes = f"width={self.up.in_features}, hidden={self.up.out_features}"
        return f"{sizes}, activation={named(self.activation)}, dropout={self.dropout}"


def named(part: object) -> str:
    """What a printed layer calls a function that it uses."""
    return str(getattr(part, "__name__", part))


def check_tokens(x: Tensor, width: int, padding: Tensor | None = None) -> None:
    """Complain about tokens of another shape. It asks for shapes and types alone: no GPU waits for it."""
    if x.dim() < 2 or x.shape[-1] != width or not x.is_floating_point():
        raise UserError(f"The layer takes floating-point numbers [batch, n, {width}], not {list(x.shape)} {x.dtype}.")
    if padding is not None and (padding.dtype != torch.bool or padding.shape != x.shape[:-1]):
        found = f"{list(padding.shape)} {padding.dtype}"
        raise UserError(f"padding must be {list(x.shape[:-1])} torch.bool, True where there is no token, not {found}.")


def note_active(u: Tensor) -> None:
    """How many hidden units of each token are not zero, where somebody asked (Figure 7.1)."""
    if wanted("active"):
        note("active", (u != 0).sum(-1))
