"""The studies that are here: exams that fit, the published numbers as they were printed, tables as they were stored."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longthink.recipes import recipes
from longthink.studies import report, studies
from longthink.studies.base import Exam
from longthink.studies.language import Bits, ablations, kinds
from longthink.tasks import task
from tests.fixtures import published


@pytest.mark.parametrize("name", list(studies))
def test_every_study_has_recipes_and_exams_that_fit(name: str) -> None:
    study = studies[name]
    names = {exam.name for exam in study.exams}
    for row in study.rows:
        recipe = study.recipe(row.recipe)
        published = set(row.published) - names - {"mean"}
        assert not published or name == "chess", published  # chess is published on puzzles that we do not have
        for exam in study.exams:
            if exam.source is None and name not in ("chess", "babi") and not isinstance(exam, Bits):  # they need data
                few = Exam(exam.name, exam.difficulty, 2, exam.steps, seed=exam.seed, split=exam.split)
                if isinstance(exam.difficulty, int) and exam.difficulty > 300:
                    continue  # large mazes take seconds
                batch = few.problems(task(recipe.task, **recipe.task_options))
                assert task(recipe.task, **recipe.task_options).check(batch).all()


def in_the_name(exam: Exam) -> set[int]:
    """The difficulties that an exam's name promises."""
    found = re.match(r"(?:depths?|task) (\d+)(?:-(\d+))?|(\d+)(?:-(\d+))? [a-z]|(\d+)x\5$", exam.name)
    assert found, exam.name
    first, *last = [int(number) for number in found.groups() if number]
    return set(range(first, (last or [first])[0] + 1))


@pytest.mark.parametrize("name", [name for name in studies if not name.startswith(("ctlpp", "chess"))])
def test_exams_ask_what_their_names_say(name: str) -> None:
    exams = [exam for exam in studies[name].exams if not isinstance(exam, Bits)]
    for exam in exams:
        asked = {exam.difficulty} if isinstance(exam.difficulty, int) else set(exam.difficulty)
        assert asked == in_the_name(exam), exam.name
    easy = {"ctl": "2-5 functions", "arithmetic": "depths 1-5", "listops": "depths 1-5"}
    for exam in exams:  # those that training may have seen are of the validation split
        assert exam.split == ("valid" if exam.name == easy.get(name.split("_")[0]) else "test"), exam.name


PRINTED = {
    "LSTM": "lstm",
    "Bidirectional LSTM": "bilstm",
    "Bi-LSTM": "bilstm",
    "DNC": "dnc",
    "Transformer": "transformer",
    "Transformer + rel": "relative",
    "Transformer + rel + gate": "relative_gate",
    "Transformer + abs/rel + gate": "gated_positions",
    "Transformer + geom": "geometric",
    "NDR (geom + gate)": "router",
    "NDR": "router",
}
"""Recipes by the models of tables."""


def recipe_of(line: dict[str, Any], prefix: str) -> str:
    if "n_layers" in line:
        return f"{prefix}-router" + ("" if line["n_layers"] == 14 else f"-{line['n_layers']}")
    column = "-first" if line.get("readout_column") == "first" else ""
    act = {"A": "-graves", "U": "-universal"}.get(line.get("act_variant", ""), "")
    return f"{prefix}-{PRINTED[line['model']]}{column}{act}"


@pytest.mark.parametrize(
    ("name", "table", "prefix", "chosen"),
    [
        ("ctl", "5.1", "ctl", {"direction": "forward"}),
        ("ctl_backward", "5.1", "ctl-backward", {"direction": "backward"}),
        ("ctl_layers", "5.2", "ctl", {"direction": "forward"}),
        ("ctl_layers_backward", "5.2", "ctl-backward", {"direction": "backward"}),
        ("arithmetic", "5.3", "arithmetic", {"column_updates": 200_000}),
        ("listops", "5.4", "listops", {}),
        ("ctl_columns", "D.1", "ctl", {"direction": "forward"}),
        ("ctl_columns_backward", "D.1", "ctl-backward", {"direction": "backward"}),
        ("ctl_act", "D.2", "ctl", {"direction": "forward"}),
        ("ctl_act_backward", "D.2", "ctl-backward", {"direction": "backward"}),
        ("ctlpp_A", "6.1", "ctlpp-A", {"variant": "A"}),
        ("ctlpp_R", "6.1", "ctlpp-R", {"variant": "R"}),
    ],
)
def test_chapters_5_and_6_show_what_was_printed(name: str, table: str, prefix: str, chosen: dict[str, Any]) -> None:
    """Every number of the table, and no other; but for arithmetic's after 50,000 updates, which are not shown."""
    study = studies[name]
    assert study.source.split()[:3] == ["Csordás,", "Table", table]
    lines = published("ctlpp" if table == "6.1" else "router", f"table_{table}")
    lines = [line for line in lines if all(line[key] == value for key, value in chosen.items())]
    if table == "D.2":  # gates are in Table 5.1 already, and the longer trainings in a remark
        lines = [line for line in lines if "gate" not in line["model"] and line["updates"] != 60_000]
    printed = {
        (recipe_of(line, prefix), study.exams[line["split"] != "IID"].name): (
            round(100 * line["accuracy_mean"], 6),
            round(100 * line["accuracy_sd"], 6),
        )
        for line in lines
    }
    assert len(printed) == len(lines)
    shown = {
        (row.recipe, exam): (round(mean, 6), None if spread is None else round(spread, 6))
        for row in study.rows
        for exam, (mean, spread, _) in row.published.items()
    }
    assert shown == printed


@pytest.mark.parametrize("name", ["ctl_act", "ctl_act_backward"])
def test_longer_trainings_of_table_d2_are_in_its_remark(name: str) -> None:
    late = {line["accuracy_mean"] for line in published("router", "table_D.2") if line["updates"] == 60_000}
    assert {float(number) for number in re.findall(r"0\.\d+", studies[name].remarks)} == late


def test_rows_that_another_study_keeps_are_the_same_there() -> None:
    shared = [(study, row) for name in studies for study in [studies[name]] for row in study.rows if row.kept_by]
    assert len(shared) >= 4
    for study, row in shared:
        keeper = studies[row.kept_by or ""]
        assert row.recipe in {other.recipe for other in keeper.rows if other.kept_by is None}
        theirs = {exam.name: exam for exam in keeper.exams}
        for exam in study.exams:
            assert replace(theirs[exam.name], skip=()) == replace(exam, skip=())
            assert row.label not in exam.skip
        assert study.learning_curves == keeper.learning_curves
        assert study.settings == keeper.settings


RESULTS = Path(__file__).parents[1] / "results"


@pytest.mark.parametrize("table", sorted(RESULTS.glob("*.md")), ids=lambda path: path.stem)
def test_committed_tables_follow_from_the_stored_results(table: Path, tmp_path: Path) -> None:
    study = studies[table.stem]
    for folder in {study.folder(row, RESULTS) for row in study.rows}:
        if folder.exists():
            shutil.copytree(folder, tmp_path / folder.name)
    assert report(study, tmp_path).read_text() == table.read_text()


def test_the_study_for_a_cpu_leaves_out_what_differs_in_dropout_alone() -> None:
    wanted = {**kinds(32), **ablations(32)}
    there = {row.recipe.removeprefix("text-mini-") for row in studies["language_mini"].rows}
    assert there == {kind for kind in wanted if "dropout" not in kind}
    assert len({row.label for row in studies["language_mini"].rows}) == len(there) == 22


@pytest.mark.parametrize(
    ("name", "model", "dataset", "parameters"),
    [
        ("enwik8", "E8", "Enwik8", 41_000_000),
        ("wikitext103_small", "WT-S", "WikiText-103", 47_000_000),
        ("wikitext103_wide", "WT-S*", "WikiText-103", 238_000_000),
        ("wikitext103_big", "WT-B", "WikiText-103", 262_000_000),
    ],
)
def test_chapter_7_shows_what_was_printed(name: str, model: str, dataset: str, parameters: int) -> None:
    """Every number of Tables 7.1, 7.2 and F.4 for that model (the others repeat some), by what its network is."""
    printed: list[tuple[str, float]] = []
    for line in published("moe", "table_F.4"):
        if line["model"] == model and line["value"] is not None:
            kind = {"sigma-MoE": "sigma_moe", "Switch": "switch", "S-BASE": "s_base"}[line["family"]]
            size = f"K={line['active_experts_K']} G={line['group_size_G']}"
            printed.append((f"{kind} {size} {plain(line)}", line["value"]))
    for line in published("moe", "table_7.1"):
        if (line["dataset"], line["parameters"]) == (dataset, parameters):
            printed.append(("dense" if line["top_k"] is None else f"top_k {line['top_k']}", line["value"]))
    for line in published("moe", "table_7.2"):
        if line["model"] == model and line["variant"] == "PKM":
            printed.append((f"product_keys {line['nonlinearity'].lower()}", line["value"]))
    study = studies[name]
    shown = [
        (network_of(recipes[row.recipe].model_options), value)
        for row in study.rows
        for value, _, _ in row.published.values()
    ]
    assert sorted(shown) == sorted(printed)
    assert len(shown) == len({row.label for row in study.rows if row.published})


def plain(line: dict[str, Any]) -> str:
    """What changes in a row but for K and G, which stand beside it."""
    change = re.sub(r"K=\d+(, G=\d+)?,? ?|twice the experts, G=64", "", line["change"])
    return {
        "no regularisation (gamma 0, delta 0)": "no regularisation",
        "softmax after top-k (renormalised)": "softmax after",
        "softmax before top-k": "softmax before",
    }.get(change, change)


def network_of(options: dict[str, Any]) -> str:
    """The same words for a recipe's network, from its options alone."""
    kind = options.get("feedforward", "dense")
    of = options.get("feedforward_options", {})
    if kind != "experts":
        return f"{kind} {of.get('k', of.get('activation', ''))}".strip()
    selection, k, g = of.get("selection", "sigmoid"), of["k"], options["hidden"] // of["experts"]
    family = {"switch": "switch", "sinkhorn": "s_base"}.get(selection, "sigma_moe")
    change = {"softmax_after": "softmax after", "softmax": "softmax before"}.get(selection, "")
    if of.get("initialisation") == "standard":
        change = "standard init"
    if "balance" in of and of["balance"] is None and not of.get("expert_dropout"):
        change = "no regularisation"
    if family == "sigma_moe" and of.get("dropout"):
        change = "standard dropout"
    if family == "switch" and not of.get("dropout"):
        change = "no dropout"
    return f"{family} K={k} G={g} {change}"
