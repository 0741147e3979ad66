"""Attention with added scores: one logit at a time, with PyTorch's operations, and as a kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from longthink.ops.biased import biased_read
from longthink.ops.biased.naive import naive_read
from longthink.ops.biased.plain import plain_read
from tests.ops.interpreted import assert_equal_in_the_interpreter

# batch, n, heads, channels
SHAPES = [(2, 1, 1, 16), (3, 5, 2, 20), (2, 9, 4, 32), (2, 17, 2, 8), (1, 40, 1, 41)]


def problem(batch: int, n: int, heads: int, channels: int) -> list[Tensor]:
    torch.manual_seed(n)
    q, kv = torch.randn(batch, n, heads, channels), torch.randn(batch, n, heads, 2, channels)
    used = torch.randint(1, n + 1, (batch,))
    used[0] = n
    return [q, kv, torch.randn(batch, heads, n, n), torch.arange(n) >= used[:, None]]


def read_and_gradients(read: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    *inputs, padding = inputs
    torch.manual_seed(1)
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    out = read(*leaves, padding)
    out.backward(torch.randn(out.shape).to(out))
    return [out.detach(), *(t.grad for t in leaves)]


def without_scores(read: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda q, kv, padding: read(q, kv, None, padding)


def to(inputs: list[Tensor], kind: torch.dtype) -> list[Tensor]:
    return [*(t.to(kind) for t in inputs[:-1]), inputs[-1]]


@pytest.mark.parametrize("shape", SHAPES[:4])
def test_plain_equals_naive(shape: tuple[int, ...]) -> None:
    inputs = to(problem(*shape), torch.float64)
    for ours, truth in zip(
        read_and_gradients(plain_read, *inputs), read_and_gradients(naive_read, *inputs), strict=True
    ):
        torch.testing.assert_close(ours, truth)


@pytest.mark.parametrize("shape", SHAPES[:4])
def test_without_scores(shape: tuple[int, ...]) -> None:
    q, kv, bias, padding = to(problem(*shape), torch.float64)
    truth = read_and_gradients(
        lambda q, kv, padding: naive_read(q, kv, torch.zeros_like(bias), padding), q, kv, padding
    )
    for read in (plain_read, naive_read):
        for ours, true in zip(read_and_gradients(without_scores(read), q, kv, padding), truth, strict=True):
            torch.testing.assert_close(ours, true)


def test_by_hand() -> None:
    """Two keys whose products with the query are 0 and log 3, and a score of log 2 for the first: weights 2 to 3."""
    log = torch.tensor([2.0, 3.0]).log()
    q = torch.ones(1, 2, 1, 1)
    kv = torch.tensor([[0.0, 10.0], [float(log[1]), 20.0]]).view(1, 2, 1, 2, 1)
    bias = torch.tensor([[float(log[0]), 0.0], [0.0, 0.0]]).view(1, 1, 2, 2)
    read = biased_read(q, kv, bias, torch.tensor([[False, False]])).flatten()
    torch.testing.assert_close(read, torch.tensor([(2 * 10 + 3 * 20) / 5, (10 + 3 * 20) / 4]))
    alone = biased_read(q, kv, bias, torch.tensor([[False, True]])).flatten()
    torch.testing.assert_close(alone, torch.tensor([10.0, 10.0]))


def views(inputs: list[Tensor]) -> list[Tensor]:
    """As attention makes them: keys and values in another order in memory, scores out of larger rows, float32 beside
    half precision."""
    q, kv, bias, padding = inputs
    wide = torch.nn.functional.pad(bias, (3, 2))[..., 3:-2]
    return [
        q.transpose(1, 2).contiguous().transpose(1, 2).half(),
        kv.transpose(2, 3).contiguous().transpose(2, 3),
        wide,
        padding,
    ]


INTERPRETED = """
from longthink.ops.biased.fast import fast_read
from longthink.ops.biased.plain import plain_read
from tests.ops.test_biased import SHAPES, problem, read_and_gradients, views, without_scores

for shape in SHAPES:
    inputs = problem(*shape)
    for a, b in zip(read_and_gradients(fast_read, *inputs), read_and_gradients(plain_read, *inputs)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
    q, kv, _, padding = inputs
    fast, plain = (read_and_gradients(without_scores(read), q, kv, padding) for read in (fast_read, plain_read))
    for a, b in zip(fast, plain):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
    assert shape[1] == 1 or not views(inputs)[2].is_contiguous()
    fast, plain = (read_and_gradients(lambda *t: read(*views(list(t))), *inputs) for read in (fast_read, plain_read))
    for a, b in zip(fast, plain):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a.float(), b.float(), rtol=1e-2, atol=1e-2)
"""


def test_kernel_equals_plain_in_the_interpreter() -> None:
    assert_equal_in_the_interpreter(INTERPRETED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the compiled kernel needs a GPU")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [*SHAPES, (512, 9, 4, 32), (8, 64, 2, 256), (4, 65, 2, 64)])
@pytest.mark.parametrize("scores", [True, False])
def test_kernel_equals_plain_on_a_gpu(scores: bool, shape: tuple[int, ...], kind: torch.dtype) -> None:
    inputs = [t.cuda() for t in to(problem(*shape), kind)]
    reads: tuple[Callable[..., Tensor], ...] = (biased_read, plain_read)
    if not scores:
        reads = tuple(without_scores(read) for read in reads)
        del inputs[2]
    found, truth = read_and_gradients(reads[0], *inputs), read_and_gradients(reads[1], *to(inputs, torch.float64))
    limit = 1e-3 if kind == torch.float32 else 2e-2
    for ours, true in zip(found, truth, strict=True):
        assert torch.isfinite(ours).all()
        nothing = limit if shape[1] == 1 else 0.0  # a single token's gradients are zero, ours nearly
        assert (ours.double() - true).norm() <= limit * true.norm() + nothing
