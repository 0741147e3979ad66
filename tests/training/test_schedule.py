"""Learning rates and optimisers as published."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from longthink.models.deepthinking import DeepThinking
from longthink.training.recipe import Recipe
from longthink.training.schedule import factor, make_optimizer, set_rate

AN_EPOCH = 7


def recipe(**changes: Any) -> Recipe:
    fields: dict[str, Any] = {"name": "toy", "task": "mazes", "difficulty": (5,), "train_samples": AN_EPOCH, "batch": 1}
    return Recipe(**{**fields, "epochs": 150, **changes})


def rates(toy: Recipe) -> list[list[float]]:
    """Factors by epoch and update."""
    return [[factor(toy, epoch * AN_EPOCH + i) for i in range(AN_EPOCH)] for epoch in range(toy.epochs)]


def test_published_warm_up() -> None:
    by_epoch = rates(recipe(warmup_epochs=10))
    assert all(len(set(epoch)) == 1 for epoch in by_epoch)  # the public code moves once an epoch
    first = [epoch[0] for epoch in by_epoch]
    assert first[0] == pytest.approx(0.095, abs=5e-4)
    assert first[8] == pytest.approx(0.593, abs=5e-4)
    assert first[:9] == [pytest.approx(1 - math.exp(-(e + 1) / 10)) for e in range(9)]
    assert set(first[9:]) == {1.0}


@pytest.mark.parametrize("period", [0, 1])
def test_no_warm_up(period: int) -> None:
    assert factor(recipe(warmup_epochs=period), 0) == 1


def test_milestones() -> None:
    by_epoch = rates(recipe(warmup_epochs=0, decay_epochs=(60, 100), decay_factor=0.1))
    assert all(len(set(epoch)) == 1 for epoch in by_epoch)
    first = [epoch[0] for epoch in by_epoch]
    assert first[:60] == [1.0] * 60
    assert first[60:100] == [pytest.approx(0.1)] * 40
    assert first[100:] == [pytest.approx(0.01)] * 50


def test_cosine_falls_from_one_to_nearly_nothing() -> None:
    toy = recipe(schedule="cosine", warmup_epochs=0)
    factors = [factor(toy, update) for update in range(toy.updates)]
    assert factors[0] == 1
    assert factors[toy.updates // 2] == pytest.approx(0.5)
    assert 0 < factors[-1] < 1e-5
    assert factors == sorted(factors, reverse=True)


def test_cosine_warms_up_smoothly() -> None:
    toy = recipe(schedule="cosine", warmup_epochs=3)
    factors = [factor(toy, update) for update in range(2 * AN_EPOCH)]
    assert factors == sorted(factors)
    assert len(set(factors)) == len(factors)
    assert factors[0] == pytest.approx(1 - math.exp(-1 / 3))


@pytest.mark.parametrize("recall", [True, False])
def test_the_weights_that_recur_are_throttled(recall: bool) -> None:
    model = DeepThinking(width=4, recall=recall)
    optimizer = make_optimizer(recipe(learning_rate=0.5, recurrent_scale=0.25, warmup_epochs=0), model)
    assert set_rate(optimizer, recipe(learning_rate=0.5, warmup_epochs=0), 0) == 0.5
    rate_of = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for name, weight in model.named_parameters():
        # the public code throttles what it names recur_block: the recall convolution and the residual block
        assert rate_of[id(weight)] == (0.125 if name.startswith(("recall", "blocks")) else 0.5), name


def test_throttling_follows_the_schedule() -> None:
    toy = recipe(recurrent_scale=0.25, warmup_epochs=0, decay_epochs=(60,))
    optimizer = make_optimizer(toy, DeepThinking(width=4))
    set_rate(optimizer, toy, 60 * AN_EPOCH)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1e-4, 0.25e-4])


def test_a_feed_forward_twin_is_never_throttled() -> None:
    model = DeepThinking(width=4, distinct_steps=3)
    optimizer = make_optimizer(recipe(recurrent_scale=0.25), model)
    assert [group["scale"] for group in optimizer.param_groups] == [1.0]


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_every_optimiser_moves_every_weight_once(kind: str, scale: float) -> None:
    torch.manual_seed(0)
    model = DeepThinking(width=4)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    toy = recipe(optimizer=kind, recurrent_scale=scale, warmup_epochs=0, weight_decay=0.01)
    optimizer = make_optimizer(toy, model)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len({id(p) for p in held}) == len(before)
    set_rate(optimizer, toy, 0)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    for name, weight in model.named_parameters():
        rate = 1e-3 * (scale if name.startswith(("recall", "blocks")) else 1)
        if kind == "sgd":  # momentum is the gradient at first
            expected = before[name] - rate * (1 + 0.01 * before[name])
        elif kind == "adam":  # decay is part of the gradient (L2), whose size Adam divides out
            expected = before[name] - rate
        else:  # decay beside the gradient
            expected = before[name] * (1 - rate * 0.01) - rate
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-4, atol=1e-7)


def test_momentum_and_decay_reach_the_optimiser() -> None:
    optimizer = make_optimizer(recipe(optimizer="sgd", momentum=0.7, weight_decay=0.03), DeepThinking(width=4))
    assert optimizer.defaults["momentum"] == 0.7
    assert optimizer.defaults["weight_decay"] == 0.03
