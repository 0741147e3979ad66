"""Halting rules: when each sample has been thought about for long enough, and what its answer is then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.think import Moment, confidence


class Halting:
    """One use of a halting rule: asked after every step which samples stop, and for their answers."""

    def after(self, moment: Moment) -> Tensor | None:
        """True [alive] for the samples that stop now, or None for nobody."""
        return None

    def answer(self, moment: Moment) -> Tensor:
        """Logits [alive, ...] as they stand after this step."""
        return moment.logits


class Halt(Protocol):
    """A halting rule. Per-sample memory lives in the ``Halting`` that ``begin`` makes, indexed by ``moment.alive``."""

    def begin(self, batch: int, device: torch.device) -> Halting: ...


@dataclass(frozen=True, eq=False)
class Budget:
    """Each sample has its own number of steps: [batch], a tensor or a list; one number is for all."""

    steps: Tensor | Sequence[int] | int

    def begin(self, batch: int, device: torch.device) -> Halting:
        budget = torch.as_tensor(self.steps, device=device)
        budget = budget.expand(batch) if budget.dim() == 0 else budget
        if budget.shape != (batch,):
            raise UserError(f"The budget must have one number a sample: [{batch}], not {list(budget.shape)}.")
        if batch and budget.min() < 1:
            raise UserError(f"Each sample's budget must be 1 step or more, not {budget.min().item()}.")

        class OutOfBudget(Halting):
            def after(self, moment: Moment) -> Tensor:
                return moment.count >= budget[moment.alive]

        return OutOfBudget()


@dataclass(frozen=True)
class Converged:
    """Stop when the state moves by less than ``tolerance`` of its length, ``patience`` steps in a row."""

    tolerance: float = 1e-3
    patience: int = 1

    def __post_init__(self) -> None:
        if not self.tolerance > 0:
            raise UserError(f"The tolerance must be above 0, such as 1e-3, not {self.tolerance}.")
        if self.patience < 1:
            raise UserError(f"The patience must be 1 step or more, not {self.patience}.")

    def begin(self, batch: int, device: torch.device) -> Halting:
        rule, calm = self, torch.zeros(batch, dtype=torch.long, device=device)

        class Still(Halting):
            def after(self, moment: Moment) -> Tensor:
                still = moment.change < rule.tolerance
                calm[moment.alive] = torch.where(still, calm[moment.alive] + 1, 0)
                return calm[moment.alive] >= rule.patience

        return Still()


@dataclass(frozen=True)
class MaximumConfidence:
    """Answer with the logits of the most confident step so far (section 4.3); the budget ends the thinking."""

    mask: Tensor | None = None
    """Outputs that count, [batch, ...]; None for all."""

    def begin(self, batch: int, device: torch.device) -> Halting:
        mask = self.mask

        class MostConfident(Halting):
            best = torch.full((batch,), -torch.inf, device=device)
            kept: Tensor | None = None

            def after(self, moment: Moment) -> None:
                rows = moment.alive
                now = confidence(moment.logits, None if mask is None else mask[rows])
                better = now >= self.best[rows]  # of equals the last, as in the published code
                self.best[rows] = torch.where(better, now, self.best[rows])
                if self.kept is None:
                    self.kept = moment.logits
                else:
                    shape = (-1,) + (1,) * (moment.logits.dim() - 1)
                    self.kept = torch.where(better.view(shape), moment.logits, self.kept)

            def answer(self, moment: Moment) -> Tensor:
                assert self.kept is not None
                return self.kept

        return MostConfident()


@dataclass(frozen=True)
class ACT:
    """Adaptive computation time (Graves 2016): the model's ``halting(state, context)`` gives each sample's probability
    to stop; logits are averaged with these as weights until they sum to 1 - epsilon."""

    epsilon: float = 0.01

    def begin(self, batch: int, device: torch.device) -> Halting:
        rule = self

        class Accumulate(Halting):
            spent = torch.zeros(batch, device=device)
            mean: Tensor | None = None

            def after(self, moment: Moment) -> Tensor:
                rows = moment.alive
                p = _halting_probability(moment)
                left = 1 - self.spent[rows]
                stop = self.spent[rows] + p >= 1 - rule.epsilon
                weight = torch.where(stop, left, p)  # the remainder goes to the last step
                self.spent[rows] = self.spent[rows] + weight
                shape = (-1,) + (1,) * (moment.logits.dim() - 1)
                if self.mean is None:
                    self.mean = moment.logits.new_zeros(batch, *moment.logits.shape[1:])
                self.mean[rows] = self.mean[rows] + weight.view(shape) * moment.logits
                return stop

            def answer(self, moment: Moment) -> Tensor:
                # Out of steps before the weights sum to one: the rest goes to the answer of this step.
                assert self.mean is not None
                rows = moment.alive
                left = (1 - self.spent[rows]).view((-1,) + (1,) * (moment.logits.dim() - 1))
                return self.mean[rows] + left * moment.logits

        return Accumulate()


@dataclass(frozen=True)
class Ponder:
    """As PonderNet at test time, without drawing lots: stop when the probability of having stopped passes
    ``threshold``; the model's ``halting(state, context)`` gives the probability to stop at each step."""

    threshold: float = 0.5

    def begin(self, batch: int, device: torch.device) -> Halting:
        rule, going = self, torch.ones(batch, device=device)

        class Stopped(Halting):
            def after(self, moment: Moment) -> Tensor:
                rows = moment.alive
                going[rows] = going[rows] * (1 - _halting_probability(moment))
                return 1 - going[rows] >= rule.threshold

        return Stopped()


def _halting_probability(moment: Moment) -> Tensor:
    halting = getattr(moment.model, "halting", None)
    if halting is None:
        raise UserError("This halting rule needs a model with a halting(state, context) method; this one has none.")
    return halting(moment.state, moment.context)
