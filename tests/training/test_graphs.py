"""Captured updates give the same losses and gradients as plain ones: recorded on a CPU, and for real on a GPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map_only

from longthink.layers.several import together
from longthink.models import build
from longthink.tasks import Batch, task
from longthink.training import compiled
from longthink.training.compiled import CompiledStep
from longthink.training.graphs import GraphedObjective
from longthink.training.losses import Objective, Past, Plan
from tests.training import recorded_graphs

PLANS = [(0, 3, 1.0), (5, 3, 1.0), (0, 7, 1.0), (40, 1, 1.0), (5, 3, 1.0), (0, 3, 1.0), (2, 7, 1.0)]
PLANS += [(0, 1, 0.0), (8, 2, 0.5), (20, 3, 0.3), (0, 1, 0.0), (9, 2, 0.5)]

SMALL = {"width": 16, "hidden": 32, "heads": 2, "dropout": 0.0}
MODELS: dict[str, tuple[str, int, str, dict[str, Any]]] = {
    "deep thinking": ("prefix_sums", 16, "deepthinking", {"width": 16, "head": (16, 8)}),
    "no recall": ("prefix_sums", 16, "deepthinking", {"width": 16, "head": (16, 8), "recall": False}),
    "router": ("ctl", 3, "router", {**SMALL, "attention_dropout": 0.0, "gate_dropout": 0.0}),
    "adaptive": ("ctl", 3, "transformer", {**SMALL, "act": "graves", "attention": "relative"}),
    "several": ("ctl", 3, "transformer", {**SMALL, "attention": "gated_positions", "act": "universal"}),
    "several routers": ("ctl", 3, "router", {**SMALL, "attention_dropout": 0.0, "gate_dropout": 0.0}),
    "sparse": (
        "ctl",
        3,
        "transformer",
        {**SMALL, "feedforward": "experts", "feedforward_options": {"experts": 4, "k": 4}},
    ),
}


def compare(name: str, half: bool, device: str, limit: float, fast_step: bool = False) -> None:
    source, difficulty, kind, options = MODELS[name]
    problem = task(source)
    torch.manual_seed(0)
    networks = 4 if name.startswith("several") else 1
    models = [build(kind, **problem.shape, **options).to(device) for _ in range(networks)]
    model = together(models)
    graphed = GraphedObjective(Objective(model, CompiledStep(model) if fast_step else None), half=half)
    other = copy.deepcopy(model)  # plain updates use weights of their own: graphs must not meet their history
    for update, (n, k, alpha) in enumerate(PLANS):
        batch = problem.sample(20, difficulty, update, "train").to(device)
        plan = Plan(n, k, 8, alpha)
        assert graphed.takes(plan)
        losses = graphed.backward(batch, plan)
        fast = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        other.load_state_dict(model.state_dict())
        other.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            plain = Objective(other)(batch, plan)
        plain["loss"].sum().backward()
        assert plain["loss"].numel() == networks
        for part in ("loss", "full", "progressive"):
            assert (part in losses) == (part in plain)
            if part in plain:
                torch.testing.assert_close(losses[part], plain[part].detach(), rtol=limit, atol=limit / 10)
        slow = {name: p.grad for name, p in other.named_parameters() if p.grad is not None}
        assert fast.keys() == slow.keys()
        whole = torch.cat([gradient.flatten() for gradient in slow.values()]).norm()
        for weight, gradient in slow.items():
            error = (fast[weight] - gradient).norm() / whole
            assert error < limit, f"{weight}: {error} with {plan}"
        assert not graphed.takes(Plan(3, 2, 8, 0.5))  # it would branch off inside the full pass
        # the weights move between updates, and the graphs must see the new ones
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.01 * torch.randn_like(p))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "sparse"])  # sorting routes needs the host there
def test_recorded_updates_equal_plain_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_graphs.install(monkeypatch)
    compare(name, half=False, device="cpu", limit=1e-4)


@pytest.mark.parametrize("name", ["router", "adaptive", "several", "several routers"])
def test_recorded_updates_whose_weight_gradients_are_put_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_graphs.install(monkeypatch)
    monkeypatch.setattr(compiled.torch, "compile", lambda function, **_: function)
    compare(name, half=False, device="cpu", limit=1e-4, fast_step=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", ["router", "adaptive", "several", "several routers"])
def test_captured_and_compiled_updates_equal_plain_ones(name: str, half: bool) -> None:
    torch._dynamo.reset()
    # A compiled step rounds to bfloat16 at other places than the plain one does.
    compare(name, half, "cuda", limit=5e-2 if half else 3e-3, fast_step=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_captured_updates_equal_plain_ones(name: str, half: bool) -> None:
    compare(name, half, "cuda", limit=3e-2 if half else 3e-3)


def read_on(device: str, half: bool, limit: float) -> None:
    """Blocks of a text, each looking back at the one before: the first update cannot be captured, all others are."""
    torch.manual_seed(0)
    options = {"width": 16, "hidden": 32, "heads": 2, "distinct_steps": 2, "memory": 8, "dropout": 0.0}
    model = build("language", vocabulary=11, classes=11, **options).to(device)
    other = copy.deepcopy(model)
    graphed, plan = GraphedObjective(Objective(model), half=half, full_alone=True), Plan(0, 1, 2, 0.0)
    past, other_past = Past(None), Past(None)
    for update in range(5):
        tokens = torch.randint(1, 11, (3, 9), device=device)
        batch = Batch(tokens[:, :-1], tokens[:, 1:].contiguous())
        assert graphed.takes(plan, past) == (update > 0)
        for p in model.parameters():
            p.grad = None
        if update:
            losses = graphed.backward(batch, plan, past)
        else:
            with torch.autocast(device, torch.bfloat16, enabled=half):
                losses = Objective(model)(batch, plan, past=past)
            losses["loss"].backward()
            # Autograd must have let go of the weights when a graph is captured; in training nobody keeps the losses.
            losses = tree_map_only(torch.Tensor, torch.Tensor.detach, losses)
        past = Past(losses["memory"])
        fast = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        other.load_state_dict(model.state_dict())
        other.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            plain = Objective(other)(batch, plan, past=other_past)
        plain["loss"].backward()
        other_past = Past(plain["memory"])
        torch.testing.assert_close(losses["loss"], plain["loss"].detach(), rtol=limit, atol=limit)
        for mine, theirs in zip(past.memory or (), other_past.memory or (), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=limit, atol=limit)
        slow = [p.grad for p in other.parameters() if p.grad is not None]
        for mine, theirs in zip(fast, slow, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=limit, atol=limit)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.01 * torch.randn_like(p))


def test_recorded_updates_of_a_text_equal_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_graphs.install(monkeypatch)
    read_on("cpu", half=False, limit=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("half", [False, True])
def test_captured_updates_of_a_text_equal_plain_ones(half: bool) -> None:
    read_on("cuda", half, limit=3e-2 if half else 3e-3)
