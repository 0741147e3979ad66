"""A compiled step gives the same losses and gradients, and leaves the model itself alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch._dynamo.utils import counters

from longthink.errors import UserError
from longthink.models import build
from longthink.recipes import recipes
from longthink.tasks import Batch, task
from longthink.think import think
from longthink.training import compiled
from longthink.training.compiled import CompiledStep
from longthink.training.losses import Objective, Past, Plan
from longthink.training.train import TrainingOptions, train

MODELS = {
    "deepthinking": ("mazes", 5, {"width": 8, "head": [8, 8]}),
    "router": ("ctl", 3, {"width": 16, "hidden": 32, "heads": 2, "dropout": 0.0, "gate_dropout": 0.0}),
    "dnc": ("repeat_copy", 2, {"size": 8, "cells": 4, "width": 4, "heads": 2}),
    "transformer": ("ctl", 3, {"width": 16, "hidden": 32, "distinct_steps": 6, "dropout": 0.0}),
}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", ["router", "relative", "experts", "noisy"])
def test_gradients_of_compiled_steps_see_the_masks_of_their_forward_pass(
    name: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same random numbers, the loss must move along a gradient as fast as the gradient is long."""
    monkeypatch.setattr(compiled, "LARGE_STATE", 0 if large else 2**40)
    monkeypatch.setattr(compiled.torch, "compile", partial(torch.compile, backend="aot_eager_decomp_partition"))
    torch.manual_seed(0)
    options: dict[str, Any] = {"width": 64, "hidden": 128, "heads": 2, "dropout": 0.3, "attention_dropout": 0.1}
    if name in ("experts", "noisy"):
        mixture = {"experts": 4, "k": 2, "expert_dropout": 0.3, "dropout": 0.2}
        mixture["selection"] = "noisy" if name == "noisy" else "sigmoid"
        options |= {"feedforward": "experts", "feedforward_options": mixture}
    options |= {"attention": "relative"} if name == "relative" else {"gate_dropout": 0.1}
    model = (
        build("transformer" if name == "relative" else "router", vocabulary=12, classes=8, **options).double().train()
    )
    tokens, thinker = torch.randint(1, 12, (16, 10)), CompiledStep(model)

    def loss() -> torch.Tensor:
        torch.manual_seed(7)
        return torch.nn.functional.cross_entropy(think(thinker, tokens, 4).logits, torch.arange(16) % 8)

    torch._dynamo.reset()
    loss().backward()
    for part in ("key_value", "merge"):
        weight = model.get_parameter(f"layers.0.attention.{part}.weight")
        assert weight.grad is not None
        length = weight.grad.norm()
        along = 1e-5 * weight.grad / length
        with torch.no_grad():
            weight += along
            ahead = loss()
            weight -= 2 * along
            behind = loss()
            weight += along
        assert float((ahead - behind) / 2e-5) == pytest.approx(float(length), rel=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_compiled_steps_equal_plain_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # This backend cuts the backward pass as the real one does, and needs no C++ compiler.
    monkeypatch.setattr(compiled.torch, "compile", partial(torch.compile, backend="aot_eager_decomp_partition"))
    source, difficulty, options = MODELS[name]
    problem = task(source)
    shape: dict[str, Any] = {**problem.shape, **options}
    torch.manual_seed(0)
    model = build(name, **{"attention_dropout": 0.0, **shape} if name == "router" else shape).double()
    batch = problem.sample(4, difficulty, 0, "train")
    if batch.inputs.is_floating_point():
        batch.inputs = batch.inputs.double()
    plan = {"deepthinking": Plan(2, 3, 6, 0.3), "dnc": Plan(0, 1, 0, 0.0)}.get(name, Plan(0, 1, 6, 0.0))
    found = []
    for thinker in (None, CompiledStep(model)):
        model.zero_grad()
        loss = Objective(model, thinker)(batch, plan)["loss"]
        loss.backward()
        found.append([loss.detach(), *[p.grad.clone() for p in model.parameters() if p.grad is not None]])
    assert getattr(model, "compiled_part", "step") not in vars(model)
    for plain, fast in zip(*found, strict=True):
        torch.testing.assert_close(plain, fast)


def test_all_layers_of_a_language_model_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled.torch, "compile", partial(torch.compile, backend="aot_eager_decomp_partition"))
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    options = {"width": 16, "hidden": 32, "heads": 2, "distinct_steps": 3, "memory": 5, "dropout": 0.0}
    model = build("language", vocabulary=12, classes=12, **options).double()
    tokens, past = torch.randint(0, 12, (2, 6)), Past(tuple(torch.randn(2, 5, 16).double() for _ in range(3)))
    batch, found = Batch(tokens[:, :-1], tokens[:, 1:]), []
    for thinker in (None, CompiledStep(model)):
        model.zero_grad()
        losses = Objective(model, thinker)(batch, Plan(0, 1, 3, 0.0), past=past)
        losses["loss"].backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append([losses["loss"].detach(), *losses["memory"], *gradients])
    assert counters["stats"]["unique_graphs"] == 1
    for plain, fast in zip(*found, strict=True):
        torch.testing.assert_close(plain, fast)


def test_without_a_compiler_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", (None, str(tmp_path / "no-compiler")))
    options = TrainingOptions(str(tmp_path / "runs"), "cpu", compile=True, quiet=True)
    with pytest.raises(UserError, match=r"^Compiling for a CPU needs a C\+\+ compiler, .* do not compile\.$"):
        train(recipes["repeat_copy-dnc"], 0, options)
    assert not (tmp_path / "runs").exists()
