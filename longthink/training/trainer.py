"""The loop of a training: updates, what is logged and saved of them, and how they end."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from longthink.errors import UserError
from longthink.layers.several import networks_in
from longthink.tasks.base import join
from longthink.think import ThinkingModule
from longthink.training.checkpoint import pack, save_last, share
from longthink.training.compiled import CompiledStep
from longthink.training.data import derived_seed
from longthink.training.graphs import GraphedObjective
from longthink.training.losses import Objective, Past, draw_plan, outputs_that_count
from longthink.training.member import Member
from longthink.training.report import Report
from longthink.training.schedule import set_rate

_LOSSES = ("loss", "full", "progressive", "penalty")


@dataclass(frozen=True)
class TrainingOptions:
    """How to run, as opposed to what to train: nothing here changes what a recipe means."""

    folder: str = "runs"
    accelerator: str = "auto"
    devices: int = 1
    precision: str | None = None
    """Fabric's names; unless said otherwise, bf16-mixed on a GPU where the model bears it, else 32-true."""
    seconds: float | None = None
    """Stop after this time with everything saved; the same command goes on."""
    graphs: bool = True
    """Capture CUDA graphs where the recipe allows it."""
    compile: bool | None = None
    """Compile the step; unless said otherwise, where the model says that it is worth the wait and there is a GPU."""
    quiet: bool = False
    tensorboard: bool = True


_SLOW = 5.0
"""Seconds of a validation from which on all is saved before it, too: whoever is killed in it loses nothing."""


@contextmanager
def _polite_interrupt(fabric: Fabric) -> Iterator[list[int]]:
    """The first Ctrl-C is noted in the list, to be obeyed after the update in hand; the second one stops at once. So
    are the signals of a closed terminal and of those who end a job (kill, timeout, batch systems).

    Not where several processes would have to agree, nor in a thread, whose business signals are not.
    """
    asked: list[int] = []
    if fabric.world_size > 1 or threading.current_thread() is not threading.main_thread():
        yield asked
        return
    ends = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, *ends)}

    def note(number: int, _frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        with suppress(OSError):  # the terminal may be gone
            os.write(2, b"\nStopping after this update; Ctrl-C again stops at once.\n")

    for one, own in before.items():
        if one == signal.SIGINT or own == signal.SIG_DFL:  # others may have been told to be ignored (nohup)
            signal.signal(one, note)
    try:
        yield asked
    finally:
        for one, own in before.items():
            signal.signal(one, own)


class Trainer:
    """The loop of one process, for one run or for several in one network (see ``layers/several``)."""

    def __init__(
        self,
        fabric: Fabric,
        options: TrainingOptions,
        members: Sequence[Member],
        model: ThinkingModule,
        optimizer: torch.optim.Optimizer,
        average: dict[str, Tensor] | None,
        about: dict[str, Any],
    ) -> None:
        self.fabric, self.options, self.members = fabric, options, list(members)
        self.recipe, self.model, self.average = members[0].recipe, model, average
        self.update: int = about["update"]
        self.seconds: float = about["seconds"]
        self.past: Past | None = None
        if hasattr(members[0].problem, "stream") and hasattr(model, "remember"):
            if self.recipe.alpha == 1:
                raise UserError("A model that reads a text in order remembers its full passes: choose alpha below 1.")
            self.past = Past(tuple(self._own_rows(part).to(fabric.device) for part in about["memory"]) or None)
        worth_it = fabric.device.type == "cuda" and getattr(model, "worth_compiling", False)
        compiled = worth_it if options.compile is None else options.compile
        objective = Objective(model, CompiledStep(model) if compiled else None)
        self.objective, self.optimizer = fabric.setup(objective, optimizer)
        self.graphed: GraphedObjective | None = None
        if options.graphs and fabric.device.type == "cuda" and fabric.world_size == 1:
            half = "bf16" in str(fabric._precision.precision)
            self.graphed = GraphedObjective(objective, half, full_alone=self.recipe.alpha == 0)
        self.sums = {name: torch.tensor(total, device=fabric.device) for name, (total, _) in about["sums"].items()}
        self.counts: dict[str, int] = {name: count for name, (_, count) in about["sums"].items()}
        self._validation_took = math.inf  # seconds, of the last one

    def run(self) -> None:
        device = self.fabric.device
        try:
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                self._run()
        finally:
            for member in self.members:
                member.close_logs()

    def _run(self) -> None:
        chief = self.fabric.is_global_zero
        began = time.monotonic() - self.seconds
        deadline = None if self.options.seconds is None else time.monotonic() + self.options.seconds
        if chief:
            for member in self.members:
                member.open_logs(self.update, self.options.tensorboard)
        quiet = self.options.quiet or not chief
        log_every = max(1, min(50, self.recipe.updates_an_epoch // 4))
        with (
            Report(self._title(), self.recipe.updates, self.update, quiet) as report,
            _polite_interrupt(self.fabric) as asked,
        ):
            for warning in {getattr(member.problem, "warning", "") for member in self.members} - {""}:
                if not self._is_over():
                    report.say(warning)
            if any(member.owes_validation for _, member in self._running()):  # it was ended in the middle of one
                self._validate(late=False, report=report)
                self._save()
            self._let_go(report)  # what had nothing left to do but this
            while not self._is_over():
                self._one_update()
                if self.update % log_every == 0:
                    news = self._log_losses(time.monotonic() - began, report)
                    report.update(self.update, news)
                epoch, rest = divmod(self.update, self.recipe.updates_an_epoch)
                late = self._is_late(deadline)
                due = self.update >= self.recipe.updates or (rest == 0 and epoch % self.recipe.validate_every == 0)
                if due or late or asked:
                    self.seconds = time.monotonic() - began
                    self._look_for_nan(report)
                    for _, member in self._running():
                        member.owes_validation = due
                    self._validate(late, report)
                    self._save()
                    self._let_go(report)
                if (late or asked) and not self._is_over():
                    report.say(f"Stopped after {self.update} of {self.recipe.updates} updates; run again to go on.")
                    if asked:
                        raise KeyboardInterrupt
                    break
        for member in self.members:
            if member.failed is not None:
                raise member.failed

    def _validate(self, late: bool, report: Report) -> None:
        """Those that owe it, and when time is up those that have no weights to load yet."""
        running = [(i, one) for i, one in self._running() if one.owes_validation or (late and one.best is None)]
        if not running:
            return
        # The first process decides for all: each must save.
        if self.fabric.broadcast(self._validation_took > _SLOW):
            self._save()
            report.update(self.update, "validating")
        if not any(member.owes_validation for _, member in running):
            report.say("Time is up; one validation, so that there are weights to load.")
        began = time.monotonic()
        for place, member in running:
            weights = None if self.average is None else self._share(self.average, place)
            report.say(self._whose(member) + member.validate(weights, self.update, self.seconds))
        self._validation_took = time.monotonic() - began

    def _look_for_nan(self, report: Report) -> None:
        for _, member in self._running():
            if not member.is_sound():
                self._drop(member, report)

    def _drop(self, member: Member, report: Report) -> None:
        """A run whose loss exploded; others go on without it, and its end is told when they have ended."""
        if len(self.members) == 1:
            raise member.explosion(self.update)
        member.failed = member.explosion(self.update)
        report.say(str(member.failed))

    def _title(self) -> str:
        first, others = self.members[0], len(self.members) - 1
        return f"{first.recipe.name} seed {first.seed}" + (f" and {others} more" if others else "")

    def _whose(self, member: Member) -> str:
        return f"{member.recipe.name} seed {member.seed}: " if len(self.members) > 1 else ""

    def _running(self) -> list[tuple[int, Member]]:
        """Those that are neither over nor lost, with their places."""
        return [(i, one) for i, one in enumerate(self.members) if not one.finished and one.failed is None]

    def _let_go(self, report: Report) -> None:
        """Runs that are over. Their networks go on being computed with the others, and nobody looks at them."""
        for _, member in self._running():
            if member.is_over(self.update):
                if self.update < self.recipe.updates:
                    made = f"{self.update} of {self.recipe.updates} updates"
                    enough = f"{self.recipe.enough} flawless validations in a row"
                    report.say(f"{self._whose(member)}Over after {made}: {enough}.")
                member.finish(self.update, self.seconds)

    def _is_over(self) -> bool:
        return all(member.is_over(self.update) for _, member in self._running())

    def _is_late(self, deadline: float | None) -> bool:
        if deadline is None:
            return False
        # The first process decides for all: each must stop after the same update.
        return bool(self.fabric.broadcast(time.monotonic() > deadline))

    def _one_update(self) -> None:
        recipe, seeds = self.recipe, [member.seed for member in self.members]
        torch.manual_seed(derived_seed(*seeds, self.update, self.fabric.global_rank))  # for dropout
        rate = set_rate(self.optimizer, recipe, self.update)
        batch = join([member.data.batch(self.update) for member in self.members])
        plan = draw_plan(recipe, seeds[0], self.update)
        count = outputs_that_count(batch) / self.fabric.world_size
        if self.fabric.world_size > 1:
            batch = self._own_rows(batch)
        if self.past is not None and self.members[0].data.begins(self.update):
            self.past = Past(None)
        if self.graphed is not None and self.graphed.takes(plan, self.past):
            losses = self.graphed.backward(batch, plan, self.past)
        else:
            self.optimizer.zero_grad()
            losses = self.objective(batch, plan, count, self.past)
            self.fabric.backward(losses["loss"].sum())
        if self.past is not None:
            self.past = Past(losses["memory"])
        if recipe.clip is not None:
            self._add("gradient_norm", clip_gradients(self.model, recipe.clip))
        self.optimizer.step()
        self.update += 1
        if self.average is not None:
            self._move_average()
        for name in _LOSSES:
            if name in losses:
                self._add(name, losses[name].detach())
        self._add("rate", torch.tensor(rate))

    def _own_rows(self, whole: Any) -> Any:
        """This process's share of a batch or of a memory."""
        size = self.recipe.batch // self.fabric.world_size
        return whole[self.fabric.global_rank * size : (self.fabric.global_rank + 1) * size]

    def _share(self, whole: dict[str, Tensor], place: int) -> dict[str, Tensor]:
        """What belongs to one of the members."""
        return whole if len(self.members) == 1 else share(whole, place)

    def _add(self, name: str, value: Tensor) -> None:
        # Sums stay on the device: reading them each update would make the GPU wait.
        self.counts[name] = self.counts.get(name, 0) + 1
        self.sums[name] = self.sums.get(name, torch.zeros((), device=value.device)) + value.detach()

    def _move_average(self) -> None:
        assert self.average is not None
        assert self.recipe.average is not None
        decay = min(self.recipe.average, (1 + self.update) / (10 + self.update))
        state = self.model.state_dict()
        torch._foreach_lerp_(list(self.average.values()), [state[name] for name in self.average], 1 - decay)

    def _log_losses(self, seconds: float, report: Report) -> str:
        means = {name: (total / self.counts[name]).tolist() for name, total in self._pooled_sums().items()}
        self.sums, self.counts = {}, {}
        losses = []
        for place, member in self._running():
            numbers = _at(place, means)
            if not math.isfinite(numbers["loss"]):
                self._drop(member, report)
                continue
            losses.append(numbers["loss"])
            if self.fabric.is_global_zero:
                member.log(self.update, numbers, {"seconds": round(seconds, 3)})
        return "loss " + " to ".join(f"{loss:.4g}" for loss in sorted({min(losses), max(losses)})) if losses else ""

    def _pooled_sums(self) -> dict[str, Tensor]:
        """The sums since the last line of metrics, with losses averaged over devices."""
        pooled = dict(self.sums)
        for name in _LOSSES:
            if name in pooled:
                pooled[name] = self.fabric.all_reduce(pooled[name].clone(), reduce_op="mean")
        return pooled

    def _save(self) -> None:
        sums = {name: total.tolist() for name, total in self._pooled_sums().items()}
        memory = () if self.past is None else self.past.memory or ()
        if self.fabric.world_size > 1:  # those of all processes, in their order
            memory = tuple(cast(Tensor, self.fabric.all_gather(part)).flatten(0, 1) for part in memory)
        whole = pack(self.model, self.optimizer, self.average, memory)
        for place, member in self._running():
            about: dict[str, Any] = {"update": self.update, "seconds": self.seconds, **member.about()}
            about["sums"] = {name: [total, self.counts[name]] for name, total in _at(place, sums).items()}
            if self.fabric.is_global_zero:
                save_last(member.folder, self._share(whole, place), about)
        self.fabric.barrier()


def _at(place: int, numbers: dict[str, Any]) -> dict[str, float]:
    """Those of one of several networks; a number that is none of a list is the same for all."""
    return {name: value[place] if isinstance(value, list) else value for name, value in numbers.items()}


def clip_gradients(model: nn.Module, most: float) -> Tensor:
    """The length of the gradient of each network in a model, which is at most this afterwards."""
    parameters = [p for p in model.parameters() if p.grad is not None]
    if networks_in(model) == 1:
        return nn.utils.clip_grad_norm_(parameters, most, foreach=True)
    return clip_each([cast(Tensor, p.grad) for p in parameters], most)


def clip_each(gradients: Sequence[Tensor], most: float) -> Tensor:
    """Gradients [networks, ...]: the length of each network's, which is at most this afterwards."""
    norms = torch.cat([gradient.flatten(1) for gradient in gradients], 1).norm(dim=1)
    factors = (most / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))
    return norms
