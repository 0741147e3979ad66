"""Transformer encoders that classify a sequence of tokens, with the parts of Csordás (2023), chapter 5, as choices.

The Neural Data Router is ``attention="geometric", gate=True`` with shared layers; ``router`` makes one. A step is a
layer: shared ones can be applied more often than in training.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longthink.errors import UserError, check_options
from longthink.layers.act import Accumulated, AdaptiveTime
from longthink.layers.attention import attentions
from longthink.layers.dropout import ENOUGH_SEEDS, dropout, keep_mask, with_seeds
from longthink.layers.feedforward import Dense, FeedForward
from longthink.layers.feedforward import feedforward as make_feedforward
from longthink.layers.linear import Linear
from longthink.layers.positions import sinusoids
from longthink.layers.several import Embedding, LayerNorm
from longthink.models.base import Layered, check_rows, models
from longthink.think import note


class Context(NamedTuple):
    """The input between its begin and end tokens."""

    x: Tensor  # [batch, n, width]
    padding: Tensor  # [batch, n]: True where there is no token
    end: Tensor  # [batch]: the column of the end token


class Columns(NamedTuple):
    """The state of a Transformer that needs to remember more than its columns."""

    h: Tensor  # [batch, n, width]
    gathered: Accumulated | None = None
    """With adaptive computation time."""
    balance: Tensor | None = None
    """What sparse feed-forward layers have asked for in the loss so far, while training: [batch]."""


class PostNormLayer(nn.Module):
    """The standard Transformer layer with the norms after the sums."""

    def __init__(self, width: int, attention: nn.Module, feedforward: FeedForward, dropout: float) -> None:
        super().__init__()
        self.attention, self.feedforward = attention, feedforward
        self.norm_attention, self.norm_output = LayerNorm(width), LayerNorm(width)
        self.dropout = dropout

    def forward(self, x: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """The new columns, and what the feed-forward part asks for in the loss."""
        a = self.norm_attention(x + self._drop(self.attention(x, padding)))
        update, balance = self.feedforward.forward_with_balance(a, padding)
        return self.norm_output(a + self._drop(update)), balance

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)


class GatedLayer(nn.Module):
    """The layer with a copy gate (Eq. 5.1-5.4): a column keeps its state until it is its turn.

    ``residual_update`` is the modified router of E.1 (Eq. E.2). Without geometric attention the update ends in tanh
    instead of a norm (D.3.3). Gate dropout closes whole columns; it is in the public code alone.

    Gates below ``gate_threshold`` are shut, which is in no text: a gate of 0.05 hardly matters for the steps of
    training, but who waits behind it for fifty keeps a thirteenth of what it had. In training they are shut only where
    ``shut_in_training`` says so, and gradients pass as if they were not.
    """

    def __init__(
        self,
        width: int,
        attention: nn.Module,
        feedforward: FeedForward,
        dropout: float,
        gate: FeedForward,
        gate_dropout: float,
        residual_update: bool,
        tanh_update: bool,
        shut_in_training: bool = False,
    ) -> None:
        super().__init__()
        self.attention, self.update, self.gate = attention, feedforward, gate
        self.norm_attention = LayerNorm(width)
        self.norm_update = None if tanh_update else LayerNorm(width)
        self.dropout, self.gate_dropout, self.residual_update = dropout, gate_dropout, residual_update
        self.gate_threshold, self.shut_in_training = 0.0, shut_in_training

    def forward(self, x: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """The new columns, and what the feed-forward part asks for in the loss."""
        a = self.norm_attention(x + dropout(self.attention(x, padding), self.dropout, self.training))  # Eq. 5.1
        u, balance = self.update.forward_with_balance(a, padding)
        u = u + a if self.residual_update else u
        u = u.tanh() if self.norm_update is None else self.norm_update(u)  # Eq. 5.2
        g = self.gate(a).sigmoid()  # Eq. 5.3
        if self.training and self.gate_dropout:
            g = g * keep_mask(g.shape[:-1], self.gate_dropout, g.device)[..., None]
        if self.gate_threshold and (self.shut_in_training or not self.training):
            g = g - torch.where(g < self.gate_threshold, g, 0.0).detach()
        note("gate", g)
        return torch.lerp(x, u.to(x.dtype), g.to(x.dtype)), balance  # Eq. 5.4


@models.add("transformer")
class Transformer(nn.Module):
    """A Transformer encoder whose answer is read from one column, with the same layer again and again or distinct ones.

    Token 0 is padding, which comes after all others.
    """

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
        gate_threshold: float = 0.0,
        shut_in_training: bool = False,
        embedding_std: float = 1.0,
        act: Literal["graves", "graves_before", "universal"] | None = None,
        act_weight: float = 0.03,
        feedforward: str = "dense",
        feedforward_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if width < 1 or heads < 1:
            raise UserError(f"The width ({width}) and the number of heads ({heads}) must be 1 or more.")
        if not gate and (gate_dropout or residual_update):
            raise UserError("gate_dropout and residual_update need a gate; set gate=True or leave them out.")
        if shut_in_training and not gate_threshold:
            raise UserError("shut_in_training needs a gate_threshold above 0; set it or leave shut_in_training out.")
        if act_weight < 0:
            raise UserError(f"act_weight must be 0 or more, not {act_weight}.")
        if read_from not in ("first", "last"):
            raise UserError(f"read_from must be first or last, not {read_from!r}.")
        if not embedding_std > 0:
            raise UserError(f"embedding_std must be above 0, not {embedding_std}.")
        if distinct_steps is not None and distinct_steps < 1:
            raise UserError(f"distinct_steps must be 1 or more, not {distinct_steps}.")
        self.width, self.max_steps, self.read_from = width, distinct_steps, read_from
        # A shared step is many small operations and is compiled once; distinct ones would be compiled one by one.
        self.worth_compiling = self.repeats = distinct_steps is None
        self.compiled_part = "step" if distinct_steps else "seeded_step"
        self.absolute = attention == "absolute"
        self.begin, self.end = vocabulary, vocabulary + 1
        self.embedding = Embedding(vocabulary + 2, width)
        with torch.no_grad():
            self.embedding.weight *= embedding_std
        self.embedding_dropout = dropout if self.absolute else 0.0
        self.sparse, geometric = feedforward != "dense", attention == "geometric"
        self.stackable = feedforward in ("dense", "top_k")  # whose weights are all in layers that know of several
        inside = 0.0 if residual_update else dropout  # E.1.1: no dropout in Eq. E.1

        def layer() -> nn.Module:
            options: dict[str, Any] = {}
            if feedforward in ("dense", "top_k"):
                options |= {"dropout": inside, "output_gain": "tanh" if gate else "linear"}
            if feedforward != "product_keys":  # whose keys compete, or not, in their own way
                options |= {"activation": activation}
            part = make_feedforward(feedforward, width, hidden, options, feedforward_options)
            attend = attentions[attention](width, heads, attention_dropout)
            if not gate:
                return PostNormLayer(width, attend, part, dropout)
            opener = Dense(width, width, activation, inside, output_bias=-3.0, noted=False)
            # Without geometric attention the update ends in tanh (D.3.3).
            return GatedLayer(
                width,
                attend,
                part,
                dropout,
                opener,
                gate_dropout,
                residual_update,
                tanh_update=not geometric,
                shut_in_training=shut_in_training,
            )

        self.layers = nn.ModuleList(layer() for _ in range(distinct_steps or 1))
        self.gate_threshold = gate_threshold
        draws = any(getattr(part, "draws_numbers", False) for part in self.layers.modules())
        self.recomputes = distinct_steps is None and not draws
        self.act = None if act is None else AdaptiveTime(width, act)
        self.act_weight = act_weight
        self.head = Linear(width, classes)

    @property
    def adjustable(self) -> tuple[str, ...]:
        """Options that may change after training."""
        return ("gate_threshold",) if self._gated else ()

    @property
    def gate_threshold(self) -> float:
        """Gates below this are shut."""
        return max((layer.gate_threshold for layer in self._gated), default=0.0)

    @gate_threshold.setter
    def gate_threshold(self, threshold: float) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold < 1:
            raise UserError(f"gate_threshold must be 0 or more and below 1, not {threshold!r}.")
        if threshold and not self._gated:
            raise UserError("gate_threshold needs a gate; set gate=True or leave it out.")
        for layer in self._gated:
            layer.gate_threshold = float(threshold)

    @property
    def _gated(self) -> list[GatedLayer]:
        return [layer for layer in self.layers if isinstance(layer, GatedLayer)]

    def look(self, tokens: Tensor) -> Context:
        check_rows(tokens)
        self._check_tokens(tokens)
        length = tokens.shape[1]
        used = (tokens != 0).sum(1)
        columns = torch.arange(length + 2, device=tokens.device)
        framed = F.pad(tokens, (1, 1))
        framed = torch.where(columns == 0, self.begin, framed)
        framed = torch.where(columns == used[:, None] + 1, self.end, framed)
        x = self.embedding(framed)
        if self.absolute:
            x = x + sinusoids(columns, self.width).to(x.dtype)
            x = dropout(x, self.embedding_dropout, self.training)
        return Context(x, columns > used[:, None] + 1, used + 1)

    def _check_tokens(self, tokens: Tensor) -> None:
        """Other numbers would be the model's own begin and end, or nothing; a GPU would have to be waited for."""
        if tokens.device.type != "cpu" or torch.compiler.is_compiling() or not tokens.numel():
            return
        low, high = tokens.aminmax()
        if not 0 <= int(low) <= int(high) < self.begin:
            raise UserError(f"Tokens are numbers from 0 (padding) to {self.begin - 1}, not {int(low)} to {int(high)}.")

    def start(self, context: Context) -> Any:
        state: Any = context.x
        asks = self.sparse and self.training
        if self.act is not None or asks:
            gathered = None if self.act is None else self.act.start(context.x)
            state = Columns(context.x, gathered, context.x.new_zeros(len(context.x)) if asks else None)
        return state if self.max_steps is None else Layered(state, 0)

    def afresh(self, state: Any) -> Any:
        """The same columns, of which none has halted and which have asked for nothing."""
        if isinstance(state, Layered):
            return Layered(self.afresh(state.state), state.next)
        if not isinstance(state, Columns):
            return state
        gathered = None if self.act is None else self.act.start(state.h)
        return Columns(state.h, gathered, None if state.balance is None else torch.zeros_like(state.balance))

    def step(self, state: Any, context: Context) -> Any:
        if isinstance(state, Layered):
            return Layered(self._apply_layer(state.next, state.state, context), state.next + 1)
        if not self.training:
            return self._apply_layer(0, state, context)
        return self.seeded_step(state, context, torch.rand(ENOUGH_SEEDS, device=context.x.device))

    def seeded_step(self, state: Any, context: Context, seeds: Tensor) -> Any:
        """A step of shared layers in training; where it is compiled, its masks come from the seeds."""
        return with_seeds(seeds, self._apply_layer, 0, state, context)

    def _apply_layer(self, index: int, state: Any, context: Context) -> Any:
        if not isinstance(state, Columns):
            return self.layers[index](state, context.padding)[0]
        after, balance = self.layers[index](state.h, context.padding)
        gathered = state.gathered
        if self.act is not None and gathered is not None:
            gathered = self.act.update(gathered, state.h, after)
            note("act_steps", gathered.steps)  # how many each column has taken (Figure D.1)
        return Columns(after, gathered, None if state.balance is None else state.balance + balance)

    def read(self, state: Any, context: Context) -> Tensor:
        if isinstance(state, Layered):
            state = state.state
        if isinstance(state, Columns):
            state = state.h if self.act is None else self.act.output(cast(Accumulated, state.gathered), state.h)
        if self.read_from == "first":
            return self.head(state[:, 0])
        return self.head(state[torch.arange(len(state), device=state.device), context.end])

    def halting(self, state: Any, context: Context) -> Tensor:
        """With adaptive computation time: 1 where all columns have stopped, and no step changes the answer; else 0."""
        if isinstance(state, Layered):
            state = state.state
        if not isinstance(state, Columns) or state.gathered is None:
            raise UserError("This Transformer does not say when to stop; build it with act='graves' or 'universal'.")
        return ((state.gathered.spent >= 1) | context.padding).all(1).to(state.h.dtype)

    def penalty(self, state: Any, context: Context) -> Tensor | None:
        """What each sample adds to the loss: the mean remainder of adaptive time (D.1), and what sparse layers ask for:
        [batch]."""
        if isinstance(state, Layered):
            state = state.state
        if not isinstance(state, Columns):
            return None
        total = torch.zeros(len(state.h), device=state.h.device)
        if state.gathered is not None:
            there = ~context.padding
            total = total + self.act_weight * (state.gathered.remainder * there).sum(1) / there.sum(1)
        return total if state.balance is None else total + state.balance


@models.add("router")
def router(vocabulary: int, classes: int, **options: Any) -> Transformer:
    """The Neural Data Router: geometric attention, copy gate, shared layers."""
    check_options("the model router", Transformer, options)
    for name, own in (("attention", "geometric"), ("gate", True)):
        if options.get(name, own) != own:
            raise UserError(f"A router has {name}={own!r}; build a transformer for {name}={options[name]!r}.")
    defaults = {"width": 256, "hidden": 512, "heads": 1, "dropout": 0.5, "attention_dropout": 0.1, "gate_dropout": 0.1}
    return Transformer(vocabulary, classes, **{**defaults, **options, "attention": "geometric", "gate": True})
