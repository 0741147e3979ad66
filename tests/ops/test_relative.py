"""Relative attention: one logit at a time, with PyTorch's operations, and as a kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from longthink.ops.relative import relative_read
from longthink.ops.relative.naive import naive_read
from longthink.ops.relative.plain import plain_read
from tests.ops.interpreted import assert_equal_in_the_interpreter

# batch, n, total, heads, channels
SHAPES = [(2, 1, 1, 1, 16), (1, 5, 5, 2, 20), (2, 17, 40, 2, 16), (1, 33, 33, 1, 8), (1, 20, 53, 2, 41)]


def problem(batch: int, n: int, total: int, heads: int, channels: int) -> list[Tensor]:
    torch.manual_seed(n)
    shapes = [(batch, n, heads, channels), (batch, total, heads, 2, channels), (batch, heads, n, total)]
    return [torch.randn(shape) for shape in shapes]


def read_and_gradients(read: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    out = read(*leaves)
    out.backward(torch.randn(out.shape).to(out))
    return [out.detach(), *(t.grad for t in leaves)]


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_plain_equals_naive(shape: tuple[int, ...]) -> None:
    inputs = [t.double() for t in problem(*shape)]
    for ours, truth in zip(
        read_and_gradients(plain_read, *inputs), read_and_gradients(naive_read, *inputs), strict=True
    ):
        torch.testing.assert_close(ours, truth)


INTERPRETED = """
import longthink.ops.relative.fast as fast
from longthink.ops.relative.plain import plain_read
from tests.ops.test_relative import SHAPES, problem, read_and_gradients

sizes = fast._sizes
for rows, columns in [(16, 16), (32, 16), (16, 32)]:
    fast._sizes = lambda *a, **k: {**sizes(*a, **k), "ROWS": rows, "COLUMNS": columns}
    for shape in SHAPES:
        inputs = problem(*shape)
        for a, b in zip(read_and_gradients(fast.fast_read, *inputs), read_and_gradients(plain_read, *inputs)):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
"""


def test_kernel_equals_plain_in_the_interpreter() -> None:
    assert_equal_in_the_interpreter(INTERPRETED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the compiled kernel needs a GPU")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [*SHAPES, (2, 512, 1024, 2, 64), (1, 100, 333, 3, 82)])
def test_kernel_equals_plain_on_a_gpu(shape: tuple[int, ...], kind: torch.dtype) -> None:
    inputs = [t.cuda().to(kind) for t in problem(*shape)]
    truth = read_and_gradients(plain_read, *[t.double() for t in inputs])
    limit = 1e-3 if kind == torch.float32 else 2e-2
    for ours, true in zip(read_and_gradients(relative_read, *inputs), truth, strict=True):
        assert torch.isfinite(ours).all()
        nothing = limit if shape[2] == 1 else 0.0  # a single token's gradients are zero, ours nearly
        assert (ours.double() - true).norm() <= limit * true.norm() + nothing
