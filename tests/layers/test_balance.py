"""Losses that balance experts: by hand, their gradients, padding, several devices, nothing at all."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from longthink.layers import pooled
from longthink.layers.balance import balances, usage
from longthink.layers.experts import mixture
from longthink.layers.selection import Chosen, selections


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ["sigmoid", "softmax", "switch"])
@pytest.mark.parametrize("balance", list(balances))
def test_gradients_of_balancing_losses_are_slopes(kind: str, balance: str, padded: bool) -> None:
    torch.manual_seed(1)
    layer = mixture(4, 8, 4, 2, kind, balance=balance, balance_weight=1.0).double()
    x = torch.randn(2, 3, 4, dtype=torch.double, requires_grad=True)
    padding = torch.tensor([[False, False, True], [False, True, True]]) if padded else None
    assert torch.autograd.gradcheck(lambda x: layer.forward_with_balance(x, padding)[1], (x,))


@pytest.mark.parametrize("kind", list(selections))
@pytest.mark.parametrize("balance", list(balances))
def test_padding_counts_for_nobody(kind: str, balance: str) -> None:
    torch.manual_seed(0)
    options = {"capacity": 0.5} if kind == "switch" else {}
    layer = mixture(6, 20, 5, 2, kind, balance=balance, balance_weight=1.0, selection_options=options).double()
    layer.train(kind != "noisy")
    x = torch.randn(2, 4, 6, dtype=torch.double)
    longer = torch.cat([x, torch.randn(2, 7, 6, dtype=torch.double)], 1)
    padding = torch.arange(11).expand(2, 11) >= 4
    (alone, asked), (beside, also) = layer.forward_with_balance(x), layer.forward_with_balance(longer, padding)
    torch.testing.assert_close(beside[:, :4], alone)
    torch.testing.assert_close(also, asked)
    torch.testing.assert_close(usage(layer.selection(longer, padding)), usage(layer.selection(x)))
    unaware = layer.forward_with_balance(longer)[1]
    assert not torch.allclose(unaware, asked)  # it would make a difference


@pytest.mark.parametrize("balance", list(balances))
def test_the_weight_of_a_balancing_loss(balance: str) -> None:
    x = torch.randn(2, 8, 6)
    asked = []
    for weight in (1.0, 0.25, 0.0):
        torch.manual_seed(0)
        layer = mixture(6, 20, 5, 2, balance=balance, balance_weight=weight)
        asked.append(layer.forward_with_balance(x)[1].item())
    assert asked[0] != 0
    assert asked[1:] == [pytest.approx(0.25 * asked[0]), 0.0]


def choice(experts: Tensor, number: int, gates: Tensor | None = None, logits: Tensor | None = None) -> Chosen:
    logits = torch.zeros(*experts.shape[:2], number, dtype=torch.double) if logits is None else logits
    gates = torch.full(experts.shape, 0.5, dtype=torch.double) if gates is None else gates
    return Chosen(experts, gates, logits, logits, lambda seen: seen.softmax(-1))


def test_balancing_losses_by_hand() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 5, 4, dtype=torch.double)
    experts = logits.topk(2).indices
    gates = torch.rand(2, 5, 2, dtype=torch.double)
    chosen = choice(experts, 4, gates, logits)
    p = [sum(float(logits[b, t].softmax(0)[e]) for b in range(2) for t in range(5)) / 10 for e in range(4)]
    f = [sum(e in experts[b, t] for b in range(2) for t in range(5)) / 10 for e in range(4)]
    total = [float(gates[experts == e].sum()) for e in range(4)]
    mean = sum(total) / 4
    assert balances["entropy"](chosen).item() == pytest.approx(sum(q * math.log(q) for q in p))
    assert balances["switch"](chosen).item() == pytest.approx(4 * sum(a * b for a, b in zip(f, p, strict=True)))
    expected = sum((t - mean) ** 2 for t in total) / 4 / mean**2
    assert balances["variation"](chosen).item() == pytest.approx(expected)
    torch.testing.assert_close(usage(chosen).mean(0), torch.tensor(f, dtype=torch.double))


def test_balancing_losses_prefer_balance() -> None:
    even = torch.arange(8).view(2, 4, 1) % 4
    collapsed = torch.zeros_like(even)
    for name, best in {"entropy": -math.log(4), "switch": 1.0, "variation": 0.0}.items():
        values = []
        for experts in (even, collapsed):
            logits = 5 * F.one_hot(experts[..., 0], 4).double()
            values.append(balances[name](choice(experts, 4, logits=logits)).item())
        assert values[0] == pytest.approx(best, abs=1e-9)
        assert values[1] > values[0] + 0.5


@pytest.mark.parametrize("selection", list(selections))
@pytest.mark.parametrize("balance", list(balances))
@pytest.mark.parametrize("shape", [(0, 3, 16), (2, 0, 16), (2, 3, 16)])
def test_no_tokens_ask_for_nothing(selection: str, balance: str, shape: tuple[int, ...]) -> None:
    layer = mixture(16, 32, 4, 2, selection, balance=balance, balance_weight=1.0).train()
    x = torch.randn(shape, requires_grad=True)
    if x.numel() == 0:
        assert layer.forward_with_balance(x)[1].item() == 0
    y, asked = layer.forward_with_balance(x, torch.ones(shape[:2], dtype=torch.bool))  # all of it is padding
    assert asked.item() == 0
    (y.sum() + asked).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_experts_that_nobody_likes_have_a_share_of_zero() -> None:
    logits = torch.tensor([[[0.0, 110.0, 1.0], [0.0, 120.0, 3.0]]], requires_grad=True)
    chosen = Chosen(torch.ones(1, 2, 1, dtype=torch.long), torch.ones(1, 2, 1), logits, logits, torch.sigmoid)
    loss = balances["entropy"](chosen)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_sums_over_devices_bear_small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooled, "several", lambda training: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_: None)  # one that is not alone, with idle others
    each = torch.tensor([[0.0, 110.0, -torch.inf], [-130.0, 120.0, -torch.inf]], dtype=torch.double) - 120
    each.requires_grad_()
    found = pooled.log_sum(each.float(), training=True)
    torch.testing.assert_close(found.double(), each.logsumexp(0))
    found[:2].sum().backward()
    torch.testing.assert_close(each.grad[:, :2], each.detach().softmax(0)[:, :2], rtol=1e-5, atol=1e-6)
