"""The places of the k largest, against PyTorch's own."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longthink.ops.largest import largest, largest_sigmoids, plain_sigmoids
from tests.ops.interpreted import assert_equal_in_the_interpreter


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 10_000))
def test_they_are_the_largest(rows: int, n: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    scores = torch.rand(rows, n, generator=random)
    k = 1 + seed % n
    found = scores.gather(-1, largest(scores, k))
    assert torch.equal(found, scores.sort(-1, descending=True).values[:, :k])


def test_those_that_are_out_are_chosen_last_and_once() -> None:
    scores = torch.tensor([[-torch.inf, 0.1, -torch.inf, -0.5]])
    assert largest(scores, 2).tolist() == [[1, 3]]
    assert sorted(largest(scores, 4)[0].tolist()) == [0, 1, 2, 3]


def check(choose: Callable[[Tensor, int], Tensor], device: str, rows: int) -> None:
    random = torch.Generator().manual_seed(0)
    for shape, k in (((1, 1), 1), ((7, 5), 5), ((3, 11, 16), 4), ((2, 129), 3), ((rows, 128), 8)):
        scores = torch.randn(*shape, generator=random).to(device)
        equals = scores.round()  # and zeros of both signs
        equals[..., ::3] = -torch.inf
        for numbers in (scores, equals):
            found = choose(numbers, k)
            assert found.dtype == torch.int64
            assert found.shape == (*shape[:-1], k)
            assert torch.equal(numbers.gather(-1, found), numbers.topk(k).values)
            assert (found.sort(-1).values.diff(dim=-1) > 0).all()  # none twice


def special(choose: Callable[[Tensor, int], Tensor], device: str) -> None:
    """What is not a number counts as the largest, as in PyTorch, whatever its sign; of equals the first is taken."""
    scores = torch.tensor([[torch.inf, 1.0, torch.nan, -torch.inf, 2.0]], device=device)
    assert choose(scores, 3).tolist() == [[2, 0, 4]]
    assert choose(-scores, 3).tolist() == [[2, 3, 1]]
    assert choose(torch.tensor([[-0.0, 0.0, 1.0, 1.0, 0.0]], device=device), 4).tolist() == [[2, 3, 0, 1]]


def test_sigmoids_by_hand() -> None:
    logits = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]], dtype=torch.double, requires_grad=True)
    places, gates = largest_sigmoids(logits, 2)
    assert places.tolist() == [[2, 0], [0, 1]]
    assert gates.tolist() == [[pytest.approx(1 / (1 + math.exp(-x))) for x in row] for row in ([3, 1], [0.5, 0.25])]
    kept = torch.tensor([True, False, False])
    places, gates = largest_sigmoids(logits, 2, kept)
    assert places[:, 0].tolist() == [0, 0]
    assert gates[:, 1].tolist() == [0, 0]  # there was nothing else
    gates.sum().backward()
    s = logits.detach()[:, 0].sigmoid()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.stack([s * (1 - s), 0 * s, 0 * s], 1))


def check_sigmoids(choose: Callable[..., tuple[Tensor, Tensor]], device: str, rows: int, kind: torch.dtype) -> None:
    """Against PyTorch's own operations, with gradients, without dropped numbers, with some for all rows, and with
    others for each of several heads."""
    random = torch.Generator().manual_seed(0)
    for shape, k in (((1, 1), 1), ((7, 5), 5), ((3, 11, 16), 4), ((2, 5, 3, 20), 3), ((rows, 128), 8)):
        logits = (3 * torch.randn(*shape, generator=random)).to(kind).to(device)
        probe = torch.randn(*shape[:-1], k, generator=random).to(device)
        kept = torch.rand(shape[-2:], generator=random).to(device) > 0.4
        kept[..., 0] = False
        for mask in (None, kept[0].contiguous(), kept if len(shape) > 2 else None):
            leaf = logits.clone().requires_grad_()
            places, gates = choose(leaf, k, mask)
            assert places.dtype == torch.int64
            assert gates.dtype == torch.float32
            (gates * probe).sum().backward()
            assert (places.sort(-1).values.diff(dim=-1) > 0).all()  # none twice
            _, largest_gates = plain_sigmoids(logits, k, mask)
            torch.testing.assert_close(gates.detach(), largest_gates, rtol=1e-6, atol=1e-7)
            counted = logits.float().sigmoid() * (1 if mask is None else mask)
            own = counted.gather(-1, places)  # of equals, another may be chosen than PyTorch does
            torch.testing.assert_close(gates.detach(), own, rtol=1e-6, atol=1e-7)
            assert leaf.grad is not None
            expected = torch.zeros_like(counted).scatter(-1, places, probe * own * (1 - own))
            close = {} if kind == torch.float32 else {"rtol": 1e-2, "atol": 1e-4}
            torch.testing.assert_close(leaf.grad, expected.to(kind), **close)


def spread(t: Tensor) -> Tensor:
    """The same numbers with others between them in memory."""
    return torch.stack([t, torch.ones_like(t)], -1)[..., 0]


def check_spread(
    choose: Callable[[Tensor, int], Tensor], sigmoids: Callable[..., tuple[Tensor, Tensor]], device: str
) -> None:
    """Numbers, masks and gradients that do not lie together in memory."""
    logits = torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(0)).to(device)
    kept = torch.arange(28, device=device).view(4, 7) % 3 > 0
    probe = torch.linspace(-1, 1, 36, device=device).view(3, 4, 3)
    assert torch.equal(choose(spread(logits), 3), logits.topk(3).indices)
    found = []
    for function, lay in ((sigmoids, spread), (plain_sigmoids, torch.clone)):
        leaf = lay(logits).detach().requires_grad_()
        places, gates = function(leaf, 3, lay(kept))
        found.append((places, gates, *torch.autograd.grad(gates, leaf, lay(probe))))
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain)


INTERPRETED = """
from longthink.ops.largest.fast import fast_largest, fast_sigmoids
from tests.ops.test_largest import check, check_sigmoids, check_spread, special
check(fast_largest, "cpu", 9)
special(fast_largest, "cpu")
check_sigmoids(fast_sigmoids, "cpu", 9, torch.float32)
check_sigmoids(fast_sigmoids, "cpu", 9, torch.float16)
check_spread(fast_largest, fast_sigmoids, "cpu")
"""


def test_kernel_equals_pytorch_in_the_interpreter() -> None:
    assert_equal_in_the_interpreter(INTERPRETED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the compiled kernels need a GPU")
def test_kernel_equals_pytorch_on_a_gpu() -> None:
    check(largest, "cuda", 1000)
    special(largest, "cuda")
    check_spread(largest, largest_sigmoids, "cuda")
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        check_sigmoids(largest_sigmoids, "cuda", 1000, kind)
