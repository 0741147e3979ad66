"""Language models: the pre-norm Transformer-XL of Csordás (2023), chapter 7, with any feed-forward kind, and MoEUT.

A step is a layer, or a group of layers that is applied again and again. A text is read block by block: each layer also
sees its own inputs from before the block, the memory::

    memory = None                                    # nothing is remembered before the first block
    for tokens in blocks:                            # [batch, time]
        context = model.look((tokens, memory))
        thought = think(model, None, steps, context=context)    # logits [batch, classes, time]
        memory = model.remember(thought.state, context)

``look(tokens)`` reads one block by itself and gathers nothing.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longthink.errors import UserError, check_options
from longthink.layers.balance import balances
from longthink.layers.causal import CausalRelativeAttention
from longthink.layers.decoder import PeriNormLayer, PreNormLayer, Updated, joined
from longthink.layers.experts import Experts
from longthink.layers.feedforward import feedforward as make_feedforward
from longthink.layers.switch_head import SwitchHead
from longthink.models.base import check_rows, models
from longthink.think import in_layer

Memory: TypeAlias = tuple[Tensor, ...]
"""The inputs of every layer application, [batch, positions, width] each, without history. As in the public code it
holds what was really seen and no zeros: before the first block nothing, and it grows until it is full."""

_KNOW_THE_DEPTH = ("experts", "product_keys")  # kinds whose first weights depend on the number of layers


class Context(NamedTuple):
    """A block of text and what came before it."""

    x: Tensor  # [batch, time, width]
    memory: Memory | None = None
    """None where nobody asked to remember, () before the first block."""


class Columns(NamedTuple):
    """The state after some steps."""

    h: Tensor  # [batch, time, width]
    next: int
    """How many steps were taken."""
    seen: Memory = ()
    """The inputs of each layer application of this block; zeros where it was not applied yet."""
    balance: Tensor | None = None
    """What sparse feed-forward layers have asked for in the loss so far, while training: [batch]."""
    chances: tuple[Tensor, ...] = ()
    """MoEUT, while training: how likely each layer's selectors chose each expert, summed over columns and steps."""


@models.add("language")
class Language(nn.Module):
    """A Transformer that predicts the next token at every position of a text.

    ``distinct_steps`` layers with weights of their own, or a ``group`` of shared ones that is meant to be applied
    ``planned_steps`` times (this scales the first weights, and is how many steps a memory has). Norms are "pre" or
    "peri" (MoEUT: SwitchHead attention and experts, ``attention_options`` experts, k and expert_dropout).

    ``memory`` positions before a block are seen in training, ``evaluation_memory`` in evaluation: where nothing is
    said, four times as many, as published, or with "peri" as many as in training. What layers note is that of a step's
    last layer; that of the others in a group is called "layer1.experts", "layer2.experts", ...
    """

    compiled_part = "apply_layer"  # all layers are compiled as one
    worth_compiling = True

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        width: int = 512,
        hidden: int = 2048,
        heads: int = 8,
        head_size: int | None = None,
        distinct_steps: int | None = None,
        group: int = 1,
        planned_steps: int = 1,
        memory: int = 0,
        evaluation_memory: int | None = None,
        norm: Literal["pre", "peri"] = "pre",
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        attention_options: dict[str, Any] | None = None,
        attention_balance: float = 1e-3,
        feedforward: str = "dense",
        feedforward_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        _check(width, distinct_steps, group, planned_steps, memory, evaluation_memory, norm, attention_options)
        self.width, self.group, self.max_steps = width, group, distinct_steps
        self.depth = distinct_steps or group * planned_steps
        self.memory = memory
        self.dropout, self.attention_balance = dropout, attention_balance
        self.sparse, self.peri = feedforward != "dense", norm == "peri"
        if self.peri and feedforward != "experts":  # before anyone complains about the experts' options
            raise UserError(f"norm='peri' needs feedforward='experts', not {feedforward!r}.")
        if evaluation_memory is None:  # rotary positions are lost beyond the distances that they were trained on
            evaluation_memory = memory if self.peri else 4 * memory
        self.evaluation_memory = evaluation_memory

        def layer() -> nn.Module:
            options = {"dropout": dropout} if feedforward == "dense" else {}
            options |= {"layers": self.depth} if feedforward in _KNOW_THE_DEPTH else {}
            part = make_feedforward(feedforward, width, hidden, options, feedforward_options)
            if not self.peri:
                relative = CausalRelativeAttention(width, heads, head_size, attention_dropout)
                _initialise([*relative.modules(), *part.modules()], self.depth)
                return PreNormLayer(width, relative, part, dropout)
            assert isinstance(part, Experts)
            if part.balance not in (None, balances["entropy"]):
                raise UserError("norm='peri' balances all repeats of a layer together, by entropy: leave out balance.")
            mixed = _switch_head(width, heads, head_size, attention_dropout, self.depth, attention_options or {})
            return PeriNormLayer(width, mixed, part, dropout)

        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(layer() for _ in range(distinct_steps or group))
        self.norm_output = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        if self.peri:
            nn.init.normal_(self.embedding.weight, std=width**-0.5)
        else:
            nn.init.xavier_uniform_(self.embedding.weight)
        self.embedding_scale = 1.0 if self.peri else math.sqrt(width)

    def look(self, x: Tensor | tuple[Tensor, Memory | None]) -> Context:
        """Tokens [batch, time], or a pair of tokens and what ``remember`` gave after the block before (or None)."""
        tokens, memory = (x, None) if isinstance(x, Tensor) else (x[0], x[1] or ())
        check_rows(tokens)
        if tokens.numel() == 0:
            raise UserError(f"A block of text is [batch, time] with 1 token or more, not {list(tokens.shape)}.")
        if memory and (len(memory) != self.depth or len(memory[0]) != len(tokens)):
            raise UserError(
                f"This memory is of {len(memory)} layers and {len(memory[0])} texts; "
                f"{self.depth} and {len(tokens)} are needed: start again with None."
            )
        embedded = F.dropout(self.embedding(tokens), self.dropout, self.training)
        return Context(embedded * self.embedding_scale, memory)

    def start(self, context: Context) -> Columns:
        x, asks = context.x, self.sparse and self.training
        nothing = x.new_zeros(1, 1, 1).expand_as(x)  # takes no room
        seen = () if context.memory is None else (nothing,) * self.depth
        zero = x.new_zeros(len(x), dtype=torch.float32) if asks and not self.peri else None
        return Columns(x, 0, seen, zero, self._no_chances(x) if asks and self.peri else ())

    def step(self, state: Columns, context: Context) -> Columns:
        h, steps, seen, balance, chances = state
        first = steps if self.max_steps is not None else steps * self.group
        if context.memory is not None and first + self.group > self.depth:
            raise UserError(
                f"The memory holds {self.depth} layers, which {self._planned}; planned_steps sets how many."
            )
        for i in range(self.group):
            place = first + i
            if context.memory is not None:
                seen = (*seen[:place], h.detach(), *seen[place + 1 :])
            which = place if self.max_steps is not None else i
            remembered = context.memory[place] if context.memory else None
            with nullcontext() if i == self.group - 1 else in_layer(i + 1):
                h, asked, more = self.apply_layer(self.layers[which], h, remembered)
            balance = None if balance is None else balance + asked
            if chances:
                own = which * len(more)  # each layer has as many selectors
                added = tuple(a + b for a, b in zip(chances[own : own + len(more)], more, strict=True))
                chances = (*chances[:own], *added, *chances[own + len(more) :])
        return Columns(h, steps + 1, seen, balance, chances)

    @property
    def _planned(self) -> str:
        steps = self.depth // self.group
        return f"take {steps} steps, no more and no fewer" if steps > 1 else "take 1 step"

    def apply_layer(self, layer: nn.Module, h: Tensor, memory: Tensor | None) -> Updated:
        updated: Updated = layer(h, memory)
        return updated

    def read(self, state: Columns, context: Context) -> Tensor:
        """[batch, classes, time]."""
        normal = F.dropout(self.norm_output(state.h), self.dropout, self.training)
        return self.head(normal).transpose(1, 2)

    @torch.no_grad()
    def remember(self, state: Columns, context: Context) -> Memory:
        """What the next block may look back at: the last ``memory`` positions, ``evaluation_memory`` in evaluation."""
        if context.memory is None:
            raise UserError("Nothing was gathered for the next block; look at (tokens, memory), at first memory=None.")
        if state.next * self.group < self.depth:
            raise UserError(f"Only {state.next * self.group} of {self.depth} layers were applied; {self._planned}.")
        kept = self.memory if self.training else self.evaluation_memory
        past: tuple[Tensor | None, ...] = context.memory or (None,) * self.depth
        if context.x.shape[1] >= kept:  # a block that fills the memory leaves nothing of the old one
            past = (None,) * self.depth
        parts = (joined(old, new) for old, new in zip(past, state.seen, strict=True))
        return tuple(part[:, max(0, part.shape[1] - kept) :] for part in parts)

    def penalty(self, state: Columns, context: Context) -> Tensor | None:
        """What sparse layers ask for in the loss."""
        if state.balance is not None:
            return state.balance.mean()
        if not state.chances:
            return None
        total = torch.zeros((), device=state.h.device)
        each = len(state.chances) // len(self.layers)  # the feed-forward selector first, then those of the attention
        for place, chance in enumerate(state.chances):
            layer = self.layers[place // each]
            assert isinstance(layer, PeriNormLayer)
            mixture = layer.feedforward
            asked = 0.0 if mixture.balance is None else mixture.balance_weight
            total = total + (self.attention_balance if place % each else asked) * negative_entropy(chance)
        return total

    def _no_chances(self, x: Tensor) -> tuple[Tensor, ...]:
        """Zeros of the shapes that the selectors of the layers fill."""
        shapes: list[tuple[int, ...]] = []
        for layer in self.layers:
            assert isinstance(layer, PeriNormLayer)
            head = layer.attention
            shapes += [(layer.feedforward.selection.experts,)]
            shapes += [(head.heads, head.experts)] * (2 if head.experts > 1 else 0)
        return tuple(x.new_zeros(len(x), *shape, dtype=torch.float32) for shape in shapes)


def negative_entropy(chances: Tensor) -> Tensor:
    """Of each sequence's mean choice over its columns and all repeats, then the mean over sequences (and heads).

    Unlike Eq. 7.20, which takes the mean choice of the whole batch in one layer.
    """
    tiny = torch.finfo(chances.dtype).tiny
    p = chances / chances.sum(-1, keepdim=True).clamp_min(tiny)  # of a layer that was not applied: zeros
    return (p * p.clamp_min(tiny).log()).sum(-1).mean()


@models.add("moeut")
def moeut(vocabulary: int, classes: int, **options: Any) -> Language:
    """MoEUT: a group of two shared layers with peri-layernorm, experts in the feed-forward part and in attention."""
    check_options("the model moeut", Language, options)
    usual = {"group": 2, "dropout": 0.0, "feedforward": "experts"}
    return Language(vocabulary, classes, **{**usual, **options, "norm": "peri"})


def _switch_head(
    width: int, heads: int, head_size: int | None, dropout: float, layers: int, options: dict[str, Any]
) -> SwitchHead:
    filled = ("width", "heads", "head_size", "dropout", "layers")
    check_options("MoEUT's attention", SwitchHead, options, filled)
    return SwitchHead(width, heads, head_size, dropout, layers=layers, **options)


@torch.no_grad()
def _initialise(modules: list[nn.Module], layers: int) -> None:
    """Every linear layer has variance 2 / (layers fan-in), cut at two deviations, as in the public code."""
    for module in modules:
        if not isinstance(module, nn.Linear):
            continue
        nn.init.trunc_normal_(module.weight)
        if not module.weight.is_meta:
            module.weight.mul_(math.sqrt(2 / (layers * module.in_features)) / module.weight.std())
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _check(
    width: int,
    distinct_steps: int | None,
    group: int,
    planned_steps: int,
    memory: int,
    evaluation_memory: int | None,
    norm: str,
    attention_options: dict[str, Any] | None,
) -> None:
    if width < 1:
        raise UserError(f"The width must be 1 or more, not {width}.")
    if distinct_steps is not None and distinct_steps < 1:
        raise UserError(f"distinct_steps must be 1 or more, not {distinct_steps}.")
    if group < 1 or planned_steps < 1:
        raise UserError(f"group ({group}) and planned_steps ({planned_steps}) must be 1 or more.")
    if distinct_steps is not None and (group, planned_steps) != (1, 1):
        raise UserError("Distinct layers are neither grouped nor repeated; leave out group and planned_steps.")
    if memory < 0 or (evaluation_memory or 0) < 0:
        raise UserError(f"A memory holds 0 positions or more, not {min(memory, evaluation_memory or 0)}.")
    if norm not in ("pre", "peri"):
        raise UserError(f"norm must be pre or peri, not {norm!r}.")
    if norm == "pre" and attention_options:
        raise UserError("Only norm='peri' has attention_options.")
