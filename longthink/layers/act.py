"""Adaptive computation time for each column of a Transformer (appendix D.1), in the two published variants.

Columns go on being transformed until the thinking ends, and others may read them; what halts is the step from which
each column's output is read. In the variant of Graves the probability comes from the state after the step, as in the
text (Eq. D.1); the public code takes it from the state before the step in both ("graves_before").
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from longthink.errors import unknown
from longthink.layers.linear import Linear

VARIANTS = ("graves", "graves_before", "universal")


class Accumulated(NamedTuple):
    """What has been gathered so far; tensors are [batch, n] unless said otherwise."""

    output: Tensor  # [batch, n, width]
    spent: Tensor
    """Halting probability given out so far."""
    remainder: Tensor
    steps: Tensor


class AdaptiveTime(nn.Module):
    """Decides how much each step of a column counts in its output."""

    def __init__(self, width: int, variant: str, epsilon: float = 0.01) -> None:
        super().__init__()
        if variant not in VARIANTS:
            raise unknown("variant of adaptive computation time", variant, VARIANTS)
        self.variant, self.epsilon = variant, epsilon
        self.halt = Linear(width, 1)

    def start(self, h: Tensor) -> Accumulated:
        spent, remainder, steps = h.new_zeros(3, *h.shape[:2]).clone().unbind()
        return Accumulated(torch.zeros_like(h), spent, remainder, steps)

    def update(self, gathered: Accumulated, before: Tensor, after: Tensor) -> Accumulated:
        """The probability to halt comes from one of the two states, what is given out is the one after the step."""
        if self.variant == "universal":
            return self._universal(gathered, before, after)
        return self._graves(gathered, after if self.variant == "graves" else before, after)

    def output(self, gathered: Accumulated, h: Tensor) -> Tensor:
        """The columns' outputs; what was not given out when the thinking ended goes to the last state."""
        if self.variant == "universal":
            return gathered.output
        running = gathered.spent < 1
        left = torch.where(running, 1 - gathered.spent, 0.0)
        return gathered.output + left[..., None] * h  # R of Eq. D.4 where t = T_max

    def _graves(self, gathered: Accumulated, asked: Tensor, after: Tensor) -> Accumulated:
        running = gathered.spent < 1
        p = self.halt(asked).squeeze(-1).sigmoid()  # Eq. D.1
        left = 1 - gathered.spent
        stops = running & (gathered.spent + p >= 1 - self.epsilon)  # Eq. D.2
        weight = torch.where(stops, left, p) * running  # Eq. D.3
        return Accumulated(
            output=gathered.output + weight[..., None] * after,  # Eq. D.5
            spent=torch.where(stops, 1.0, gathered.spent + weight),
            remainder=torch.where(running, left, gathered.remainder),  # Eq. D.4, as of the last running step
            steps=gathered.steps + running,
        )

    def _universal(self, gathered: Accumulated, before: Tensor, after: Tensor) -> Accumulated:
        """Universal Transformers: the probability comes from the state before the step, outputs are blended, and a
        column that is out of steps has no remainder."""
        running = gathered.spent < 1
        p = self.halt(before).squeeze(-1).sigmoid()
        stops = running & (gathered.spent + p > 1 - self.epsilon)
        weight = torch.where(stops, 1 - gathered.spent, p) * running
        blend = weight[..., None]
        return Accumulated(
            output=blend * after + (1 - blend) * gathered.output,
            spent=torch.where(stops, 1.0, gathered.spent + weight),
            remainder=gathered.remainder + torch.where(stops, 1 - gathered.spent, 0.0),
            steps=gathered.steps + running,
        )
