"""Terms of the loss that keep all experts of a mixture in use: each takes a choice and gives a scalar."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from longthink.layers.selection import Chosen
from longthink.registry import Registry

balances: Registry[Callable[[Chosen], Tensor]] = Registry("balancing loss")


@balances.add("entropy")
def entropy(chosen: Chosen) -> Tensor:
    """Negative entropy of the mean softmax over all tokens (Eq. 7.19 and 7.20): -log(experts) at best."""
    each = chosen.logits.flatten(0, -2).log_softmax(-1)
    log_p = each.logsumexp(0) - math.log(len(each))
    return (log_p.exp() * log_p).sum()


@balances.add("switch")
def switch(chosen: Chosen) -> Tensor:
    """N_E f . p, with f the tokens an expert gets and p its mean score (Eq. 7.14-7.16): k at best for a softmax."""
    experts = chosen.scores.shape[-1]
    p = chosen.scores.flatten(0, -2).mean(0)
    return experts * usage(chosen).mean(0).to(p.dtype) @ p


@balances.add("variation")
def variation(chosen: Chosen) -> Tensor:
    """Squared coefficient of variation of the experts' summed gates (Eq. 7.13): zero at best.

    The text prints mean over deviation, which would reward collapse; this is Shazeer's deviation over mean, squared as
    in their paper, which also keeps the gradient finite when all experts are used alike.
    """
    experts = chosen.scores.shape[-1]
    total = chosen.gates.new_zeros(experts).index_put(
        (chosen.experts.flatten(),), chosen.gates.flatten(), accumulate=True
    )
    return total.var(correction=0) / total.mean().square().clamp_min(torch.finfo(total.dtype).tiny)


def usage(chosen: Chosen) -> Tensor:
    """The fraction of each sample's tokens that go to each expert: [batch, experts]. Rows sum to k."""
    batch, experts = len(chosen.scores), chosen.scores.shape[-1]
    routes = chosen.experts.reshape(batch, -1)
    counts = torch.zeros(batch, experts, device=routes.device).scatter_add(
        1, routes, torch.ones_like(routes, dtype=torch.float)
    )
    return counts * chosen.experts.shape[-1] / max(1, routes.shape[1])
