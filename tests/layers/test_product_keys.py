"""Product-key memory against the public code and against all pairs of keys, one token at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.layers.product_keys import ProductKeys, best_pairs
from tests.fixtures import fixture


@pytest.mark.parametrize("case", ["dense_relu", "dense_softmax", "relu", "softmax", "relu_query_projection"])
def test_matches_the_public_code(case: str) -> None:
    tensors = fixture(f"pkm_{case}")
    k = None if "dense" in case else 3
    activation = "softmax" if "softmax" in case else "relu"
    layer = ProductKeys(16, 25, k, heads=2, activation=activation, project_query="query" in case).double()
    with torch.no_grad():
        layer.keys.copy_(torch.stack([tensors["w.keys.0"], tensors["w.keys.1"]]))
        layer.values.copy_(tensors["w.values.weight"])
        if layer.query is not None:
            layer.query.weight.copy_(tensors["w.query_proj.weight"])
    x = tensors["in.x"].requires_grad_()
    y = layer(x)
    close = {"rtol": 1e-9, "atol": 1e-10}
    torch.testing.assert_close(y, tensors["out.y"], **close)
    d_x, *others = torch.autograd.grad((y * tensors["in.cotangent"]).sum(), [x, *layer.parameters()])
    gradients = dict(zip(dict(layer.named_parameters()), others, strict=True))
    torch.testing.assert_close(d_x, tensors["grad.in.x"], **close)
    torch.testing.assert_close(gradients["values"], tensors["grad.w.values.weight"], **close)
    for half in (0, 1):
        torch.testing.assert_close(gradients["keys"][half], tensors[f"grad.w.keys.{half}"], **close)
    if layer.query is not None:
        torch.testing.assert_close(gradients["query.weight"], tensors["grad.w.query_proj.weight"], **close)
    if k is not None:
        chosen = best_pairs(*layer.half_scores(x), k)[1].sort(-1).values
        assert torch.equal(chosen, tensors["out.selected"])


def naive(layer: ProductKeys, x: Tensor) -> Tensor:
    """All pairs of half-keys, written out for each token and head."""
    n = layer.half_keys
    rows = []
    for token in x.reshape(-1, x.shape[-1]):
        heads = []
        for h in range(layer.heads):
            query = token if layer.query is None else layer.query(token).chunk(layer.heads)[h]
            first, second = query.chunk(2)
            heads.append(
                torch.stack([layer.keys[0, h, i // n] @ first + layer.keys[1, h, i % n] @ second for i in range(n * n)])
            )
        if layer.k is None:
            rows.append(layer.activation(sum(heads)) @ layer.values)
            continue
        best = [u.topk(layer.k) for u in heads]
        weights = layer.activation(torch.cat([b.values for b in best]))
        rows.append(weights @ layer.values[torch.cat([b.indices for b in best])])
    return torch.stack(rows).view(x.shape)


@pytest.mark.parametrize("k", [None, 1, 2, 5, 9])
@pytest.mark.parametrize("activation", ["relu", "softmax"])
@pytest.mark.parametrize("project", [False, True])
def test_equals_all_pairs(k: int | None, activation: str, project: bool) -> None:
    torch.manual_seed(0)
    layer = ProductKeys(6, 9, k, heads=2, activation=activation, project_query=project).double()
    x = torch.randn(2, 3, 6, dtype=torch.double, requires_grad=True)
    ours, truth = layer(x), naive(layer, x)
    torch.testing.assert_close(ours, truth)
    probe, wanted = torch.randn_like(truth), [x, *layer.parameters()]
    pairs = zip(
        torch.autograd.grad((ours * probe).sum(), wanted),
        torch.autograd.grad((truth * probe).sum(), wanted),
        strict=True,
    )
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs)


def test_the_best_pairs_are_the_best_of_all() -> None:
    torch.manual_seed(0)
    first, second = torch.randn(2, 40, 7)
    for k in (1, 3, 7, 20, 49):
        scores, numbers = best_pairs(first, second, k)
        everything = (first[:, :, None] + second[:, None, :]).flatten(1)
        torch.testing.assert_close(scores, everything.topk(k).values)
        torch.testing.assert_close(scores, everything.gather(1, numbers))


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("k", [None, 256])
def test_first_scores_have_the_variance_of_a_dense_layer(heads: int, k: int | None) -> None:
    torch.manual_seed(0)
    layer = ProductKeys(256, 4096, k, heads=heads, layers=3)
    first, second = layer.half_scores(torch.randn(1, 64, 256))
    u = first[..., :, None] + second[..., None, :]
    assert (u.sum(2) if k is None else u).var().item() == pytest.approx(2 / 3, rel=0.1)
    assert layer.values.std().item() == pytest.approx((2 / (4096 * 3)) ** 0.5, rel=0.02)


@pytest.mark.parametrize(
    "options",
    [
        {"hidden": 10},
        {"hidden": 0},
        {"width": 7},
        {"k": 0},
        {"k": 10},
        {"heads": 0},
        {"activation": "sofmax"},
    ],
)
def test_bad_options_get_one_sentence(options: dict) -> None:
    with pytest.raises(UserError) as error:
        ProductKeys(**{"width": 8, "hidden": 9, **options})
    assert str(error.value).endswith((".", "?"))
