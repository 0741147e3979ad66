"""A model whose step is compiled, for training alone: validation, with its other shapes, uses the model as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import config as dynamo

from longthink.think import Context, State, ThinkingModule


class CompiledStep:
    """Stands in for the model in ``think``. A model that repeats something else inside names it: ``compiled_part``.

    The compiler itself decides what the backward pass computes again. It must not be given a budget of memory
    (``activation_memory_budget``): it would then draw random numbers again too, and other ones.
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
        return self._call(lambda: self._model.step(state, context))

    def read(self, state: State, context: Context) -> Tensor:
        return self._model.read(state, context)

    def _call(self, function: Callable[[], State]) -> State:
        vars(self._model)[self._part] = self._compiled  # stands before the method of the class
        try:
            # Every length of a sequence compiles once, and no_grad makes two of each.
            with dynamo.patch(recompile_limit=64):
                return function()
        finally:
            del vars(self._model)[self._part]
