"""A study's tables and pictures, made from its stored results alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from longthink.errors import UserError
from longthink.recipes import recipes
from longthink.studies.base import Exam, Row, Study, common_steps, spread
from longthink.training.files import read_json
from longthink.training.recipe import Recipe, differences


def collect(study: Study, results: Path) -> dict[str, list[dict[str, Any]]]:
    """What has been measured: row label -> one document a seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in study.rows:
        files = sorted(study.folder(row, results).glob(f"{row.recipe}-seed*.json"))
        if files:
            found[row.label] = [read_json(path) for path in files]
    return found


def report(study: Study, results: Path) -> Path:
    """Write ``results/<study>.md`` and a picture for each exam."""
    found = collect(study, results)
    if not found:
        raise UserError(f"Nothing has been measured for {study.name} in {results}; run the study first.")
    lines = [f"# {study.title}", "", f"Published: {study.source}. {study.measure}", ""]
    if study.remarks:
        lines += [study.remarks, ""]
    if study.learning_curves:
        picture = results / f"{study.name}-learning.png"
        _draw_learning(study, found, picture)
        lines += [f"![loss over updates]({picture.name})", ""]
    if study.compact:
        lines += _compact(study, found)
    if study.axis:
        picture = results / f"{study.name}.png"
        _draw_axis(study, found, picture)
        lines += [f"![accuracy over {study.axis}]({picture.name})", "", *_along_axis(study, found)]
    for one in () if study.compact or study.axis else study.exams:
        rows = _table(study, one, found)
        if rows:
            head = ["model", "published (step)", *one.columns, "seeds", "n"]
            lines += [f"## {one.name}", "", *_lines(head, rows), ""]
            if any(len(run["exams"].get(one.name, {}).get("steps", ())) > 1 for runs in found.values() for run in runs):
                picture = results / f"{study.name}-{_slug(one.name)}.png"
                _draw(study, one, found, picture)
                lines += [f"![accuracy over steps]({picture.name})", ""]
    lines += _how(study, found)
    path = results / f"{study.name}.md"
    path.write_text("\n".join(lines))
    return path


def _table(study: Study, one: Exam, found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    rows = []
    for row in study.rows:
        measured = _measured(row, one, found)
        published = row.published.get(one.name)
        if not measured and published is None:
            continue
        cells = [row.label, "-" if published is None else _published(*published)]
        if measured:
            cells += _cells(row, one, found)
        else:
            cells += ["not run", *[""] * (len(one.columns) + 1)]
        rows.append(cells)
    return rows


def _measured(row: Row, one: Exam, found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What those seeds of a row found that have had the exam."""
    return [run["exams"][one.name] for run in found.get(row.label, []) if one.name in run["exams"]]


def _cells(row: Row, one: Exam, found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What a row came to in an exam that it has had, its seeds, and the number of problems."""
    measured = _measured(row, one, found)
    samples = " or ".join(map(str, sorted({m["samples"] for m in measured})))
    return [*one.cells(measured, _trained(row, found)), str(len(measured)), samples]


def _recipe(row: Row, found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The settings of a row that has been measured."""
    recipe: dict[str, Any] = found[row.label][0]["card"]["recipe"]
    return recipe


def _trained(row: Row, found: dict[str, list[dict[str, Any]]]) -> int:
    return row.steps or int(_recipe(row, found)["steps"])


def _published(percent: float, spread: float | None, step: int | None) -> str:
    return f"{percent:g}" + (f" ± {spread:g}" if spread is not None else "") + (f" ({step})" if step else "")


def _compact(study: Study, found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Published beside ours for each model; then the means of those seeds that have had all exams."""
    rows = [row for row in study.rows if row.label in found or row.published]
    head = ["", *(f"{row.label}: {whose}" for row in rows for whose in ("published", "ours"))]
    table = []
    for one in study.exams:
        cells = [one.name]
        for row in rows:
            measured = _measured(row, one, found)
            published = row.published.get(one.name)
            cells += ["-" if published is None else _published(*published)]
            cells += [_cells(row, one, found)[0] if measured else "not run"]
        table.append(cells)
    means, failures = ["mean"], [f"above {study.failed_above:g}"]
    for row in rows:
        whole = [
            run["exams"] for run in found.get(row.label, []) if all(one.name in run["exams"] for one in study.exams)
        ]
        values = [[one.value(exams[one.name]) for one in study.exams] for exams in whole]
        published = row.published.get("mean")
        means += ["-" if published is None else _published(*published)]
        means += [spread([statistics.mean(each) for each in values]) if values else "not run"]
        limit = study.failed_above or 0
        printed = [row.published[one.name][0] for one in study.exams if one.name in row.published]
        failures += [str(sum(value > limit for value in printed)) if printed else "-"]
        failures += [", ".join(str(sum(value > limit for value in each)) for each in values) or "not run"]
    table += [means] if study.failed_above is None else [means, failures]
    return [*_lines(head, table), ""]


def _along_axis(study: Study, found: dict[str, list[dict[str, Any]]]) -> list[str]:
    lines = []
    head = [study.axis, *study.exams[0].columns, "seeds", "n"]
    for row in (row for row in study.rows if row.label in found):
        exams = [one for one in study.exams if _measured(row, one, found)]
        rows = [[str(one.difficulty), *_cells(row, one, found)] for one in exams]
        lines += [f"## {row.label}", "", *_lines(head, rows), ""]
    return lines


def _draw_axis(study: Study, found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Accuracy after about m and 3 m steps and after the last: what thinking longer is worth."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for row in (row for row in study.rows if row.label in found):
        exams = [one for one in study.exams if _measured(row, one, found)]
        steps = max((found[row.label][0]["exams"][one.name]["steps"] for one in exams), key=len)
        trained = _trained(row, found)
        shown = sorted({_nearest(wanted, steps) for wanted in (trained, 3 * trained, steps[-1])})
        for step in shown:
            means = [_mean_at(step, _measured(row, one, found)) for one in exams]
            axes.plot([one.difficulty for one in exams], means, "o-", ms=4, label=f"{row.label}: {step} steps")
        difficulties = _recipe(row, found)["difficulty"]
        axes.axvspan(min(difficulties), max(difficulties), color="0.9", zorder=0)
    axes.set(xlabel=f"{study.axis} (training: grey)", ylabel="solved (%)", ylim=(-3, 103), title=study.title)
    if study.exams[0].difficulty > study.exams[-1].difficulty:  # type: ignore[operator]
        axes.invert_xaxis()  # harder to the right
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    figure.savefig(path)


def _nearest(wanted: int, steps: Sequence[int]) -> int:
    return min(steps, key=lambda step: abs(step - wanted))


def _mean_at(step: int, measured: list[dict[str, Any]]) -> float:
    return 100 * statistics.mean(m["accuracy"][m["steps"].index(_nearest(step, m["steps"]))] for m in measured)


def _draw_learning(study: Study, found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7 if len(study.rows) <= 6 else 10, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for index, row in enumerate(study.rows):
        for seed, run_ in enumerate(found.get(row.label, [])):
            label = row.label if seed == 0 else None
            updates, losses = run_["training"]["update"], run_["training"]["loss"]
            style = "-" if index < 10 else "--"  # there are ten colours
            axes.plot(updates, losses, style, color=f"C{index % 10}", label=label, linewidth=1.3)
            if updates:
                at = updates.index(_nearest(run_["card"]["updates"], updates))
                axes.plot(updates[at], losses[at], "o", color=f"C{index % 10}", markersize=5)
    axes.plot([], [], "o", color="0.4", markersize=5, label="chosen weights")
    axes.set(yscale="log", xlabel="updates", ylabel="loss", title=study.title)
    axes.xaxis.set_major_formatter(lambda update, _: f"{update:,.0f}")
    axes.grid(alpha=0.25)
    if len(study.rows) > 6:
        figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    else:
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def _how(study: Study, found: dict[str, list[dict[str, Any]]]) -> list[str]:
    head = ["row", "recipe", "seed", "updates", "batch", "minutes", "hardware", "parameters"]
    rows: list[list[str]] = []
    others: dict[str, list[str]] = {}
    for label, runs in found.items():
        for run_ in runs:
            card = run_["card"]
            recipe = Recipe.from_json(card["recipe"])
            changed = recipe.name not in recipes or recipe.hash() != recipes[recipe.name].hash()
            if changed:
                others.setdefault(_changes(recipe), []).append(f"{recipe.name} (seed {run_['seed']})")
            updates = f"{card['updates']} of {recipe.updates}"
            cells = [label, recipe.name + "\\*" * changed, run_["seed"], updates, recipe.batch]
            rows.append([*map(str, cells), str(card["minutes"]), card["hardware"], f"{card['parameters']:,}"])
    what = "Updates and minutes of the chosen checkpoint, of all that the recipe plans."
    note = [f"- {', '.join(names)}: {settings}" for settings, names in others.items()]
    if note:
        note = ["\\* Settings that differ from the recipe of this name today:", "", *note, ""]
    missing = [row.label for row in study.rows if row.label not in found]
    lines = ["## How it was made", "", what, "", *_lines(head, rows), "", *note]
    return [*lines, *([f"Not run: {'; '.join(missing)}.", ""] if missing else [])]


def _changes(recipe: Recipe) -> str:
    if recipe.name not in recipes:
        return "no recipe has this name today"
    return ", ".join(differences(recipe, recipes[recipe.name]))


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table."""
    return [_line(cells) for cells in (head, ["---"] * len(head), *rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


def _draw(study: Study, one: Exam, found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    shown = [(index, row, _recipe(row, found)) for index, row in enumerate(study.rows) if _measured(row, one, found)]
    trained = {recipe["steps"] for _, _, recipe in shown if recipe["steps"]}
    for index, row, recipe in shown:
        measured = _measured(row, one, found)
        steps, accuracies = common_steps(measured)
        if recipe["model_options"].get("distinct_steps"):  # its earlier layers were never asked
            steps, accuracies = steps[-1:], [seed[-1:] for seed in accuracies]
        curves = torch.tensor(accuracies) * 100
        if steps == [0]:  # it takes none, and answers the same whenever it is asked
            axes.axhline(float(curves.mean()), linestyle=":", color=f"C{index}", label=row.label, linewidth=1.8)
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
    axes.set(xscale="log", xlabel="steps", ylabel="solved (%)", ylim=(-3, 103))
    axes.set_title(f"{study.title}: {one.name}", fontsize=10)  # the legend is to the right of it
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    axes.grid(alpha=0.25)
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    figure.savefig(path)
