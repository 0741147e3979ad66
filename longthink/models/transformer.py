"""Transformer encoders that classify a sequence of tokens, with the parts of the seed's chapter 5 as choices.

The Neural Data Router is ``attention="geometric", gate=True`` with shared layers; ``router`` makes one. A step is a
layer: shared ones can be applied more often than in training.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longthink.errors import UserError
from longthink.layers.act import Accumulated, AdaptiveTime
from longthink.layers.attention import attentions
from longthink.layers.feedforward import Dense
from longthink.layers.positions import sinusoids
from longthink.models.base import Layered, models
from longthink.think import note


class Context(NamedTuple):
    """The input between its begin and end tokens."""

    x: Tensor  # [batch, n, width]
    padding: Tensor  # [batch, n]: True where there is no token
    end: Tensor  # [batch]: the column of the end token


class Adaptive(NamedTuple):
    """The state of a Transformer with adaptive computation time."""

    h: Tensor  # [batch, n, width]
    gathered: Accumulated


class PostNormLayer(nn.Module):
    """The standard Transformer layer with the norms after the sums."""

    def __init__(
        self, width: int, hidden: int, attention: nn.Module, activation: str, dropout: float, **unused: Any
    ) -> None:
        super().__init__()
        self.attention = attention
        self.feedforward = Dense(width, hidden, activation, dropout)
        self.norm_attention, self.norm_output = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = dropout

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        a = self.norm_attention(x + self._drop(self.attention(x, padding)))
        return self.norm_output(a + self._drop(self.feedforward(a)))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class GatedLayer(nn.Module):
    """The layer with a copy gate (Eq. 5.1-5.4): a column keeps its state until it is its turn.

    ``residual_update`` is the modified router of E.1 (Eq. E.2). Without geometric attention the update ends in tanh
    instead of a norm (D.3.3). Gate dropout closes whole columns; it is in the public code alone.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        attention: nn.Module,
        activation: str,
        dropout: float,
        gate_dropout: float,
        residual_update: bool,
        tanh_update: bool,
    ) -> None:
        super().__init__()
        self.attention = attention
        inside = 0.0 if residual_update else dropout  # E.1.1: no dropout in Eq. E.1
        self.update = Dense(width, hidden, activation, inside, output_gain="tanh")
        self.gate = Dense(width, width, activation, inside, output_bias=-3.0)
        self.norm_attention = nn.LayerNorm(width)
        self.norm_update = None if tanh_update else nn.LayerNorm(width)
        self.dropout, self.gate_dropout, self.residual_update = dropout, gate_dropout, residual_update

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        a = self.norm_attention(x + F.dropout(self.attention(x, padding), self.dropout, self.training))  # Eq. 5.1
        u = self.update(a) + a if self.residual_update else self.update(a)
        u = u.tanh() if self.norm_update is None else self.norm_update(u)  # Eq. 5.2
        g = self.gate(a).sigmoid()  # Eq. 5.3
        if self.training and self.gate_dropout:
            g = g * (torch.rand(g.shape[:-1], device=g.device) >= self.gate_dropout)[..., None]
        note("gate", g)
        return torch.lerp(x, u.to(x.dtype), g.to(x.dtype))  # Eq. 5.4


@models.add("transformer")
class Transformer(nn.Module):
    """An encoder over tokens (0 is padding) whose answer is read from one column."""

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        width: int = 128,
        hidden: int = 256,
        heads: int = 4,
        attention: str = "absolute",
        gate: bool = False,
        distinct_steps: int | None = None,
        read_from: Literal["first", "last"] = "last",
        activation: str = "relu",
        residual_update: bool = False,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        gate_dropout: float = 0.0,
        act: Literal["graves", "universal"] | None = None,
        act_weight: float = 0.03,
    ) -> None:
        super().__init__()
        if read_from not in ("first", "last"):
            raise UserError(f"read_from must be first or last, not {read_from!r}.")
        if distinct_steps is not None and distinct_steps < 1:
            raise UserError(f"distinct_steps must be 1 or more, not {distinct_steps}.")
        self.width, self.max_steps, self.read_from = width, distinct_steps, read_from
        self.absolute = attention == "absolute"
        self.begin, self.end = vocabulary, vocabulary + 1
        self.embedding = nn.Embedding(vocabulary + 2, width)
        self.embedding_dropout = dropout if self.absolute else 0.0
        kind = GatedLayer if gate else PostNormLayer
        self.layers = nn.ModuleList(
            kind(
                width,
                hidden,
                attentions[attention](width, heads, attention_dropout),
                activation,
                dropout,
                gate_dropout=gate_dropout,
                residual_update=residual_update,
                tanh_update=attention != "geometric",
            )
            for _ in range(distinct_steps or 1)
        )
        self.act = None if act is None else AdaptiveTime(width, act)
        self.act_weight = act_weight
        self.head = nn.Linear(width, classes)

    def look(self, tokens: Tensor) -> Context:
        length = tokens.shape[1]
        used = (tokens != 0).sum(1)
        columns = torch.arange(length + 2, device=tokens.device)
        framed = F.pad(tokens, (1, 1))
        framed = torch.where(columns == 0, self.begin, framed)
        framed = torch.where(columns == used[:, None] + 1, self.end, framed)
        x = self.embedding(framed)
        if self.absolute:
            x = x + sinusoids(columns, self.width).to(x.dtype)
            x = F.dropout(x, self.embedding_dropout, self.training)
        return Context(x, columns > used[:, None] + 1, used + 1)

    def start(self, context: Context) -> Any:
        if self.act is not None:
            return Adaptive(context.x, self.act.start(context.x))
        return context.x if self.max_steps is None else Layered(context.x, 0)

    def step(self, state: Any, context: Context) -> Any:
        if isinstance(state, Layered):
            return Layered(self.layers[state.next](state.state, context.padding), state.next + 1)
        if isinstance(state, Adaptive):
            assert self.act is not None
            after = self.layers[0](state.h, context.padding)
            return Adaptive(after, self.act.update(state.gathered, state.h, after))
        return self.layers[0](state, context.padding)

    def read(self, state: Any, context: Context) -> Tensor:
        if isinstance(state, Layered):
            state = state.state
        if isinstance(state, Adaptive):
            assert self.act is not None
            state = self.act.output(state.gathered, state.h)
        if self.read_from == "first":
            return self.head(state[:, 0])
        return self.head(state[torch.arange(len(state), device=state.device), context.end])

    def penalty(self, state: Any, context: Context) -> Tensor | None:
        """Adaptive computation time costs: the mean remainder of the columns that are there (D.1)."""
        if not isinstance(state, Adaptive):
            return None
        there = ~context.padding
        mean = (state.gathered.remainder * there).sum(1) / there.sum(1)
        return self.act_weight * mean.mean()


@models.add("router")
def router(vocabulary: int, classes: int, **options: Any) -> Transformer:
    """The Neural Data Router: geometric attention, copy gate, shared layers."""
    defaults = {"width": 256, "hidden": 512, "heads": 1, "dropout": 0.5, "attention_dropout": 0.1, "gate_dropout": 0.1}
    return Transformer(vocabulary, classes, **{**defaults, **options, "attention": "geometric", "gate": True})
