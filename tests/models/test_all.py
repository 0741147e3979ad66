"""What every registered model must do: one parametrised file for all families."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from longthink.halting import Converged, MaximumConfidence
from longthink.models import build, models
from longthink.tasks import Batch
from longthink.think import ThinkingModule, detach, tensors, think
from longthink.training.losses import Objective, Plan

TOKENS = {"vocabulary": 9, "classes": 4}
EXPERTS = {"hidden": 8, "feedforward": "experts", "feedforward_options": {"experts": 4, "k": 2}}
SMALL: dict[str, list[dict[str, Any]]] = {
    "deepthinking": [
        {"dims": 1, "inputs": 2, "classes": 4, "width": 8},
        {"dims": 2, "inputs": 2, "classes": 4, "width": 8, "recall": False, "norm": "pixel"},
    ],
    "transformer": [
        {**TOKENS, "width": 8, "hidden": 8, "heads": 2},
        {**TOKENS, "width": 8, "hidden": 8, "heads": 2, "act": "graves", "attention": "relative"},
    ],
    "router": [{**TOKENS, "width": 8, "hidden": 8, "heads": 2}],
    "lstm": [{**TOKENS, "width": 8}],
    "language": [
        {**TOKENS, "width": 8, "hidden": 8, "heads": 2, "planned_steps": 3},
        {**TOKENS, **EXPERTS, "width": 8, "heads": 2, "planned_steps": 3, "group": 2},
    ],
    "moeut": [{**TOKENS, **EXPERTS, "width": 8, "heads": 2, "planned_steps": 3, "attention_options": {"experts": 3}}],
    "dnc": [{**TOKENS, "answer": "last", "embedding": 4, "size": 8, "cells": 5, "width": 4, "heads": 2}],
}
CASES = [(name, options) for name in models for options in SMALL[name]]


def example(options: dict[str, Any], n: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(0)
    if "vocabulary" in options:
        tokens = torch.randint(1, 9, (n, 6), generator=generator)
        tokens[0, 4:] = 0
        places = tokens.shape[1:] if "planned_steps" in options else ()  # a language model answers at every place
        return Batch(tokens, torch.randint(0, 4, (n, *places), generator=generator))
    places = (6,) * options["dims"]
    x = torch.rand(n, 2, *places, generator=generator)
    return Batch(x, torch.randint(0, 4, (n, *places), generator=generator))


def make(name: str, options: dict[str, Any]) -> ThinkingModule:
    torch.manual_seed(0)
    return build(name, **options)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_thinks_the_same_twice_and_row_by_row(name: str, options: dict[str, Any]) -> None:
    model, batch = make(name, options).eval(), example(options)
    logits = think(model, batch.inputs, 3).logits
    assert logits.shape == (4, 4, *batch.targets.shape[1:])
    torch.testing.assert_close(think(model, batch.inputs, 3).logits, logits)
    for row in range(4):  # samples know nothing of each other
        torch.testing.assert_close(think(model, batch.inputs[row : row + 1], 3).logits[0], logits[row])


@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_state_can_be_continued_and_halted(name: str, options: dict[str, Any]) -> None:
    model, batch = make(name, options).eval(), example(options)
    whole = think(model, batch.inputs, 5, watch=("logits", "change"))
    half = think(model, batch.inputs, 2)
    torch.testing.assert_close(think(model, batch.inputs, 3, state=half.state).logits, whole.logits)
    assert torch.isfinite(whole.trace["change"]).all()
    # Stopping one sample at a time gives each the logits of its own step.
    halted = think(model, batch.inputs, 5, halt=Converged(whole.trace["change"][:, 2].median().item()))
    for row, steps in enumerate(halted.steps_used.tolist()):
        torch.testing.assert_close(halted.logits[row], whole.trace["logits"][row, steps - 1])
    sure = think(model, batch.inputs, 5, halt=MaximumConfidence())
    assert sure.logits.shape == whole.logits.shape


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("plan", [Plan(0, 2, 3, 0.0), Plan(0, 2, 3, 1.0), Plan(1, 2, 3, 0.5), Plan(9, 2, 3, 0.5)])
def test_every_loss_trains_every_model(name: str, options: dict[str, Any], plan: Plan) -> None:
    """Progressive and long-horizon losses need nothing of a model but its four methods."""
    model, batch = make(name, options).train(), example(options)
    losses = Objective(model)(batch, plan)
    losses["loss"].backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert gradients
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert ("full" in losses, "progressive" in losses) == (plan.alpha < 1, plan.alpha > 0)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_states_are_trees_of_tensors_with_the_batch_first(name: str, options: dict[str, Any]) -> None:
    model, batch = make(name, options), example(options)
    state = think(model, batch.inputs, 1).state
    assert all(len(part) == 4 for part in tensors(state))
    assert not any(part.requires_grad for part in tensors(detach(state)))


@pytest.mark.parametrize(("name", "options"), CASES)
def test_weights_can_be_stored_and_put_back(name: str, options: dict[str, Any]) -> None:
    model, batch = make(name, options).eval(), example(options)
    other = build(name, **options).eval()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(think(other, batch.inputs, 2).logits, think(model, batch.inputs, 2).logits)
