"""Which bits take long to come back from when they flip while a network thinks? (Figure 5.8, left)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from longthink.inspect.disturbances import LATE, bit_flips, check, flip_bits
from longthink.inspect.pieces import at_test_time, device_of, pieces, rounded
from longthink.tasks.base import Batch, Task
from longthink.think import State, Thinker, unfold


@dataclass(frozen=True, eq=False)
class FlipProfile:
    """Figure 5.8, left: steps to recover from one flipped bit, by its place. ``steps`` is [samples, places]."""

    at: int
    budget: int
    steps: Tensor  # -1 where it did not recover

    @property
    def mean(self) -> Tensor:
        """NaN where no sample recovered: [places]."""
        solved = self.steps > 0
        return torch.where(solved, self.steps, 0).double().sum(0) / solved.sum(0)

    def to_json(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "budget": self.budget,
            "samples": len(self.steps),
            "places": self.steps.shape[1],
            "mean_steps_to_solution": rounded(self.mean),
            "recovered": rounded((self.steps > 0).double().mean(0)),
        }


def flip_profile(
    model: Thinker, task: Task, batch: Batch, at: int = LATE, steps: int = 100, *, chunk: int = 50
) -> FlipProfile:
    """Flip each bit of prefix sums in turn after ``at`` steps, and count the steps to the new answer."""
    check(model, task, batch, [bit_flips(at)], steps, chunk)
    length = batch.inputs.shape[2]
    found = torch.full((len(batch), length), -1)
    with at_test_time(model):
        for i in range(len(batch)):
            one = batch[i : i + 1].to(device_of(model))
            state = model.start(model.look(one.inputs))
            for moment in unfold(model, one.inputs, at):
                state = moment.state
            for piece in pieces(length, chunk):
                places = torch.arange(piece.start, piece.stop)[:, None]
                many = one[torch.zeros(len(places), dtype=torch.long)]
                problem = flip_bits(many, places)
                copies = _copies(state, len(places))
                for moment in unfold(model, problem.inputs, steps, state=copies, keep_previous=False):
                    right = task.score(moment.logits, problem).cpu()
                    row = found[i, piece]
                    found[i, piece] = torch.where((row < 0) & right, moment.count, row)
                    if bool((found[i, piece] > 0).all()):
                        break
    return FlipProfile(at, steps, found)


def _copies(state: State, n: int) -> State:
    """A state of one sample, n times."""
    return tree_map_only(Tensor, lambda t: t.expand(n, *t.shape[1:]), state)


def draw(profile: FlipProfile, title: str = "") -> Any:
    from longthink.inspect.figures import COLOURS, figure, plain

    new = figure(5.2, 3.2)
    axes = new.add_subplot()
    places = torch.arange(1, profile.steps.shape[1] + 1)
    axes.plot(places, profile.mean, "o-", color=COLOURS[0], ms=3, lw=1.2)
    plain(axes, title, xlabel="place of the flipped bit", ylabel="steps to recover")
    axes.set_xlim(0, len(places) + 1)
    if bool(profile.mean.isnan().all()):
        axes.set_ylim(0, profile.budget)
        axes.text(0.5, 0.5, f"none recovers within {profile.budget} steps", transform=axes.transAxes, ha="center")
    axes.set_ylim(bottom=0)
    return new
