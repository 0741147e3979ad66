"""How much leaks through gates that are almost shut, and what if they are shut? (Eq. 5.3 and 5.4)

A column waits behind a gate for its turn. A gate of 0.05 does no harm within the steps of training, but takes most of
what a column has when it waits for fifty; shutting it (``gate_threshold``) changes no weights. How far to go is chosen
on validation problems as hard as the hardest of training, thought about ten times as long as in training: of the
thresholds with which as many are solved at their best step and as many answers are kept, each give or take half a
percent, the middle one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.evaluate import Curve, curve
from longthink.inspect.pieces import OnStep, at_test_time, first_notes, nobody, noted_columns, rounded
from longthink.loading import Loaded
from longthink.tasks import Batch
from longthink.think import check_steps

THRESHOLDS = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2)
EDGES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1.0)
LONG = 10
"""So many times the steps of training."""
_AS_GOOD = 0.005


@dataclass(frozen=True, eq=False)
class Gates:
    """Curves of accuracy, one a threshold, and how open the gates are as they were trained."""

    thresholds: tuple[float, ...]
    curves: tuple[Curve, ...]
    trained_steps: int
    shares: Tensor  # [len(EDGES) - 1], of all gates of real columns within the steps of training

    def kept(self, index: int) -> float:
        """Mean accuracy from the steps of training to the last one."""
        one = self.curves[index]
        return float(one.accuracy[one.steps >= min(self.trained_steps, int(one.steps[-1]))].mean())

    @property
    def best(self) -> int:
        """The middle one of the thresholds that keep most answers, of those with which as many are found."""
        most = max(one.peak[0] for one in self.curves)
        as_good = [i for i, one in enumerate(self.curves) if one.peak[0] >= most - _AS_GOOD]
        longest = max(self.kept(i) for i in as_good)
        keep_most = [i for i in as_good if self.kept(i) >= longest - _AS_GOOD]
        return sorted(keep_most, key=lambda i: self.thresholds[i])[(len(keep_most) - 1) // 2]

    def to_json(self) -> dict[str, Any]:
        return {
            "best_threshold": self.thresholds[self.best],
            "thresholds": [
                {"threshold": threshold, "kept": round(self.kept(i), 6), **one.to_json()}
                for i, (threshold, one) in enumerate(zip(self.thresholds, self.curves, strict=True))
            ],
            "gates": {"edges": list(EDGES), "shares": rounded(self.shares)},
        }


def shut(
    loaded: Loaded,
    batch: Batch,
    thresholds: Sequence[float] = THRESHOLDS,
    steps: int | None = None,
    *,
    chunk: int = 20,
    half: bool = False,
    on_step: OnStep = nobody,
) -> Gates:
    """Think about all problems once with each threshold; ten times as long as in training if nobody says how long."""
    if not thresholds:
        raise UserError("Name at least one threshold.")
    trained = loaded.recipe.steps
    count = LONG * trained if steps is None else steps
    with at_test_time(loaded.model):
        if first_notes(loaded.model, batch.inputs, ("gate",))["gate"] is None:
            raise UserError("This model has no gates; look at a router, such as ctl.")
    if "gate_threshold" not in getattr(loaded.model, "adjustable", ()):
        raise UserError("This model's gates cannot be shut: it has no gate_threshold; inspect attention shows them.")
    check_steps(loaded.model, count, fewest=1)
    settings = [[f"model.gate_threshold={threshold}"] for threshold in thresholds]
    variants = [loaded.with_settings(one).model for one in settings]  # complains before the work
    curves = []
    for model in variants:
        pieces = []
        for start in range(0, len(batch), chunk):
            piece = batch[start : start + chunk]
            pieces.append(curve(model, loaded.task, piece, count, chunk=chunk, half=half, on_step=on_step))
        curves.append(Curve.joined(pieces))
    return Gates(tuple(thresholds), tuple(curves), trained, _shares(loaded, batch, min(count, trained), chunk))


def _shares(loaded: Loaded, batch: Batch, steps: int, chunk: int) -> Tensor:
    """How many of all gates lie between two edges, nothing being shut."""
    model = loaded.with_settings(["model.gate_threshold=0"]).model
    edges = torch.tensor(EDGES[1:-1])
    counts = torch.zeros(len(EDGES) - 1, dtype=torch.long)
    with at_test_time(model):
        for (gates,) in noted_columns(model, batch.inputs, steps, ("gate",), chunk):
            counts += torch.bucketize(gates.float().cpu().flatten(), edges, right=True).bincount(minlength=len(counts))
    return counts.double() / counts.sum()


def draw(found: Gates, title: str = "") -> Any:
    """Left, how open gates are; right, accuracy over steps with each threshold."""
    from matplotlib import colormaps

    from longthink.inspect.figures import COLOURS, figure, plain

    new = figure(9.6, 3.4)
    if title:
        new.suptitle(title, size=11, x=0.01, ha="left")
    left, right = new.subplots(1, 2, width_ratios=(2, 3))
    labels = [f"{low:g}-{high:g}" for low, high in pairwise(EDGES)]
    left.barh(labels, (100 * found.shares).tolist(), color=COLOURS[0])
    left.invert_yaxis()
    left.tick_params(axis="y", labelsize=8)
    plain(left, "how open gates are", xlabel="% of all gates, within the steps of training")
    left.grid(visible=False)
    for i, (threshold, one) in enumerate(zip(found.thresholds, found.curves, strict=True)):
        colour = colormaps["viridis"](0.92 * i / max(1, len(found.curves) - 1))
        wide = 2.4 if i == found.best else 1.2
        right.plot(one.steps.tolist(), (100 * one.accuracy).tolist(), color=colour, lw=wide, label=f"{threshold:g}")
    right.axvline(found.trained_steps, color="#94a3b8", lw=0.8, ls=":")
    right.set_ylim(0, 102)
    plain(right, "solved, by what is shut (dotted: steps of training)", xlabel="step", ylabel="%")
    right.legend(
        title="gates below", fontsize=8, title_fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5)
    )
    return new
