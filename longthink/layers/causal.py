"""Transformer-XL's attention: a block of text looks at itself, backwards only, and at a memory of what came before it.

Each kind takes what asks, [batch, n, width], and what is seen, [batch, m + n, width]: the memory and then the block
itself. Weights are noted as "attention" [batch, heads, n, m + n].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longthink.errors import UserError
from longthink.layers.positions import sinusoids
from longthink.ops.kept import kept, nothing_stays
from longthink.ops.relative import relative_read, visible_scores
from longthink.think import note, wanted


class CausalRelativeAttention(nn.Module):
    """Relative positions: the logit of key j for query i is s ((q_i + u) k_j + (q_i + v) P[j - i]).

    The scale s is learned, as in the public code of chapter 7. ``head_size`` need not divide the width: the published
    47M model has 10 heads of 41 channels in a width of 412.
    """

    def __init__(self, width: int, heads: int, head_size: int | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.channels, self.dropout = heads, channels_a_head(width, heads, head_size), dropout
        inner = heads * self.channels
        self.query = nn.Linear(width, inner, bias=False)
        self.key_value = nn.Linear(width, 2 * inner, bias=False)  # rows: head, key then value, channel
        self.merge = nn.Linear(inner, width, bias=False)
        self.position = nn.Linear(width, inner, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, self.channels))
        self.position_bias = nn.Parameter(torch.zeros(heads, self.channels))
        self.scale = nn.Parameter(torch.tensor([1 / math.sqrt(self.channels)]))
        self.farthest: int | None = None
        """Where training knew no larger distance, those that are count as this one (Transformer-XL's clamp_len)."""

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        (batch, n, width), total = x.shape, seen.shape[1]
        q = self.query(x).view(batch, n, self.heads, self.channels)
        content = (q + self.content_bias) * self.scale
        position = ((q + self.position_bias) * self.scale).transpose(1, 2)
        encoding = at_most(past_encoding(total, width, x.device), self.farthest).to(x.dtype)
        if n < self.channels // 2 and not torch.is_grad_enabled():
            read = self._few_read(content.transpose(1, 2), position, seen, encoding).transpose(1, 2)
        else:
            kv = self.key_value(seen).view(batch, total, self.heads, 2, self.channels)
            keys = self.position(encoding).view(total, self.heads, self.channels).permute(1, 2, 0)
            scores = position.to(keys.dtype) @ keys
            if wanted("attention") or (self.training and self.dropout):
                k, v = kv.permute(3, 0, 2, 1, 4)
                read = attend(content.transpose(1, 2).to(k.dtype), k, v, visible_scores(scores), self).transpose(1, 2)
            else:
                read = relative_read(content.to(kv.dtype), kv, scores)
        return self.merge(read.reshape(batch, n, -1))

    def _few_read(self, content: Tensor, position: Tensor, seen: Tensor, encoding: Tensor) -> Tensor:
        """The same for few queries, as when text is written token by token, in less time.

        Queries are taken back through the key matrices, (q W_k) x in place of q (W_k x), and values are projected
        after they are summed: the memory is not projected at all.
        """
        kind = seen.dtype
        key, value = self.key_value.weight.to(kind).view(self.heads, 2, self.channels, -1).unbind(1)
        place = self.position.weight.to(kind).view(self.heads, self.channels, -1)
        columns = seen[:, None]  # [batch, 1, total, width], the same for all heads
        bias = visible_scores(position.to(kind) @ place @ encoding.T)
        return attend(content.to(kind) @ key, columns, columns, bias, self) @ value.mT


def channels_a_head(width: int, heads: int, head_size: int | None) -> int:
    if heads < 1:
        raise UserError(f"Attention needs 1 head or more, not {heads}.")
    if head_size is None and width % heads:
        raise UserError(f"The width ({width}) must be a multiple of the number of heads ({heads}); or set head_size.")
    if head_size is not None and head_size < 1:
        raise UserError(f"A head needs 1 channel or more, not {head_size}.")
    return head_size or width // heads


def past_encoding(total: int, width: int, device: torch.device) -> Tensor:
    """The encodings of the distances from -(total - 1) to 0: [total, width]."""
    if nothing_stays():
        return sinusoids(torch.arange(1 - total, 1, device=device), width)
    return _encoding(1 << (total - 1).bit_length(), width, device, torch.get_default_dtype())[-total:]


def at_most(encoding: Tensor, farthest: int | None) -> Tensor:
    """Encodings of distances up to 0, with that of the farthest one in place of those beyond."""
    beyond = 0 if farthest is None else len(encoding) - 1 - farthest
    return encoding if beyond <= 0 else torch.cat([encoding[beyond].expand(beyond, -1), encoding[beyond:]])


@kept
def _encoding(total: int, width: int, device: torch.device, kind: torch.dtype) -> Tensor:
    return sinusoids(torch.arange(1 - total, 1, device=device), width)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, module: nn.Module) -> Tensor:
    """softmax(q k + bias) v: [batch, heads, n, channels]. The module says how much dropout falls on the weights."""
    k, v = k.expand(-1, q.shape[1], -1, -1), v.expand(-1, q.shape[1], -1, -1)
    dropout = float(module.dropout) if module.training else 0.0  # type: ignore[arg-type]
    if wanted("attention"):
        weights = (q @ k.transpose(-1, -2) + bias).softmax(-1)
        note("attention", weights)
        return F.dropout(weights, dropout) @ v
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), dropout_p=dropout, scale=1.0)
