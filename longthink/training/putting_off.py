"""Weight gradients of a part that repeats, put off until all its repeats have been taken back: one product a weight.

In small networks they are most of a backward pass. A router's 14 steps of table lookup would make, for each of nine
weights, 14 small products, 14 sums over columns and 14 additions, a kernel each. What this costs is memory: inputs
and the gradients of outputs of all repeats are kept until the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from longthink.layers.linear import Linear, Record, Weights, recorded
from longthink.think import tensors

Part = Callable[..., Any]


class PuttingOff:
    """Stands in for a part of the model; ``compiled`` makes a fast function of one that is called at every repeat.

    All calls since ``begin`` belong to one pass, which can be taken back once.
    """

    def __init__(self, model: nn.Module, part: Part, compiled: Callable[[Part], Part]) -> None:
        self.layers = [module for module in model.modules() if isinstance(module, Linear)]
        for place, layer in enumerate(self.layers):
            layer.place = place
        self._part, self._compiled = part, compiled(self._recorded)
        self._used: dict[tuple[Any, ...], list[torch.Size | None]] = {}
        self._pass: _Pass | None = None

    def begin(self) -> None:
        if self._pass is not None:
            self._pass.root = None  # it and the pass would keep each other alive, and with them the weights' history
        self._pass = None

    def __call__(self, *arguments: Any) -> Any:
        shapes = self._output_shapes(arguments)
        if self._pass is None or self._pass.over:
            self._pass = _Pass(self.layers)
        weights, taps = self._pass.open(shapes)
        result, inputs = self._compiled(weights, taps, *arguments)
        self._pass.inputs[-1] = inputs
        return result

    def _recorded(self, weights: list[Weights | None], taps: list[Tensor | None], *arguments: Any) -> Any:
        record = Record(weights, taps)
        return recorded(record, self._part, *arguments), record.inputs

    @torch.no_grad()
    def _output_shapes(self, arguments: tuple[Any, ...]) -> list[torch.Size | None]:
        """Of each layer, found by a trial; None for those that the part does not use, or uses more than once."""
        found = tensors(arguments)
        key = tuple((part.shape, part.dtype) for part in found)
        if key not in self._used:
            trial = Record([Weights(layer.weight, layer.bias) for layer in self.layers], None)
            with torch.random.fork_rng({part.device for part in found if part.is_cuda}):
                recorded(trial, self._part, *tree_map_only(Tensor, Tensor.detach, arguments))
            self._used[key] = [
                torch.Size((*x.shape[:-1], layer.out_features)) if x is not None and calls == 1 else None
                for layer, x, calls in zip(self.layers, trial.inputs, trial.calls, strict=True)
            ]
        return self._used[key]


class _Pass:
    """Calls that one backward pass takes back."""

    def __init__(self, layers: list[Linear]) -> None:
        device = layers[0].weight.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        self.layers, self.over = layers, False
        self.weights = [_today(layer, kind) for layer in layers]
        self.inputs: list[list[Tensor | None]] = []
        self.gradients: dict[int, list[Tensor | None]] = {}
        parameters = [part for layer in layers for part in (layer.weight, layer.bias)]
        self.root: Tensor | None = _Root.apply(self, *parameters)

    def open(self, shapes: list[torch.Size | None]) -> tuple[list[Weights | None], list[Tensor | None]]:
        """Weights and taps of one more call."""
        weights = [None if shape is None else found for shape, found in zip(shapes, self.weights, strict=True)]
        self.inputs.append([])
        return weights, list(_Taps.apply(self, len(self.inputs) - 1, self.root, weights, shapes))

    def weight_gradients(self, wanted: Sequence[bool]) -> list[Tensor | None]:
        """Of weights and biases in turn, from the inputs and output gradients of all calls together."""
        if self.over:
            raise RuntimeError("A pass whose weight gradients were put off can be taken back once.")
        found: list[Tensor | None] = []
        for place, layer in enumerate(self.layers):
            calls = [(self.inputs[call][place], gradients[place]) for call, gradients in self.gradients.items()]
            networks = layer.weight.shape[:-2]  # none, or how many are in this one
            pairs = [
                tuple(part.reshape(*networks, -1, part.shape[-1]) for part in (x, d_y))
                for x, d_y in calls
                if x is not None and d_y is not None
            ]
            if not pairs:
                found += [None, None]
                continue
            x, d_y = (torch.cat(parts, -2) for parts in zip(*pairs, strict=True))
            found.append((d_y.mT @ x).to(layer.weight.dtype) if wanted[2 * place] else None)
            found.append(d_y.sum(-2, dtype=layer.bias.dtype) if wanted[2 * place + 1] else None)
        self.over, self.inputs, self.gradients, self.weights, self.root = True, [], {}, [], None
        return found


def _today(layer: Linear, kind: torch.dtype | None) -> Weights:
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    return Weights(weight.to(kind or weight.dtype), None if bias is None else bias.to(kind or bias.dtype))


class _Root(torch.autograd.Function):
    """Nothing, made of all weights: it is taken back when all taps have been."""

    @staticmethod
    def forward(ctx: Any, owner: _Pass, *parameters: Tensor | None) -> Tensor:
        ctx.owner = owner
        ctx.set_materialize_grads(False)
        return owner.layers[0].weight.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Any, ...]:
        return None, *ctx.owner.weight_gradients(ctx.needs_input_grad[1:])


class _Taps(torch.autograd.Function):
    """As many tensors as a call has outputs of layers, without values; their gradients are kept for the root."""

    @staticmethod
    def forward(
        ctx: Any, owner: _Pass, call: int, root: Tensor, weights: list[Weights | None], shapes: list[torch.Size | None]
    ) -> tuple[Tensor | None, ...]:
        ctx.owner, ctx.call = owner, call
        ctx.set_materialize_grads(False)
        # One number of each weight stands for all: nobody reads it, and it takes no room.
        return tuple(
            None if shape is None or found is None else found.weight.flatten()[:1].expand(shape)
            for found, shape in zip(weights, shapes, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        ctx.owner.gradients[ctx.call] = list(gradients)
        return None, None, None, None, None
