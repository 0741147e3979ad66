"""What language models do in training alone, dropout in every place, and how MoEUT begins."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from longthink.layers.causal import attend
from longthink.layers.decoder import PeriNormLayer, PreNormLayer
from longthink.layers.experts import Experts
from longthink.layers.feedforward import Dense
from longthink.layers.switch_head import SwitchHead
from longthink.layers.topk import TopK
from longthink.models import build
from longthink.models.language import Columns, Language
from longthink.think import think
from tests.models.dropped import check_half_is_dropped

WIDTH = 64
EXPERTS: dict[str, Any] = {"feedforward": "experts", "feedforward_options": {"experts": 4, "k": 2}}
PERI: dict[str, Any] = {**EXPERTS, "norm": "peri", "attention_options": {"experts": 4, "k": 2}}


def make(**options: Any) -> Language:
    torch.manual_seed(0)
    defaults = {"vocabulary": 9, "classes": WIDTH, "width": WIDTH, "hidden": 32, "heads": 4, "dropout": 0.5}
    model = build("language", **{**defaults, **options})
    assert isinstance(model, Language)
    return model.double()


@torch.no_grad()
@pytest.mark.parametrize(("options", "scale"), [({}, 8.0), (PERI, 1.0)])
def test_embeddings_are_scaled_and_dropped(options: dict[str, Any], scale: float) -> None:
    model, tokens = make(**options), torch.randint(0, 9, (4, 6))
    whole = model.eval().look(tokens).x
    torch.testing.assert_close(whole, scale * model.embedding(tokens))
    check_half_is_dropped(model.train().look(tokens).x, whole)


@torch.no_grad()
def test_what_is_read_is_dropped() -> None:
    model = make()
    model.head.weight.copy_(torch.eye(WIDTH))
    model.head.bias.zero_()
    context, state = model.look(torch.zeros(4, 6, dtype=torch.long)), Columns(torch.randn(4, 6, WIDTH).double(), 1)
    check_half_is_dropped(model.train().read(state, context), model.eval().read(state, context))


@torch.no_grad()
@pytest.mark.parametrize("part", ["attention", "feed-forward"])
def test_residual_updates_are_dropped(part: str) -> None:
    model = make(feedforward_options={"dropout": 0.0})
    layer, x = model.layers[0], torch.randn(4, 6, WIDTH).double()
    assert isinstance(layer, PreNormLayer)
    assert isinstance(layer.feedforward, Dense)
    for silent in [layer.attention.merge] if part == "feed-forward" else [layer.feedforward.down]:
        silent.weight.zero_()
    check_half_is_dropped(layer.train()(x).h - x, layer.eval()(x).h - x)


@torch.no_grad()
def test_of_moeut_only_attention_is_dropped() -> None:
    layer, x = make(**PERI).layers[0], torch.randn(4, 6, WIDTH).double()
    assert isinstance(layer, PeriNormLayer)
    experts = layer.feedforward.down.clone()
    layer.feedforward.down.zero_()
    check_half_is_dropped(layer.train()(x).h - x, layer.eval()(x).h - x)
    layer.feedforward.down.copy_(experts)
    layer.attention.merge.zero_()
    torch.testing.assert_close(layer.train()(x).h, layer.eval()(x).h)


def test_only_dense_layers_drop_units() -> None:
    dense, sparse = make().layers[0].feedforward, make(**EXPERTS).layers[0].feedforward
    assert isinstance(dense, Dense)
    assert isinstance(sparse, Experts)
    assert (dense.dropout, sparse.dropout) == (0.5, 0.0)


@torch.no_grad()
def test_top_k_drops_before_it_chooses() -> None:
    torch.manual_seed(0)
    layer, x = TopK(16, 64, k=10, dropout=0.5), torch.randn(200, 16)
    layer.up.bias.fill_(5.0)  # all units are active
    u, whole = layer.train().hidden(x), layer.activation(layer.up(x))
    torch.testing.assert_close(u, torch.where(u == 0, 0.0, 2 * whole))
    assert ((u != 0).sum(1) == 10).all()
    best = (u.argmax(1) == whole.argmax(1)).double().mean().item()
    assert best == pytest.approx(0.5, abs=0.1)  # in half of the rows the largest unit was dropped


@torch.no_grad()
def test_attention_weights_are_dropped() -> None:
    """Of 50 equal weights half are doubled: values of one are read as one, give or take."""
    torch.manual_seed(0)
    module = nn.Module()
    module.dropout = 0.5  # type: ignore[assignment]
    q, k, v, bias = torch.zeros(8, 2, 50, 4), torch.zeros(8, 2, 50, 4), torch.ones(8, 2, 50, 4), torch.zeros(50, 50)
    read = attend(q, k, v, bias, module.train())
    assert read.mean().item() == pytest.approx(1.0, abs=0.02)
    assert read.std().item() == pytest.approx(1 / math.sqrt(50), rel=0.15)
    torch.testing.assert_close(attend(q, k, v, bias, module.eval()), v)


@torch.no_grad()
def test_dropped_experts_of_heads_count_for_nothing() -> None:
    torch.manual_seed(0)
    head = SwitchHead(WIDTH, heads=50, head_size=2, experts=2, k=2, expert_dropout=0.5)  # all must be chosen
    assert head.value_selector is not None
    gates = head.train()._choose(torch.randn(2, 3, WIDTH), head.value_selector).gates
    gone = (gates == 0).view(6, 50, 2)
    assert (gone.sum(2) == gone[0].sum(1)).all()  # the same for all tokens
    assert gone.double().mean().item() == pytest.approx(0.5, abs=0.15)
    assert (head.eval()._choose(torch.randn(2, 3, WIDTH), head.value_selector).gates > 0).all()


@torch.no_grad()
def test_how_moeut_begins() -> None:
    """As its public code: deviations fall with the number of layers that are applied, here 2 x 4."""
    model = make(**PERI, group=2, planned_steps=4, head_size=16)
    assert model.embedding.weight.std().item() == pytest.approx(1 / 8, rel=0.1)
    for layer in model.layers:
        head, mixture = layer.attention, layer.feedforward
        assert isinstance(head, SwitchHead)
        assert isinstance(mixture, Experts)
        assert head.turned == 8  # half of 16 channels
        gain = math.sqrt(2 / 8)
        for weight in (head.query.weight, head.key.weight, head.value):
            assert weight.std().item() == pytest.approx(gain / 8, rel=0.05)
        assert head.merge.std().item() == pytest.approx(gain / math.sqrt(4 * 16), rel=0.05)
        assert head.value_selector is not None
        for selector in (head.value_selector, head.merge_selector, mixture.selection.weight):
            torch.testing.assert_close(selector.norm(dim=1), torch.full((len(selector),), gain).double())
        assert mixture.up.std().item() == pytest.approx(gain / 8, rel=0.1)
        assert mixture.down.std().item() == pytest.approx(gain / math.sqrt(32), rel=0.1)


def test_product_keys_know_the_depth() -> None:
    keys = {
        layers: make(feedforward="product_keys", hidden=64, distinct_steps=layers).layers[0].feedforward.keys.std()
        for layers in (1, 4)
    }
    assert (keys[1] / keys[4]).item() == pytest.approx(2.0, rel=0.1)


def test_moeut_without_balance_asks_for_none() -> None:
    quiet = {**PERI, "feedforward_options": {"experts": 4, "k": 2, "balance": None}, "attention_balance": 0.0}
    for options, asked in ((quiet, False), ({**quiet, **EXPERTS}, True)):
        model = make(**options, planned_steps=2).train()
        tokens = torch.randint(0, 9, (2, 5))
        context = model.look(tokens)
        penalty = model.penalty(think(model, None, 2, context=context).state, context)
        assert penalty is not None
        assert (penalty.item() != 0) == asked
