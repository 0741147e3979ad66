"""Linear layers whose weight gradients can be put off until all steps that share them have been taken back.

A step that is applied again and again adds a small product to each weight's gradient every time. Putting them off makes
one large product of all steps. While a ``Record`` is open (``recorded``), layers take their weights from it, leave
their inputs in it, and let the gradient of their output pass through its ``taps``; who opened it makes the products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from longthink.layers.several import multiply

T = TypeVar("T")


class Weights(NamedTuple):
    """Of one layer, without history, in the precision to compute in."""

    weight: Tensor
    bias: Tensor | None


class Record:
    """What the layers of one step use and leave behind, by their place among all layers."""

    def __init__(self, weights: Sequence[Weights | None], taps: Sequence[Tensor | None] | None) -> None:
        self.weights, self.taps = weights, taps
        self.inputs: list[Tensor | None] = [None] * len(weights)
        self.calls = [0] * len(weights)

    def apply(self, place: int, x: Tensor) -> Tensor:
        found = self.weights[place]
        assert found is not None
        x = x.to(found.weight.dtype)
        self.inputs[place] = x.detach()
        self.calls[place] += 1
        y = multiply(x, found.weight, found.bias)
        tap = None if self.taps is None else self.taps[place]
        return y if tap is None else _Tap.apply(y, tap)


class _Tap(torch.autograd.Function):
    """y itself; its gradient also goes to the tap, whose values nobody reads."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, tap: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor]:
        return d_y, d_y


_record: Record | None = None


def recorded(record: Record, function: Callable[..., T], *arguments: Any) -> T:
    """Call the function with this record open."""
    global _record
    before, _record = _record, record
    try:
        return function(*arguments)
    finally:
        _record = before


class Linear(nn.Linear):
    """PyTorch's, for one network or several, with a place in records: None, unless somebody gave it one."""

    place: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        if _record is None or self.place is None or _record.weights[self.place] is None:
            return multiply(x, self.weight, self.bias)
        return _record.apply(self.place, x)
