"""Mixtures of experts: the public code's values, a loop over tokens and experts, dropout of units, initialisation."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longthink.errors import UserError
from longthink.layers.balance import balances, usage
from longthink.layers.experts import Experts, mixture
from longthink.layers.selection import selections
from longthink.think import think
from tests.fixtures import fixture

PUBLIC = {
    "sigma_moe": ("sigmoid", {}),
    "sigma_moe_bias": ("sigmoid", {}),
    "moe_softmax_before_topk": ("softmax", {}),
    "moe_softmax_after_topk": ("softmax_after", {}),
    "moe_sinkhorn_train": ("sinkhorn", {"published": True}),
    "moe_sinkhorn_eval": ("sinkhorn", {}),
}


@pytest.mark.parametrize("case", PUBLIC)
def test_matches_the_public_code(case: str) -> None:
    tensors = fixture(case)
    kind, options = PUBLIC[case]
    layer = mixture(
        16, 48, 6, 2, kind, selection_options=options, bias="bias" in case, balance="entropy", balance_weight=1.0
    ).train("eval" not in case)
    names = {"expert_sel": "selection.weight", "keys": "up", "values": "down", "bias": "up_bias", "o_bias": "down_bias"}
    parameters = dict(layer.named_parameters())
    pairs = {name[2:]: parameters[names[name[2:]]] for name in tensors if name.startswith("w.")}
    assert len(pairs) == len(parameters)
    with torch.no_grad():
        for name, ours in pairs.items():
            ours.copy_(tensors[f"w.{name}"])
    x = tensors["in.x"].requires_grad_()
    close = {"rtol": 1e-4, "atol": 1e-4}
    y, balance = layer.forward_with_balance(x)
    torch.testing.assert_close(y, tensors["out.y"], **close)
    torch.testing.assert_close(balance, tensors["out.entropy_reg"], **close)
    chosen = layer.selection(x)
    experts, place = chosen.experts.sort(-1)
    assert torch.equal(experts, tensors["out.selected"])
    torch.testing.assert_close(chosen.gates.gather(-1, place), tensors["out.selected_weight"], **close)
    wanted = [x, *pairs.values()]
    gradients = torch.autograd.grad((y * tensors["in.cotangent"]).sum(), wanted, retain_graph=True)
    for name, gradient in zip(["in.x", *(f"w.{n}" for n in pairs)], gradients, strict=True):
        torch.testing.assert_close(gradient, tensors[f"grad.{name}"], **close)
    d_x, d_selector = torch.autograd.grad(balance, [x, pairs["expert_sel"]])
    torch.testing.assert_close(d_x, tensors["grad_reg.in.x"], **close)
    torch.testing.assert_close(d_selector, tensors["grad_reg.w.expert_sel"], **close)


def one_by_one(layer: Experts, x: Tensor, kind: str) -> Tensor:
    """Eq. 7.11 with each kind's gates written out for each token."""
    k, act = layer.selection.k, {"relu": F.relu, "gelu": F.gelu}[layer.activation]
    rows = []
    for token in x.reshape(-1, x.shape[-1]):
        logits = [w @ token for w in layer.selection.weight]
        total = sum(l.exp() for l in logits)
        best = sorted(range(len(logits)), key=lambda e: -float(logits[e].detach()))[:k]
        among = sum(logits[e].exp() for e in best)
        y = torch.zeros_like(token) if layer.down_bias is None else layer.down_bias
        for e in best:
            gate = {
                "sigmoid": 1 / (1 + (-logits[e]).exp()),
                "sinkhorn": 1 / (1 + (-logits[e]).exp()),
                "softmax": logits[e].exp() / total,
                "switch": logits[e].exp() / total,
                "softmax_renormalised": logits[e].exp() / among,
                "softmax_after": logits[e].exp() / among,
                "noisy": logits[e].exp() / among,
            }[kind]
            u = token @ layer.up[e] + (0 if layer.up_bias is None else layer.up_bias[e])
            y = y + gate * (act(u) @ layer.down[e])
        rows.append(y)
    return torch.stack(rows).view(x.shape)


@pytest.mark.parametrize("kind", list(selections))
@pytest.mark.parametrize(("k", "bias", "activation"), [(1, False, "relu"), (2, True, "relu"), (3, True, "gelu")])
def test_equals_a_loop_over_tokens_and_experts(kind: str, k: int, bias: bool, activation: str) -> None:
    torch.manual_seed(0)
    layer = mixture(6, 20, 5, k, kind, bias=bias, activation=activation).double().eval()
    if bias:
        nn.init.normal_(layer.up_bias)
        nn.init.normal_(layer.down_bias)
    x = torch.randn(2, 4, 6, dtype=torch.double, requires_grad=True)
    ours, truth = layer(x), one_by_one(layer, x, kind)
    torch.testing.assert_close(ours, truth)
    probe, wanted = torch.randn_like(truth), [x, *layer.parameters()]
    mine = torch.autograd.grad((ours * probe).sum(), wanted, materialize_grads=True)
    theirs = torch.autograd.grad((truth * probe).sum(), wanted, materialize_grads=True)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-10)


TRAINING: dict[str, dict[str, Any]] = {
    "noise": {"selection": "noisy"},
    "sinkhorn": {"selection": "sinkhorn"},
    "capacity": {"selection": "switch", "selection_options": {"capacity": 0.7}},
    "expert dropout": {"expert_dropout": 0.4},
    "dropout of units": {"dropout": 0.5, "bias": True},
}


@pytest.mark.parametrize("name", list(TRAINING))
def test_training_equals_a_loop_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is random is drawn here; which experts are chosen is checked elsewhere, here what they add up to."""
    torch.manual_seed(0)
    layer = mixture(6, 20, 5, 2, **TRAINING[name]).double().train()
    kept, units = torch.tensor([True, False, True, True, False]), 2.0 * (torch.rand(8, 2, 4) < 0.5)
    monkeypatch.setattr("longthink.layers.selection.keep_mask", lambda *_: kept)
    if name == "dropout of units":
        monkeypatch.setattr("longthink.layers.experts.dropout", lambda u, *_: u * units)
        nn.init.normal_(layer.up_bias)
    if name == "noise":
        nn.init.normal_(layer.selection.noise)
    x = torch.randn(2, 4, 6, dtype=torch.double, requires_grad=True)
    noise = torch.randn(2, 4, 5, dtype=torch.double)
    monkeypatch.setattr(torch, "randn_like", lambda _: noise)
    chosen = layer.selection(x).experts.view(8, 2)
    queues = [0] * 5
    limit = int(0.7 * 16 / 5)
    room = torch.ones(8, 2, dtype=torch.bool)
    for choice_ in range(2):
        for t in range(8):
            room[t, choice_] = queues[chosen[t, choice_]] < limit or name != "capacity"
            queues[chosen[t, choice_]] += 1
    rows = []
    for t, token in enumerate(x.reshape(8, 6)):
        logits = torch.stack([w @ token for w in layer.selection.weight])
        if name == "noise":
            logits = logits + noise.view(8, 5)[t] * (1 + (layer.selection.noise @ token).exp()).log()
        y = torch.zeros(6, dtype=torch.double)
        among = sum(logits[e].exp() for e in chosen[t])
        for i, e in enumerate(chosen[t].tolist()):
            gate = {"noise": logits[e].exp() / among, "capacity": logits[e].exp() / logits.exp().sum()}.get(
                name, 1 / (1 + (-logits[e]).exp())
            )
            gate = gate * room[t, i] * (kept[e] or name != "expert dropout")
            u = token @ layer.up[e] + (0 if layer.up_bias is None else layer.up_bias[e])
            u = u.relu() * (units[t, i] if name == "dropout of units" else 1)
            y = y + gate * (u @ layer.down[e])
        rows.append(y if layer.down_bias is None else y + layer.down_bias)
    ours, truth = layer(x), torch.stack(rows).view(2, 4, 6)
    torch.testing.assert_close(ours, truth)
    probe, wanted = torch.randn(2, 4, 6, dtype=torch.double), [x, *layer.parameters()]
    mine = torch.autograd.grad((ours * probe).sum(), wanted, materialize_grads=True)
    theirs = torch.autograd.grad((truth * probe).sum(), wanted, materialize_grads=True)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-10)


def test_all_experts_together_are_the_dense_layer() -> None:
    """With every expert chosen and equal gates (Eq. 7.9 and 7.10)."""
    torch.manual_seed(0)
    layer = mixture(6, 20, 5, 5).double()
    with torch.no_grad():
        layer.selection.weight.fill_(0)
    x = torch.randn(2, 4, 6, dtype=torch.double)
    dense = (x @ layer.up.transpose(0, 1).flatten(1)).relu() @ layer.down.flatten(0, 1)
    torch.testing.assert_close(layer(x), dense / 2)  # sigmoid(0)


@pytest.mark.parametrize("kind", list(selections))
@pytest.mark.parametrize("balance", list(balances))
def test_every_choice_trains_every_weight(kind: str, balance: str) -> None:
    torch.manual_seed(0)
    layer = mixture(8, 16, 4, 2, kind, expert_dropout=0.1, balance=balance, balance_weight=0.1).train()
    for _ in range(3):
        y, loss = layer.forward_with_balance(torch.randn(4, 16, 8))
        (y.square().mean() + loss).backward()
    for name, weight in layer.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all()
        assert (weight.grad != 0).any(), name


def test_standard_dropout_falls_on_hidden_units_while_training() -> None:
    torch.manual_seed(0)
    layer = mixture(8, 64, 4, 2, dropout=0.4, bias=True)
    x = torch.randn(1, 3, 8)
    plain = layer.eval()(x)
    mean = torch.stack([layer.train()(x) for _ in range(1500)]).mean(0)
    assert not torch.allclose(layer(x), layer(x))
    torch.testing.assert_close(mean, plain, rtol=0, atol=0.07)


def test_sinkhorn_serves_training_alone() -> None:
    torch.manual_seed(0)
    layer = mixture(8, 16, 4, 1, "sinkhorn").double()
    x = torch.randn(4, 32, 8, dtype=torch.double) + 0.5
    spread = [float(usage(layer.selection.train(mode)(x)).mean(0).std()) for mode in (True, False)]
    assert spread[0] < spread[1]
    torch.testing.assert_close(layer.eval()(x), one_by_one(layer, x, "sinkhorn"))


def test_initialisation_is_that_of_the_dense_layer() -> None:
    torch.manual_seed(0)
    layer = mixture(256, 2048, 16, 4, layers=12)
    assert layer.up.std().item() == pytest.approx(math.sqrt(2 / (256 * 12)), rel=0.01)
    assert layer.down.std().item() == pytest.approx(math.sqrt(2 / (2048 * 12)), rel=0.01)
    assert layer.selection.weight.std().item() == pytest.approx(math.sqrt(2 / (256 * 12)), rel=0.05)
    torch.testing.assert_close(layer.selection.weight.norm(dim=1), torch.full((16,), math.sqrt(2 / 12)))
    standard = mixture(256, 2048, 16, 4, layers=12, initialisation="standard")
    assert standard.down.std().item() == pytest.approx(math.sqrt(2 / (128 * 12)), rel=0.01)
    assert standard.selection.weight.norm(dim=1).std() > 0.001
    switch = mixture(256, 2048, 16, 4, layers=12, initialisation="switch")
    assert switch.down.std().item() == pytest.approx(math.sqrt(0.1 / 128), rel=0.01)


def test_what_happens_inside_is_noted() -> None:
    torch.manual_seed(0)

    class Columns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = mixture(8, 16, 4, 2)

        def look(self, x: Tensor) -> Tensor:
            return x

        def start(self, context: Tensor) -> Tensor:
            return context

        def step(self, state: Tensor, context: Tensor) -> Tensor:
            return state + self.layer(state)

        def read(self, state: Tensor, context: Tensor) -> Tensor:
            return state

    model, x = Columns(), torch.randn(3, 5, 8)
    trace = think(model, x, 2, watch=("experts", "gates", "usage")).trace
    assert trace["experts"].shape == trace["gates"].shape == (3, 2, 5, 2)
    assert trace["usage"].shape == (3, 2, 4)
    torch.testing.assert_close(trace["usage"].sum(-1), torch.full((3, 2), 2.0))
    assert torch.equal(trace["experts"][:, 0], model.layer.selection(x).experts)


@pytest.mark.parametrize(
    "options",
    [
        {"k": 0},
        {"k": 5},
        {"experts": 0},
        {"experts": 3, "k": 1},
        {"hidden": 0},
        {"selection": "sigmod"},
        {"balance": "entrpy"},
        {"activation": "x"},
        {"initialisation": "x"},
        {"layers": 0},
        {"expert_dropout": 1.0},
        {"selection": "switch", "selection_options": {"capacity": 0}},
        {"selection": "sinkhorn", "selection_options": {"rounds": 0}},
        {"selection_options": {"rounds": 3}},
        {"colour": "red"},
    ],
)
def test_bad_options_get_one_sentence(options: dict) -> None:
    with pytest.raises(UserError) as error:
        mixture(**{"width": 8, "hidden": 16, "experts": 4, "k": 2, **options})
    assert str(error.value).endswith((".", "?"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"selection": "switch", "k": 1, "selection_options": {"capacity": math.nan}}, "above 0, not nan"),
        ({"selection": "switch", "k": 1, "selection_options": {"capacity": "a"}}, "must be a number, not 'a'"),
        ({"selection": "sinkhorn", "selection_options": {"rounds": 1.5}}, "must be a whole number, not 1.5"),
        ({"selection_options": 3}, "'sigmoid' are given by name, not as 3"),
        ({"dropuot": 0.1}, "did you mean 'dropout'"),
    ],
)
def test_options_that_are_no_such_thing_get_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        mixture(16, 32, **{"experts": 4, "k": 2, **options})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.compile's graphs need a GPU")
@pytest.mark.parametrize("expert_dropout", [0.0, 0.3])
def test_a_compiled_layer_in_graphs_is_the_same_layer(expert_dropout: float) -> None:
    """As people use it who do not train with us; three passes, of which the last ones are replayed."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = mixture(64, 256, experts=8, k=2, expert_dropout=expert_dropout, balance=None).cuda()
    compiled = torch.compile(copy.deepcopy(layer), mode="reduce-overhead")
    layer.train(expert_dropout == 0)  # masks of two passes would differ; but a compiled evaluation must not drop any
    compiled.train(expert_dropout == 0)
    for _ in range(3):
        x = torch.randn(200, 64, device="cuda")
        found = []
        for part in (layer, compiled):
            torch.compiler.cudagraph_mark_step_begin()
            leaf = x.clone().requires_grad_()
            part.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                y = part(leaf)
            y.float().square().sum().backward()
            found.append([y.detach().float().clone(), leaf.grad.clone(), *(p.grad.clone() for p in part.parameters())])
        for ours, plain in zip(*found, strict=True):
            assert (ours - plain).norm() <= 2e-2 * plain.norm()
