"""A study: the runs behind one published table or figure, with the published numbers beside ours.

Results are small JSON files under ``results/<study>/``, one a run, that say how they were made; the report (a Markdown
table and a picture an exam) is made from these files alone, so it can be made again anywhere.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from longthink.errors import UserError
from longthink.evaluate import curve
from longthink.extensions import import_extensions
from longthink.hardware import hardware
from longthink.loading import Loaded, load
from longthink.recipes import recipes
from longthink.registry import Registry
from longthink.tasks import Batch, Split, Task, task
from longthink.tasks.reading import data_file
from longthink.training.checkpoint import RunFolder
from longthink.training.data import mixed_problems, prepare
from longthink.training.files import read_json, write_json
from longthink.training.recipe import Recipe, source_of, throughout
from longthink.training.train import TrainingOptions, fit_together, stackable, train, train_together


def spread(values: list[float], digits: int = 2) -> str:
    """Mean and standard deviation over the seeds."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def common_steps(measured: list[dict[str, Any]]) -> tuple[list[int], list[list[float]]]:
    """The steps that all seeds were read at, and the accuracies there."""
    steps = sorted(set.intersection(*(set(m["steps"]) for m in measured)))
    return steps, [[m["accuracy"][m["steps"].index(step)] for step in steps] for m in measured]


@dataclass(frozen=True)
class Exam:
    """Problems of one difficulty and how long to think about them."""

    name: str
    difficulty: int | tuple[int, ...]
    """Several are mixed in equal parts."""
    samples: int
    steps: int
    read_every: int = 1
    chunk: int = 500
    seed: int = 7
    split: Split = "test"
    skip: tuple[str, ...] = ()
    """Rows that are not put to this exam."""

    source: Callable[[Any], Batch] | None = None
    """Makes the problems from the task where they are not plain test samples."""

    def problems(self, task: Task) -> Batch:
        if self.source is not None:
            return self.source(task)[: self.samples]
        several = (self.difficulty,) if isinstance(self.difficulty, int) else self.difficulty
        return mixed_problems(task, self.samples, several, self.seed, self.split)

    about: ClassVar[str] = ""
    """What the table says of this kind of exam."""
    columns: ClassVar[tuple[str, ...]] = ("ours: as published (step)", "ours: best (step)", "ours: last (step)")

    def measure(self, loaded: Loaded, half: bool) -> dict[str, Any]:
        """Accuracy over the steps."""
        model, task = loaded.model, loaded.task
        limit = getattr(model, "max_steps", None)  # a feed-forward twin cannot think longer
        steps, every = (self.steps, self.read_every) if limit is None else (min(self.steps, limit), 1)
        problems = self.problems(task)
        return curve(model, task, problems, steps, chunk=self.chunk, read_every=every, half=half).to_json()

    def value(self, measured: dict[str, Any]) -> float:
        """The one number that a mean over exams is made of."""
        return 100 * float(measured["final_accuracy"])

    def cells(self, measured: list[dict[str, Any]], trained: int) -> list[str]:
        """What the seeds came to, for ``columns``; ``trained``: the steps of the published test, mostly those of
        training."""
        there = [m for m in measured if trained in m["steps"]]
        at = spread([100 * m["accuracy"][m["steps"].index(trained)] for m in there]) + f" ({trained})" if there else "-"
        steps, curves = common_steps(measured)
        means = [statistics.mean(points) for points in zip(*curves, strict=True)]
        best = means.index(max(means))  # the same step for all seeds
        peaks = spread([100 * one[best] for one in curves]) + f" ({steps[best]})"
        return [at, peaks, spread([100 * one[-1] for one in curves]) + f" ({steps[-1]})"]


@dataclass(frozen=True)
class Row:
    """One model of a table. ``published``: exam name -> (percent, spread or None, step or None)."""

    label: str
    recipe: str
    published: dict[str, tuple[float, float | None, int | None]] = field(default_factory=dict)
    steps: int | None = None
    """The steps of the published test, where they are not those of the training."""
    most: int | None = None
    """At most so many samples an exam, for rows that are expected to fail."""
    kept_by: str | None = None
    """The study whose results these are too, where another table has the same network."""
    place: tuple[int, int] | None = None
    """Where it is in the study's grid."""


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    source: str
    rows: tuple[Row, ...]
    exams: tuple[Exam, ...]
    remarks: str = ""
    settings: tuple[str, ...] = ()
    """What its runs change in their recipes: ``("epochs=2",)``."""
    needs: tuple[str, ...] = ()
    """Data files by name, looked for before anything is trained."""
    measure: str = "Exact match of the whole answer, in percent."
    learning_curves: bool = False
    """The loss over the updates is part of what the study shows."""
    same_data: bool = False
    """All runs read the same data in the same order: the differences of their losses say more than the losses."""
    compact: bool = False
    """One table, an exam a line and a model a column, with the mean of all, for many exams of one kind."""
    failed_above: float | None = None
    """In a compact table, count the exams whose value is larger."""
    grid: tuple[str, str] | None = None
    """The two options that the rows differ in: a table and a map of colours an exam."""
    axis: str = ""
    """What the exams differ in, each by one number: one table an exam a line, and one picture of all of them."""

    def folder(self, row: Row, results: Path) -> Path:
        """Where a row's results lie."""
        return results / (row.kept_by or self.name)

    def recipe(self, name: str, settings: Sequence[str] = ()) -> Recipe:
        """The recipe of this name as the study has it, with more settings; so are those that it goes on from."""
        return throughout(recipes[name], [*self.settings, *settings])


studies: Registry[Study] = Registry("study")


def add(study: Study) -> Study:
    return studies.add(study.name)(study)


def run(
    chosen: Study | Sequence[Study],
    seeds: Sequence[int],
    labels: Sequence[str] = (),
    results: Path = Path("results"),
    options: TrainingOptions | None = None,
    settings: Sequence[str] = (),
    workers: int = 1,
    together: int = 1,
) -> list[Path]:
    """Train what is not trained, test what is not tested, and write one file a run.

    ``workers`` runs at a time, or up to ``together`` runs that differ in their data alone as one network, be they of
    one study or of several.
    """
    options = options or TrainingOptions()
    several = [chosen] if isinstance(chosen, Study) else list(chosen)
    if workers < 1:
        raise UserError(f"A study needs 1 worker or more, not {workers}.")
    if together < 1:
        raise UserError(f"Runs are trained together 1 or more at a time, not {together}.")
    if workers > 1 and together > 1:
        raise UserError("Runs are trained side by side or together; choose workers or together.")
    known = {row.label for study in several for row in study.rows}
    for label in labels:
        if label not in known:
            names = " and ".join(study.name for study in several)
            rows = ", ".join(f"{one!r}" for one in sorted(known))
            raise UserError(f"There is no row {label!r} in {names}; the rows are: {rows}.")
    for name in {name for study in several for name in study.needs}:
        data_file(name)
    runs: dict[tuple[str, tuple[str, ...], int], list[tuple[Study, Row]]] = {}  # one may be a row of several studies
    wanted = [(study, row) for study in several for row in study.rows if not labels or row.label in labels]
    for study, row in wanted:
        for seed in seeds:
            its_rows = runs.setdefault((row.recipe, study.settings, seed), [])
            its_rows += [] if (study, row) in its_rows else [(study, row)]
    jobs = [_Job(tuple(found), seed, results, options, tuple(settings)) for (_, _, seed), found in runs.items()]
    waves = _waves(jobs)
    if together > 1:
        made = [done for wave in waves for done in _together(wave, together)]
    elif workers > 1:
        made = _side_by_side(waves, workers)
    else:
        made = [job.do() for wave in waves for job in wave]
    paths = dict(zip([id(job) for wave in waves for job in wave], made, strict=True))
    return [path for job in jobs for path in paths[id(job)]]


@dataclass(frozen=True)
class _Job:
    """One run, from training to its results; whole, so that it can be done in a process of its own."""

    rows: tuple[tuple[Study, Row], ...]
    """Of which it is the run: one, or one of each of several studies."""
    seed: int
    results: Path
    options: TrainingOptions
    settings: tuple[str, ...]

    @property
    def recipe(self) -> Recipe:
        study, row = self.rows[0]
        return study.recipe(row.recipe, self.settings)

    @property
    def finished(self) -> bool:
        return RunFolder(Path(self.options.folder), self.recipe, self.seed).finished() is not None

    def __str__(self) -> str:
        study, row = self.rows[0]
        return f"{study.name}, {row.label}, seed {self.seed}"

    def do(self) -> list[Path]:
        return self.examine(train(self.recipe, self.seed, self.options))

    def examine(self, folder: Path) -> list[Path]:
        quiet = self.options.quiet
        return [examine(study, row, self.seed, folder, self.results, quiet) for study, row in self.rows]


def _waves(jobs: list[_Job]) -> list[list[_Job]]:
    """First those that go on from no other of them, then those that go on from these, and so forth."""
    known = {(job.recipe.hash(), job.seed) for job in jobs}

    def depth(recipe: Recipe, seed: int) -> int:
        source = source_of(recipe)
        return 0 if source is None else depth(source, seed) + ((source.hash(), seed) in known)

    depths = [depth(job.recipe, job.seed) for job in jobs]
    return [[job for job, its in zip(jobs, depths, strict=True) if its == d] for d in sorted(set(depths))]


def _together(jobs: list[_Job], most: int) -> list[list[Path]]:
    """As many of those that are alike as one network; what cannot be trained so, one by one. Results as jobs."""
    groups: list[list[_Job]] = []
    for job in jobs:
        fitting = (group for group in groups if len(group) < most and fit_together(group[0].recipe, job.recipe))
        group = None if job.finished else next(fitting, None)
        if group is None or not stackable(job.recipe):
            groups.append([job])
        else:
            group.append(job)
    done: dict[int, list[Path]] = {}
    for group in groups:
        folders = train_together([(job.recipe, job.seed) for job in group], group[0].options)
        for job, folder in zip(group, folders, strict=True):
            done[id(job)] = job.examine(folder)
    return [done[id(job)] for job in jobs]


def _side_by_side(waves: list[list[_Job]], workers: int) -> list[list[Path]]:
    """A process a run. One that fails does not stop the others; the first failure is raised when all have ended."""
    for recipe in {job.recipe.name: job.recipe for wave in waves for job in wave}.values():
        prepare(task(recipe.task, **recipe.task_options))
    spawn = multiprocessing.get_context("spawn")  # a forked process could not use a GPU
    futures: list[Future[list[Path]]] = []
    with ProcessPoolExecutor(
        workers, spawn, initializer=_begin_beside, initargs=(workers,), max_tasks_per_child=1
    ) as pool:
        for wave in waves:
            quiet = [replace(job, options=replace(job.options, quiet=True)) for job in wave]
            begun = {pool.submit(job.do): job for job in quiet}
            futures += begun
            for future in as_completed(begun):
                error = future.exception()
                print(f"{begun[future]}: {'done' if error is None else error}", flush=True)
    return [future.result() for future in futures]


def _begin_beside(workers: int) -> None:
    import_extensions()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


def examine(study: Study, row: Row, seed: int, weights: Path | str, results: Path, quiet: bool = True) -> Path:
    """Put one network to the study's exams that it has not had; a line each unless ``quiet``, as some take minutes."""
    path = study.folder(row, results) / f"{row.recipe}-seed{seed}.json"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = load(weights, device)
    card = loaded.card
    about = {"study": row.kept_by or study.name, "row": row.label, "seed": seed, "card": card}
    ended = Path(weights) / "card.json"  # a run has it when it is over
    finished = read_json(ended).get("finished") if ended.exists() else None
    if study.learning_curves:
        about["training"] = _history(Path(weights) / "metrics.jsonl")
    done: dict[str, Any] = read_json(path) if path.exists() else {**about, "exams": {}}
    if done["card"] != card:  # other weights: old results say nothing about them, and are put aside
        path.replace(path.with_suffix(".json.replaced"))
        done = {**about, "exams": {}}
    gone_on = path.exists() and done.get("finished") != finished  # and these weights are still its best
    done["finished"] = finished
    if gone_on:
        write_json(path, done)
    for one in study.exams:
        still = card["recipe"]["steps"] == 0  # a network that reads its answer off the input
        fitting = replace(one, steps=0 if still else one.steps, samples=min(one.samples, row.most or one.samples))
        asked = {"samples": fitting.samples, "steps": fitting.steps, "read_every": fitting.read_every}
        had = done["exams"].get(one.name)
        if row.label not in one.skip and (had is None or had.get("asked", asked) != asked):
            half = device == "cuda" and not getattr(loaded.model, "wants_float32", False)
            if not quiet:
                print(f"{study.name}, {row.label}, seed {seed}: testing {one.name}", file=sys.stderr, flush=True)
            began = time.monotonic()
            done["exams"][one.name] = {
                **fitting.measure(loaded, half),
                "asked": asked,
                "seed": one.seed,
                "seconds": round(time.monotonic() - began, 1),
                "hardware": hardware(device),
                "precision": "bfloat16" if half else "float32",
                "torch": torch.__version__,
            }
            write_json(path, done)
    return path


def _history(metrics: Path, points: int = 200) -> dict[str, list[float]]:
    """The losses of a training, without what models ask for on their own, averaged over spans of updates so that some
    hundred points remain."""
    if not metrics.exists():  # stopped before the first of them
        return {"update": [], "loss": []}
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    losses = [(line["update"], line["loss"] - line.get("penalty", 0.0)) for line in lines if "loss" in line]
    size = max(1, -(-len(losses) // points))
    spans = [losses[i : i + size] for i in range(0, len(losses), size)]
    return {
        "update": [span[-1][0] for span in spans],
        "loss": [float(f"{statistics.mean(loss for _, loss in span):.4g}") for span in spans],
    }
