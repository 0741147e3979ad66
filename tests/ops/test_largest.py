"""The places of the k largest, against PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longthink.ops.largest import largest
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


INTERPRETED = """
from longthink.ops.largest.fast import fast_largest
from tests.ops.test_largest import check, special
check(fast_largest, "cpu", 9)
special(fast_largest, "cpu")
"""


def test_kernel_equals_pytorch_in_the_interpreter() -> None:
    assert_equal_in_the_interpreter(INTERPRETED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the compiled kernels need a GPU")
def test_kernel_equals_pytorch_on_a_gpu() -> None:
    check(largest, "cuda", 1000)
    special(largest, "cuda")
