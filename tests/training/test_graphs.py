"""Captured updates give the same losses and gradients as plain ones."""

from __future__ import annotations

import copy

import pytest
import torch

from longthink.models.deepthinking import DeepThinking
from longthink.tasks import task
from longthink.training.graphs import GraphedObjective
from longthink.training.losses import Objective, Plan


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("half", [False, True])
def test_graphed_updates_equal_plain_ones(half: bool) -> None:
    torch.manual_seed(0)
    model = DeepThinking(dims=1, inputs=1, width=64, head=(64, 32)).cuda()
    graphed = GraphedObjective(Objective(model), half=half)
    other = copy.deepcopy(model)  # plain updates use weights of their own: graphs must not meet their history
    plans = [(0, 3, 1.0), (5, 3, 1.0), (0, 7, 1.0), (40, 1, 1.0), (5, 3, 1.0), (0, 3, 1.0), (2, 7, 1.0)]
    plans += [(0, 1, 0.0), (8, 2, 0.5), (20, 3, 0.3), (0, 1, 0.0), (9, 2, 0.5)]
    for update, (n, k, alpha) in enumerate(plans):
        batch = task("prefix_sums").sample(20, 16, update, "train").to("cuda")
        plan = Plan(n, k, 8, alpha)
        assert graphed.takes(plan)
        losses = graphed.backward(batch, plan)
        fast = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        other.load_state_dict(model.state_dict())
        other.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            plain = Objective(other)(batch, plan)
        plain["loss"].backward()
        torch.testing.assert_close(losses["loss"], plain["loss"].detach(), rtol=1e-3, atol=1e-4)
        slow = {name: p.grad for name, p in other.named_parameters() if p.grad is not None}
        assert fast.keys() == slow.keys()
        whole = torch.cat([gradient.flatten() for gradient in slow.values()]).norm()
        for name, gradient in slow.items():
            error = (fast[name] - gradient).norm() / whole
            assert error < (2e-2 if half else 2e-3), f"{name}: {error} with {plan}"
        assert not graphed.takes(Plan(3, 2, 8, 0.5))  # it would branch off inside the full pass
        # the weights move between updates, and the graphs must see the new ones
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.01 * torch.randn_like(p))
