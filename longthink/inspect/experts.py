"""Which experts of a mixture are used at each step, how evenly, and which are used together? (section 7.6)

Any model that notes "experts" [batch, n, k] and "usage" [batch, experts] can be seen; a step of several layers shows
the last of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.inspect.pieces import at_test_time, check_steps, device_of, noted_columns, rounded
from longthink.think import Thinker, unfold

WATCHED = ("experts", "usage")


@dataclass(frozen=True, eq=False)
class ExpertUse:
    """Step t is entry t - 1."""

    share: Tensor  # [steps, experts]: of the tokens that went to the expert; rows sum to k
    together: Tensor  # [steps, experts, experts]: of the tokens of the first, how many went to the second too
    k: int
    tokens: int

    @property
    def evenness(self) -> Tensor:
        """Entropy of the shares over that of equal ones: 1 where all experts are used alike: [steps]."""
        p = self.share / self.k
        entropy = -(p * p.clamp_min(1e-12).log()).sum(1)
        return entropy / torch.tensor(max(2, self.share.shape[1])).log()

    @property
    def unused(self) -> Tensor:
        """How many experts got no token: [steps]."""
        return (self.share == 0).sum(1)

    def to_json(self) -> dict[str, Any]:
        return {
            "k": self.k,
            "tokens": self.tokens,
            "share": rounded(self.share),
            "evenness": rounded(self.evenness),
            "unused": self.unused.tolist(),
            "together": rounded(self.together, 3),
        }


def expert_use(model: Thinker, inputs: Tensor, steps: int, chunk: int = 20) -> ExpertUse:
    """Think about all samples and count where their tokens go."""
    check_steps(model, steps)
    device = device_of(model)
    counts: Tensor | None = None
    tokens = k = 0
    with at_test_time(model):
        first = next(unfold(model, inputs[:1].to(device), 1, notes=WATCHED))
        if first.notes["experts"] is None or first.notes["usage"] is None:
            raise UserError("This model has no experts; look at one with feedforward='experts'.")
        number = first.notes["usage"].shape[-1]
        for chosen in noted_columns(model, inputs, steps, "experts", chunk):
            k = chosen.shape[-1]
            tokens += chosen.shape[1]
            # One row a token with a 1 for each of its experts: the products of columns count pairs.
            used = torch.zeros(*chosen.shape[:2], number, device=device)
            used.scatter_(2, chosen, 1.0)
            found = (used.transpose(1, 2) @ used).double().cpu()
            counts = found if counts is None else counts + found
    assert counts is not None
    share = counts.diagonal(dim1=1, dim2=2)
    return ExpertUse(share / tokens, counts / share.clamp_min(1)[..., None], k, tokens)


def draw(found: ExpertUse, title: str = "") -> Any:
    """The share of each expert at each step, and which go together at the first, a middle and the last step."""
    from matplotlib.ticker import MaxNLocator

    from longthink.inspect.figures import figure, heat

    steps, experts = found.share.shape
    new = figure(8.5, 0.16 * steps + 4.0)
    if title:
        new.suptitle(title, size=11, x=0.01, ha="left")
    grid = new.add_gridspec(2, 3, height_ratios=[0.16 * steps + 0.8, 2.8])
    axes = new.add_subplot(grid[0, :])
    even = found.k / experts
    extent = (-0.5, experts - 0.5, steps + 0.5, 0.5)
    name = f"share of the tokens (all alike: {even:.1%})"
    image = heat(axes, found.share, name, high=max(2 * even, float(found.share.max())), aspect="auto", extent=extent)
    axes.set(xlabel="expert", ylabel="step")
    new.colorbar(image, ax=axes, pad=0.01).ax.tick_params(labelsize=7)
    for place, step in enumerate(sorted({1, (steps + 1) // 2, steps})):
        pairs = found.together[step - 1].clone().fill_diagonal_(0)
        heat(new.add_subplot(grid[1, place]), pairs, f"used together, step {step}", high=max(1e-6, float(pairs.max())))
    for axes in (one for one in new.axes if one.get_title(loc="left")):  # not the colour bar
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return new
