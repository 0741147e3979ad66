"""Geometric attention in log space with PyTorch's own operations: any device, any length.

Each row is put into the order in which the query meets the keys: i + 1, i - 1, i + 2, i - 2, ... (right first). The
product over the closer keys is then one running sum of log(1 - P), with no differences of large sums.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from longthink.ops.kept import kept


def plain_weights(logits: Tensor, direction: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
    n = logits.shape[-1]
    if n < 2:  # nobody to look at
        nothing = _without_values(logits)
        return nothing if direction is None else nothing + _without_values(direction[..., :1]).to(logits.dtype)
    near, rank, exists = _orders(n, logits.device)
    kind = torch.promote_types(logits.dtype, torch.float32)
    x = logits.to(kind)
    if direction is not None:
        x = x + torch.where(_after(n, logits.device), direction[..., 1:].to(kind), direction[..., :1].to(kind))
    ordered = x.gather(-1, near.expand(*x.shape[:-1], -1))
    present = exists
    if padding is not None:
        present = exists & ~padding[:, None, :].expand(-1, n, -1).gather(-1, near.expand(len(padding), -1, -1))[:, None]
    log_p = F.logsigmoid(ordered)
    log_rest = torch.where(present, F.logsigmoid(-ordered), 0.0)  # log(1 - P); what is not there never matches
    passed = F.pad(log_rest[..., :-1].cumsum(-1), (1, 0))  # over the closer keys alone
    weights = torch.where(present, (log_p + passed).exp(), 0.0)
    back = weights.gather(-1, rank.expand(*x.shape[:-1], -1))
    return back.masked_fill(torch.eye(n, dtype=torch.bool, device=x.device), 0.0).to(logits.dtype)


def plain_read(
    q: Tensor,
    kv: Tensor,
    direction: Tensor | None = None,
    padding: Tensor | None = None,
    weights: Callable[[Tensor, Tensor | None, Tensor | None], Tensor] = plain_weights,
) -> Tensor:
    queries, (keys, values) = q.transpose(1, 2), kv.to(q.dtype).permute(3, 0, 2, 1, 4)
    sides = None if direction is None else direction.transpose(1, 2)
    return (weights(queries @ keys.transpose(-1, -2), sides, padding).to(q.dtype) @ values).transpose(1, 2)


def _without_values(x: Tensor) -> Tensor:
    """Zeros that have a gradient, also where x is infinite."""
    return x.masked_fill(torch.ones_like(x, dtype=torch.bool), 0.0)


@kept
def _orders(n: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For each query: the key met at each rank [n, 2n - 2], the rank of each key [n, n], which ranks have a key."""
    i = torch.arange(n, device=device)[:, None]
    r = torch.arange(2 * n - 2, device=device)
    distance = r // 2 + 1
    key = torch.where(r % 2 == 0, i + distance, i - distance)
    exists = (key >= 0) & (key < n)
    j = torch.arange(n, device=device)
    rank = 2 * ((j - i).abs() - 1) + (j < i).long()
    return key.clamp(0, n - 1), rank.clamp_min(0), exists


@kept
def _after(n: int, device: torch.device) -> Tensor:
    i = torch.arange(n, device=device)
    return i[:, None] < i
