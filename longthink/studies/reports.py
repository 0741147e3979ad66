"""A study's tables, made from its stored results alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longthink.errors import UserError
from longthink.recipes import recipes
from longthink.studies.base import Exam, Row, Study, spread
from longthink.studies.found import Found, collect, grid_of, steps_of, taken
from longthink.studies.pictures import draw_axis, draw_grid, draw_learning, draw_steps
from longthink.tasks.base import SPLITS
from longthink.training.recipe import Recipe, differences

_NOT_NOTED = "not noted"


def report(study: Study, results: Path) -> Path:
    """Write ``results/<study>.md`` and a picture for each exam."""
    found = collect(study, results)
    if not found:
        place = results.resolve()
        raise UserError(f"Nothing has been measured for {study.name} in {place}; run it first, or name its --results.")
    lines = [f"# {study.title}", "", f"Published: {study.source}. {study.measure}", ""]
    if study.remarks:
        lines += [study.remarks, ""]
    if study.learning_curves:
        picture = results / f"{study.name}-learning.png"
        draw_learning(study, found, picture)
        lines += [f"![loss over updates]({picture.name})", ""]
    if study.compact:
        lines += _compact(study, found)
    if study.axis:
        picture = results / f"{study.name}.png"
        draw_axis(study, found, picture)
        lines += [f"![accuracy over {study.axis}]({picture.name})", "", *_along_axis(study, found)]
    if study.grid is not None:
        picture = results / f"{study.name}.png"
        draw_grid(study, study.grid, found, picture)
        lines += [f"![accuracy over {' and '.join(study.grid)}]({picture.name})", ""]
        for one in study.exams:
            lines += [f"## {one.name}", "", *_grid(study, study.grid, one, found), "", *_whose(one)]
    for one in () if study.compact or study.axis or study.grid else study.exams:
        rows = _table(study, one, found)
        if rows:
            head = ["model", "published (step)", *one.columns, "seeds", "n"]
            lines += [f"## {one.name}", "", *_lines(head, rows), "", *_whose(one)]
            if any(len(run["exams"].get(one.name, {}).get("steps", ())) > 1 for runs in found.values() for run in runs):
                picture = results / f"{study.name}-{_slug(one.name)}.png"
                draw_steps(study, one, found, picture)
                lines += [f"![accuracy over steps]({picture.name})", ""]
    lines += _how(study, found)
    path = results / f"{study.name}.md"
    path.write_text("\n".join(lines))
    return path


def _whose(one: Exam) -> list[str]:
    """What there is to say about an exam and its problems."""
    problems = "Problems of the validation split, which also chose the weights." if one.split == "valid" else ""
    return [line for said in (problems, one.about) if said for line in (said, "")]


def _table(study: Study, one: Exam, found: Found) -> list[list[str]]:
    rows = []
    for row in study.rows:
        measured = taken(row, one, found)
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


def _cells(row: Row, one: Exam, found: Found) -> list[str]:
    """What a row came to in an exam that it has had, its seeds, and the number of problems."""
    measured = taken(row, one, found)
    samples = " or ".join(map(str, sorted({m["samples"] for m in measured})))
    return [*one.cells(measured, steps_of(row, found)), str(len(measured)), samples]


def _published(percent: float, spread: float | None, step: int | None) -> str:
    return f"{percent:g}" + (f" ± {spread:g}" if spread is not None else "") + (f" ({step})" if step else "")


def _compact(study: Study, found: Found) -> list[str]:
    """Published beside ours for each model; then the means of those seeds that have had all exams."""
    rows = [row for row in study.rows if row.label in found or row.published]
    head = ["", *(f"{row.label}: {whose}" for row in rows for whose in ("published", "ours"))]
    table = []
    for one in study.exams:
        cells = [one.name]
        for row in rows:
            measured = taken(row, one, found)
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


def _along_axis(study: Study, found: Found) -> list[str]:
    lines = []
    head = [study.axis, *study.exams[0].columns, "seeds", "n"]
    for row in (row for row in study.rows if row.label in found):
        exams = [one for one in study.exams if taken(row, one, found)]
        rows = [[str(one.difficulty), *_cells(row, one, found)] for one in exams]
        lines += [f"## {row.label}", "", *_lines(head, rows), ""]
    return lines


def _grid(study: Study, options: tuple[str, str], one: Exam, found: Found) -> list[str]:
    """The first of the exam's figures for all rows, by the two options that they differ in."""
    values = {row.place: _cells(row, one, found)[0] for row in study.rows if taken(row, one, found)}
    lines, columns = grid_of(study)
    head = [f"{one.columns[0]}; {options[0]} down, {options[1]} across", *map(str, columns)]
    table = [[str(line), *(values.get((line, column), "not run") for column in columns)] for line in lines]
    return _lines(head, table)


def _how(study: Study, found: Found) -> list[str]:
    head = ["row", "recipe", "seed", "updates", "batch", "minutes", "hardware", "parameters"]
    rows: list[list[str]] = []
    others: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    data: dict[str, list[tuple[str, int]]] = {}
    for label, runs in found.items():
        for run_ in runs:
            card = run_["card"]
            recipe = Recipe.from_json(card["recipe"])
            changed = recipe.name not in recipes or recipe.hash() != study.recipe(recipe.name).hash()
            if changed:
                others.setdefault(_changes(study, recipe), []).append((recipe.name, run_["seed"]))
            data.setdefault(_data(card), []).append((recipe.name, run_["seed"]))
            stopped = ", stopped" if "finished" in run_ and run_["finished"] is None else ""  # older ones do not say
            updates = f"{card['updates']} of {recipe.updates}{stopped}"
            cells = [label, recipe.name + "\\*" * changed, run_["seed"], updates, recipe.batch]
            minutes = f"{card['minutes']} for {card['together']} together" if "together" in card else card["minutes"]
            rows.append([*map(str, cells), str(minutes), card["hardware"], f"{card['parameters']:,}"])
    what = "Updates and minutes of the chosen checkpoint, of all that the recipe plans."
    if study.settings:
        what += f" All recipes with {', '.join(study.settings)}."
    note = _changed(others)
    if note:
        note = ["\\* Settings that differ from the recipe of this name today:", "", *note, ""]
    if len(data) > 1:
        note += [
            "Data differ, and figures with them:",
            "",
            *(f"- {one}: {_names(who)}" for one, who in data.items()),
        ]
        note += [""]
    elif list(data) != [_NOT_NOTED]:
        note += [f"Data: {next(iter(data))}.", ""]
    missing = [row.label for row in study.rows if row.label not in found]
    lines = ["## How it was made", "", what, "", *_lines(head, rows), "", *note]
    return [*lines, *([f"Not run: {'; '.join(missing)}.", ""] if missing else [])]


def _data(card: dict[str, Any]) -> str:
    """Which data a network has had, of a task that has any which may change."""
    about = card.get("data")
    if about is None:
        return _NOT_NOTED
    known = [f"{split} {about[split]['bytes']:,} bytes ({about[split]['crc32']})" for split in SPLITS if split in about]
    return f"{about['corpus']} ({about['version']}), {', '.join(known)}"


def _changes(study: Study, recipe: Recipe) -> tuple[str, ...]:
    if recipe.name not in recipes:
        return ("no recipe has this name today",)
    return tuple(differences(recipe, study.recipe(recipe.name)))


def _changed(others: dict[tuple[str, ...], list[tuple[str, int]]]) -> list[str]:
    """A list of runs by what they differ in. Where several differ in the same settings and some have the same value in
    all of them, these are said once, above lines that are short enough to compare."""
    alike: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for settings in others:
        alike.setdefault(tuple(setting.partition("=")[0] for setting in settings), []).append(settings)
    lines = []
    for group in alike.values():
        common = [setting for setting in group[0] if all(setting in settings for settings in group)]
        if len(group) == 1 or not common:
            lines += [f"- {_names(others[settings])}: {', '.join(settings)}" for settings in group]
            continue
        lines.append(f"- {', '.join(common)} in all of these, and:")
        for settings in group:
            own = ", ".join(setting for setting in settings if setting not in common)
            lines.append(f"  - {_names(others[settings])}: {own}")
    return lines


def _names(runs: Sequence[tuple[str, int]]) -> str:
    """Recipes with their seeds: ``one (seed 3), other (seeds 0-2, 5)``."""
    seeds: dict[str, list[int]] = {}
    for name, seed in runs:
        seeds.setdefault(name, []).append(seed)
    return ", ".join(f"{name} (seed{'s' * (len(each) > 1)} {_ranges(each)})" for name, each in seeds.items())


def _ranges(numbers: Sequence[int]) -> str:
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in found)


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table."""
    return [_line(cells) for cells in (head, ["---"] * len(head), *rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name).split())
