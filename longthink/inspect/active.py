"""How many hidden units of a feed-forward layer are active for a token? (Figures 7.1, F.1, F.2)

Any model that notes "active" [batch, n] can be seen; where a step is a group of layers, each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longthink.errors import UserError
from longthink.inspect.pieces import Seen, at_test_time, entries, first_notes, noted_columns, rounded
from longthink.layers.feedforward import FeedForward
from longthink.think import Thinker, check_steps


@dataclass(frozen=True, eq=False)
class ActiveUnits:
    """Step t is entry t - 1; or the t-th layer that was applied, where a step is a group of layers."""

    mean: Tensor  # [steps], over all tokens
    deviation: Tensor  # [steps]: the standard deviation over the same tokens
    tokens: int
    entries: str = "step"  # or "layer"
    units: int | None = None  # how many hidden units a layer has; None where nobody knows

    @property
    def of_all(self) -> str:
        return "" if self.units is None else f" of {self.units:,}"

    def to_json(self) -> dict[str, Any]:
        mean, deviation = rounded(self.mean), rounded(self.deviation)
        about = {"tokens": self.tokens, "entries": self.entries, "units": self.units}
        return {**about, "mean": mean, "deviation": deviation}


def active_units(model: Thinker, inputs: Seen, steps: int, chunk: int = 20) -> ActiveUnits:
    """Think about all samples and count the units that are not zero."""
    check_steps(model, steps, fewest=1)
    with at_test_time(model):
        if first_notes(model, inputs, ("active",))["active"] is None:
            raise UserError(
                "This model has no feed-forward layers that count active units; look at a Transformer, such as ctl."
            )
        noted = noted_columns(model, inputs, steps, ("active",), chunk)
        count = torch.cat([part.double().cpu() for (part,) in noted], 1)
    deviation, tokens = count.std(1, correction=0), count.shape[1]
    return ActiveUnits(count.mean(1), deviation, tokens, entries(model), hidden_units(model))


def hidden_units(model: Thinker) -> int | None:
    """How many a layer has, active or not, where all layers that count them have as many."""
    parts = model.modules() if isinstance(model, nn.Module) else ()
    found = {part.units for part in parts if isinstance(part, FeedForward)} - {None}
    return found.pop() if len(found) == 1 else None


def draw(found: ActiveUnits, title: str = "") -> Any:
    """Mean and standard deviation of each step, as bars."""
    from matplotlib.ticker import MaxNLocator

    from longthink.inspect.figures import figure

    new = figure(6.0, 3.2)
    axes = new.add_subplot()
    steps = range(1, len(found.mean) + 1)
    axes.bar(steps, found.mean.tolist(), yerr=found.deviation.tolist(), color="#4c78a8", ecolor="#888888", capsize=2)
    axes.set(xlabel=found.entries, ylabel=f"active units{found.of_all}")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    bars = f"of a token: mean of {found.tokens:,}, and their standard deviation"
    axes.set_title("\n".join([title, bars] if title else [bars]), size=10, loc="left")
    return new
