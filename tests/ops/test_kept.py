"""Tensors that are made once."""

import warnings

import torch
from torch import Tensor

from longthink.ops.kept import kept


def test_made_once_for_each_size_and_good_for_gradients() -> None:
    made: list[int] = []

    @kept
    def counted(n: int, device: torch.device) -> Tensor:
        made.append(n)
        return torch.arange(float(n), device=device)

    cpu = torch.device("cpu")
    with torch.inference_mode():
        first = counted(3, cpu)
    assert counted(3, cpu) is first
    assert counted(4, cpu).tolist() == [0, 1, 2, 3]
    assert made == [3, 4]
    weight = torch.ones(3, requires_grad=True)
    (weight * counted(3, cpu)).sum().backward()  # an inference tensor could not be saved for this
    assert weight.grad is not None
    assert weight.grad.tolist() == [0, 1, 2]


def test_compiled_without_a_warning_and_without_what_was_kept() -> None:
    @kept
    def ramp(n: int, device: torch.device) -> Tensor:
        return torch.arange(n, device=device)

    kept_here = ramp(5, torch.device("cpu"))
    kept_here += 100  # as nobody should; a compiled function makes its own

    @torch.compile(backend="eager", fullgraph=True)
    def ramped(x: Tensor) -> Tensor:
        return x + ramp(5, x.device)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ramped(torch.zeros(5)).tolist() == [0, 1, 2, 3, 4]
