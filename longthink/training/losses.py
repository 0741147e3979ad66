"""What is minimised: the loss of the last step, the progressive loss (Algorithm 1), and its long-horizon form.

The long-horizon form draws n, the steps without gradient, far beyond the m of training: the network is taught to keep
an answer, not only to find it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longthink.layers.several import networks_in
from longthink.ops.kernels import precise
from longthink.tasks.base import Batch
from longthink.think import Context, State, Thinker, ThinkingModule, detach, think
from longthink.training.recipe import Recipe


class Plan(NamedTuple):
    """How far one update thinks: n steps without gradient and k with (Algorithm 1), beside the m of the full pass."""

    n: int
    k: int
    m: int
    alpha: float


def draw_plan(recipe: Recipe, seed: int, update: int) -> Plan:
    """n ~ U{0, m - 1} and k ~ U{1, m - n} as in Algorithm 1; one draw for a whole batch.

    With a horizon, n ~ U{first_n, horizon - 1}, and where n has passed m - 1, k ~ U{1, m}. While the horizon grows,
    these draws of n shrink in proportion.
    """
    if recipe.alpha == 0 or update % recipe.progressive_every:
        return Plan(0, 1, recipe.steps, 0.0)
    bits = np.random.SeedSequence([seed, update, 0x9206]).generate_state(2, np.uint32).astype(np.uint64)
    m, first = recipe.steps, recipe.first_n
    reach = (recipe.horizon or m) - first
    if recipe.ramp_epochs:
        reach = max(1, round(reach * min(1.0, update / (recipe.ramp_epochs * recipe.updates_an_epoch))))
    n = first + int(bits[0] * np.uint64(reach) >> np.uint64(32))
    if recipe.zero_n:  # the ablation of section 5.4
        n = 0
    longest = m - n if n < m else m
    k = 1 + int(bits[1] * np.uint64(longest) >> np.uint64(32))
    return Plan(n, k, m, recipe.alpha)


class Past(NamedTuple):
    """What a model that reads a text in order remembers of the batches before; None at the beginning."""

    memory: Any


class Term(NamedTuple):
    """A loss of the mixture."""

    loss: Tensor
    penalty: Tensor
    """The part of the loss that is not about the answer, but asked for by the model itself: zero for most."""
    state: State
    """After its last step."""


class Objective(nn.Module):
    """Training's view of a model: its forward is the thinking and the loss, so that DDP sees all of it.

    ``thinker`` stands in for the model while it thinks, with its step compiled. Where the model is several networks,
    losses are [networks], and it is their sum that is taken back.
    """

    def __init__(self, model: ThinkingModule, thinker: Thinker | None = None) -> None:
        super().__init__()
        self.model, self.networks = model, networks_in(model)
        self.thinker: Thinker = model if thinker is None else thinker
        self.penalised = hasattr(model, "penalty")

    def forward(
        self, batch: Batch, plan: Plan, count: Tensor | None = None, past: Past | None = None
    ) -> dict[str, Any]:
        """The mixed "loss" and its terms "full" and "progressive", of which one with weight 0 costs nothing; "penalty"
        is what of the loss the model itself asked for.

        ``count`` is the number of outputs that count over all devices, divided by the number of devices. With a
        ``past`` the full pass also gives the "memory" that the next batch looks back at.
        """
        model = self.thinker
        result: dict[str, Any] = {}
        asked: dict[str, Tensor] = {}
        context = model.look(batch.inputs if past is None else (batch.inputs, past.memory))
        state = model.start(context)
        rest = plan.n
        if plan.alpha < 1:
            # The first n steps of both terms are the same: the progressive term takes its start from the full pass.
            early = min(plan.n, plan.m) if plan.alpha > 0 else 0
            first = think(model, None, early, state=state, context=context, read=False)
            full = self.term(batch, first.state, context, plan.m - early, count)
            result["full"], asked["full"] = full.loss, full.penalty
            if past is not None:
                result["memory"] = self.model.remember(full.state, context)  # type: ignore[operator]
            state, rest = first.state, plan.n - early
        if plan.alpha > 0:
            if plan.n > 0:
                with torch.no_grad():
                    late = think(model, None, rest, state=detach(state), context=context, read=False)
                state = self.without_history(late.state)
            progressive = self.term(batch, state, context, plan.k, count)
            result["progressive"], asked["progressive"] = progressive.loss, progressive.penalty
        return result | self.mixed(plan, result, asked)

    def mixed(self, plan: Plan, losses: dict[str, Any], penalties: dict[str, Tensor]) -> dict[str, Tensor]:
        """The "loss", and what is in it for the model's sake."""
        loss = {"loss": mixture(plan.alpha, losses)}
        return loss | ({"penalty": mixture(plan.alpha, penalties)} if self.penalised else {})

    def without_history(self, state: State) -> State:
        """What the steps with gradient begin with after those without. Models that gather something on the way, such as
        who has halted, begin with that anew: where all have halted no step would change the answer, and none would
        learn."""
        afresh = getattr(self.model, "afresh", None)
        return detach(state) if afresh is None else afresh(detach(state))

    def term(self, batch: Batch, state: State, context: Context, steps: int, count: Tensor | None = None) -> Term:
        """Think on for this many steps, and what that costs."""
        thought = think(self.thinker, None, steps, state=state, context=context)
        loss = cross_entropy(thought.logits, batch, count, self.networks)
        penalty = getattr(self.model, "penalty", None)
        asked = None if penalty is None else penalty(thought.state, context)
        if asked is None:
            return Term(loss, torch.zeros_like(loss), thought.state)
        asked = asked.mean() if self.networks == 1 else asked.view(self.networks, -1).mean(1)
        return Term(loss + asked, asked.detach(), thought.state)


def cross_entropy(logits: Tensor, batch: Batch, count: Tensor | None = None, networks: int = 1) -> Tensor:
    """Mean cross entropy over the outputs that count, pooled over the batch (Eq. 5.3-5.4; mazes: non-wall pixels), or
    over each network's part of it."""
    losses = F.cross_entropy(precise(logits), batch.targets, reduction="none")
    if batch.mask is not None:
        losses = losses * batch.mask
    if networks > 1:
        each = losses.view(networks, -1)
        counted = each.shape[1] if batch.mask is None else batch.mask.view(networks, -1).sum(1)
        return each.sum(1) / counted
    if count is None:
        count = outputs_that_count(batch)
    return losses.sum() / count


def outputs_that_count(batch: Batch) -> Tensor:
    if batch.mask is None:
        return torch.full((), float(batch.targets.numel()), device=batch.targets.device)
    return batch.mask.sum().float()


def mixture(alpha: float, result: dict[str, Tensor]) -> Tensor:
    if alpha == 0:
        return result["full"]
    if alpha == 1:
        return result["progressive"]
    return (1 - alpha) * result["full"] + alpha * result["progressive"]
