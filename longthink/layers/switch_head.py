"""SwitchHead, the attention of MoEUT: values and outputs of each head are mixtures of experts, positions are rotary."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longthink.errors import UserError, checked
from longthink.layers.causal import attend, channels_a_head
from longthink.layers.dropout import keep_mask
from longthink.ops.cvmm import cvmm
from longthink.ops.kernels import precise
from longthink.ops.largest import largest_sigmoids
from longthink.ops.relative import may_see
from longthink.think import note, wanted


class SwitchHead(nn.Module):
    """Queries, keys and selectors read the normalised columns, values the raw ones (peri-layernorm).

    With ``experts=1`` values and outputs are dense and the output selector is a gate of each head. Rotary positions
    turn the first half of a head's channels.
    """

    @checked("MoEUT's attention")
    def __init__(
        self,
        width: int,
        heads: int,
        head_size: int | None = None,
        dropout: float = 0.0,
        experts: int = 1,
        k: int = 2,
        expert_dropout: float = 0.0,
        layers: int = 1,
    ) -> None:
        super().__init__()
        self.heads, self.channels, self.dropout = heads, channels_a_head(width, heads, head_size), dropout
        if experts < 1:
            raise UserError(f"An attention head needs 1 expert or more, not {experts}.")
        if experts > 1 and not 1 <= k <= experts:
            raise UserError(f"Each head uses between 1 and all {experts} experts, not {k}.")
        if width < 1 or layers < 1:
            raise UserError(f"The width ({width}) and the number of layers ({layers}) must be 1 or more.")
        self.turned = self.channels // 4 * 2  # half of the channels, in pairs
        self.experts, self.k, self.expert_dropout = experts, k if experts > 1 else 1, expert_dropout
        inner, sparse = heads * self.channels, experts > 1
        self.query, self.key = (nn.Linear(width, inner, bias=False) for _ in range(2))
        # Rows of selectors and matrices of experts are in order of head, then expert.
        self.value = nn.Parameter(
            torch.empty(heads * experts, width, self.channels) if sparse else torch.empty(inner, width)
        )
        self.merge = nn.Parameter(
            torch.empty(heads * experts, self.channels, width) if sparse else torch.empty(width, inner)
        )
        self.value_selector = nn.Parameter(torch.empty(heads * experts, width)) if sparse else None
        self.merge_selector = nn.Parameter(torch.empty(heads * experts, width))
        self._initialise(width, math.sqrt(2 / layers))

    @torch.no_grad()
    def _initialise(self, width: int, gain: float) -> None:
        for weight in (self.query.weight, self.key.weight, self.value):
            nn.init.normal_(weight, std=gain / math.sqrt(width))
        nn.init.normal_(self.merge, std=gain / math.sqrt(self.heads * self.channels))
        for selector in (self.value_selector, self.merge_selector):
            if selector is not None:  # rows of equal length: at first only the angle decides (section 7.4)
                nn.init.normal_(selector)
                selector.copy_(F.normalize(selector, dim=1) * gain)

    def forward(self, normal: Tensor, raw: Tensor, n: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What the last ``n`` columns of [batch, m + n, width] read, and the mean softmax of each selector.

        The latter is [batch, heads, experts], summed over the n columns: what the balancing loss needs.
        """
        batch, total, width = raw.shape
        new = normal[:, total - n :]
        q = self._turn(self.query(new).view(batch, n, self.heads, -1).transpose(1, 2), total - n)
        k = self._turn(self.key(normal).view(batch, total, self.heads, -1).transpose(1, 2), 0)
        mask = torch.zeros(n, total, dtype=q.dtype, device=q.device)
        mask = mask.masked_fill(~may_see(n, total, q.device), -torch.inf)
        q = q / math.sqrt(self.channels)
        if self.value_selector is None:
            v = F.linear(raw, self.value).view(batch, total, self.heads, -1).transpose(1, 2)
            read = attend(q, k, v, mask, self).transpose(1, 2)  # [batch, n, heads, channels]
            gate = F.linear(new, self.merge_selector).sigmoid()
            return F.linear((read * gate[..., None]).flatten(2), self.merge), ()
        value = self._choose(normal, self.value_selector)
        output = self._choose(new, self.merge_selector)
        v = cvmm(raw.flatten(0, 1), value.experts, self.value)  # [tokens, heads * k, channels]
        v = (v * value.gates[..., None]).view(batch, total, self.heads, self.k, -1).sum(3).transpose(1, 2)
        read = attend(q, k, v.to(k.dtype), mask, self).transpose(1, 2).flatten(0, 1)  # [tokens, heads, channels]
        read = read.repeat_interleave(self.k, 1)
        y = cvmm((read * output.gates[..., None]).to(read.dtype), output.experts, self.merge).sum(1)
        if wanted("head_experts"):
            note("head_experts", output.experts.view(batch, n, self.heads, self.k))
        return y.view(batch, n, width), (_mean_choice(output, n), _mean_choice(value, n))

    def extra_repr(self) -> str:
        sizes = f"heads={self.heads}, head_size={self.channels}, experts={self.experts}, k={self.k}"
        return f"{sizes}, dropout={self.dropout}, expert_dropout={self.expert_dropout}"

    def _choose(self, x: Tensor, selector: Tensor) -> _Choice:
        product = F.linear(x, selector).unflatten(-1, (self.heads, self.experts))
        drops = self.training and self.expert_dropout
        kept = keep_mask((self.heads, self.experts), self.expert_dropout, x.device) if drops else None
        chosen, gates = largest_sigmoids(product, self.k, kept)
        first = self.experts * torch.arange(self.heads, device=x.device)
        experts = (chosen + first[:, None]).flatten(2).flatten(0, 1)
        return _Choice(experts, gates.flatten(2).flatten(0, 1), precise(product))

    def _turn(self, x: Tensor, first: int) -> Tensor:
        return torch.cat([rotated(x[..., : self.turned], first), x[..., self.turned :]], -1)


class _Choice:
    """Experts and gates [tokens, heads * k], and the selector's logits [batch, n, heads, experts]."""

    def __init__(self, experts: Tensor, gates: Tensor, logits: Tensor) -> None:
        self.experts, self.gates, self.logits = experts, gates, logits


def _mean_choice(choice: _Choice, n: int) -> Tensor:
    return choice.logits[:, -n:].softmax(-1).sum(1)


def rotated(x: Tensor, first: int, base: float = 10_000.0) -> Tensor:
    """Rotary positions of [..., n, channels], whose positions count from ``first``: channel i turns with i + half."""
    half = x.shape[-1] // 2
    frequency = base ** (-torch.arange(half, device=x.device, dtype=torch.double) / half)
    angle = torch.arange(first, first + x.shape[-2], device=x.device)[:, None] * frequency
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)
