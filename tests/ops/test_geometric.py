"""Geometric attention: the product of Eq. 5.7, the public code's values, and the two fast paths against them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longthink.ops.geometric.naive import naive_weights
from longthink.ops.geometric.plain import plain_read, plain_weights
from tests.fixtures import fixture
from tests.ops.interpreted import assert_equal_in_the_interpreter


def problem(n: int, directed: bool, padded: bool, seed: int, kind: torch.dtype = torch.double) -> list[Tensor | None]:
    torch.manual_seed(seed)
    logits = 3 * torch.randn(3, 2, n, n, dtype=kind)
    direction = torch.randn(3, 2, n, 2, dtype=kind) if directed else None
    padding = torch.arange(n) >= torch.tensor([[n], [max(1, n - 2)], [0]]) if padded else None  # the last is all masked
    return [logits, direction, padding]


def values_and_gradients(weights, logits, direction, padding):  # type: ignore[no-untyped-def]
    logits = logits.clone().requires_grad_()
    direction = None if direction is None else direction.clone().requires_grad_()
    out = weights(logits, direction, padding)
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.double).to(out)
    wanted = [logits] if direction is None else [logits, direction]
    return [out, *torch.autograd.grad((out * probe).sum(), wanted, materialize_grads=True)]


def sure_keys(size: float) -> tuple[Tensor, Tensor]:
    """Logits of which every third is large, and the same for a product that takes nothing infinite."""
    logits = torch.randn(1, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    logits[..., ::3] += size
    return logits, logits.double().clamp(max=1e4)


def reading_problem(n: int, heads: int, channels: int, directed: bool, padded: bool) -> list[Tensor | None]:
    torch.manual_seed(n)
    q, kv = torch.randn(3, n, heads, channels), torch.randn(3, n, heads, 2, channels)
    direction = torch.randn(3, n, heads, 2) if directed else None
    padding = torch.arange(n) >= torch.tensor([[n], [max(1, n - 2)], [0]]) if padded else None
    return [q, kv, direction, padding]


def read_and_gradients(read, q, kv, direction, padding):  # type: ignore[no-untyped-def]
    leaves = [t.clone().requires_grad_() for t in (q, kv, direction) if t is not None]
    out = read(*leaves[:2], leaves[2] if direction is not None else None, padding)
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.double).to(out)
    return [out, *torch.autograd.grad((out * probe).sum(), leaves, materialize_grads=True)]


@pytest.mark.parametrize("n", [1, 2, 5, 9])
@pytest.mark.parametrize("weights", [naive_weights, plain_weights])
def test_matches_the_public_code(weights, n: int) -> None:  # type: ignore[no-untyped-def]
    tensors = fixture("ndr_geometric_attention")
    logits = tensors[f"in.logits_{n}"].requires_grad_()
    out = weights(logits, None, tensors[f"in.padding_{n}"])
    torch.testing.assert_close(out, tensors[f"out.weights_{n}"], rtol=1e-9, atol=1e-10)
    (gradient,) = torch.autograd.grad((out * tensors[f"in.cotangent_{n}"]).sum(), logits)
    torch.testing.assert_close(gradient, tensors[f"grad.logits_{n}"], rtol=1e-9, atol=1e-10)


def test_the_order_of_figure_5_2() -> None:
    """With P = 1/2 everywhere, a key of rank r weighs 2^-(r + 1): the ranks can be read off."""
    weights = plain_weights(torch.zeros(1, 1, 5, 5))
    ranks = -weights[0, 0].log2() - 1
    ranks.fill_diagonal_(-1)
    assert ranks[2].tolist() == [3, 1, -1, 0, 2]  # the right neighbour first
    assert ranks[0].tolist() == [-1, 0, 1, 2, 3]
    assert ranks[4].tolist() == [3, 2, 1, 0, -1]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.booleans(), st.booleans(), st.integers(0, 10_000))
def test_plain_equals_naive(n: int, directed: bool, padded: bool, seed: int) -> None:
    arguments = problem(n, directed, padded, seed)
    for plain, naive in zip(
        values_and_gradients(plain_weights, *arguments), values_and_gradients(naive_weights, *arguments), strict=True
    ):
        torch.testing.assert_close(plain, naive, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("n", [257, 1031])
def test_long_rows_are_products_too(n: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 1, n, n, dtype=torch.double) - 3
    weights = plain_weights(logits)[0, 0]
    p = logits[0, 0].sigmoid()
    for i in (0, 1, n // 2, n - 2, n - 1):
        order = sorted((j for j in range(n) if j != i), key=lambda j: (abs(j - i), j < i))  # Figure 5.2
        left, row = 1.0, torch.zeros(n, dtype=torch.double)
        for j in order:
            row[j] = p[i, j] * left
            left *= 1 - float(p[i, j])
        torch.testing.assert_close(weights[i], row, rtol=1e-9, atol=1e-14)


def test_rows_sum_to_at_most_one_and_forget_nothing() -> None:
    logits, direction, padding = problem(33, True, True, 0)
    assert logits is not None
    weights = plain_weights(logits, direction, padding)
    assert (weights >= 0).all()
    assert (weights.sum(-1) <= 1 + 1e-12).all()
    assert (weights.diagonal(dim1=-2, dim2=-1) == 0).all()
    assert (weights[1, :, :, 31:] == 0).all()


def test_everything_masked_is_zero_with_zero_gradients() -> None:
    logits = torch.randn(2, 1, 4, 4, requires_grad=True)
    weights = plain_weights(logits, None, torch.ones(2, 4, dtype=torch.bool))
    assert (weights == 0).all()
    weights.sum().backward()
    assert (logits.grad == 0).all()


@pytest.mark.parametrize("size", [1e3, 1e6, torch.inf])
def test_keys_that_surely_match_cost_the_nearer_ones_no_digits(size: float) -> None:
    logits, bounded = sure_keys(size)
    torch.testing.assert_close(plain_weights(logits).double(), naive_weights(bounded), rtol=1e-5, atol=1e-7)


def test_who_is_alone_looks_at_nobody() -> None:
    for n in (0, 1):
        logits = torch.full((2, 3, n, n), torch.inf, requires_grad=True)
        direction = torch.full((2, 3, n, 2), torch.inf, requires_grad=True)
        weights = plain_weights(logits, direction, torch.zeros(2, n, dtype=torch.bool))
        assert torch.equal(weights, torch.zeros(2, 3, n, n))
        for gradient in torch.autograd.grad(weights.sum(), [logits, direction]):
            assert (gradient == 0).all()
        assert torch.equal(plain_weights(logits), weights)


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([-1e4, 1e4, -80.0, 80.0]).repeat(1, 1, 4, 1).requires_grad_()
    weights = plain_weights(logits)
    weights.sum().backward()
    assert torch.isfinite(weights).all()
    assert torch.isfinite(logits.grad).all()


INTERPRETED = """
import longthink.ops.geometric.fast as fast
from longthink.ops.geometric.fused import fused_read
from longthink.ops.geometric.plain import plain_read, plain_weights
from longthink.ops.geometric.naive import naive_weights
from tests.ops.test_geometric import problem, read_and_gradients, reading_problem, sure_keys, values_and_gradients

# three numbers a program, so that rows are longer than a block and carry their sums on
for n, blocks in [(1, None), (2, None), (7, None), (13, None), (13, (4, 8, 4)), (21, (2, 16, 4))]:
    if blocks:
        fast._blocks = lambda n, blocks=blocks: blocks
    for directed in (False, True):
        for padded in (False, True):
            arguments = problem(n, directed, padded, n, torch.float32)
            ours = values_and_gradients(fast.fast_weights, *arguments)
            plain = values_and_gradients(plain_weights, *arguments)
            for a, b in zip(ours, plain):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
            for kind in (torch.bfloat16, torch.float16) if n in (2, 7) else ():  # sums stay in single
                half = [t.to(kind) if t is not None and t.is_floating_point() else t for t in arguments]
                exact = [t.double() if t is not None and t.is_floating_point() else t for t in half]
                ours = values_and_gradients(fast.fast_weights, *half)
                for a, b in zip(ours, values_and_gradients(plain_weights, *exact)):
                    assert a.dtype == kind
                    assert (a.double() - b).norm() <= 2e-2 * b.norm() + 1e-12
# keys that surely match, also with sums carried from block to block
for blocks in ((2, 16, 4), (4, 4, 4)):
    fast._blocks = lambda n: blocks
    for size in (1e3, 1e6, torch.inf):
        logits, bounded = sure_keys(size)
        ours = values_and_gradients(fast.fast_weights, logits, None, None)
        for a, b in zip(ours, values_and_gradients(naive_weights, bounded, None, None)):
            torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=1e-6)
alone = torch.full((1, 1, 1, 1), torch.inf)
for one in values_and_gradients(fast.fast_weights, alone, torch.full((1, 1, 1, 2), torch.inf), None):
    assert (one == 0).all()
for n, heads, channels in [(1, 1, 16), (5, 2, 20), (17, 1, 32)]:
    for also in (False, True):
        arguments = reading_problem(n, heads, channels, also, also)
        ours, plain = (read_and_gradients(read, *arguments) for read in (fused_read, plain_read))
        for a, b in zip(ours, plain):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
        half = [t.half() if t is not None and t.is_floating_point() else t for t in arguments]
        exact = [t.double() if t is not None and t.is_floating_point() else t for t in half]
        for a, b in zip(read_and_gradients(fused_read, *half), read_and_gradients(plain_read, *exact)):
            assert a.dtype == torch.float16  # bfloat16 cannot be multiplied in the interpreter
            assert (a.double() - b).norm() <= 2e-3 * b.norm() + 1e-12
# a mask that lies in memory column by column
q, kv, direction, _ = reading_problem(7, 1, 16, True, False)
padding = torch.rand(7, len(q)).T > 0.5
for a, b in zip(*(read_and_gradients(read, q, kv, direction, padding) for read in (fused_read, plain_read))):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
"""


def test_kernel_equals_plain_in_the_interpreter() -> None:
    assert_equal_in_the_interpreter(INTERPRETED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the compiled kernel needs a GPU")
@pytest.mark.parametrize("n", [1, 2, 7, 12, 33, 64, 129, 1025])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("directed", "padded"), [(False, False), (True, True)])
def test_kernel_equals_plain_on_a_gpu(n: int, kind: torch.dtype, directed: bool, padded: bool) -> None:
    from longthink.ops.geometric.fast import fast_weights

    arguments = [None if t is None else t.cuda() for t in problem(n, directed, padded, n, torch.float32)]
    truth = values_and_gradients(
        plain_weights, *[t.double() if t is not None and t.is_floating_point() else t for t in arguments]
    )
    half = [t.to(kind) if t is not None and t.is_floating_point() else t for t in arguments]
    limit = 1e-4 if kind == torch.float32 else 3e-2
    for ours, true in zip(values_and_gradients(fast_weights, *half), truth, strict=True):
        assert torch.isfinite(ours).all()
        assert (ours.double() - true).norm() <= limit * true.norm() + 1e-12


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the compiled kernel needs a GPU")
@pytest.mark.parametrize("size", [1e3, 1e6, torch.inf])
def test_kernel_bears_keys_that_surely_match_on_a_gpu(size: float) -> None:
    from longthink.ops.geometric.fast import fast_weights

    logits, bounded = (one.cuda() for one in sure_keys(size))
    truth = values_and_gradients(naive_weights, bounded, None, None)
    for ours, true in zip(values_and_gradients(fast_weights, logits, None, None), truth, strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=2e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the compiled kernel needs a GPU")
@pytest.mark.parametrize(("n", "heads", "channels"), [(1, 1, 16), (12, 1, 256), (33, 4, 64), (50, 16, 32), (64, 2, 20)])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_fused_reading_equals_plain_on_a_gpu(n: int, heads: int, channels: int, kind: torch.dtype) -> None:
    from longthink.ops.geometric.fused import fused_read

    arguments = [None if t is None else t.cuda() for t in reading_problem(n, heads, channels, True, True)]
    rounded = [t.to(kind) if t is not None and t.is_floating_point() else t for t in arguments]
    exact = [t.double() if t is not None and t.is_floating_point() else t for t in rounded]
    limit = 1e-4 if kind == torch.float32 else 2e-2
    truth = read_and_gradients(plain_read, *exact)
    for ours, true in zip(read_and_gradients(fused_read, *rounded), truth, strict=True):
        assert torch.isfinite(ours).all()
        assert (ours.double() - true).norm() <= limit * true.norm() + 1e-12
