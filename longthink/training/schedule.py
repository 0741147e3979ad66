"""Optimisers and learning rates as published."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import nn

from longthink.training.recipe import Recipe


def make_optimizer(recipe: Recipe, model: nn.Module, fused: bool = False) -> torch.optim.Optimizer:
    """The recipe's optimiser; the weights that recur form a group of their own when their rate is throttled."""
    recurrent: list[nn.Parameter] = []
    if recipe.recurrent_scale != 1 and hasattr(model, "recurrent_parameters"):
        recurrent = cast(Any, model).recurrent_parameters()
    special = {id(p) for p in recurrent}
    groups = [{"params": [p for p in model.parameters() if id(p) not in special], "scale": 1.0}]
    if recurrent:
        groups.append({"params": recurrent, "scale": recipe.recurrent_scale})
    rate, decay = recipe.learning_rate, recipe.weight_decay
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=recipe.momentum, weight_decay=decay)
    if recipe.optimizer == "rmsprop":
        return torch.optim.RMSprop(groups, lr=rate, momentum=recipe.momentum, weight_decay=decay, eps=1e-10)
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=rate, weight_decay=decay, fused=fused)


def set_rate(optimizer: torch.optim.Optimizer, recipe: Recipe, update: int) -> float:
    """Set every group's learning rate for this update (counted from 0); returns the unthrottled one."""
    rate = recipe.learning_rate * factor(recipe, update)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]
    return rate


def factor(recipe: Recipe, update: int) -> float:
    """Of the learning rate at this update."""
    epoch = update // recipe.updates_an_epoch
    linear = min(1.0, (update + 1) / recipe.warmup_updates) if recipe.warmup_updates else 1.0
    if recipe.schedule == "cosine":
        done = update / max(1, recipe.updates)
        smooth = 0.5 * (1 + math.cos(math.pi * done))
        return linear * smooth * _warmup(update / recipe.updates_an_epoch, recipe.warmup_epochs)
    decay = recipe.decay_factor ** sum(epoch >= e for e in recipe.decay_epochs)
    return linear * decay * _warmup(epoch, recipe.warmup_epochs)


def _warmup(epoch: float, period: int) -> float:
    """The public code's exponential warm-up: 1 - exp(-(e + 1) / period), and 1 from epoch period - 1 on."""
    return 1.0 if epoch >= period - 1 else 1 - math.exp(-(epoch + 1) / period)
