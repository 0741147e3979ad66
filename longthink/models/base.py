"""The list of model families. A family is one file with a class that has the four methods of a ``Thinker``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from longthink.errors import UserError, check_options, check_rates
from longthink.registry import Registry
from longthink.think import ThinkingModule

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
    try:
        model = make(**options)
    except TypeError as error:
        raise UserError(f"The model {name!r} does not take these options: {error}.") from error
    lacks = [method for method in ("look", "start", "step", "read") if not callable(getattr(model, method, None))]
    if lacks or not isinstance(model, nn.Module):
        what = f"has no method {' and no '.join(lacks)}" if lacks else "is no torch.nn.Module"
        raise UserError(f"The model {name!r} {what}; see the guide on models of your own.")
    return cast(ThinkingModule, model)
