"""Attention kinds of the seed's Transformers, all with the same interface.

Each takes states [batch, n, width] and a padding mask [batch, n] (True: no token there) and returns what was read,
[batch, n, width]. Weights are noted as "attention" [batch, heads, n, n].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from longthink.errors import UserError
from longthink.layers.dropout import dropout
from longthink.layers.linear import Linear
from longthink.layers.positions import by_distance, relative_sinusoids, sinusoids
from longthink.layers.several import per_sample, repeated
from longthink.ops.biased import biased_read, softmax_weights
from longthink.ops.geometric import geometric_read, geometric_weights
from longthink.registry import Registry
from longthink.think import note, wanted

attentions: Registry[type[Attention]] = Registry("attention kind")


class Attention(nn.Module):
    """What the kinds share: projections, heads, the weighted sum, the merge."""

    learned_scale = False

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if width < 1 or heads < 1 or width % heads:
            raise UserError(f"The width ({width}) must be a multiple of the number of heads ({heads}).")
        self.heads, self.channels, self.dropout = heads, width // heads, dropout
        self.query = Linear(width, width, bias=False)
        self.key_value = Linear(width, 2 * width, bias=False)  # rows: head, key then value, channel
        self.merge = Linear(width, width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, self.channels))
        for part in (self.query, self.key_value):  # the merge keeps a linear layer's own, as in the public code
            nn.init.xavier_uniform_(part.weight)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries [batch, n, heads, channels], and keys and values [batch, n, heads, 2, channels]."""
        shape = (*x.shape[:2], self.heads)
        return self.query(x).view(*shape, self.channels), self.key_value(x).view(*shape, 2, self.channels)

    def dropped(self, q: Tensor) -> Tensor:
        """Dropout falls on queries, of content and of position alike (D.3.3)."""
        return dropout(q, self.dropout, self.training)

    def gather(self, weights: Tensor, v: Tensor) -> Tensor:
        """The weighted sum of values, heads merged."""
        note("attention", weights)
        batch, _, n, _ = v.shape
        return self.merge((weights.to(v.dtype) @ v).transpose(1, 2).reshape(batch, n, -1))


@attentions.add("absolute")
class AbsoluteAttention(Attention):
    """Scaled dot products; positions are part of the states."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__(width, heads, dropout)
        del self.content_bias

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        q, kv = self.split(x)
        q = self.dropped(q / math.sqrt(self.channels))
        if not wanted("attention"):
            return self.merge(biased_read(q, kv, None, padding).reshape(x.shape))
        k, v = kv.permute(3, 0, 2, 1, 4)
        return self.gather(softmax_weights(q.transpose(1, 2) @ k.transpose(-1, -2), padding), v)


@attentions.add("relative")
class RelativeAttention(Attention):
    """Transformer-XL's relative positions without the causal mask: distances count in both directions."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__(width, heads, dropout)
        self.position = Linear(width, width, bias=False)
        nn.init.xavier_uniform_(self.position.weight)
        self.position_bias = nn.Parameter(torch.zeros(heads, self.channels))
        if self.learned_scale:
            self.scale = nn.Parameter(torch.tensor([1 / math.sqrt(self.channels)]))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        q, kv = self.split(x)
        scale = per_sample(self.scale.to(q.dtype), q, 1) if self.learned_scale else 1 / math.sqrt(self.channels)
        content = self.dropped((q + per_sample(self.content_bias.to(q.dtype), q, 2)) * scale)
        bias = self.positional(x, self.dropped((q + per_sample(self.position_bias.to(q.dtype), q, 2)) * scale))
        if not wanted("attention"):
            return self.merge(biased_read(content, kv, bias, padding).reshape(x.shape))
        k, v = kv.permute(3, 0, 2, 1, 4)
        return self.gather(softmax_weights(content.transpose(1, 2) @ k.transpose(-1, -2) + bias, padding), v)

    def positional(self, x: Tensor, q: Tensor) -> Tensor:
        """Scores of each query for each key [batch, heads, n, n], of queries [batch, n, heads, channels]."""
        return by_distance(self._scores(q, relative_sinusoids(x.shape[1], x.shape[2], x.device), x))

    def _scores(self, q: Tensor, encoding: Tensor, x: Tensor) -> Tensor:
        """How well queries match encodings: [batch, heads, n, positions]."""
        keys = self.position(repeated(encoding.to(x.dtype), self.position.weight, 2))
        keys = keys.unflatten(-1, (self.heads, self.channels)).movedim(-3, -1)  # [heads, channels, positions]
        if keys.dim() == 3:  # as one product a head; matmul would copy the keys for every sample
            return torch.einsum("bnhc,hcp->bhnp", q, keys)
        return torch.einsum("sbnhc,shcp->sbhnp", q.unflatten(0, (len(keys), -1)), keys).flatten(0, 1)


@attentions.add("gated_positions")
class GatedPositionAttention(RelativeAttention):
    """Each query chooses between relative and absolute positions (Eq. D.6 and D.7)."""

    learned_scale = True

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__(width, heads, dropout)
        self.choice = Linear(width, heads)

    def positional(self, x: Tensor, q: Tensor) -> Tensor:
        absolute = self._scores(q, sinusoids(torch.arange(x.shape[1], device=x.device), x.shape[2]), x)
        relative = super().positional(x, q)
        r = self.choice(x).sigmoid().transpose(1, 2)[..., None]  # Eq. D.6: 1 for relative
        return r * relative + (1 - r) * absolute


@attentions.add("geometric")
class GeometricAttention(Attention):
    """The closest key that matches (Eq. 5.6-5.10). Dropout falls on the content query (D.3.3)."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__(width, heads, dropout)
        nn.init.xavier_uniform_(self.merge.weight)
        self.direction = Linear(width, 2 * heads)  # rows: head, then keys before and keys after; Eq. 5.9
        self.scale = nn.Parameter(torch.tensor([1 / math.sqrt(self.channels)]))  # alpha of Eq. 5.10
        self.direction_scale = nn.Parameter(torch.ones(1))  # beta
        self.bias = nn.Parameter(torch.zeros(1))  # gamma

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        q, kv = self.split(x)
        q = (q + per_sample(self.content_bias.to(q.dtype), q, 2)) * per_sample(self.scale.to(q.dtype), q, 1)
        q = self.dropped(q)
        sides = self.direction(x).view(*q.shape[:3], 2)
        sides = sides * per_sample(self.direction_scale.to(sides.dtype), sides, 1) + per_sample(
            self.bias.to(sides.dtype), sides, 1
        )
        if not wanted("attention"):
            return self.merge(geometric_read(q, kv, sides, padding).reshape(x.shape))
        k, v = kv.permute(3, 0, 2, 1, 4)
        logits = q.transpose(1, 2) @ k.transpose(-1, -2)
        return self.gather(geometric_weights(logits, sides.transpose(1, 2), padding), v)
