"""Train a recipe, or several as one network: what must be there, and where training begins or goes on.

Everything random is a function of the seed and the update's number, so that a run that was interrupted and resumed ends
bit-identical on a CPU to one that was not.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch.multiprocessing import ProcessRaisedException

from longthink.errors import UserError
from longthink.extensions import import_extensions
from longthink.hardware import fast_products
from longthink.layers.several import together
from longthink.loading import load, misfit, rebuild
from longthink.tasks import Task, task
from longthink.think import ThinkingModule
from longthink.training.checkpoint import RunFolder, load_last
from longthink.training.compiled import check_compiler
from longthink.training.data import check_same_data, origin, prepare
from longthink.training.member import Member
from longthink.training.recipe import Recipe, alike, recipes, source_of
from longthink.training.schedule import make_optimizer
from longthink.training.trainer import Trainer, TrainingOptions

Job = tuple[Recipe, int]
"""A recipe and a seed."""
PRECISIONS = ("32-true", "bf16-mixed")
_BEGINNING: dict[str, Any] = {
    "update": 0,
    "seconds": 0.0,
    "best": None,
    "flawless": 0,
    "owes_validation": False,
    "sums": {},
    "memory": (),
    "data": None,
}


def train(recipe: Recipe, seed: int = 0, options: TrainingOptions | None = None) -> Path:
    """Train, or go on training, or do nothing if it is done; returns the run's folder."""
    if not isinstance(recipe, Recipe):
        raise UserError(f"Train a recipe, such as lt.recipe('prefix_sums-long'), not {recipe!r}.")
    if not isinstance(options, TrainingOptions | None):
        raise UserError(f"The options of a training are lt.TrainingOptions(folder='runs'), not {options!r}.")
    return train_together([(recipe, seed)], options)[0]


def train_together(jobs: Sequence[Job], options: TrainingOptions | None = None) -> list[Path]:
    """Train recipes that differ in their data alone, each with its seed, as one network, for GPUs that one alone does
    not keep busy.

    Their folders are those of runs that were trained one by one, and can go on alone. But their dropout is another, and
    depends on how many there are: one that is over stays until all stop, and is not there when the others go on.
    Those that stand at different updates go on in groups, one after the other.
    """
    options = options or TrainingOptions()
    runs = [RunFolder(Path(options.folder), recipe, seed) for recipe, seed in jobs]
    groups: dict[int, dict[Path, RunFolder]] = {}
    for run in runs:
        card = run.finished()
        if card is None:
            groups.setdefault(run.stands_at(), {})[run.path] = run
        elif Path(str(run.recipe.task_options.get("corpus", ""))).is_file():  # people's own change
            check_same_data(origin(task(run.recipe.task, **run.recipe.task_options)), card.get("data"), run.path)
    for group in groups.values():
        _train(list(group.values()), options)
    return [run.path for run in runs]


def _train(runs: Sequence[RunFolder], options: TrainingOptions) -> None:
    for run in runs:
        if run.seed < 0:
            raise UserError(f"The seed must be 0 or more, not {run.seed}.")
    recipe = runs[0].recipe
    if len(runs) > 1:
        _check_together([run.recipe for run in runs], options.devices)
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
    problem, model = _beginning(runs[0])  # complaints about options come before any process is started
    if options.precision is None:
        whole = getattr(model, "wants_float32", False) or not _on_gpu(options)
        options = replace(options, precision="32-true" if whole else "bf16-mixed")
    if options.precision not in PRECISIONS:
        raise UserError(
            f"The precision must be {' or '.join(PRECISIONS)}, not {options.precision}; "
            "losses of deep recurrences leave the range of float16."
        )
    if options.devices == 1:
        _train_here(_fabric(options, "auto"), runs, options)
    else:
        prepare(problem)
        # Spawned and not by running the script again: the caller goes on in one process.
        fabric = _fabric(options, DDPStrategy(start_method="spawn", find_unused_parameters=True))
        try:
            # A partial, since Fabric takes arguments apart and cannot put frozen ones together again.
            fabric.launch(partial(_train_beside, runs=runs, options=options))
        except ProcessRaisedException as error:  # holds the other process's traceback as text
            kind, _, sentence = str(error).strip().splitlines()[-1].partition(": ")
            if kind.endswith(UserError.__name__):
                raise UserError(sentence) from None
            raise


def _beginning(run: RunFolder) -> tuple[Task, ThinkingModule]:
    """The task, and the network with the weights that training starts from."""
    recipe = run.recipe
    problem, model = rebuild(recipe, run.seed, beside=run.path)
    if recipe.weights is not None and not run.last.exists():  # a run that goes on has its own
        reason = misfit(model, load(_start_of(recipe.weights, run)).model.state_dict())
        if reason:
            raise UserError(_another(recipe, reason))
    return problem, model


def _another(recipe: Recipe, reason: str) -> str:
    """Why a recipe cannot start from its weights, and what to do where they are a recipe's."""
    source = source_of(recipe)
    hint = "" if source is None else f"; settings of theirs stand behind their name: --set 'weights={source.name} k=v'"
    return f"The weights {recipe.weights} are of another network than this one: {reason.rstrip('.')}{hint}."


def _start_of(weights: str, run: RunFolder) -> str:
    """Of a recipe, its run with the same seed; shipped weights and folders are what they are called."""
    source = source_of(run.recipe)
    if source is None:
        return weights
    before = RunFolder(run.path.parent, source, run.seed)
    if not before.finished():
        raise UserError(
            f"{run.recipe.name} goes on where {weights} ended, and there is no such run in {run.path.parent}; first: "
            f"longthink train {source.name} --seed {run.seed}{_settings(source, weights)}{_where(run)}"
            + _their_settings(run.recipe, source)
        )
    return str(before.path)


def _where(run: RunFolder) -> str:
    folder = str(run.path.parent)
    return "" if folder == TrainingOptions.folder else f" --folder {shlex.quote(folder)}"


def _their_settings(recipe: Recipe, source: Recipe) -> str:
    """For those who changed the network, which must be that of the recipe that it goes on from."""
    if recipe.name not in recipes or recipes[recipe.name].model_options == recipe.model_options:
        return ""
    return f" (settings of its network stand behind its name: --set 'weights={source.name} model.width=32')"


def _settings(source: Recipe, weights: str) -> str:
    """What to type behind a recipe's name so that its run is the one that ``weights`` says."""
    _, *settings = shlex.split(weights)
    if settings and source.weights is not None:  # which are to have the settings too
        settings.append(f"weights={source.weights}")
    return "".join(f" --set {shlex.quote(setting)}" for setting in settings)


def _check_together(several: Sequence[Recipe], devices: int) -> None:
    """Complain about runs that cannot be one network."""
    first = several[0]
    for recipe in several:
        if not fit_together(recipe, first):
            raise UserError(f"{recipe.name} and {first.name} differ in more than their data; train them one by one.")
    if not stackable(first):
        raise UserError(f"Of {first.name} several cannot be trained together; train them one by one.")
    if devices > 1:
        raise UserError("Runs are trained together on one device; leave devices at 1.")


def fit_together(one: Recipe, other: Recipe) -> bool:
    """Are their networks of one shape, and are they trained alike?"""
    return alike(one, other) and _shape(one) == _shape(other)


def _shape(recipe: Recipe) -> dict[str, int]:
    return task(recipe.task, **recipe.task_options).shape


def stackable(recipe: Recipe) -> bool:
    """Can several runs of it be one network? Their updates must think alike, and their layers know of it."""
    problem, model = rebuild(recipe)
    return recipe.alpha == 0 and not hasattr(problem, "stream") and getattr(model, "stackable", False)


def _on_gpu(options: TrainingOptions) -> bool:
    return options.accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()


def _fabric(options: TrainingOptions, strategy: str | DDPStrategy) -> Fabric:
    precision: Any = options.precision
    accelerator = options.accelerator if options.accelerator != "auto" else ("cuda" if _on_gpu(options) else "cpu")
    try:
        return Fabric(accelerator=accelerator, devices=options.devices, precision=precision, strategy=strategy)
    except (ValueError, RuntimeError) as error:
        raise UserError(f"This machine cannot train so: {str(error).rstrip(chr(46))}.") from None


def _train_beside(fabric: Fabric, runs: Sequence[RunFolder], options: TrainingOptions) -> None:
    """One of several processes. They part in order: one that still had threads of the connection would abort."""
    import_extensions()
    _train_here(fabric, runs, options)
    fabric.barrier()
    torch.distributed.destroy_process_group()


def _train_here(fabric: Fabric, runs: Sequence[RunFolder], options: TrainingOptions) -> None:
    """The body of ``train`` in each process."""
    recipe, begun = runs[0].recipe, [_beginning(run) for run in runs]
    models = [model.to(fabric.device) for _, model in begun]
    model = together(models)
    average = {k: v.clone() for k, v in model.state_dict().items()} if recipe.average else None
    optimizer = make_optimizer(recipe, model, fused=fabric.device.type == "cuda")
    with fast_products(), ExitStack() as locks:
        for run in runs if fabric.is_global_zero else ():
            locks.enter_context(run.alone())
        found = load_last(runs, model, optimizer, average) or [_BEGINNING] * len(runs)
        members = [
            Member(fabric, run, problem, one, about, len(runs))
            for run, (problem, _), one, about in zip(runs, begun, models, found, strict=True)
        ]
        Trainer(fabric, options, members, model, optimizer, average, _of_all(found)).run()


def _of_all(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the loop has to know of runs that go on together."""
    if len(found) == 1:
        return found[0]
    sums = {name: ([one["sums"][name][0] for one in found], count) for name, (_, count) in found[0]["sums"].items()}
    return {**found[0], "sums": sums}
