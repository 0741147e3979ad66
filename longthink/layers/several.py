"""Several networks of one shape as one network: their weights, each with a dimension more, and their batches in a row.

Small networks leave a GPU idle; in one network every kernel does the work of all. A layer that knows this finds
networks x (its own shape) in its weights, and a batch that falls into as many equal parts; all else treats the samples
of a batch alike and need not know.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longthink.errors import UserError
from longthink.think import ThinkingModule


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer's product; with weights [networks, out, in], each network's with its part of the batch."""
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    parts = x.reshape(len(weight), -1, x.shape[-1])
    y = parts @ weight.mT if bias is None else torch.baddbmm(bias[:, None], parts, weight.mT)
    return y.view(*x.shape[:-1], -1)


def per_sample(weight: Tensor, x: Tensor, own: int) -> Tensor:
    """A weight of ``own`` dimensions as it is; one of several networks so that each meets its part of the batch x."""
    if weight.dim() == own:
        return weight
    each = len(x) // len(weight)
    room = [1] * (x.dim() - 1 - own)
    return weight[:, None].expand(-1, each, *weight.shape[1:]).reshape(len(x), *room, *weight.shape[1:])


def repeated(x: Tensor, weight: Tensor, own: int) -> Tensor:
    """What all samples share, once for each network that the weight belongs to."""
    return x if weight.dim() == own else x.expand(len(weight), *x.shape)


class LayerNorm(nn.LayerNorm):
    """PyTorch's, for one network or several."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dim() == 1:
            return super().forward(x)
        return F.layer_norm(x, self.normalized_shape, eps=self.eps) * per_sample(self.weight, x, 1) + per_sample(
            self.bias, x, 1
        )


class Embedding(nn.Embedding):
    """PyTorch's, for one network or several."""

    def forward(self, tokens: Tensor) -> Tensor:
        if self.weight.dim() == 2:
            return super().forward(tokens)
        networks, words, _ = self.weight.shape
        network = torch.arange(len(tokens), device=tokens.device) // (len(tokens) // networks)
        return F.embedding(tokens + network[:, None] * words, self.weight.flatten(0, 1))


def together(models: Sequence[ThinkingModule]) -> ThinkingModule:
    """One network that is all of these, which become views of it: whoever changes its weights changes theirs. Of one,
    itself."""
    if len(models) == 1:
        return models[0]
    whole = copy.deepcopy(models[0])
    plain = not list(whole.buffers()) and all(weight.dim() for weight in whole.parameters())
    if not plain or not all(getattr(model, "stackable", False) for model in models):
        raise UserError("Of these networks several cannot be one: not all of their layers know how.")
    parts = [dict(model.named_parameters()) for model in models]
    for name, parameter in list(whole.named_parameters()):
        owner, _, last = name.rpartition(".")
        stacked = nn.Parameter(torch.stack([part[name].detach() for part in parts]), parameter.requires_grad)
        setattr(whole.get_submodule(owner), last, stacked)
        for i, part in enumerate(parts):
            part[name].data = stacked.data[i]
    cast(Any, whole).networks = len(models)
    return whole


def networks_in(model: object) -> int:
    """How many networks a model is."""
    return int(getattr(model, "networks", 1))
