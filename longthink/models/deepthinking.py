"""Deep Thinking networks (chapters 4 and 5): a residual block of four convolutions, applied again and again.

One class makes DT and DT-Recall for strings (1-D) and images (2-D), and their feed-forward twins, whose steps have
weights of their own. No biases and no norm by default, as published. Parity with the public code is tested on stored
outputs and gradients; what it does beyond the text:

- the recall convolution is followed by a ReLU in 1-D only, and never in the feed-forward twin;
- the feed-forward twin has distinct residual blocks but one recall convolution for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longthink.errors import UserError
from longthink.models.base import Layered, check_images, models

Norm: TypeAlias = Literal["group", "pixel"]


class Context(NamedTuple):
    """What depends on the input alone."""

    x: Tensor  # [batch, inputs, ...]
    recalled: Tensor | None  # [batch, width, ...]: the input's share of the recall convolution


class Conv(nn.Module):
    """A convolution of size 3 without bias that keeps the size of its input."""

    def __init__(self, dims: int, inputs: int, outputs: int, dilation: int = 1, fan_in: int | None = None) -> None:
        super().__init__()
        self.dims, self.dilation = dims, dilation
        # PyTorch's default: uniform within 1 / sqrt(fan in). Parts of a split convolution count the whole's inputs.
        bound = 1 / math.sqrt((fan_in or inputs) * 3**dims)
        weight = torch.empty(outputs, inputs, *(3,) * dims).uniform_(-bound, bound)
        # Channels lie together in memory, and all states follow: tensor cores want it so.
        self.weight = nn.Parameter(weight.movedim(1, -1).contiguous().movedim(-1, 1))

    def forward(self, x: Tensor) -> Tensor:
        d = self.dilation
        if self.dims == 2:
            return F.conv2d(x, self.weight, padding=d, dilation=d)
        return F.conv2d(x.unsqueeze(2), self.weight.unsqueeze(2), padding=(0, d), dilation=(1, d)).squeeze(2)


class ResidualBlock(nn.Module):
    """Four convolutions with skips every two (section 5.3.1)."""

    def __init__(self, dims: int, width: int, dilation: int, norm: Norm | None) -> None:
        super().__init__()
        self.convs = nn.ModuleList(Conv(dims, width, width, dilation) for _ in range(4))
        self.norm = norm

    def forward(self, h: Tensor) -> Tensor:
        for first, second in ((0, 1), (2, 3)):
            inner = F.relu(self._normalise(self.convs[first](h)))
            h = F.relu(self._normalise(self.convs[second](inner)) + h)
        return h

    def _normalise(self, h: Tensor) -> Tensor:
        return F.group_norm(h, 4) if self.norm == "group" else h


@models.add("deepthinking")
class DeepThinking(nn.Module):
    """Deep Thinking: the same convolutions again and again; with recall they see the problem anew at every step.

    DT-Recall, DT (``recall=False``), and with ``distinct_steps=m`` the feed-forward twin of m steps.
    """

    def __init__(
        self,
        dims: int = 2,
        inputs: int = 3,
        classes: int = 2,
        width: int = 128,
        recall: bool = True,
        head: Sequence[int] = (32, 8),
        distinct_steps: int | None = None,
        dilation: int = 1,
        norm: Norm | None = None,
    ) -> None:
        super().__init__()
        _check(dims, width, distinct_steps, norm)
        self.dims, self.inputs, self.width, self.max_steps, self.norm = dims, inputs, width, distinct_steps, norm
        self.recall_relu = dims == 1 and distinct_steps is None
        self.projection = Conv(dims, inputs, width, dilation)
        # conv([state, x]) = conv_state(state) + conv_x(x): the second part is computed once (``look``).
        self.recall_state = Conv(dims, width, width, dilation, fan_in=width + inputs) if recall else None
        self.recall_input = Conv(dims, inputs, width, dilation, fan_in=width + inputs) if recall else None
        self.blocks = nn.ModuleList(ResidualBlock(dims, width, dilation, norm) for _ in range(distinct_steps or 1))
        sizes = [width, *head, classes]
        self.head = nn.ModuleList(Conv(dims, a, b, dilation) for a, b in pairwise(sizes))

    def look(self, x: Tensor) -> Context:
        check_images(x, self.inputs, self.dims)
        return Context(x, None if self.recall_input is None else self.recall_input(x))

    def start(self, context: Context) -> Tensor | Layered:
        features = F.relu(self.projection(context.x))  # p of Eq. 5.1
        return features if self.max_steps is None else Layered(features, 0)

    def step(self, state: Tensor | Layered, context: Context) -> Tensor | Layered:
        if isinstance(state, Layered):
            return Layered(self._advance(self.blocks[state.next], state.state, context), state.next + 1)
        return self._advance(self.blocks[0], state, context)

    def read(self, state: Tensor | Layered, context: Context) -> Tensor:
        h = state.state if isinstance(state, Layered) else state
        for conv in self.head[:-1]:
            h = F.relu(conv(h))
        return self.head[-1](h)

    def _advance(self, block: nn.Module, h: Tensor, context: Context) -> Tensor:
        if self.recall_state is not None:
            h = self.recall_state(h) + context.recalled  # r([phi, x]) of Eq. 5.2
            if self.recall_relu:
                h = F.relu(h)
        h = block(h)
        if self.norm == "pixel":  # length 1 a channel at every place: states cannot grow, and no place sees another
            h = h * torch.rsqrt(h.float().square().mean(1, keepdim=True) + 1e-6).to(h.dtype)
        return h

    def effective_depth(self, steps: int) -> int:
        """Layers that are composed when thinking for this many steps (section 2.1.3)."""
        layers_a_step = 4 + (self.recall_state is not None)
        return 1 + steps * layers_a_step + len(self.head)

    def recurrent_parameters(self) -> list[nn.Parameter]:
        """The weights that are used again at every step; their learning rate is throttled for mazes."""
        if self.max_steps is not None:
            return []
        parts = [self.recall_state, self.recall_input, self.blocks]
        return [weight for part in parts if part is not None for weight in part.parameters()]


def _check(dims: int, width: int, distinct_steps: int | None, norm: str | None) -> None:
    if dims not in (1, 2):
        raise UserError(f"dims must be 1 (strings) or 2 (images), not {dims}.")
    if width < 1 or (norm == "group" and width % 4):
        raise UserError(f"The width must be positive, and a multiple of 4 with group norm, not {width}.")
    if distinct_steps is not None and distinct_steps < 1:
        raise UserError(f"distinct_steps must be 1 or more, not {distinct_steps}.")
    if norm not in (None, "group", "pixel"):
        raise UserError(f"norm must be group, pixel or None, not {norm!r}.")
