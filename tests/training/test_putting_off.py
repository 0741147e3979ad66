"""Weight gradients that are put off are those that autograd would have made step by step."""

from __future__ import annotations

import copy
import gc
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longthink.layers.linear import Linear
from longthink.layers.several import together
from longthink.models import build
from longthink.tasks import task
from longthink.training import compiled
from longthink.training.compiled import CompiledStep
from longthink.training.graphs import GraphedObjective
from longthink.training.losses import Objective, Plan
from longthink.training.putting_off import PuttingOff


class Toy(nn.Module):
    """One layer that is used once a call, one that is used twice, one that is not used; one without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.once, self.twice = Linear(4, 4), Linear(4, 4)
        self.never, self.bare = Linear(4, 4), Linear(4, 3, bias=False)
        self.back = nn.Linear(3, 4)  # a layer that knows nothing of this

    def part(self, x: Tensor) -> Tensor:
        y: Tensor = self.twice(self.twice(self.once(x).tanh()).tanh())
        return self.back(self.bare(y)).tanh() + x


def gradients(toy: Toy) -> list[Tensor | None]:
    found = [None if p.grad is None else p.grad.clone() for p in toy.parameters()]
    toy.zero_grad()
    return found


def assert_same(found: list[Tensor | None], expected: list[Tensor | None]) -> None:
    assert [g is None for g in found] == [g is None for g in expected]
    torch.testing.assert_close([g for g in found if g is not None], [g for g in expected if g is not None])


@pytest.fixture
def toy() -> Toy:
    torch.manual_seed(0)
    return Toy().double()


def off(toy: Toy) -> PuttingOff:
    return PuttingOff(toy, toy.part, lambda part: part)


def test_sums_over_calls_of_different_shapes(toy: Toy) -> None:
    inputs = [torch.randn(2, 5, 4).double(), torch.randn(3, 4).double()]

    def loss(part: Any) -> Tensor:
        return sum((part(part(x)).square().sum() for x in inputs), start=torch.zeros((), dtype=torch.double))

    loss(toy.part).backward()
    expected = gradients(toy)
    put_off = off(toy)
    put_off.begin()
    loss(put_off).backward()
    assert_same(gradients(toy), expected)
    assert expected[4] is None  # never used


def test_a_pass_begins_by_itself_after_one_was_taken_back(toy: Toy) -> None:
    x, put_off = torch.randn(2, 4).double(), off(toy)
    toy.part(x).sum().backward()
    expected = gradients(toy)
    for _ in range(2):  # nobody says begin
        put_off(x).sum().backward()
        assert_same(gradients(toy), expected)
        assert put_off._pass is not None
        assert not put_off._pass.inputs  # nothing is kept longer than needed


def test_a_pass_that_was_never_taken_back_leaves_nothing(toy: Toy) -> None:
    x, put_off = torch.randn(2, 4).double(), off(toy)
    toy.part(x).sum().backward()
    expected = gradients(toy)
    put_off(2 * x)
    put_off.begin()
    put_off(x).sum().backward()
    assert_same(gradients(toy), expected)


def test_a_call_whose_result_is_not_used(toy: Toy) -> None:
    x, put_off = torch.randn(2, 4).double(), off(toy)
    toy.part(x).sum().backward()
    expected = gradients(toy)
    put_off(2 * x)
    put_off(x).sum().backward()
    assert_same(gradients(toy), expected)


def test_nothing_of_a_pass_outlives_it(toy: Toy) -> None:
    """The node that adds to a weight's gradient belongs to the stream of its pass: no other may meet it."""

    class Mark:
        pass

    def marked() -> weakref.ref[Mark]:
        node, mark = toy.once.weight.view_as(toy.once.weight).grad_fn.next_functions[0][0], Mark()
        node.metadata["mark"] = mark
        return weakref.ref(mark)

    x, put_off = torch.randn(2, 4).double(), off(toy)
    gc.disable()  # cycles would be found in the end, but not before a capture
    try:
        loss = put_off(x).sum()
        mark = marked()
        loss.backward()
        del loss
        assert mark() is None
        loss = put_off(x).sum()  # this one is never taken back
        mark = marked()
        del loss
        put_off.begin()
        assert mark() is None
    finally:
        gc.enable()


def test_twice_is_refused(toy: Toy) -> None:
    loss = off(toy)(torch.randn(2, 4).double()).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="taken back once"):
        loss.backward()


def test_frozen_weights_get_no_gradient(toy: Toy) -> None:
    x = torch.randn(2, 4).double()
    for weight in (toy.once.weight, toy.bare.weight):
        weight.requires_grad_(False)
    toy.part(x).sum().backward()
    expected = gradients(toy)
    off(toy)(x).sum().backward()
    assert_same(gradients(toy), expected)


def test_half_precision_stays_close(toy: Toy) -> None:
    toy.float()
    x, put_off = torch.randn(64, 4), off(toy)
    found = []
    for part in (toy.part, put_off):
        with torch.autocast("cpu", torch.bfloat16):
            part(part(x)).float().square().mean().backward()
        found.append(gradients(toy))
    for plain, late in zip(*found, strict=True):
        assert (plain is None) == (late is None)
        if plain is not None and late is not None:
            assert plain.dtype == late.dtype == torch.float32
            assert (plain - late).norm() <= 0.02 * plain.norm()


ATTENTIONS = ("absolute", "relative", "gated_positions", "geometric")


@pytest.mark.parametrize("networks", [1, 2])
@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_transformer(attention: str, gate: bool, networks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a progressive term goes on without a gradient in between."""
    monkeypatch.setattr(compiled.torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    torch.manual_seed(0)
    options: dict[str, Any] = {"width": 8, "hidden": 12, "heads": 2, "dropout": 0.0, "attention": attention}
    problem = task("ctl")
    options |= {"gate": gate, "act": None if gate else "graves"}
    models = [build("transformer", **problem.shape, **options).double() for _ in range(networks)]
    model = together(models)
    batch, found = problem.sample(4, 3, 0, "train"), []
    for thinker in (None, CompiledStep(model)):
        model.zero_grad()
        Objective(model, thinker)(batch, Plan(2, 2, 3, 0.4))["loss"].sum().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(found[0]) > 10
    torch.testing.assert_close(*found)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="captured graphs need a GPU")
@pytest.mark.parametrize(("name", "large"), [("router", False), ("router", True), ("dnc", False)])
def test_compiled_and_captured_on_a_gpu(name: str, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast path as training uses it; ``large`` computes activations again instead of putting gradients off."""
    monkeypatch.setattr(compiled, "LARGE_STATE", 0 if large else 2**40)
    torch._dynamo.reset()
    torch.manual_seed(0)
    source, options, steps = {
        "router": ("ctl", {"width": 32, "hidden": 48, "heads": 2, "dropout": 0.0, "gate_dropout": 0.0}, 4),
        "dnc": ("repeat_copy", {"size": 16, "cells": 8, "width": 8, "heads": 2}, 0),
    }[name]
    options = {**options, "attention_dropout": 0.0} if name == "router" else options
    problem = task(source)
    model = build(name, **problem.shape, **options).cuda()
    batch, plan = problem.sample(16, 3, 0, "train").to("cuda"), Plan(0, 1, steps, 0.0)
    fast = Objective(model, CompiledStep(model))
    fast(batch, plan)["loss"].backward()  # a plain update first leaves nothing behind that a capture could meet
    graphed = GraphedObjective(fast, half=False, full_alone=True)
    other = copy.deepcopy(model)  # graphs must not meet the history of these plain updates
    for _ in range(3):
        other.load_state_dict(model.state_dict())
        other.zero_grad()
        Objective(other)(batch, plan)["loss"].backward()
        expected = [p.grad for p in other.parameters()]
        graphed.backward(batch, plan)
        for weight, truth in zip(model.parameters(), expected, strict=True):
            assert (weight.grad is None) == (truth is None)
            if weight.grad is not None and truth is not None:
                assert (weight.grad - truth).norm() <= 1e-3 * truth.norm() + 1e-6
        with torch.no_grad():  # weights move between updates
            for weight in model.parameters():
                weight.mul_(0.97)
