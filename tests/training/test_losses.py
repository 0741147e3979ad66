"""The progressive loss: what is drawn, what is computed, and where gradients flow."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from longthink.models import build
from longthink.models.deepthinking import DeepThinking
from longthink.tasks import Batch, task
from longthink.think import State, ThinkingModule, detach
from longthink.training.losses import Objective, Plan, cross_entropy, draw_plan, outputs_that_count
from longthink.training.recipe import Recipe

M = 5
DRAWS = 8_000


def recipe(**changes: Any) -> Recipe:
    fields: dict[str, Any] = {"name": "toy", "task": "mazes", "difficulty": (5,), "steps": M, "alpha": 1.0, **changes}
    return Recipe(**fields)


def draws(seed: int = 0, **changes: Any) -> list[Plan]:
    toy = recipe(**changes)
    return [draw_plan(toy, seed, update) for update in range(DRAWS)]


def chi_square(counts: Counter[int], expected: dict[int, float]) -> float:
    """Per degree of freedom: near 1 for the right distribution."""
    assert counts.keys() <= expected.keys()
    return sum((counts[x] - e) ** 2 / e for x, e in expected.items()) / max(1, len(expected) - 1)


def test_algorithm_1_draws_n_and_then_k_uniformly() -> None:
    plans = draws()
    assert all(0 <= p.n < M and p.k >= 1 and p.n + p.k <= M and p.m == M and p.alpha == 1 for p in plans)
    assert chi_square(Counter(p.n for p in plans), dict.fromkeys(range(M), DRAWS / M)) < 3
    for n in range(M):
        ks = Counter(p.k for p in plans if p.n == n)
        assert chi_square(ks, dict.fromkeys(range(1, M - n + 1), ks.total() / (M - n))) < 3


@pytest.mark.parametrize(("horizon", "first"), [(12, 0), (12, 3), (12, M), (9, 8)])
def test_a_horizon_reaches_past_m(horizon: int, first: int) -> None:
    plans = draws(horizon=horizon, first_n=first)
    length = horizon - first
    assert chi_square(Counter(p.n for p in plans), dict.fromkeys(range(first, horizon), DRAWS / length)) < 3
    assert all(p.n + p.k <= M for p in plans if p.n < M)
    late = Counter(p.k for p in plans if p.n >= M)
    assert chi_square(late, dict.fromkeys(range(1, M + 1), late.total() / M)) < 3


def test_a_ramp_lets_the_horizon_grow() -> None:
    growing = recipe(horizon=100, first_n=10, ramp_epochs=4)
    ramp = 4 * growing.updates_an_epoch
    reach = [
        max(draw_plan(growing, seed, update).n for seed in range(300)) for update in (0, ramp // 2, ramp, 9 * ramp)
    ]
    assert reach[0] == 10
    assert 50 <= reach[1] < 55
    assert 95 <= reach[2] < 100
    assert 95 <= reach[3] < 100


def test_the_ablation_never_skips_steps() -> None:
    plans = draws(zero_n=True)
    assert {p.n for p in plans} == {0}
    assert chi_square(Counter(p.k for p in plans), dict.fromkeys(range(1, M + 1), DRAWS / M)) < 3


def test_the_progressive_term_is_part_of_every_so_many_updates() -> None:
    toy = recipe(alpha=0.5, progressive_every=4)
    assert [draw_plan(toy, 0, update).alpha for update in range(9)] == [0.5, 0, 0, 0, 0.5, 0, 0, 0, 0.5]


@given(st.integers(0, 2**40), st.integers(0, 2**40))
@settings(max_examples=50, deadline=None)
def test_a_plan_depends_on_seed_and_update_alone(seed: int, update: int) -> None:
    toy = recipe(horizon=1000)
    before = torch.random.get_rng_state()
    assert draw_plan(toy, seed, update) == draw_plan(recipe(horizon=1000), seed, update)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_seeds_and_updates_draw_different_plans() -> None:
    first, second = draws(seed=0, horizon=1000), draws(seed=1, horizon=1000)
    assert sum(a.n == b.n for a, b in zip(first, second, strict=True)) < DRAWS / 500
    # seed 0 at update 1 must not be seed 1 at update 0, as it would be if they were added
    assert sum(a.n == b.n for a, b in zip(first[1:], second, strict=False)) < DRAWS / 500


class Counting(DeepThinking):
    """Counts what it is asked to do, with and without a gradient."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: Counter[str] = Counter()

    def look(self, x: Tensor) -> Any:
        self.calls["look"] += 1
        return super().look(x)

    def step(self, state: State, context: Any) -> State:
        self.calls["step" if torch.is_grad_enabled() else "step without gradient"] += 1
        return super().step(state, context)

    def read(self, state: State, context: Any) -> Tensor:
        self.calls["read"] += 1
        return super().read(state, context)


def toy_model(kind: type[DeepThinking] = DeepThinking, **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(width=6, head=(4, 4), **options).double()


def toy_batch(n: int = 4) -> Batch:
    batch = task("mazes").sample(n, 5, seed=1)
    batch.inputs = batch.inputs.double()
    return batch


@pytest.mark.parametrize(
    ("plan", "with_gradient", "without", "reads"),
    [
        (Plan(0, 3, M, 0.0), M, 0, 1),
        (Plan(4, 1, M, 0.0), M, 0, 1),  # alpha = 0: what was drawn does not matter
        (Plan(0, 3, M, 1.0), 3, 0, 1),
        (Plan(3, 2, M, 1.0), 2, 3, 1),
        (Plan(9, 2, M, 1.0), 2, 9, 1),
        (Plan(0, 3, M, 0.5), M + 3, 0, 2),
        (Plan(3, 2, M, 0.5), M + 2, 0, 2),  # the first n steps of both terms are the same
        (Plan(M, 2, M, 0.5), M + 2, 0, 2),
        (Plan(9, 2, M, 0.5), M + 2, 9 - M, 2),  # past m, the full pass is a start for the rest
    ],
)
def test_nothing_is_computed_that_nobody_needs(plan: Plan, with_gradient: int, without: int, reads: int) -> None:
    model = toy_model(Counting)
    losses = Objective(model)(toy_batch(), plan)
    assert losses.keys() == {"loss"} | ({"full"} if plan.alpha < 1 else set()) | (
        {"progressive"} if plan.alpha > 0 else set()
    )
    expected = Counter({"look": 1, "step": with_gradient, "step without gradient": without, "read": reads})
    assert model.calls == +expected


def toy_transformer(kind: str) -> ThinkingModule:
    torch.manual_seed(0)
    sizes = {"vocabulary": 9, "classes": 4, "width": 8, "hidden": 8, "heads": 2, "dropout": 0.0}
    if kind == "router":
        return build("router", **sizes, attention_dropout=0.0, gate_dropout=0.0).double()
    model = build("transformer", **sizes, attention="relative", act=kind).double()
    torch.nn.init.constant_(model.act.halt.bias, -1.5)  # columns stop after 3 to 13 steps
    return model


def toy_tokens() -> Batch:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 9, (4, 6), generator=generator)
    tokens[0, 4:] = 0
    return Batch(tokens, torch.randint(0, 4, (4,), generator=generator))


def gradients(loss: Tensor, model: ThinkingModule) -> list[Tensor | None]:
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))


def naive_terms(model: ThinkingModule, batch: Batch, plan: Plan) -> tuple[Tensor, Tensor]:
    """Both terms as the papers write them: two passes of their own, and a detach after n steps."""

    def loss(state: State, context: Any) -> Tensor:
        logits = model.read(state, context)
        if batch.mask is not None:
            return F.cross_entropy(logits.movedim(1, -1)[batch.mask], batch.targets[batch.mask])
        asked = model.penalty(state, context)
        return F.cross_entropy(logits, batch.targets) + (0 if asked is None else asked.mean())

    context = model.look(batch.inputs)
    state = model.start(context)
    for _ in range(plan.m):
        state = model.step(state, context)
    full = loss(state, context)

    context = model.look(batch.inputs)
    state = model.start(context)
    for _ in range(plan.n):
        state = model.step(state, context)
    if plan.n > 0:
        state = detach(state)
        if getattr(state, "gathered", None) is not None:  # nobody has halted, and nothing was given out
            state = model.start(context)._replace(h=state.h)
    for _ in range(plan.k):
        state = model.step(state, context)
    return full, loss(state, context)


@pytest.mark.parametrize("alpha", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize(("n", "k"), [(0, 3), (2, 3), (M, 2), (9, 4)])
@pytest.mark.parametrize("kind", ["recall", "no recall", "router", "graves", "universal"])
def test_one_shared_pass_equals_two_separate_ones(alpha: float, n: int, k: int, kind: str) -> None:
    plan = Plan(n, k, M, alpha)
    if "recall" in kind:
        model, batch = toy_model(recall=kind == "recall"), toy_batch()
    else:
        model, batch = toy_transformer(kind), toy_tokens()
    full, progressive = naive_terms(model, batch, plan)
    losses = Objective(model)(batch, plan)
    for name, naive in {"full": full, "progressive": progressive}.items():
        if name in losses:
            torch.testing.assert_close(losses[name], naive, rtol=1e-12, atol=1e-13)
    expected = gradients((1 - alpha) * full + alpha * progressive, model)
    for mine, theirs in zip(gradients(losses["loss"], model), expected, strict=True):
        mine = torch.zeros(()) if mine is None else mine
        theirs = torch.zeros(()) if theirs is None else theirs
        torch.testing.assert_close(mine.expand_as(theirs), theirs, rtol=1e-10, atol=1e-14, check_dtype=False)


@pytest.mark.parametrize("kind", ["graves", "universal", "sparse", "distinct"])
def test_steps_after_many_without_gradient_are_learned_from(kind: str) -> None:
    """Where all columns have halted, no step would change the answer."""
    batch = toy_tokens()
    sizes = {"vocabulary": 9, "classes": 4, "width": 8, "hidden": 8, "heads": 2}
    if kind == "sparse":
        experts = {"experts": 4, "k": 2, "balance_weight": 1.0}
        model = build("transformer", **sizes, feedforward="experts", feedforward_options=experts).double()
    elif kind == "distinct":
        model = build("transformer", **sizes, act="graves", distinct_steps=15).double()
    else:
        model = toy_transformer(kind)
    short, long = (Objective(model)(batch, Plan(n, 3, 5, 1.0)) for n in (0, 12))
    for losses in (short, long):
        model.zero_grad()
        losses["loss"].backward()
        learned = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
        assert any(name.startswith("layers.") for name in learned)
        if kind != "sparse":
            assert "act.halt.weight" in learned
    if kind == "sparse":  # what was asked for in steps that learn nothing is not in the loss
        assert abs(float(long["penalty"]) / float(short["penalty"])) < 2


@pytest.mark.parametrize(("n", "k"), [(0, 3), (2, 3), (7, 3)])
def test_the_feed_forward_twin_trains_the_blocks_after_n(n: int, k: int) -> None:
    model = toy_model(recall=False, distinct_steps=10)
    Objective(model)(toy_batch(), Plan(n, k, 10, 1.0))["loss"].backward()
    trained = [block.convs[0].weight.grad is not None for block in model.blocks]
    assert trained == [n <= i < n + k for i in range(10)]
    assert (model.projection.weight.grad is not None) == (n == 0)


def test_no_gradient_reaches_the_steps_before_n() -> None:
    model = toy_model()
    progressive = Objective(model)(toy_batch(), Plan(4, 1, M, 1.0))["progressive"]
    weight = model.recall_state.weight
    one_step = torch.autograd.grad(progressive, weight)[0]
    # the same number with the gradient flowing back through all five steps
    context = model.look(toy_batch().inputs)
    state = model.start(context)
    for _ in range(5):
        state = model.step(state, context)
    all_steps = torch.autograd.grad(cross_entropy(model.read(state, context), toy_batch()), weight)[0]
    assert not torch.allclose(one_step, all_steps, rtol=1e-3)


def test_the_mean_is_pooled_over_the_batch() -> None:
    """A sample with many outputs that count weighs more than one with few (Eq. 5.3)."""
    logits = torch.randn(2, 2, 6, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[0, 1, 0, 1, 0, 1], [1, 1, 1, 0, 0, 0]])
    mask = torch.tensor([[True] * 6, [True] + [False] * 5])
    each = F.cross_entropy(logits, targets, reduction="none")
    expected = (each[0].sum() + each[1, 0]) / 7
    batch = Batch(logits, targets, mask)
    torch.testing.assert_close(cross_entropy(logits, batch), expected)
    assert outputs_that_count(batch) == 7
    whole = Batch(logits, targets)
    torch.testing.assert_close(cross_entropy(logits, whole), each.mean())
    assert outputs_that_count(whole) == 12


def test_half_precision_logits_are_summed_in_single_precision() -> None:
    logits = torch.randn(4, 2, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    batch = Batch(logits, torch.zeros(4, 1000, dtype=torch.long))
    loss = cross_entropy(logits, batch)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, F.cross_entropy(logits.float(), batch.targets))
