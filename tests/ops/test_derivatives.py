"""Kernels have a backward pass and none for that: second derivatives must not come out wrong without a word."""

from __future__ import annotations

from tests.ops.interpreted import assert_equal_in_the_interpreter

SECOND = """
import pytest
from longthink.errors import UserError
from longthink.ops.biased.fast import fast_read as biased
from longthink.ops.cvmm.fast import fast_cvmm, fast_feedforward
from longthink.ops.geometric.fast import fast_weights
from longthink.ops.geometric.fused import fused_read
from longthink.ops.largest.fast import fast_sigmoids
from longthink.ops.relative.fast import fast_read as relative

def leaf(*size):
    return torch.randn(*size, requires_grad=True)

experts, padding = torch.tensor([[0, 1], [1, 0]]), torch.zeros(1, 3, dtype=torch.bool)
calls = {
    "biased": (biased, (leaf(1, 3, 2, 16), leaf(1, 3, 2, 2, 16), leaf(1, 2, 3, 3), padding)),
    "products": (fast_cvmm, (leaf(2, 16), experts, leaf(2, 16, 16))),
    "experts": (fast_feedforward, (leaf(2, 16), experts, leaf(2, 2), leaf(2, 16, 16), leaf(2, 16, 16))),
    "geometric": (fast_weights, (leaf(1, 2, 3, 3),)),
    "fused": (fused_read, (leaf(1, 3, 2, 16), leaf(1, 3, 2, 2, 16))),
    "sigmoids": (fast_sigmoids, (leaf(2, 4), 2)),
    "relative": (relative, (leaf(1, 3, 2, 16), leaf(1, 5, 2, 2, 16), leaf(1, 2, 3, 5))),
}
for name, (function, arguments) in calls.items():
    out = function(*arguments)
    out = out[1] if isinstance(out, tuple) else out
    inputs = [one for one in arguments if isinstance(one, torch.Tensor) and one.requires_grad]
    first = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    assert all(one.isfinite().all() for one in first), name
    with pytest.raises(UserError, match="first derivatives alone"):
        torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
"""


def test_second_derivatives_are_refused() -> None:
    assert_equal_in_the_interpreter(SECOND)
