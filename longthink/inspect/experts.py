"""Which experts of a mixture are used at each step, how evenly, and which are used together? (section 7.5.3 and F.1.4)

Any model that notes "experts" and "gates" [batch, n, k] and "usage" [batch, experts] can be seen; where a step is a
group of layers, each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.inspect.pieces import Seen, at_test_time, entries, first_notes, noted_columns, rounded
from longthink.think import Thinker, check_steps

WATCHED = ("experts", "gates", "usage")


@dataclass(frozen=True, eq=False)
class ExpertUse:
    """Step t is entry t - 1; or the t-th layer that was applied, where a step is a group of layers."""

    share: Tensor  # [steps, experts]: of the tokens that went to the expert; rows sum to k
    weight: Tensor  # [steps, experts]: of all that gates add up to (Figure 7.3); rows sum to 1
    together: Tensor  # [steps, experts, experts]: of the tokens of the first, how many went to the second too
    k: int
    tokens: int
    entries: str = "step"  # or "layer"

    @property
    def evenness(self) -> Tensor:
        """Entropy of the shares over that of equal ones: 1 where all experts are used alike: [steps]."""
        experts = self.share.shape[1]
        if experts == 1:
            return torch.ones_like(self.share[:, 0])
        p = self.share / self.k
        entropy = (p * p.clamp_min(1e-12).log()).sum(1).abs()
        return entropy / math.log(experts)

    @property
    def unused(self) -> Tensor:
        """How many experts got no token: [steps]."""
        return (self.share == 0).sum(1)

    def pair(self, entry: int) -> tuple[int, int, float]:
        """The two experts that most tokens went to together, and the share of those tokens."""
        both = (self.together[entry] * self.share[entry][:, None]).triu(1)
        one, other = divmod(int(both.argmax()), len(both))
        return one, other, float(both[one, other])

    def to_json(self) -> dict[str, Any]:
        return {
            "k": self.k,
            "tokens": self.tokens,
            "entries": self.entries,
            "share": rounded(self.share),
            "weight": rounded(self.weight),
            "evenness": rounded(self.evenness),
            "unused": self.unused.tolist(),
            "together": rounded(self.together, 3),
        }


def expert_use(model: Thinker, inputs: Seen, steps: int, chunk: int = 20) -> ExpertUse:
    """Think about all samples and count where their tokens go."""
    check_steps(model, steps, fewest=1)
    counts: Tensor | None = None
    weights: Tensor | None = None
    tokens = k = 0
    with at_test_time(model):
        first = first_notes(model, inputs, WATCHED)
        usage = first["usage"]
        if usage is None or any(value is None for value in first.values()):
            raise UserError("This model has no experts; look at one that has some: of the shipped weights, text.")
        number = usage.shape[-1]
        for chosen, gates in noted_columns(model, inputs, steps, ("experts", "gates"), chunk):
            k = chosen.shape[-1]
            tokens += chosen.shape[1]
            # One row a token with a 1 for each of its experts: the products of columns count pairs.
            used = torch.zeros(*chosen.shape[:2], number, device=chosen.device)
            used.scatter_(2, chosen, 1.0)
            found = (used.transpose(1, 2) @ used).double().cpu()
            counts = found if counts is None else counts + found
            added = torch.zeros(len(chosen), number, dtype=torch.double, device=chosen.device)
            added = added.scatter_add_(1, chosen.flatten(1), gates.double().flatten(1)).cpu()
            weights = added if weights is None else weights + added
    assert counts is not None
    assert weights is not None
    share = counts.diagonal(dim1=1, dim2=2)
    weight = weights / weights.sum(1, keepdim=True).clamp_min(1e-12)
    return ExpertUse(share / tokens, weight, counts / share.clamp_min(1)[..., None], k, tokens, entries(model))


def draw(found: ExpertUse, title: str = "") -> Any:
    """The share of each expert at each step; what gates add up to, the most popular first; and which go together at the
    first, a middle and the last step."""
    from matplotlib.ticker import MaxNLocator

    from longthink.inspect.figures import figure, heat

    steps, experts = found.share.shape
    pairs = found.k > 1  # one expert a token is alone
    new = figure(8.5, 0.16 * steps + (6.4 if pairs else 3.4))
    if title:
        new.suptitle(title, size=11, x=0.01, ha="left")
    grid = new.add_gridspec(2 + pairs, 3, height_ratios=[0.16 * steps + 0.8, 2.2, *[3.0] * pairs])
    axes = new.add_subplot(grid[0, :])
    even = found.k / experts
    extent = (-0.5, experts - 0.5, steps + 0.5, 0.5)
    name = f"share of the tokens (all alike: {even:.1%})"
    image = heat(axes, found.share, name, high=max(2 * even, float(found.share.max())), aspect="auto", extent=extent)
    axes.set(xlabel="expert", ylabel=found.entries)
    new.colorbar(image, ax=axes, pad=0.01).ax.tick_params(labelsize=7)
    shown = sorted({1, (steps + 1) // 2, steps})
    axes = new.add_subplot(grid[1, :])
    for step in range(1, steps + 1):
        sorted_weight = found.weight[step - 1].sort(descending=True).values.tolist()
        style = {"label": f"{found.entries} {step}"} if step in shown else {"color": "#cbd5e1", "zorder": 1}
        axes.plot(range(1, experts + 1), sorted_weight, "o-", ms=3, lw=1, **style)
    axes.axhline(1 / experts, color="#888888", lw=0.8, ls=":")
    axes.set_title("part of all gates, the most popular expert first (dots: all alike)", size=9, loc="left")
    axes.set_xlabel("rank", size=8)
    axes.set_ylabel("part of all gates", size=8)
    axes.tick_params(labelsize=7)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    if pairs:
        _draw_pairs(new, [new.add_subplot(grid[2, place]) for place in range(len(shown))], found, shown)
    for axes in (one for one in new.axes if one.get_title(loc="left")):  # not the colour bar
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if axes.images:
            axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return new


def _draw_pairs(new: Any, panels: list[Any], found: ExpertUse, shown: list[int]) -> None:
    """Which experts go together (Figure F.3), on one scale; the most popular first where there are many."""
    from longthink.inspect.figures import heat

    experts = found.share.shape[1]
    many = experts > 32
    rest = ~torch.eye(experts, dtype=torch.bool)  # each goes with itself
    high = max(float(found.together[step - 1][rest].max()) for step in shown)
    for axes, step in zip(panels, shown, strict=True):
        order = found.share[step - 1].argsort(descending=True) if many else torch.arange(experts)
        pairs = found.together[step - 1][order][:, order].clone().fill_diagonal_(torch.nan)
        image = heat(axes, pairs, f"used together, {found.entries} {step}", high=max(1e-6, high))
        axes.set_xlabel("... also go to" + (" (by rank)" if many else ""), size=8)
    panels[0].set_ylabel("of the tokens of expert ..." + (" (by rank)" if many else ""), size=8)
    new.colorbar(image, ax=panels, pad=0.01).ax.tick_params(labelsize=7)
