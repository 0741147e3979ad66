"""A model whose step is compiled, for training alone: validation, with its other shapes, uses the model as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch import config

from longthink.think import Context, State, ThinkingModule

MEMORY = 0.5
"""Share of what could be kept for the backward pass that is kept; the rest, cheap operations, is computed again."""


class CompiledStep:
    """Stands in for the model in ``think``."""

    def __init__(self, model: ThinkingModule, memory: float = MEMORY) -> None:
        self._model, self._memory = model, memory
        self._step = torch.compile(model.step, dynamic=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def step(self, state: State, context: Context) -> State:
        with config.patch(activation_memory_budget=self._memory):  # read when the first call compiles
            return self._step(state, context)
