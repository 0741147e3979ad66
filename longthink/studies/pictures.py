"""A study's pictures: accuracy over steps, over difficulties and over two options, and losses over updates."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from longthink.studies.base import Exam, Study, common_steps
from longthink.studies.found import Found, grid_of, nearest, recipe_of, steps_of, taken

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FEW_STEPS = 60


def _entitle(figure: Figure, title: str) -> None:
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")  # it may be longer than the axes are wide


def draw_steps(study: Study, one: Exam, found: Found, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    shown = [(index, row, recipe_of(row, found)) for index, row in enumerate(study.rows) if taken(row, one, found)]
    trained = {recipe["steps"] for _, _, recipe in shown if recipe["steps"]}
    for index, row, recipe in shown:
        measured = taken(row, one, found)
        steps, accuracies = common_steps(measured)
        if recipe["model_options"].get("distinct_steps"):  # its earlier layers were never asked
            steps, accuracies = steps[-1:], [seed[-1:] for seed in accuracies]
        curves = torch.tensor(accuracies) * 100
        if steps == [0]:  # it takes none, and answers the same whenever it is asked
            # Several of these may lie upon each other.
            dots = (0, (1, 1 + index % 4))
            axes.axhline(float(curves.mean()), linestyle=dots, color=f"C{index}", label=row.label, linewidth=1.8)
            continue
        style = "o" if len(steps) == 1 else "-" if index < 10 else "--"  # there are ten colours
        (drawn,) = axes.plot(steps, curves.mean(0), style, color=f"C{index}", label=row.label, linewidth=1.8)
        if len(curves) > 1:
            low, high = curves.amin(0), curves.amax(0)
            axes.fill_between(steps, low, high, color=drawn.get_color(), alpha=0.2, linewidth=0)
        if len(trained) > 1 and recipe["steps"] in steps and len(steps) > 1:
            axes.plot(recipe["steps"], curves.mean(0)[steps.index(recipe["steps"])], "o", color=drawn.get_color(), ms=6)
    if len(trained) == 1:
        axes.axvspan(1, trained.pop(), color="0.88", zorder=0, label="steps in training")
    elif trained:
        axes.plot([], [], "o", color="0.4", ms=6, label="steps in training")
    axes.set(xlabel="steps", ylabel="solved (%)", ylim=(-3, 103))
    if max((max(m["steps"]) for _, row, _ in shown for m in taken(row, one, found)), default=0) > _FEW_STEPS:
        axes.set_xscale("log")
    _entitle(figure, f"{study.title}: {one.name}")
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    axes.grid(alpha=0.25)
    figure.legend(frameon=False, fontsize=8, loc="outside right center")
    figure.savefig(path)


def draw_axis(study: Study, found: Found, path: Path) -> None:
    """Accuracy after about m and 3 m steps and after the last: what thinking longer is worth."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for row in (row for row in study.rows if row.label in found):
        exams = [one for one in study.exams if taken(row, one, found)]
        steps = max((found[row.label][0]["exams"][one.name]["steps"] for one in exams), key=len)
        trained = steps_of(row, found)
        shown = sorted({nearest(wanted, steps) for wanted in (trained, 3 * trained, steps[-1])})
        for step in shown:
            means = [_mean_at(step, taken(row, one, found)) for one in exams]
            axes.plot([one.difficulty for one in exams], means, "o-", ms=4, label=f"{row.label}: {step} steps")
        difficulties = recipe_of(row, found)["difficulty"]
        axes.axvspan(min(difficulties), max(difficulties), color="0.9", zorder=0)
    axes.set(xlabel=f"{study.axis} (training: grey)", ylabel="solved (%)", ylim=(-3, 103))
    _entitle(figure, study.title)
    if study.exams[0].difficulty > study.exams[-1].difficulty:  # type: ignore[operator]
        axes.invert_xaxis()  # harder to the right
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    figure.savefig(path)


def _mean_at(step: int, measured: list[dict[str, Any]]) -> float:
    return 100 * statistics.mean(m["accuracy"][m["steps"].index(nearest(step, m["steps"]))] for m in measured)


def draw_learning(study: Study, found: Found, path: Path) -> None:
    """Losses over updates, and where all runs read the same data in the same order, how they differ."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    compared = differences(study, found)
    many = len(study.rows) > 6
    figure = Figure(figsize=(10 if many else 7, 6 if compared else 4), dpi=120, layout="constrained")
    axes, *below = figure.subplots(2 if compared else 1, sharex=True, squeeze=False)[:, 0]
    for index, row in enumerate(study.rows):
        for seed, run_ in enumerate(found.get(row.label, [])):
            label = row.label if seed == 0 else None
            updates, losses = run_["training"]["update"], run_["training"]["loss"]
            axes.plot(updates, losses, **_line(index), label=label, linewidth=1.3)
            if updates:
                at = updates.index(nearest(run_["card"]["updates"], updates))
                axes.plot(updates[at], losses[at], "o", color=f"C{index % 10}", markersize=5)
    axes.plot([], [], "o", color="0.4", markersize=5, label="chosen weights")
    axes.set(yscale="log", ylabel="loss")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_formatter(lambda loss, _: f"{loss:g}")  # not as powers of ten
    axes.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
    axes.yaxis.set_minor_formatter(lambda loss, _: f"{loss:g}" if high < 30 * low else "")
    _entitle(figure, study.title)
    for lower in below:
        for index, (updates, mean) in compared.items():
            lower.plot(updates, mean, **_line(index), linewidth=1.8)
        late = [value for _, mean in compared.values() for value in mean[len(mean) // 3 :].tolist()]
        room = 0.1 * (max(late) - min(late)) or 0.01
        lower.set_ylim(min(late) - room, max(late) + room)
        lower.set_ylabel(f"difference to {study.rows[min(compared)].label}", size=8)
        lower.grid(alpha=0.25)
    last = figure.axes[-1]
    last.set_xlabel("updates" + (f" (below: means of seeds and of {_SPAN} points)" if below else ""))
    last.xaxis.set_major_formatter(lambda update, _: f"{update:,.0f}")
    axes.grid(alpha=0.25)
    if many:
        figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    else:
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


_SPAN = 5


def _line(index: int) -> dict[str, Any]:
    return {"linestyle": "-" if index < 10 else "--", "color": f"C{index % 10}"}  # there are ten colours


def differences(study: Study, found: Found) -> dict[int, tuple[list[int], torch.Tensor]]:
    """Losses less those of the first row, by the place of the row; of runs that do not share their points, none.

    Then it is seen which of two curves is lower that are nearer to each other than one point is to the next.
    """
    runs = {index: found[row.label] for index, row in enumerate(study.rows) if row.label in found}
    points = {tuple(run_["training"]["update"]) for of_row in runs.values() for run_ in of_row}
    if not study.same_data or len(points) != 1 or len(runs) < 2 or len(updates := list(points.pop())) < 3 * _SPAN:
        return {}
    means = {
        index: torch.tensor([run_["training"]["loss"] for run_ in of_row]).mean(0).unfold(0, _SPAN, 1).mean(1)
        for index, of_row in runs.items()
    }
    first = means[min(means)]
    half = _SPAN // 2
    return {index: (updates[half : len(updates) - half], mean - first) for index, mean in means.items()}


def draw_grid(study: Study, options: tuple[str, str], found: Found, path: Path) -> None:
    """The accuracy of every row after its steps, a panel an exam (Figure 6.4)."""
    from longthink.inspect.figures import figure, heat

    lines, columns = grid_of(study)
    new = figure(0.6 + 3.2 * len(study.exams), 3.2)
    for panel, (one, axes) in enumerate(
        zip(study.exams, new.subplots(1, len(study.exams), squeeze=False)[0], strict=True)
    ):
        values = torch.full((len(lines), len(columns)), torch.nan)
        for row in study.rows:
            if row.place is not None and taken(row, one, found):
                line, column = lines.index(row.place[0]), columns.index(row.place[1])
                values[line, column] = _mean_at(steps_of(row, found), taken(row, one, found))
                colour = "white" if values[line, column] < 70 else "black"
                axes.text(column, line, f"{values[line, column]:.0f}", ha="center", va="center", color=colour, size=9)
        image = heat(axes, values, one.name, high=100.0, aspect="auto", origin="lower")
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(lines)), lines)
        axes.set_xlabel(options[1], size=8)
        if panel == 0:
            axes.set_ylabel(options[0], size=8)
    new.colorbar(image, ax=new.axes, label="solved (%)").ax.tick_params(labelsize=7)
    _entitle(new, study.title)
    new.savefig(path)
