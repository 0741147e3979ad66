"""How many hidden units of a feed-forward layer are active for a token? (Figures 7.1, F.1, F.2)

Any model that notes "active" [batch, n] can be seen; where a step is a group of layers, each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.inspect.pieces import Seen, at_test_time, check_steps, entries, first_notes, noted_columns, rounded
from longthink.think import Thinker


@dataclass(frozen=True, eq=False)
class ActiveUnits:
    """Step t is entry t - 1; or the t-th layer that was applied, where a step is a group of layers."""

    mean: Tensor  # [steps], over all tokens
    deviation: Tensor  # [steps]
    tokens: int
    entries: str = "step"  # or "layer"

    def to_json(self) -> dict[str, Any]:
        mean, deviation = rounded(self.mean), rounded(self.deviation)
        return {"tokens": self.tokens, "entries": self.entries, "mean": mean, "deviation": deviation}


def active_units(model: Thinker, inputs: Seen, steps: int, chunk: int = 20) -> ActiveUnits:
    """Think about all samples and count the units that are not zero."""
    check_steps(model, steps)
    with at_test_time(model):
        if first_notes(model, inputs, ("active",))["active"] is None:
            raise UserError("This model has no feed-forward layers that count active units; look at a Transformer.")
        noted = noted_columns(model, inputs, steps, ("active",), chunk)
        count = torch.cat([part.double().cpu() for (part,) in noted], 1)
    return ActiveUnits(count.mean(1), count.std(1, correction=0), count.shape[1], entries(model))


def draw(found: ActiveUnits, title: str = "") -> Any:
    """Mean and deviation of each step, as bars."""
    from matplotlib.ticker import MaxNLocator

    from longthink.inspect.figures import figure

    new = figure(6.0, 3.2)
    axes = new.add_subplot()
    steps = range(1, len(found.mean) + 1)
    axes.bar(steps, found.mean.tolist(), yerr=found.deviation.tolist(), color="#4c78a8", ecolor="#888888", capsize=2)
    axes.set(xlabel=found.entries, ylabel="active hidden units of a token")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if title:
        axes.set_title(title, size=11, loc="left")
    return new
