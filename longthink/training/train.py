"""Train a recipe: the loop, its checkpoints, and how it ends.

Everything random is a function of the seed and the update's number, so that a run that was interrupted and resumed ends
bit-identical on a CPU to one that was not.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch import Tensor, nn
from torch.multiprocessing import ProcessRaisedException

from longthink.errors import UserError
from longthink.hardware import hardware
from longthink.loading import keep_learned, load, misfit, rebuild
from longthink.tasks import Task
from longthink.think import ThinkingModule
from longthink.training.checkpoint import RunFolder, load_last, save_best, save_last
from longthink.training.compiled import CompiledStep, check_compiler
from longthink.training.data import TrainingData, derived_seed, origin, prepare
from longthink.training.files import read_tensors, write_json
from longthink.training.graphs import GraphedObjective
from longthink.training.losses import Objective, Past, draw_plan, outputs_that_count
from longthink.training.recipe import Recipe, recipes
from longthink.training.report import Report
from longthink.training.schedule import make_optimizer, set_rate
from longthink.training.validation import in_words, validation

PRECISIONS = ("32-true", "bf16-mixed")
_LOSSES = ("loss", "full", "progressive", "penalty")
_BEGINNING: dict[str, Any] = {
    "update": 0,
    "seconds": 0.0,
    "best": None,
    "flawless": 0,
    "sums": {},
    "memory": (),
    "data": None,
}


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


def train(recipe: Recipe, seed: int = 0, options: TrainingOptions | None = None) -> Path:
    """Train, or go on training, or do nothing if it is done; returns the run's folder."""
    options = options or TrainingOptions()
    run = RunFolder(Path(options.folder), recipe, seed)
    if run.finished():
        return run.path
    if seed < 0:
        raise UserError(f"The seed must be 0 or more, not {seed}.")
    if options.accelerator not in ("auto", "cpu", "cuda", "gpu"):
        raise UserError(f"The accelerator must be auto, cpu or cuda, not {options.accelerator!r}.")
    if options.accelerator in ("cuda", "gpu") and not torch.cuda.is_available():
        raise UserError("There is no GPU here that PyTorch can use; leave the accelerator at auto, or choose cpu.")
    if options.compile and not _on_gpu(options):
        check_compiler()
    if options.devices < 1:
        raise UserError(f"Training needs 1 device or more, not {options.devices}.")
    if recipe.batch % options.devices:
        raise UserError(f"A batch of {recipe.batch} cannot be shared by {options.devices} devices; change batch.")
    problem, model = _beginning(recipe, seed, run)  # complaints about options come before any process is started
    if options.precision is None:
        whole = getattr(model, "wants_float32", False) or not _on_gpu(options)
        options = replace(options, precision="32-true" if whole else "bf16-mixed")
    if options.precision not in PRECISIONS:
        raise UserError(
            f"The precision must be {' or '.join(PRECISIONS)}, not {options.precision}; "
            "losses of deep recurrences leave the range of float16."
        )
    if options.devices == 1:
        _train_here(_fabric(options, "auto"), recipe, seed, options)
    else:
        prepare(problem)
        # Spawned and not by running the script again: the caller goes on in one process.
        fabric = _fabric(options, DDPStrategy(start_method="spawn", find_unused_parameters=True))
        try:
            # A partial, since Fabric takes arguments apart and cannot put frozen ones together again.
            fabric.launch(partial(_train_together, recipe=recipe, seed=seed, options=options))
        except ProcessRaisedException as error:  # holds the other process's traceback as text
            kind, _, sentence = str(error).strip().splitlines()[-1].partition(": ")
            if kind.endswith(UserError.__name__):
                raise UserError(sentence) from None
            raise
    return run.path


def _beginning(recipe: Recipe, seed: int, run: RunFolder) -> tuple[Task, ThinkingModule]:
    """The task, and the network with the weights that training starts from."""
    problem, model = rebuild(recipe, seed, beside=run.path)
    if recipe.weights is not None and not run.last.exists():  # a run that goes on has its own
        reason = misfit(model, load(_source(recipe.weights, seed, run)).model.state_dict())
        if reason:
            raise UserError(f"The weights {recipe.weights} are of another network than this one: {reason}")
    return problem, model


def _source(weights: str, seed: int, run: RunFolder) -> str:
    """Of a recipe, its run with the same seed; shipped weights and folders are what they are called."""
    if weights not in recipes:
        return weights
    before = RunFolder(run.path.parent, recipes[weights], seed)
    if not before.finished():
        raise UserError(
            f"{run.recipe.name} goes on where {weights} ended, and there is no such run in {run.path.parent}; "
            f"first: longthink train {weights} --seed {seed}"
        )
    return str(before.path)


def _on_gpu(options: TrainingOptions) -> bool:
    return options.accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()


def _fabric(options: TrainingOptions, strategy: str | DDPStrategy) -> Fabric:
    precision: Any = options.precision
    accelerator = options.accelerator if options.accelerator != "auto" else ("cuda" if _on_gpu(options) else "cpu")
    try:
        return Fabric(accelerator=accelerator, devices=options.devices, precision=precision, strategy=strategy)
    except (ValueError, RuntimeError) as error:
        raise UserError(f"This machine cannot train so: {str(error).rstrip(chr(46))}.") from None


def _train_together(fabric: Fabric, recipe: Recipe, seed: int, options: TrainingOptions) -> None:
    """One of several processes. They part in order: one that still had threads of the connection would abort."""
    _train_here(fabric, recipe, seed, options)
    fabric.barrier()
    torch.distributed.destroy_process_group()


def _train_here(fabric: Fabric, recipe: Recipe, seed: int, options: TrainingOptions) -> None:
    """The body of ``train`` in each process."""
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    run = RunFolder(Path(options.folder), recipe, seed)
    problem, model = _beginning(recipe, seed, run)
    model.to(fabric.device)
    average = {k: v.clone() for k, v in model.state_dict().items()} if recipe.average else None
    optimizer = make_optimizer(recipe, model, fused=fabric.device.type == "cuda")
    with run.alone() if fabric.is_global_zero else nullcontext():
        about = load_last(run, model, optimizer, average) or dict(_BEGINNING)
        trainer = Trainer(fabric, recipe, seed, options, problem, model, optimizer, average, run, about)
        trainer.run()


@contextmanager
def _polite_interrupt(fabric: Fabric) -> Iterator[list[int]]:
    """The first Ctrl-C is noted in the list, to be obeyed after the update in hand; the second one stops at once.

    Not where several processes would have to agree, nor in a thread, whose business signals are not.
    """
    asked: list[int] = []
    if fabric.world_size > 1 or threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, _frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        os.write(2, b"\nStopping after this update; Ctrl-C again stops at once.\n")

    signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


class Trainer:
    """One run in one process."""

    def __init__(
        self,
        fabric: Fabric,
        recipe: Recipe,
        seed: int,
        options: TrainingOptions,
        problem: Task,
        model: ThinkingModule,
        optimizer: torch.optim.Optimizer,
        average: dict[str, Tensor] | None,
        folder: RunFolder,
        about: dict[str, Any],
    ) -> None:
        self.fabric, self.recipe, self.seed, self.options = fabric, recipe, seed, options
        self.problem, self.model, self.average, self.folder = problem, model, average, folder
        self.update: int = about["update"]
        self.seconds: float = about["seconds"]
        self.best: list[float] | None = about["best"]
        self.flawless: int = about["flawless"]
        self.origin = origin(problem)
        if self.origin is not None and (about["data"] or self.origin).get("train") != self.origin.get("train"):
            raise UserError(
                f"The data of {folder.path} has changed since that run began; bring it back, or begin again in another "
                "--folder."
            )
        self.data = TrainingData(recipe, problem, seed, fabric.device)
        self.past: Past | None = None
        if hasattr(problem, "stream") and hasattr(model, "remember"):
            if recipe.alpha == 1:
                raise UserError("A model that reads a text in order remembers its full passes: choose alpha below 1.")
            self.past = Past(tuple(self._own_rows(part).to(fabric.device) for part in about["memory"]) or None)
        self.validation = validation(recipe, problem)
        worth_it = fabric.device.type == "cuda" and getattr(model, "worth_compiling", False)
        compiled = worth_it if options.compile is None else options.compile
        objective = Objective(model, CompiledStep(model) if compiled else None)
        self.objective, self.optimizer = fabric.setup(objective, optimizer)
        self.graphed: GraphedObjective | None = None
        if options.graphs and fabric.device.type == "cuda" and fabric.world_size == 1:
            half = "bf16" in str(fabric._precision.precision)
            self.graphed = GraphedObjective(objective, half, full_alone=recipe.alpha == 0)
        self.sums = {name: torch.tensor(total, device=fabric.device) for name, (total, _) in about["sums"].items()}
        self.counts: dict[str, int] = {name: count for name, (_, count) in about["sums"].items()}
        self.writer: Any = None

    def run(self) -> None:
        device = self.fabric.device
        try:
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                self._run()
        finally:
            if self.writer is not None:
                self.writer.close()

    def _run(self) -> None:
        chief = self.fabric.is_global_zero
        began = time.monotonic() - self.seconds
        deadline = None if self.options.seconds is None else time.monotonic() + self.options.seconds
        if chief:
            self._open_logs()
        title = f"{self.recipe.name} seed {self.seed}"
        quiet = self.options.quiet or not chief
        log_every = max(1, min(50, self.recipe.updates_an_epoch // 4))
        with Report(title, self.recipe.updates, self.update, quiet) as report, _polite_interrupt(self.fabric) as asked:
            warning: str = getattr(self.problem, "warning", "")
            if warning and not self._is_over():
                report.say(warning)
            while not self._is_over():
                self._one_update()
                if self.update % log_every == 0:
                    news = self._log_losses(time.monotonic() - began)
                    report.update(self.update, news)
                epoch, rest = divmod(self.update, self.recipe.updates_an_epoch)
                late = self._is_late(deadline)
                due = self._is_over() or (rest == 0 and epoch % self.recipe.validate_every == 0)
                if due or late or asked:
                    self.seconds = time.monotonic() - began
                    if due or (late and self.best is None):
                        if not due:
                            report.say("Time is up; one validation, so that there are weights to load.")
                        report.say(self._validate(due))
                    self._save()
                if (late or asked) and not self._is_over():
                    report.say(f"Stopped after {self.update} of {self.recipe.updates} updates; run again to go on.")
                    if asked:
                        raise KeyboardInterrupt
                    return
            if self.update < self.recipe.updates:
                made = f"{self.update} of {self.recipe.updates} updates"
                report.say(f"Over after {made}: {self.recipe.enough} flawless validations in a row.")
        if chief:
            self._finish()

    def _is_over(self) -> bool:
        enough = self.recipe.enough is not None and self.flawless >= self.recipe.enough
        return enough or self.update >= self.recipe.updates

    def _is_late(self, deadline: float | None) -> bool:
        if deadline is None:
            return False
        # The first process decides for all: each must stop after the same update.
        return bool(self.fabric.broadcast(time.monotonic() > deadline))

    def _one_update(self) -> None:
        recipe = self.recipe
        torch.manual_seed(derived_seed(self.seed, self.update, self.fabric.global_rank))  # for dropout
        rate = set_rate(self.optimizer, recipe, self.update)
        batch = self.data.batch(self.update)
        plan = draw_plan(recipe, self.seed, self.update)
        count = outputs_that_count(batch) / self.fabric.world_size
        if self.fabric.world_size > 1:
            batch = self._own_rows(batch)
        if self.past is not None and self.data.begins(self.update):
            self.past = Past(None)
        if self.graphed is not None and self.graphed.takes(plan, self.past):
            losses = self.graphed.backward(batch, plan, self.past)
        else:
            self.optimizer.zero_grad()
            losses = self.objective(batch, plan, count, self.past)
            self.fabric.backward(losses["loss"])
        if self.past is not None:
            self.past = Past(losses["memory"])
        if recipe.clip is not None:
            parameters = [p for p in self.model.parameters() if p.grad is not None]
            norm = nn.utils.clip_grad_norm_(parameters, recipe.clip, foreach=True)
            self._add("gradient_norm", norm)
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

    def _log_losses(self, seconds: float) -> str:
        numbers = {name: float(total / self.counts[name]) for name, total in self._pooled_sums().items()}
        self.sums, self.counts = {}, {}
        if not torch.isfinite(torch.tensor(numbers["loss"])):
            self._stop_for_nan()
        if self.fabric.is_global_zero:
            self.folder.log({"update": self.update, **numbers, "seconds": round(seconds, 3)})
            self._tensorboard(numbers)
        return f"loss {numbers['loss']:.4g}"

    def _pooled_sums(self) -> dict[str, Tensor]:
        """The sums since the last line of metrics, with losses averaged over devices."""
        pooled = dict(self.sums)
        for name in _LOSSES:
            if name in pooled:
                pooled[name] = self.fabric.all_reduce(pooled[name].clone(), reduce_op="mean")
        return pooled

    def _stop_for_nan(self) -> None:
        kept = "Its last checkpoint is kept" if self.folder.last.exists() else "No checkpoint had been made yet"
        raise UserError(
            f"The loss became NaN or infinite before update {self.update}. {kept}; "
            "try a smaller learning_rate or set clip=1."
        )

    def _refuse_nan(self) -> None:
        if any(not torch.isfinite(weight).all() for weight in self.model.state_dict().values()):
            self._stop_for_nan()

    def _weights(self) -> dict[str, Tensor]:
        return self.model.state_dict() if self.average is None else self.average

    def _validate(self, due: bool) -> str:
        """Keep the weights if they are the best so far.

        Where a run was stopped must not matter in the end: a validation that is not due leaves no trace but weights to
        load, which the first one that is due replaces.
        """
        self._refuse_nan()
        own = {k: v.clone() for k, v in self.model.state_dict().items()} if self.average is not None else None
        if own is not None:
            self.model.load_state_dict(self._weights())
        with self.fabric.autocast():
            verdict = self.validation(self.model)
        if own is not None:
            self.model.load_state_dict(own)
        # The first process decides for all: answers may differ from device to device by rounding.
        score, flawless = self.fabric.broadcast((verdict.score, verdict.flawless))
        better = self.best is None or score > self.best
        if due:
            self.flawless = self.flawless + 1 if flawless else 0
            self.best = score if better else self.best
        if self.fabric.is_global_zero:
            if due:
                self.folder.log({"update": self.update, **verdict.metrics})
                self._tensorboard(verdict.metrics)
            if better:
                save_best(self.folder, self._weights(), self._card(verdict.card))
        return f"update {self.update}: {in_words(verdict.card)}"

    def _save(self) -> None:
        self._refuse_nan()
        sums = {name: [float(total), self.counts[name]] for name, total in self._pooled_sums().items()}
        memory = () if self.past is None else self.past.memory or ()
        if self.fabric.world_size > 1:  # those of all processes, in their order
            memory = tuple(cast(Tensor, self.fabric.all_gather(part)).flatten(0, 1) for part in memory)
        if self.fabric.is_global_zero:
            about: dict[str, Any] = {"update": self.update, "seconds": self.seconds, "sums": sums}
            about |= {"best": self.best, "flawless": self.flawless, "data": self.origin}
            save_last(self.folder, self.model, self.optimizer, self.average, about, memory)
        self.fabric.barrier()

    def _card(self, found: dict[str, Any]) -> dict[str, Any]:
        return {
            "recipe": self.recipe.to_json(),
            "seed": self.seed,
            "updates": self.update,
            "minutes": round(self.seconds / 60, 2),
            "hardware": hardware(self.fabric.device),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "torch": torch.__version__,
            "validation": found,
            **({} if self.origin is None else {"data": self.origin}),
        }

    def _open_logs(self) -> None:
        self.folder.begin()
        keep_learned(self.problem, self.folder.path)
        self.folder.forget_after(self.update)
        if self.options.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.folder.path), purge_step=self.update + 1)

    def _tensorboard(self, numbers: dict[str, float]) -> None:
        if self.writer is not None:
            for name, value in numbers.items():
                self.writer.add_scalar(name, value, self.update)

    def _finish(self) -> None:
        card = read_tensors(self.folder.best)[1]
        card["finished"] = {"updates": self.update, "minutes": round(self.seconds / 60, 2)}
        write_json(self.folder.card, card)
