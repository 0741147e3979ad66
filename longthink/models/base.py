"""The list of model families. A family is one file with a class that has the four methods of a ``Thinker``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from longthink.errors import UserError, check_options, check_rates
from longthink.registry import Registry
from longthink.think import ThinkingModule

_PLACES = {1: "length", 2: "height, width"}


def check_images(x: Tensor, channels: int, dims: int) -> None:
    """Complain about what is no batch of strings or images. It asks for shapes and types alone: no GPU waits for it."""
    if x.dim() != dims + 2 or x.shape[1] != channels or not x.is_floating_point():
        wanted = f"floating-point numbers [batch, {channels}, {_PLACES[dims]}]"
        raise UserError(f"This network looks at {wanted}, not at {described(x, dims + 2)}.")


def check_rows(tokens: Tensor) -> None:
    """The same of rows of tokens."""
    if tokens.dim() != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise UserError(f"This network reads whole numbers [batch, length], not {described(tokens, 2)}.")


def described(x: Tensor, dims: int) -> str:
    alone = "; x[None] makes a batch of one" if x.dim() == dims - 1 else ""
    return f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')}{alone}"


models: Registry[Callable[..., nn.Module]] = Registry("model")


class Layered(NamedTuple):
    """The state of a feed-forward twin, whose steps have weights of their own: it must know which come next."""

    state: Tensor
    next: int


def build(name: str, **options: Any) -> ThinkingModule:
    """A new model of this family: ``build("deepthinking", width=64)``."""
    make = models[name]
    check_options(f"the model {name}", make, options)
    check_rates(options)
    named = [one for one in inspect.signature(make).parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    missing = [one.name for one in named if one.default is one.empty and one.name not in options]
    if missing:
        raise UserError(
            f"The model {name!r} needs {' and '.join(missing)}, as a task's shape has them: "
            f"build({name!r}, **task.shape)."
        )
    try:
        model = make(**options)
    except TypeError as error:
        raise UserError(f"The model {name!r} does not take these options: {error}.") from error
    lacks = [method for method in ("look", "start", "step", "read") if not callable(getattr(model, method, None))]
    if lacks or not isinstance(model, nn.Module):
        what = f"has no method {' and no '.join(lacks)}" if lacks else "is no torch.nn.Module"
        raise UserError(f"The model {name!r} {what}; see the guide on models of your own.")
    return cast(ThinkingModule, model)
