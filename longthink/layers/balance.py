"""Terms of the loss that keep all experts of a mixture in use: each takes a choice and gives a scalar."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from longthink.layers.pooled import log_sum, pooled, several
from longthink.layers.selection import Chosen
from longthink.registry import Registry

balances: Registry[Callable[[Chosen], Tensor]] = Registry("balancing loss")
_NOTHING = -1e4
"""Log of a chance that is zero in every precision."""


@balances.add("entropy")
def entropy(chosen: Chosen) -> Tensor:
    """Negative entropy of the mean softmax over all tokens (Eq. 7.19 and 7.20): -log(experts) at best."""
    each = chosen.logits.flatten(0, -2).log_softmax(-1)
    if chosen.there is not None:
        each = each.masked_fill(~chosen.there.flatten()[:, None], -torch.inf)
    number = _number(chosen)
    log_number = number.log() if isinstance(number, Tensor) else math.log(number)
    log_p = log_sum(each, chosen.training) - log_number
    return (log_p.exp() * log_p.clamp_min(_NOTHING)).sum()  # 0 log 0 = 0, where there are no tokens


@balances.add("switch")
def switch(chosen: Chosen) -> Tensor:
    """N_E f . p, with f the tokens an expert gets and p its mean score (Eq. 7.14-7.16): k at best for a softmax."""
    counted = _counted(chosen)
    number = _number(chosen)
    p = pooled((chosen.scores * counted[..., None]).flatten(0, -2).sum(0), chosen.training) / number
    f = pooled((usage(chosen) * counted.sum(1, keepdim=True)).sum(0), chosen.training) / number
    return chosen.number_of_experts * f @ p


@balances.add("variation")
def variation(chosen: Chosen) -> Tensor:
    """Squared coefficient of variation of the experts' summed gates (Eq. 7.13): zero at best.

    The text prints mean over deviation, which would reward collapse; this is Shazeer's deviation over mean, squared as
    in their paper, which also keeps the gradient finite when all experts are used alike.
    """
    gates = chosen.gates if chosen.there is None else chosen.gates * chosen.there[..., None]
    own = gates.new_zeros(chosen.number_of_experts).index_put(
        (chosen.experts.flatten(),), gates.flatten(), accumulate=True
    )
    total = pooled(own, chosen.training)
    return total.var(correction=0) / total.mean().square().clamp_min(torch.finfo(total.dtype).tiny)


def usage(chosen: Chosen) -> Tensor:
    """The fraction of each sample's tokens that go to each expert: [batch, experts]. Rows sum to k."""
    weight = _counted(chosen)
    routes = chosen.experts.flatten(1)
    each = weight[..., None].expand(chosen.experts.shape).flatten(1)
    counts = each.new_zeros(len(each), chosen.number_of_experts).scatter_add(1, routes, each)
    return counts / weight.sum(1, keepdim=True).clamp_min(1)


def _number(chosen: Chosen) -> Tensor | int:
    """Of tokens, on all devices, at least 1; a plain number costs no kernels."""
    gates, there = chosen.gates, chosen.there
    own = gates[..., 0].numel()
    if there is None and not several(chosen.training):
        return max(1, own)
    here = gates.new_full((), own) if there is None else there.sum().to(gates.dtype)
    return pooled(here, chosen.training).clamp_min(1)


def _counted(chosen: Chosen) -> Tensor:
    """1 for each token and 0 for padding: [batch, n]."""
    kind = chosen.gates.dtype
    return torch.ones_like(chosen.experts[..., 0], dtype=kind) if chosen.there is None else chosen.there.to(kind)
