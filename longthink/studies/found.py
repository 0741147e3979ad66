"""What has been measured for a study: row label -> one document a seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longthink.studies.base import Exam, Row, Study
from longthink.training.files import read_json

Found = dict[str, list[dict[str, Any]]]


def collect(study: Study, results: Path) -> Found:
    """What has been measured: row label -> one document a seed."""
    found: Found = {}
    for row in study.rows:
        files = sorted(study.folder(row, results).glob(f"{row.recipe}-seed*.json"))
        if files:
            found[row.label] = [read_json(path) for path in files]
    return found


def taken(row: Row, one: Exam, found: Found) -> list[dict[str, Any]]:
    """What those seeds of a row found that have had the exam."""
    return [run["exams"][one.name] for run in found.get(row.label, []) if one.name in run["exams"]]


def recipe_of(row: Row, found: Found) -> dict[str, Any]:
    """The settings of a row that has been measured."""
    recipe: dict[str, Any] = found[row.label][0]["card"]["recipe"]
    return recipe


def steps_of(row: Row, found: Found) -> int:
    return row.steps or int(recipe_of(row, found)["steps"])


def grid_of(study: Study) -> tuple[list[int], list[int]]:
    """The values of the two options that the rows of a grid differ in, in order."""
    lines, columns = zip(*(row.place for row in study.rows if row.place is not None), strict=True)
    return sorted(set(lines)), sorted(set(columns))


def nearest(wanted: int, steps: Sequence[int]) -> int:
    return min(steps, key=lambda step: abs(step - wanted))
