"""Layers of a language model: pre-norm as in chapter 7, and the peri-layernorm of MoEUT.

Both take a block [batch, n, width] and a memory [batch, m, width] of the same layer's inputs before it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from longthink.layers.causal import CausalRelativeAttention
from longthink.layers.dropout import dropout
from longthink.layers.experts import Experts
from longthink.layers.feedforward import FeedForward
from longthink.layers.switch_head import SwitchHead


class Updated(NamedTuple):
    """What a layer makes of a block."""

    h: Tensor  # [batch, n, width]
    balance: Tensor
    """What its feed-forward part asks for in the loss, already weighted: a scalar."""
    chances: tuple[Tensor, ...] = ()
    """Of each selector whose balance is judged over all repeats of the layer: its softmax summed over the block,
    [batch, ..., experts]."""


class PreNormLayer(nn.Module):
    """h + attention(norm(h)), then h + feedforward(norm(h)); the memory is normalised with today's weights."""

    def __init__(
        self, width: int, attention: CausalRelativeAttention, feedforward: FeedForward, dropout: float
    ) -> None:
        super().__init__()
        self.attention, self.feedforward, self.dropout = attention, feedforward, dropout
        self.norm_attention, self.norm_feedforward = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Updated:
        normal = self.norm_attention(joined(memory, x))
        x = x + self._drop(self.attention(normal[:, -x.shape[1] :], normal))
        update, balance = self.feedforward.forward_with_balance(self.norm_feedforward(x))
        return Updated(x + self._drop(update), balance)

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)


class PeriNormLayer(nn.Module):
    """MoEUT's layer: norms stand before whatever ends in a softmax or sigmoid, and the residual stream stays raw.

    Only attention and selectors see normalised columns; the values and the experts get the columns themselves.
    """

    def __init__(self, width: int, attention: SwitchHead, feedforward: Experts, dropout: float) -> None:
        super().__init__()
        self.attention, self.feedforward, self.dropout = attention, feedforward, dropout
        self.norm_attention, self.norm_feedforward = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Updated:
        raw = joined(memory, x)
        read, chances = self.attention(self.norm_attention(raw), raw, x.shape[1])
        x = x + dropout(read, self.dropout, self.training)
        chosen = self.feedforward.selection(self.norm_feedforward(x))
        x = x + self.feedforward.mix(x, chosen)
        mean = chosen.logits.softmax(-1).sum(1)
        return Updated(x, torch.zeros((), device=x.device), (mean, *chances))


def joined(memory: Tensor | None, x: Tensor) -> Tensor:
    return x if memory is None or memory.shape[1] == 0 else torch.cat([memory.to(x.dtype), x], 1)
