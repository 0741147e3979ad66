"""A model whose step is compiled, for training alone: validation, with its other shapes, uses the model as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import config as dynamo
from torch._functorch import config as functorch

from longthink.errors import UserError
from longthink.layers.several import networks_in
from longthink.think import Context, State, ThinkingModule, tensors
from longthink.training.putting_off import PuttingOff

LARGE_STATE = 2**25
"""Bytes of a state from which on weight gradients are not put off, and, of one network's, memory is worth more than
time."""
MEMORY_BUDGET = 0.3
"""What then may be kept for the backward pass: 1 is what the compiler would keep, 0 nothing but inputs."""


def check_compiler() -> None:
    """On a CPU compiled steps become C++: complain before the work begins."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise UserError(
            "Compiling for a CPU needs a C++ compiler, and none was found; install g++ or clang, or do not compile."
        ) from None


class CompiledStep:
    """Stands in for the model in ``think``. What a model may say about itself:

    - ``worth_compiling``: training on a GPU should do this.
    - ``compiled_part``: the method that is compiled, where it is not ``step``.
    - ``repeats``: all calls of that part use the same weights, whose gradients are put off while states are small.
    - ``recomputes``: the part draws no random numbers. Where its states are large, the backward pass computes more of
      it again, products too. Random numbers inside would be drawn anew, and the gradient be that of another function.
    """

    def __init__(self, model: ThinkingModule) -> None:
        self._model = model
        self._part: str = getattr(model, "compiled_part", "step")
        part, fast = getattr(model, self._part), partial(torch.compile, dynamic=False)
        self._compiled = fast(part)
        self._putting_off = PuttingOff(model, part, fast) if getattr(model, "repeats", False) else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def look(self, x: Any) -> Context:
        if self._putting_off is not None:
            self._putting_off.begin()
        return self._model.look(x)

    def start(self, context: Context) -> State:
        return self._call(lambda: self._model.start(context))

    def step(self, state: State, context: Context) -> State:
        size = sum(part.nbytes for part in tensors(state))
        scarce = size >= LARGE_STATE * networks_in(self._model)  # who trains many at once has the memory for it
        return self._call(lambda: self._model.step(state, context), size >= LARGE_STATE, scarce)

    def read(self, state: State, context: Context) -> Tensor:
        return self._model.read(state, context)

    def _call(self, function: Callable[[], State], large: bool = False, scarce: bool = False) -> State:
        budget = MEMORY_BUDGET if scarce and getattr(self._model, "recomputes", False) else 1.0
        plain = self._putting_off is None or large or not torch.is_grad_enabled()
        # This stands before the method of the class.
        vars(self._model)[self._part] = self._compiled if plain else self._putting_off
        try:
            # Every length of a sequence is compiled once, with a gradient and without.
            with dynamo.patch(recompile_limit=64), functorch.patch(activation_memory_budget=budget):
                return function()
        finally:
            del vars(self._model)[self._part]
