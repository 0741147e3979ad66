"""How a mixture chooses the experts of each token, and how much each of them counts (sections 7.3 and 7.4).

A kind says three things: the scores sel(x) of all experts, what the top-k ranks, and the gates s[e] of those chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longthink.errors import UserError, checked, describe
from longthink.layers.dropout import keep_mask
from longthink.layers.feedforward import check_tokens
from longthink.layers.pooled import log_sum, pooled, several
from longthink.ops.kernels import precise
from longthink.ops.largest import largest, largest_sigmoids
from longthink.registry import Registry

selections: Registry[type[Selection]] = Registry("selection of experts")


class Chosen(NamedTuple):
    """The choice for each token."""

    experts: Tensor  # [batch, n, k]
    gates: Tensor  # [batch, n, k]: s[e] of Eq. 7.11
    product: Tensor  # [batch, n, experts]: W3 x in the precision of the product
    seen: Tensor  # [batch, n, experts]: the same with its noise, where there is any
    score: Callable[[Tensor], Tensor]
    there: Tensor | None = None  # [batch, n]: False at padding, which is not counted; None where there is none
    training: bool = False  # then other devices may have the rest of the batch

    # Computed for those who ask: most do not.

    @property
    def logits(self) -> Tensor:
        """W3 x: [batch, n, experts]."""
        return precise(self.product)

    @property
    def scores(self) -> Tensor:
        """sel(x), as if no expert were dropped: [batch, n, experts]."""
        return self.score(precise(self.seen))

    @property
    def number_of_experts(self) -> int:
        return self.product.shape[-1]


class Selection(nn.Module):
    """What the kinds share: the selector's weights, expert dropout, the top-k.

    Expert dropout takes experts away from all tokens of one call, without rescaling the others (Eq. 7.21); devices that
    share a batch drop experts of their own.
    """

    @checked("a selection of experts")
    def __init__(self, width: int, experts: int, k: int, expert_dropout: float = 0.0) -> None:
        super().__init__()
        if width < 1:
            raise UserError(f"A mixture needs a width of 1 or more, not {width}.")
        if experts < 1:
            raise UserError(f"A mixture needs 1 expert or more, not {experts}.")
        if not 1 <= k <= experts:
            raise UserError(f"Each token goes to between 1 and all {experts} experts, not {k}.")
        self.experts, self.k, self.expert_dropout = experts, k, expert_dropout
        self.weight = nn.Parameter(torch.empty(experts, width))
        self.initialise(width**-0.5)

    @torch.no_grad()
    def initialise(self, std: float, equal_norms: bool = True) -> None:
        """Normal with ``std``; rows of equal length let only the angle to x decide at first (section 7.4)."""
        nn.init.normal_(self.weight, std=std)
        if equal_norms:
            length = std * math.sqrt(self.weight.shape[1])
            self.weight.copy_(F.normalize(self.weight, dim=1) * length)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Chosen:
        """``padding`` [batch, n] is True where there is no token: these get experts too, and count for nobody else."""
        check_tokens(x, self.weight.shape[1], padding)
        there = None if padding is None else ~padding
        product = F.linear(x, self.weight)
        seen = self.noisy(x, product)
        experts, gates = self.choose(seen, self._kept(seen), there)
        return Chosen(experts, gates, product, seen, self.scores, there, self.training)

    def choose(self, seen: Tensor, kept: Tensor | None, there: Tensor | None) -> tuple[Tensor, Tensor]:
        """Experts and gates: [batch, n, k]."""
        logits = precise(seen)
        scores = self.scores(logits)
        ranking = self.ranking(logits.detach(), scores.detach(), there)
        if kept is not None:
            ranking = ranking.masked_fill(~kept, -torch.inf)
        experts = largest(ranking, self.k)
        return experts, self.gates(logits, scores, experts, None if kept is None else kept[experts], there)

    def noisy(self, x: Tensor, product: Tensor) -> Tensor:
        return product

    def scores(self, logits: Tensor) -> Tensor:
        raise NotImplementedError

    def ranking(self, logits: Tensor, scores: Tensor, there: Tensor | None) -> Tensor:
        """What the top-k looks at; no gradient passes."""
        return scores

    def gates(
        self, logits: Tensor, scores: Tensor, experts: Tensor, kept: Tensor | None, there: Tensor | None
    ) -> Tensor:
        """[batch, n, k]; ``kept`` is False for those dropped experts that had to fill up the k; None: none was."""
        chosen = scores.gather(-1, experts)
        return chosen if kept is None else chosen * kept

    def _kept(self, logits: Tensor) -> Tensor | None:
        """m of Eq. 7.21: [experts]; None where no expert is dropped."""
        if not (self.training and self.expert_dropout):
            return None
        return keep_mask((self.experts,), self.expert_dropout, logits.device)

    def extra_repr(self) -> str:
        sizes = f"width={self.weight.shape[1]}, experts={self.experts}, k={self.k}"
        return f"{sizes}, expert_dropout={self.expert_dropout}"


describe(Selection, "a selection such as selections['sigmoid'](64, 16, 4)")


@selections.add("sigmoid")
class Sigmoid(Selection):
    """sigma-MoE: experts do not compete (section 7.4)."""

    def scores(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def choose(self, seen: Tensor, kept: Tensor | None, there: Tensor | None) -> tuple[Tensor, Tensor]:
        return largest_sigmoids(seen, self.k, kept)


@selections.add("softmax")
class Softmax(Selection):
    """Softmax over all experts, then top-k, nothing renormalised."""

    def scores(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)


@selections.add("softmax_renormalised")
class SoftmaxRenormalised(Softmax):
    """Softmax over all experts, then top-k, divided by the sum of the k (Eq. F.3)."""

    def gates(
        self, logits: Tensor, scores: Tensor, experts: Tensor, kept: Tensor | None, there: Tensor | None
    ) -> Tensor:
        chosen = super().gates(logits, scores, experts, kept, there)
        return chosen / chosen.sum(-1, keepdim=True).clamp_min(torch.finfo(chosen.dtype).tiny)


@selections.add("softmax_after")
class SoftmaxAfter(Softmax):
    """Top-k of the logits, then softmax over the k: the same numbers as renormalising (section 7.2.3, footnote 4)."""

    def gates(
        self, logits: Tensor, scores: Tensor, experts: Tensor, kept: Tensor | None, there: Tensor | None
    ) -> Tensor:
        chosen = logits.gather(-1, experts)
        if kept is None:
            return chosen.softmax(-1)
        return chosen.masked_fill(~kept, torch.finfo(logits.dtype).min).softmax(-1) * kept


@selections.add("noisy")
class Noisy(SoftmaxAfter):
    """Sparsely gated mixtures (Shazeer 2017): learned noise on the logits while training, softmax over the k."""

    @checked("the selection 'noisy'")
    def __init__(self, width: int, experts: int, k: int, expert_dropout: float = 0.0) -> None:
        super().__init__(width, experts, k, expert_dropout)
        self.noise = nn.Parameter(torch.zeros(experts, width))  # W4; zero as in their paper: equal noise at first
        self.draws_numbers = True

    def noisy(self, x: Tensor, product: Tensor) -> Tensor:
        if not self.training:
            return product
        logits = precise(product)
        return logits + torch.randn_like(logits) * F.softplus(F.linear(x, self.noise).to(logits.dtype))


@selections.add("switch")
class Switch(Softmax):
    """Switch Transformer: softmax, then usually top-1, and optionally a hard limit on an expert's tokens.

    With ``capacity`` mu an expert takes, while training, at most mu k tokens / experts of them (one at least): those
    that like it best come first, in their order in the batch; the others get nothing from it. A token's output then
    depends on the rest of the batch, in a text on what comes later; so there is no limit in evaluation.
    """

    @checked("the selection 'switch'")
    def __init__(
        self, width: int, experts: int, k: int = 1, expert_dropout: float = 0.0, capacity: float | None = None
    ) -> None:
        super().__init__(width, experts, k, expert_dropout)
        if capacity is not None and not (math.isfinite(capacity) and capacity > 0):
            raise UserError(f"The capacity factor must be a number above 0, not {capacity}.")
        self.capacity = capacity

    def gates(
        self, logits: Tensor, scores: Tensor, experts: Tensor, kept: Tensor | None, there: Tensor | None
    ) -> Tensor:
        chosen = super().gates(logits, scores, experts, kept, there)
        if self.capacity is None or not self.training:
            return chosen
        # Padding waits in a queue of its own.
        waiting = experts if there is None else torch.where(there[..., None], experts, self.experts)
        routes = waiting.flatten(0, -2).T  # [k, tokens]: all first choices come before any second
        number = (waiting < self.experts).sum().double()  # 1.2 x 40 / 8 is 6, in single precision perhaps 5.99
        limit = (self.capacity * number / self.experts).floor().clamp_min(1)
        places = queue_places(routes.flatten(), self.experts + 1)
        return chosen * (places < limit).view(routes.shape).T.view(chosen.shape)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, capacity={self.capacity}"


@selections.add("sinkhorn")
class Sinkhorn(Selection):
    """S-BASE: while training, the top-k of a balanced assignment; gates are sigmoids of the logits (Eq. 7.17).

    ``published`` repeats the public code, which balances each sequence by itself and mixes up the signs of the dual
    variables, so that nothing is balanced. It is for comparison with that code alone.
    """

    @checked("the selection 'sinkhorn'")
    def __init__(
        self, width: int, experts: int, k: int, expert_dropout: float = 0.0, rounds: int = 3, published: bool = False
    ) -> None:
        super().__init__(width, experts, k, expert_dropout)
        if rounds < 1:
            raise UserError(f"Sinkhorn's algorithm needs 1 round or more, not {rounds}.")
        self.rounds, self.published = rounds, published

    def scores(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def ranking(self, logits: Tensor, scores: Tensor, there: Tensor | None) -> Tensor:
        if not self.training:  # a token may not depend on those after it (section 7.3)
            return scores
        if self.published:
            return _published_assignment(logits, self.rounds)
        counted = None if there is None else there.flatten()
        return balanced_assignment(logits.flatten(0, -2), self.rounds, counted, self.training).view(logits.shape)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rounds={self.rounds}, published={self.published}"


def balanced_assignment(logits: Tensor, rounds: int, there: Tensor | None = None, training: bool = False) -> Tensor:
    """Log of a matrix [tokens, experts] near exp(logits) whose columns sum to tokens / experts and rows, nearly, to 1.

    It approximates Eq. 7.18: rows and columns of exp(logits) are scaled in turn, in log space, columns last. Columns
    are summed over those tokens that are ``there`` [tokens], in ``training`` on all devices.
    """
    tokens, experts = logits.shape
    if there is None and not several(training):
        log_share: Tensor | float = math.log(max(1, tokens) / experts)
    else:
        number = logits.new_full((), tokens) if there is None else there.sum().to(logits.dtype)
        log_share = (pooled(number, training).clamp_min(1) / experts).log()
    of_expert = logits.new_zeros(experts)
    for _ in range(rounds):
        of_token = -(logits + of_expert).logsumexp(1, keepdim=True)
        rows = logits + of_token
        counted = rows if there is None else rows.masked_fill(~there[:, None], -torch.inf)
        of_expert = log_share - log_sum(counted, training)
    return logits + of_token + of_expert


def _published_assignment(logits: Tensor, rounds: int) -> Tensor:
    tokens, experts = logits.shape[-2:]
    of_expert = torch.zeros_like(logits[..., :1, :])
    for _ in range(rounds):
        of_token = math.log(tokens) - (logits - of_expert).logsumexp(-1, keepdim=True)
        of_expert = math.log(experts) - (logits - of_token).logsumexp(-2, keepdim=True)
    return logits + of_token + of_expert


def queue_places(routes: Tensor, experts: int) -> Tensor:
    """How many earlier entries of ``routes`` chose the same expert: [routes]."""
    ordered, order = routes.sort(stable=True)
    starts = torch.searchsorted(ordered, torch.arange(experts, device=routes.device))
    places = torch.arange(len(routes), device=routes.device) - starts[ordered]
    return torch.empty_like(places).scatter_(0, order, places)
