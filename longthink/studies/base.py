"""A study: the runs behind one published table or figure, with the published numbers beside ours.

Results are small JSON files under ``results/<study>/``, one a run, that say how they were made; the report (a Markdown
table and a picture an exam) is made from these files alone, so it can be made again anywhere.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from longthink.errors import UserError
from longthink.evaluate import Curve, curve
from longthink.hardware import hardware
from longthink.loading import load
from longthink.recipes import recipes
from longthink.registry import Registry
from longthink.tasks import Batch, Split, Task
from longthink.think import ThinkingModule
from longthink.training.data import mixed_problems
from longthink.training.files import read_json, write_json
from longthink.training.recipe import override
from longthink.training.train import TrainingOptions, train


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


@dataclass(frozen=True)
class Row:
    """One model of a table. ``published``: exam name -> (percent, spread or None, step or None)."""

    label: str
    recipe: str
    published: dict[str, tuple[float, float | None, int | None]] = field(default_factory=dict)
    most: int | None = None
    """At most so many samples an exam, for rows that are expected to fail."""


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    source: str
    rows: tuple[Row, ...]
    exams: tuple[Exam, ...]
    remarks: str = ""


studies: Registry[Study] = Registry("study")


def add(study: Study) -> Study:
    return studies.add(study.name)(study)


def run(
    study: Study,
    seeds: Sequence[int],
    labels: Sequence[str] = (),
    results: Path = Path("results"),
    options: TrainingOptions | None = None,
    settings: Sequence[str] = (),
    workers: int = 1,
) -> list[Path]:
    """Train what is not trained, test what is not tested, and write one file a run; ``workers`` runs at a time."""
    options = options or TrainingOptions()
    if workers < 1:
        raise UserError(f"A study needs 1 worker or more, not {workers}.")
    known = {row.label for row in study.rows}
    for label in labels:
        if label not in known:
            raise UserError(f"The study {study.name} has no row {label!r}; its rows are: {', '.join(sorted(known))}.")
    chosen = [row for row in study.rows if not labels or row.label in labels]
    jobs = [_Job(study, row, seed, results, options, tuple(settings)) for row in chosen for seed in seeds]
    if workers == 1:
        return [job.do() for job in jobs]
    return _side_by_side([replace(job, options=replace(options, quiet=True)) for job in jobs], workers)


@dataclass(frozen=True)
class _Job:
    """One run of a study, from training to its results; whole, so that it can be done in a process of its own."""

    study: Study
    row: Row
    seed: int
    results: Path
    options: TrainingOptions
    settings: tuple[str, ...]

    def do(self) -> Path:
        folder = train(override(recipes[self.row.recipe], list(self.settings)), self.seed, self.options)
        return examine(self.study, self.row, self.seed, folder, self.results)


def _side_by_side(jobs: list[_Job], workers: int) -> list[Path]:
    """A process a run. One that fails does not stop the others; the first failure is raised when all have ended."""
    spawn = multiprocessing.get_context("spawn")  # a forked process could not use a GPU
    with ProcessPoolExecutor(
        workers, spawn, initializer=_share_cores, initargs=(workers,), max_tasks_per_child=1
    ) as pool:
        futures = {pool.submit(job.do): job for job in jobs}
        for future in as_completed(futures):
            job, error = futures[future], future.exception()
            print(f"{job.row.label}, seed {job.seed}: {'done' if error is None else error}", flush=True)
    return [future.result() for future in futures]


def _share_cores(workers: int) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


def examine(study: Study, row: Row, seed: int, weights: Path | str, results: Path) -> Path:
    """Put one network to the study's exams that it has not had."""
    path = results / study.name / f"{row.recipe}-seed{seed}.json"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, task, card = load(weights, device)
    about = {"study": study.name, "row": row.label, "seed": seed, "card": card}
    done: dict[str, Any] = read_json(path) if path.exists() else {**about, "exams": {}}
    if done["card"] != card:  # other weights: old results say nothing about them
        done = {**about, "exams": {}}
    for one in study.exams:
        if one.name not in done["exams"] and row.label not in one.skip:
            still = card["recipe"]["steps"] == 0  # a network that reads its answer off the input
            fitting = replace(one, steps=0 if still else one.steps, samples=min(one.samples, row.most or one.samples))
            done["exams"][one.name] = _measure(fitting, model, task, device)
            write_json(path, done)
    return path


def _measure(one: Exam, model: ThinkingModule, task: Task, device: str) -> dict[str, Any]:
    limit = getattr(model, "max_steps", None)
    if limit is not None:  # a feed-forward twin cannot think longer
        one = replace(one, steps=min(one.steps, limit), read_every=1)
    half = device == "cuda" and not getattr(model, "wants_float32", False)
    began = time.monotonic()
    measured: Curve = curve(
        model, task, one.problems(task), one.steps, chunk=one.chunk, read_every=one.read_every, half=half
    )
    return {
        **measured.to_json(),
        "seed": one.seed,
        "seconds": round(time.monotonic() - began, 1),
        "hardware": hardware(device),
        "precision": "bfloat16" if half else "float32",
        "torch": torch.__version__,
    }


def collect(study: Study, results: Path) -> dict[str, list[dict[str, Any]]]:
    """What has been measured: row label -> one document a seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in study.rows:
        files = sorted((results / study.name).glob(f"{row.recipe}-seed*.json"))
        if files:
            found[row.label] = [read_json(path) for path in files]
    return found


def report(study: Study, results: Path) -> Path:
    """Write ``results/<study>.md`` and a picture for each exam."""
    found = collect(study, results)
    if not found:
        raise UserError(f"Nothing has been measured for {study.name} in {results}; run the study first.")
    lines = [f"# {study.title}", "", f"Published: {study.source}. Exact match of the whole answer, in percent.", ""]
    if study.remarks:
        lines += [study.remarks, ""]
    for one in study.exams:
        rows = _table(study, one, found)
        if rows:
            head = ["model", "published (step)", "ours: best (step)", "ours: last (step)", "seeds", "n"]
            lines += [f"## {one.name}", "", _line(head), _line(["---"] * len(head)), *map(_line, rows), ""]
            if any(one.name in run["exams"] for runs in found.values() for run in runs):
                picture = results / f"{study.name}-{_slug(one.name)}.png"
                _draw(study, one, found, picture)
                lines += [f"![accuracy over steps]({picture.name})", ""]
    lines += _how(found)
    path = results / f"{study.name}.md"
    path.write_text("\n".join(lines))
    return path


def _table(study: Study, one: Exam, found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    rows = []
    for row in study.rows:
        measured = [run["exams"][one.name] for run in found.get(row.label, []) if one.name in run["exams"]]
        published = row.published.get(one.name)
        if not measured and published is None:
            continue
        cells = [row.label, "-" if published is None else _published(*published)]
        if measured:
            peaks, lasts = ([100 * m[key] for m in measured] for key in ("peak_accuracy", "final_accuracy"))
            step = round(statistics.mean(m["peak_step"] for m in measured))
            cells += [f"{_spread(peaks)} ({step})", f"{_spread(lasts)} ({measured[0]['final_step']})"]
            cells += [str(len(measured)), str(measured[0]["samples"])]
        else:
            cells += ["not run", "", "", ""]
        rows.append(cells)
    return rows


def _published(percent: float, spread: float | None, step: int | None) -> str:
    return f"{percent:g}" + (f" ± {spread:g}" if spread is not None else "") + (f" ({step})" if step else "")


def _spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def _how(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    lines = ["## How it was made", "", _line(["row", "recipe", "seed", "updates", "minutes", "hardware", "parameters"])]
    lines.append(_line(["---"] * 7))
    for label, runs in found.items():
        for run_ in runs:
            card = run_["card"]
            cells = [label, card["recipe"]["name"], run_["seed"], card["updates"], card["minutes"], card["hardware"]]
            lines.append(_line([*map(str, cells), f"{card['parameters']:,}"]))
    return [*lines, ""]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


def _draw(study: Study, one: Exam, found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    train_steps = 30
    for row in study.rows:
        measured = [run["exams"][one.name] for run in found.get(row.label, []) if one.name in run["exams"]]
        if not measured:
            continue
        train_steps = found[row.label][0]["card"]["recipe"]["steps"]
        steps = measured[0]["steps"]
        curves = torch.tensor([m["accuracy"][: len(steps)] for m in measured]) * 100
        style = "-" if len(steps) > 1 else "o"
        (drawn,) = axes.plot(steps, curves.mean(0), style, label=row.label, linewidth=1.8)
        if len(curves) > 1:
            low, high = curves.amin(0), curves.amax(0)
            axes.fill_between(steps, low, high, color=drawn.get_color(), alpha=0.2, linewidth=0)
    axes.axvspan(1, train_steps, color="0.9", zorder=0, label="steps in training")
    axes.set(xscale="log", xlabel="steps", ylabel="solved (%)", ylim=(-3, 103), title=f"{study.title}: {one.name}")
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)
