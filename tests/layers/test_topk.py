"""The feed-forward interface that all kinds share, and the Top-K activation."""

from __future__ import annotations

import pytest
import torch

import longthink.layers.experts
import longthink.layers.product_keys
import longthink.layers.topk  # noqa: F401
from longthink.errors import UserError
from longthink.layers.feedforward import Dense, feedforwards
from longthink.layers.topk import TopK, keep_largest


@pytest.mark.parametrize("kind", list(feedforwards))
def test_every_kind_is_a_drop_in(kind: str) -> None:
    torch.manual_seed(0)
    options = {"k": 4} if kind == "top_k" else {}
    layer = feedforwards[kind](16, 64, **options)
    x = torch.randn(2, 5, 16, requires_grad=True)
    y, balance = layer.forward_with_balance(x)
    assert y.shape == x.shape
    assert balance.shape == ()
    torch.testing.assert_close(y, layer(x))
    (y.square().sum() + balance).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in layer.parameters())
    assert not any(isinstance(value, torch.Tensor) for value in vars(layer).values())  # nothing is kept between calls


def test_top_k_is_equation_7_7_one_token_at_a_time() -> None:
    torch.manual_seed(0)
    layer = TopK(6, 10, k=3).double()
    x = torch.randn(2, 4, 6, dtype=torch.double, requires_grad=True)
    rows = []
    for token in x.reshape(-1, 6):
        u = (layer.up.weight @ token + layer.up.bias).relu()
        best = sorted(range(10), key=lambda i: -float(u[i].detach()))[:3]  # Eq. 7.6
        rows.append(sum(u[i] * layer.down.weight[:, i] for i in best) + layer.down.bias)
    truth = torch.stack(rows).view(x.shape)
    torch.testing.assert_close(layer(x), truth)
    probe = torch.randn_like(truth)
    wanted = [x, *layer.parameters()]
    for ours, theirs in zip(
        torch.autograd.grad((layer(x) * probe).sum(), wanted),
        torch.autograd.grad((truth * probe).sum(), wanted, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_keeping_all_units_is_the_dense_layer() -> None:
    torch.manual_seed(0)
    dense, sparse = Dense(6, 10), TopK(6, 10, k=10)
    sparse.load_state_dict(dense.state_dict())
    x = torch.randn(2, 3, 6)
    torch.testing.assert_close(sparse(x), dense(x))
    assert (keep_largest(torch.rand(50, 9), 4) > 0).sum(1).eq(4).all()


@pytest.mark.parametrize("k", [0, 11])
def test_impossible_k(k: int) -> None:
    with pytest.raises(UserError, match=r"between 1 and all 10 .*\.$"):
        TopK(6, 10, k=k)
