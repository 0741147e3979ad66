"""Transformers with any feed-forward kind: what each asks for in the loss, and that padding takes no expert's place."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from longthink.layers.feedforward import feedforwards
from longthink.models import build
from longthink.think import think

pytestmark = pytest.mark.usefixtures("double_by_default")


@pytest.mark.parametrize("kind", list(feedforwards))
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("gate", [False, True])
def test_any_feed_forward_kind_fits_any_layer(kind: str, gate: bool, activation: str) -> None:
    torch.manual_seed(0)
    options = {"experts": {"experts": 4, "k": 2}, "top_k": {"k": 4}, "product_keys": {"k": 2}}.get(kind, {})
    model = build(
        "transformer",
        vocabulary=9,
        classes=4,
        width=16,
        hidden=16,
        heads=2,
        attention="geometric",
        gate=gate,
        activation=activation,
        feedforward=kind,
        feedforward_options=options,
    )
    tokens = torch.randint(1, 9, (4, 6))
    context = model.look(tokens)
    thought = think(model, tokens, 3)
    penalty = model.penalty(thought.state, context)
    assert (penalty is None) == (kind == "dense")
    loss = thought.logits.square().sum() + (0 if penalty is None else penalty.mean())
    loss.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters() if weight.grad is not None)
    model.eval()
    assert torch.is_tensor(think(model, tokens, 3).state)  # nothing extra is carried when nobody trains


@pytest.mark.parametrize("gate", [False, True])
def test_padding_does_not_compete_for_experts(gate: bool) -> None:
    torch.manual_seed(0)
    options = {"experts": 4, "k": 2, "selection": "switch", "selection_options": {"capacity": 0.6}}
    sizes = {"width": 16, "hidden": 16, "heads": 2, "dropout": 0.0, "attention": "geometric", "gate": gate}
    sparse = {"feedforward": "experts", "feedforward_options": {**options, "balance_weight": 1.0}}
    model = build("transformer", vocabulary=9, classes=4, **sizes, **sparse).double()
    tokens = torch.randint(1, 9, (3, 6))
    longer = F.pad(tokens, (0, 20))
    found = [(think(model, t, 2), model.look(t)) for t in (tokens, longer)]
    torch.testing.assert_close(found[0][0].logits, found[1][0].logits)
    asked = [model.penalty(thought.state, context).mean() for thought, context in found]
    torch.testing.assert_close(asked[0], asked[1])
    assert float(asked[0].detach()) != 0


@pytest.mark.parametrize("gate", [False, True])
def test_top_k_that_keeps_all_trains_like_dense(gate: bool) -> None:
    sizes = {"vocabulary": 9, "classes": 4, "width": 16, "hidden": 32, "heads": 2, "gate": gate, "dropout": 0.3}
    models = []
    for kind, more in (("dense", {}), ("top_k", {"k": 32})):
        torch.manual_seed(3)
        models.append(build("transformer", **sizes, activation="gelu", feedforward=kind, feedforward_options=more))
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in models), strict=True))
    parts = [model.layers[0].update if gate else model.layers[0].feedforward for model in models]
    assert parts[0].dropout == parts[1].dropout == 0.3


def test_the_activation_reaches_experts() -> None:
    model = build("transformer", vocabulary=9, classes=4, activation="gelu", feedforward="experts")
    assert model.layers[0].feedforward.activation == "gelu"


def test_balance_is_summed_over_steps() -> None:
    torch.manual_seed(0)
    options = {"experts": 4, "k": 2, "balance": "entropy", "balance_weight": 0.1}
    model = build(
        "transformer",
        vocabulary=9,
        classes=4,
        width=16,
        hidden=16,
        heads=2,
        dropout=0.0,
        feedforward="experts",
        feedforward_options=options,
    )
    tokens = torch.randint(1, 9, (4, 6))
    context = model.look(tokens)
    one, three = (model.penalty(think(model, tokens, n).state, context).mean() for n in (1, 3))
    assert abs(three.item()) > 2 * abs(one.item()) > 0
