"""What the questions share: work in pieces that fit into memory, a quiet model, numbers for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from longthink.errors import UserError
from longthink.tasks.base import Task
from longthink.think import Thinker, tensors, think, unfold
from longthink.training.files import finite

OnStep: TypeAlias = Callable[[int], None]
"""Told after every step how many samples took it: long work shows how far it is."""


def nobody(samples: int) -> None:
    """Nobody wants to know."""


@contextmanager
def at_test_time(model: Thinker) -> Iterator[None]:
    """Without dropout and gradients; the model's mode comes back afterwards."""
    was_training = isinstance(model, nn.Module) and model.training
    if isinstance(model, nn.Module):
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if isinstance(model, nn.Module):
            model.train(was_training)


Seen: TypeAlias = Tensor | Sequence[Tensor]
"""Samples; or blocks of texts that follow each other, of which the last is looked at and the others are remembered."""


def looked_at(inputs: Seen) -> Tensor:
    """The samples, or the last block of texts."""
    return inputs if isinstance(inputs, Tensor) else inputs[-1]


def first_notes(model: Thinker, inputs: Seen, names: Iterable[str]) -> dict[str, Tensor | None]:
    """What the model notes in its first step on the first sample: whether it has what somebody wants to see."""
    one = looked_at(inputs)[:1]
    return next(unfold(model, one.to(device_of(model)), 1, notes=names)).notes


def noted_columns(
    model: Thinker, inputs: Seen, steps: int, names: tuple[str, ...], chunk: int
) -> Iterator[list[Tensor]]:
    """What is noted under these names, [batch, n, ...] a layer, of real columns alone: [layers, columns, ...] a chunk.

    Most steps are one layer; all layers of groups come one after the other.
    """
    layers = layers_of_a_step(model)
    in_layers = {name: [*(f"layer{i}.{name}" for i in range(1, layers)), name] for name in names}
    watch = [name for own in in_layers.values() for name in own]
    texts, last = None if isinstance(inputs, Tensor) else inputs, looked_at(inputs)
    for part in pieces(len(last), chunk):
        past: Any = None
        for block in () if texts is None else texts[:-1]:
            context: Any = model.look((block[part].to(device_of(model)), past))
            past = model.remember(think(model, None, steps, context=context, read=False).state, context)  # type: ignore[attr-defined]
        seen = last[part].to(device_of(model))
        context = model.look(seen if texts is None else (seen, past))
        trace = think(model, None, steps, context=context, watch=watch, read=False).trace
        each = [torch.stack([trace[name] for name in own], 2).flatten(1, 2) for own in in_layers.values()]
        rows = [noted.transpose(0, 1).flatten(1, 2) for noted in each]
        padding = getattr(context, "padding", None)  # contexts say where it is
        yield rows if padding is None else [part[:, ~padding.flatten()] for part in rows]


def layers_of_a_step(model: Thinker) -> int:
    """One; but language models may apply a group of layers in a step."""
    return getattr(model, "group", 1)


def entries(model: Thinker) -> str:
    """What ``noted_columns`` has an entry for."""
    return "step" if layers_of_a_step(model) == 1 else "layer"


def device_of(model: Thinker) -> torch.device:
    """Where its weights are; toys without weights work on the CPU."""
    parameters: Iterable[Tensor] = model.parameters() if isinstance(model, nn.Module) else ()
    return next((weight.device for weight in parameters), torch.device("cpu"))


def pieces(samples: int, chunk: int) -> list[slice]:
    """Parts of at most ``chunk`` samples, as equal as can be: no sample is alone while there are others."""
    if samples < 1:
        raise UserError("There is nothing to look at; ask for at least one sample.")
    if chunk < 1:
        raise UserError(f"A chunk must be 1 or more samples, not {chunk}.")
    parts = np.array_split(np.arange(samples), -(-samples // chunk))
    return [slice(int(part[0]), int(part[-1]) + 1) for part in parts]


def check_answers(task: Task, name: str = "This network") -> None:
    """Complain about language models, of which nobody can say what they solve, before a verdict that means nothing."""
    if hasattr(task, "stream"):
        raise UserError(f"{name} is a language model: it has no answers to solve; longthink eval measures its bits.")


def check_repeats(model: Thinker, name: str = "This network") -> None:
    """Complain about models that cannot think on."""
    blocks = getattr(model, "max_steps", None)
    if blocks is not None:
        raise UserError(
            f"{name} cannot think on: its {blocks} steps are layers with weights of their own, each taken once; "
            "choose a network that repeats one step, such as prefix_sums."
        )


def distance(one: Any, other: Any) -> Tensor:
    """The length of the difference of two states, for each sample: [batch]."""
    return _length(a - b for a, b in zip(_flat(one), _flat(other), strict=True))


def length(state: Any) -> Tensor:
    """The length of a state, for each sample: [batch]."""
    return _length(_flat(state))


def _flat(state: Any) -> list[Tensor]:
    found = [t.reshape(len(t), -1).double() for t in tensors(state) if t.is_floating_point()]
    if not found:
        raise UserError("This model's state holds no numbers, so its change cannot be measured.")
    return found


def _length(parts: Iterable[Tensor]) -> Tensor:
    return torch.stack([part.square().sum(1) for part in parts]).sum(0).sqrt()


def rounded(values: Tensor, digits: int = 4) -> Any:
    """Nested lists of short numbers; None where they are not finite, which JSON does not know."""
    if values.dim() == 0:
        return finite(float(values)) if values.is_floating_point() else values.item()
    if values.dim() > 1:
        return [rounded(row, digits) for row in values]
    return [_short(value, digits) for value in values.tolist()]


def _short(value: float, digits: int) -> float | None:
    if isinstance(value, int):
        return value
    return float(f"{value:.{digits}g}") if np.isfinite(value) else None
