"""A model whose step is compiled, for training alone: validation, with its other shapes, uses the model as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import config as dynamo
from torch._functorch import config as functorch

from longthink.think import Context, State, ThinkingModule, tensors

LARGE = 2**25
"""Bytes of a state."""
LESS = 0.6
"""Of what the backward pass would otherwise be left."""


class CompiledStep:
    """Stands in for the model in ``think``. A model that repeats something else inside names it: ``compiled_part``.

    The compiler itself decides what the backward pass computes again. Where a model says that its part draws no random
    numbers (``recomputes``) and its states are large, more is computed again, products too, in a third less memory.
    Random numbers inside would be drawn anew, and the gradient be that of another function.
    """

    def __init__(self, model: ThinkingModule) -> None:
        self._model = model
        self._part: str = getattr(model, "compiled_part", "step")
        self._compiled = torch.compile(getattr(model, self._part), dynamic=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def look(self, x: Any) -> Context:
        return self._model.look(x)

    def start(self, context: Context) -> State:
        return self._call(lambda: self._model.start(context))

    def step(self, state: State, context: Context) -> State:
        large = sum(part.nbytes for part in tensors(state)) >= LARGE
        return self._call(lambda: self._model.step(state, context), LESS if large else 1.0)

    def read(self, state: State, context: Context) -> Tensor:
        return self._model.read(state, context)

    def _call(self, function: Callable[[], State], budget: float = 1.0) -> State:
        if not getattr(self._model, "recomputes", False):
            budget = 1.0
        vars(self._model)[self._part] = self._compiled  # stands before the method of the class
        try:
            # Every length of a sequence compiles once, and no_grad makes two of each.
            with dynamo.patch(recompile_limit=64), functorch.patch(activation_memory_budget=budget):
                return function()
        finally:
            del vars(self._model)[self._part]
