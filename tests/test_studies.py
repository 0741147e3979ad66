"""A study trains, tests and reports, and does nothing twice."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import longthink as lt
from longthink.errors import UserError
from longthink.evaluate import Curve
from longthink.inspect.gates import Gates
from longthink.loading import rebuild
from longthink.models import build
from longthink.perplexity import measure
from longthink.recipes import recipes
from longthink.studies import base, report, router, run, studies
from longthink.studies.base import Exam, Row, Study
from longthink.studies.language import Bits
from longthink.studies.pictures import differences
from longthink.tasks import Split, task
from longthink.training.files import read_json
from longthink.training.recipe import Recipe, override
from longthink.training.train import Job, TrainingOptions, train, train_together

TOY = Study(
    name="toy",
    title="Toy",
    source="Table 0",
    rows=(
        Row("recall", "prefix_sums-dt_recall-alpha1", {"8 bits": (50.0, 1.5, 10)}),
        Row("feed-forward", "prefix_sums-ff-alpha0", most=7),
        Row("never run", "prefix_sums-dt-alpha0", {"8 bits": (0.0, None, None)}),
    ),
    exams=(Exam("8 bits", 8, 20, 40, read_every=10, chunk=8), Exam("mixed", 8, 10, 10, skip=("feed-forward",))),
)
SMALL = [
    "model.width=4",
    "model.head=[4,4]",
    "difficulty=8",
    "epochs=1",
    "train_samples=20",
    "batch=10",
    "valid_samples=10",
    "patient_steps=30",
]


def test_one_table_for_many_exams_and_the_losses_beside_it(tmp_path: Path) -> None:
    options = TrainingOptions(folder=str(tmp_path / "runs"), accelerator="cpu", quiet=True, tensorboard=False)
    results = tmp_path / "results"
    compact = replace(TOY, compact=True, learning_curves=True, failed_above=150.0)
    (file,) = run(compact, [0], ("recall",), results, options, [*SMALL, "epochs=3"])
    history = read_json(file)["training"]
    assert history["update"] == sorted(history["update"])
    assert history["update"][-1] == 6
    assert all(0 < loss < 10 for loss in history["loss"])
    text = report(compact, results).read_text()
    exams = read_json(file)["exams"]
    value = 100 * exams["8 bits"]["final_accuracy"]
    assert f"| 8 bits | 50 ± 1.5 (10) | {100 * exams['8 bits']['peak_accuracy']:.2f} " in text
    assert f"| mean | - | {(value + 100 * exams['mixed']['final_accuracy']) / 2:.2f} |" in text
    assert "| above 150 | 0 | 0 |" in text
    assert "train_samples=20, valid_samples=10, batch=10" in text  # unlike the recipe
    assert (results / "toy-learning.png").stat().st_size > 5_000


def test_losses_less_those_of_the_first_row() -> None:
    def trained(losses: list[float]) -> dict[str, Any]:
        return {"training": {"update": list(range(10, 10 + len(losses))), "loss": losses}}

    first, second = (row.label for row in TOY.rows[:2])
    wave = [float(i % 3) for i in range(20)]
    runs = {
        first: [trained(wave), trained([x + 1 for x in wave])],
        second: [trained([x + (1.5 if i < 10 else 0.5) for i, x in enumerate(wave)])],
    }
    same = replace(TOY, same_data=True)
    found = differences(same, runs)
    assert found.keys() == {0, 1}
    updates, nothing = found[0]
    assert updates == list(range(12, 28))  # means of five points, at the one in the middle
    assert nothing.abs().max() == 0
    torch.testing.assert_close(found[1][1][[0, 5, 6, 7, -1]], torch.tensor([1.0, 1.0, 0.8, 0.6, 0.0]))
    assert differences(TOY, runs) == {}
    assert differences(same, {first: runs[first]}) == {}
    assert differences(same, {**runs, second: [trained(wave[:19])]}) == {}


def test_a_run_that_stopped_before_its_first_metrics_is_tested_all_the_same(tmp_path: Path) -> None:
    options = TrainingOptions(str(tmp_path / "runs"), "cpu", quiet=True, tensorboard=False, seconds=0.0)
    curves = replace(TOY, learning_curves=True)
    (file,) = run(curves, [0], ("recall",), tmp_path / "results", options, [*SMALL, "train_samples=2000"])
    stored = read_json(file)
    assert stored["training"] == {"update": [], "loss": []}
    assert stored["finished"] is None
    assert re.search(r"\| \d+ of 200, stopped \|", report(curves, tmp_path / "results").read_text())
    assert stored["exams"].keys() == {"8 bits", "mixed"}
    assert (report(curves, tmp_path / "results").parent / "toy-learning.png").exists()


def test_results_learn_that_their_run_has_ended(tmp_path: Path) -> None:
    options = TrainingOptions(str(tmp_path / "runs"), "cpu", quiet=True, tensorboard=False)
    (file,) = run(TOY, [0], ("recall",), tmp_path / "results", options, SMALL)
    ended = read_json(file)
    file.write_text(json.dumps({**ended, "finished": None}))  # as if it had been tested when it was stopped
    run(TOY, [0], ("recall",), tmp_path / "results", options, SMALL)
    assert read_json(file) == ended


def test_exams_along_an_axis_share_a_table_and_a_picture(tmp_path: Path) -> None:
    options = TrainingOptions(folder=str(tmp_path / "runs"), accelerator="cpu", quiet=True, tensorboard=False)
    results = tmp_path / "results"
    exams = (Exam("16 bits", 16, 10, 40, read_every=10), Exam("8 bits", 8, 20, 20, read_every=10))
    along = replace(TOY, exams=exams, axis="bits")
    (file,) = run(along, [0], ("recall",), results, options, SMALL)
    text = report(along, results).read_text()
    for bits, samples in ((16, 10), (8, 20)):
        last = read_json(file)["exams"][f"{bits} bits"]
        found = re.search(
            rf"\| {bits} \| .* \| {100 * last['final_accuracy']:.2f} \({last['final_step']}\) \| 1 \| {samples} \|",
            text,
        )
        assert found, text
    assert "Not run: feed-forward; never run." in text
    assert "## never run" not in text
    assert (results / "toy.png").stat().st_size > 5_000
    assert not list(results.glob("toy-*.png"))


def test_a_failing_run_does_not_stop_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = TrainingOptions(folder=str(tmp_path / "runs"), accelerator="cpu", quiet=True, tensorboard=False)
    with pytest.raises(UserError, match="seed"):
        run(TOY, [-1, 0], ("recall",), tmp_path / "results", options, SMALL, workers=2)
    assert len(list((tmp_path / "results" / "toy").glob("*.json"))) == 1
    assert "toy, recall, seed 0: done" in capfd.readouterr().out


def test_a_study_from_training_to_table(tmp_path: Path) -> None:
    options = TrainingOptions(folder=str(tmp_path / "runs"), accelerator="cpu", quiet=True, tensorboard=False)
    results = tmp_path / "results"
    files = run(TOY, [0, 1], ("recall", "feed-forward"), results, options, SMALL)
    assert len(files) == 4
    recall, forward = read_json(files[0]), read_json(files[2])
    assert recall["exams"]["8 bits"]["steps"] == [10, 20, 30, 40]
    assert recall["exams"]["8 bits"]["samples"] == 20
    assert recall["finished"]["updates"] == 2
    assert forward["exams"]["8 bits"]["samples"] == 7
    assert forward["exams"]["8 bits"]["final_step"] == 30  # it has no more blocks
    assert "mixed" not in forward["exams"]
    before = {path: path.read_bytes() for path in files}
    side_by_side = run(TOY, [0, 1], ("recall",), tmp_path / "others", replace(options, folder=str(tmp_path / "again")),
                       SMALL, workers=2)  # fmt: skip
    for one, other in zip(files[:2], side_by_side, strict=True):
        assert read_json(one)["exams"]["8 bits"]["accuracy"] == read_json(other)["exams"]["8 bits"]["accuracy"]
    run(TOY, [0, 1], ("recall", "feed-forward"), results, options, SMALL)
    assert before == {path: path.read_bytes() for path in files}  # nothing is measured twice
    text = report(TOY, results).read_text()
    assert "| recall | 50 ± 1.5 (10) |" in text
    assert "| never run | 0 | not run |" in text
    assert (results / "toy-8-bits.png").stat().st_size > 5_000
    assert text.count("| prefix_sums-dt_recall-alpha1") == 2  # how it was made, a line a run
    assert "Data" not in text
    for number, (path, found) in enumerate(before.items()):  # as if each row had had its own
        card = json.loads(found)
        card["card"]["data"] = {"corpus": "toy", "version": number // 2, "test": {"bytes": 1200, "crc32": "00ff"}}
        path.write_text(json.dumps(card))
    text = report(TOY, results).read_text()
    one = "prefix_sums-dt_recall-alpha1"
    assert f"- toy (0), test 1,200 bytes (00ff): {one} (seeds 0-1)\n- toy (1)" in text


def test_a_study_has_settings_of_its_own(tmp_path: Path) -> None:
    """They come before those of the command line, and the table marks runs that differ from them, not from recipes."""
    options = TrainingOptions(folder=str(tmp_path / "runs"), accelerator="cpu", quiet=True, tensorboard=False)
    small = replace(TOY, settings=tuple(SMALL))
    (file,) = run(small, [0], ("recall",), tmp_path / "results", options)
    assert read_json(file)["card"]["recipe"]["epochs"] == 1
    text = report(small, tmp_path / "results").read_text()
    assert f"All recipes with {', '.join(SMALL)}." in text
    assert "Settings that differ" not in text
    (file,) = run(small, [0], ("recall",), tmp_path / "results", options, ["epochs=2"])
    assert read_json(file)["card"]["recipe"]["epochs"] == 2
    assert "- prefix_sums-dt_recall-alpha1 (seed 0): epochs=2\n" in report(small, tmp_path / "results").read_text()


def test_runs_that_differ_in_the_same_settings_are_listed_together(tmp_path: Path) -> None:
    results, rows = tmp_path / "results", TOY.rows[:2]
    (results / TOY.name).mkdir(parents=True)

    def store(row: Row, seed: int, **changes: Any) -> None:
        recipe = replace(recipes[row.recipe], **changes)
        card = {"recipe": recipe.to_json(), "updates": 1, "minutes": 1, "hardware": "none", "parameters": 1}
        found = {"row": row.label, "seed": seed, "card": card, "exams": {}}
        (results / TOY.name / f"{recipe.name}-seed{seed}.json").write_text(json.dumps(found))

    for seed in (0, 1, 2, 5):
        store(rows[0], seed, epochs=7, batch=20)
    store(rows[1], 0, epochs=7, batch=30)
    store(rows[0], 3, epochs=7)
    store(rows[1], 4, epochs=9)  # nothing in common with the one before
    one, other = (row.recipe for row in rows)
    lines = report(TOY, results).read_text().split("today:\n\n")[1].split("\n\n")[0].splitlines()
    assert lines == [
        "- epochs=7 in all of these, and:",
        f"  - {one} (seeds 0-2, 5): batch=20",
        f"  - {other} (seed 0): batch=30",
        f"- {one} (seed 3): epochs=7",
        f"- {other} (seed 4): epochs=9",
    ]


@pytest.mark.parametrize("how", [{}, {"workers": 2}, {"together": 3}])
def test_settings_reach_the_recipes_that_rows_go_on_from(how: dict[str, int], tmp_path: Path) -> None:
    """Other networks would not fit, and other trainings of the first would not be those of the table. Each waits for
    the one before, whatever order the rows have and however many could be trained at a time."""
    options = TrainingOptions(folder=str(tmp_path / "runs"), accelerator="cpu", quiet=True, tensorboard=False)
    rows = tuple(row for row in studies["listops"].rows if re.search("-(short|more|long)$", row.recipe))
    study = replace(TOY, rows=rows[::-1], exams=(Exam("depth 1", 1, 10, 2),))
    small = ["model.width=8", "model.hidden=8", "model.heads=2", "train_samples=10", "batch=10", "valid_samples=10"]
    # With one rate and schedule all would fit together, if each did not need the one before.
    alike = ["learning_rate=0.001", "warmup_updates=0", "average=none", "alpha=0", "first_n=0", "horizon=none"]
    files = run(study, [0], (), tmp_path / "results", options, [*small, *alike, "epochs=1", "patient_steps=24"], **how)
    cards = [read_json(file)["card"]["recipe"] for file in files]
    assert [card["name"] for card in cards] == [f"listops-router-{kind}" for kind in ("long", "more", "short")]
    assert all((card["model_options"]["width"], card["epochs"]) == (8, 1) for card in cards)
    text = report(study, tmp_path / "results").read_text()
    assert "weights=listops-router-short model.width=8 model.hidden=8" in text
    with pytest.raises(UserError, match="goes on where listops-router-more epochs=2 ended, and there is no such run"):
        run(study, [0], [rows[-1].label], tmp_path / "results", options, ["epochs=2"])


def test_who_goes_on_from_a_run_is_told_how_to_make_it(tmp_path: Path) -> None:
    options = TrainingOptions(folder=str(tmp_path / "my runs"), accelerator="cpu", quiet=True)
    with pytest.raises(UserError, match=r"longthink train ctl-router --seed 3 --folder '.*my runs'$"):
        train(recipes["ctl-router-shut"], 3, options)
    with pytest.raises(UserError, match=r"stand behind its name: --set 'weights=ctl-router model\.width=32'\)$"):
        train(override(recipes["ctl-router-shut"], ["model.width=16"]), 3, options)


def test_rows_that_are_alike_are_trained_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both orders of the router with two seeds each in stacks of three and one; others by themselves."""
    options = TrainingOptions(folder=str(tmp_path / "runs"), accelerator="cpu", quiet=True, tensorboard=False)
    rows = (Row("router", "ctl-router"), Row("lstm", "ctl-lstm"), Row("backward", "ctl-backward-router"))
    exams = (Exam("3 functions", 3, 20, 3, chunk=20),)
    study = replace(TOY, rows=rows, exams=exams)
    small = ["model.width=4", "epochs=1", "train_samples=20", "batch=10", "valid_samples=10", "shares=none"]
    stacks: list[list[str]] = []

    def spy(jobs: list[Job], how: TrainingOptions) -> list[Path]:
        stacks.append([f"{recipe.name} {seed}" for recipe, seed in jobs])
        return train_together(jobs, how)

    monkeypatch.setattr(base, "train_together", spy)
    files = run(study, [0, 1], (), tmp_path / "results", options, small, together=3)
    assert stacks == [
        ["ctl-router 0", "ctl-router 1", "ctl-backward-router 0"],
        ["ctl-lstm 0"],
        ["ctl-lstm 1"],
        ["ctl-backward-router 1"],
    ]
    found = [read_json(file) for file in files]
    assert [(one["row"], one["seed"]) for one in found] == [(row.label, seed) for row in rows for seed in (0, 1)]
    assert all(one["exams"]["3 functions"]["samples"] == 20 for one in found)
    assert report(study, tmp_path / "results").read_text().count(" for 3 together | ") == 3
    with pytest.raises(UserError, match="1 or more at a time"):
        run(study, [0], (), tmp_path, options, together=0)
    with pytest.raises(UserError, match="workers or together"):
        run(study, [0], (), tmp_path, options, workers=2, together=2)


@pytest.mark.parametrize("how", [{"together": 4}, {"workers": 2}])
def test_several_studies_at_once(how: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of both is trained once, and has the exams of both."""
    options = TrainingOptions(folder=str(tmp_path / "runs"), accelerator="cpu", quiet=True, tensorboard=False)
    keeper = replace(TOY, rows=(Row("router", "ctl-router"),), exams=(Exam("3 functions", 3, 20, 3, chunk=20),))
    rows = (Row("again", "ctl-router", kept_by="toy"), Row("backward", "ctl-backward-router"))
    other = replace(keeper, name="other", rows=rows, exams=(Exam("2 functions", 2, 10, 3, chunk=10),))
    small = ["model.width=4", "epochs=1", "train_samples=20", "batch=10", "valid_samples=10", "shares=none"]
    stacks: list[list[str]] = []

    def spy(jobs: list[Job], options: TrainingOptions) -> list[Path]:
        stacks.append([recipe.name for recipe, _ in jobs])
        return train_together(jobs, options)

    monkeypatch.setattr(base, "train_together", spy)
    files = run([keeper, other], [0], (), tmp_path / "results", options, small, **how)
    assert stacks == ([["ctl-router", "ctl-backward-router"]] if "together" in how else [])
    assert [f"{file.parent.name}/{file.stem}" for file in files] == [
        "toy/ctl-router-seed0",
        "toy/ctl-router-seed0",
        "other/ctl-backward-router-seed0",
    ]
    assert read_json(files[0])["exams"].keys() == {"3 functions", "2 functions"}
    assert read_json(files[2])["exams"].keys() == {"2 functions"}


def test_a_row_of_two_studies_is_trained_once_even_when_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = TrainingOptions(str(tmp_path / "runs"), "cpu", quiet=True, tensorboard=False, seconds=0.0)
    keeper = replace(TOY, rows=TOY.rows[:1], exams=TOY.exams[:1])
    other = replace(keeper, name="other", rows=(replace(TOY.rows[0], kept_by="toy"),), exams=TOY.exams[1:])
    trainings: list[int] = []

    def spy(recipe: Recipe, seed: int, how: TrainingOptions) -> Path:
        trainings.append(seed)
        return train(recipe, seed, how)

    monkeypatch.setattr(base, "train", spy)
    files = run([keeper, other, keeper], [0, 0], (), tmp_path, options, [*SMALL, "train_samples=2000"])
    assert trainings == [0]
    assert len(files) == 2
    assert read_json(files[0])["exams"].keys() == {"8 bits", "mixed"}
    assert not list(tmp_path.rglob("*.replaced"))


def test_rows_that_differ_in_two_options_are_a_grid(tmp_path: Path) -> None:
    options = TrainingOptions(folder=str(tmp_path / "runs"), accelerator="cpu", quiet=True, tensorboard=False)
    rows = tuple(replace(row, place=(4, i)) for i, row in enumerate(TOY.rows))
    exams = (replace(TOY.exams[0], steps=30),)
    grid = replace(TOY, rows=rows, exams=exams, grid=("functions", "symbols"))
    files = run(grid, [0, 1], ("recall",), tmp_path, options, SMALL)
    steps = recipes[rows[0].recipe].steps
    found = [read_json(file)["exams"]["8 bits"] for file in files]
    values = [100 * one["accuracy"][one["steps"].index(steps)] for one in found]
    text = report(grid, tmp_path).read_text()
    assert "functions down, symbols across | 0 | 1 | 2 |" in text
    assert re.search(rf"^\| 4 \| {sum(values) / 2:.2f} ± [0-9.]+ \({steps}\) \| not run \| not run \|$", text, re.M)
    assert (tmp_path / "toy.png").stat().st_size > 5_000


def test_unknown_rows_and_empty_results_get_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no row 'recal' in toy; the rows are: 'feed-forward', 'never run', "):
        run(TOY, [0], ("recal",), tmp_path)
    other = replace(TOY, name="other", rows=(Row("more", "prefix_sums-dt_recall-alpha1"),))
    with pytest.raises(UserError, match="'recal' in toy and other; the rows are: 'feed-forward', 'more', "):
        run([TOY, other], [0], ("recal",), tmp_path)
    with pytest.raises(UserError, match="run it first, or name its --results"):
        report(TOY, tmp_path)


def test_a_row_that_another_study_keeps_is_run_once(tmp_path: Path) -> None:
    options = TrainingOptions(folder=str(tmp_path / "runs"), accelerator="cpu", quiet=True, tensorboard=False)
    other = replace(TOY, name="other", rows=(replace(TOY.rows[0], kept_by="toy", label="the same"),))
    (file,) = run(other, [0], (), tmp_path / "results", options, SMALL)
    assert file.parent == tmp_path / "results" / "toy"
    written = file.stat().st_mtime_ns
    assert run(TOY, [0], ("recall",), tmp_path / "results", options, SMALL) == [file]
    assert file.stat().st_mtime_ns == written
    assert "| the same | 50 ± 1.5 (10) |" in report(other, tmp_path / "results").read_text()
    assert "| recall | 50 ± 1.5 (10) |" in report(TOY, tmp_path / "results").read_text()


def test_leaking_gates_are_shut_for_an_exam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the threshold that the network's own validation problems ask for."""
    recipe = replace(
        recipes["ctl-router"], model_options={"width": 16, "hidden": 16, "attention": "geometric", "gate": True}
    )
    ctl, model = rebuild(recipe)
    loaded = lt.Loaded(model.eval(), ctl, {"recipe": recipe.to_json()})
    asked: list[Any] = []

    def chosen(loaded: lt.Loaded, problems: lt.Batch, **options: Any) -> Any:
        asked.append(problems)
        shares = torch.ones(1)
        right = [torch.tensor([[True] * 10]), torch.tensor([[True] * 10]), torch.tensor([[True] * 9 + [False]])]
        curves = tuple(Curve(5, one, one.float(), one.float()) for one in right)
        return Gates((0.0, 0.3, 0.6), curves, 1, shares)

    monkeypatch.setattr(router, "shut", chosen)
    exam = router.Shut("3 functions, gates shut", 3, 20, 4, chunk=20)
    found = exam.measure(loaded, half=False)
    assert found["gate_threshold"] == 0.0  # of two that lose nothing the smaller
    assert {len(row[row != 0]) for row in asked[0].inputs} == {6}  # the deepest that it was trained on
    monkeypatch.setattr(router, "shut", lambda *args, **options: replace(chosen(*args), thresholds=(0.9, 0.95, 0.6)))
    shut = exam.measure(loaded, half=False)
    assert (shut["gate_threshold"], shut["change"]) == (0.9, [0.0] * 4)
    assert max(found["change"]) > 0
    assert exam.cells([found, shut], 2)[-1] == "0, 0.9"


def test_texts_are_measured_as_their_exams_say(tmp_path: Path) -> None:
    """Split, blocks, memory and the farthest distance all count."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {i * i}\n" for i in range(4_000)))
    here = task("text", corpus=str(text), folder=str(tmp_path))
    torch.manual_seed(0)
    sizes = {"width": 16, "hidden": 32, "heads": 2, "distinct_steps": 1, "memory": 8}
    model = build("language", **here.shape, **sizes).eval()
    for part in model.parameters():
        part.data.normal_(std=0.5)  # so that every place counts

    def measured(exam: Bits) -> float:
        found = exam.measure(lt.Loaded(model, here, {}), half=False)
        assert found["samples"] == found["tokens"] == exam.samples * 8
        return exam.value(found)

    def whole(split: Split, blocks: int, **options: int) -> float:
        return measure(model, here.stream(split, 4, 8), 1, blocks=blocks, **options).bits_per_byte

    exam = Bits("test", 8, 32, 1, streams=4)
    assert measured(exam) == pytest.approx(whole("test", 8))
    assert measured(replace(exam, samples=16)) == pytest.approx(whole("test", 4))
    assert measured(replace(exam, split="valid")) == pytest.approx(whole("valid", 8))
    assert measured(replace(exam, memory=3)) == pytest.approx(whole("test", 8, memory=3))
    assert measured(replace(exam, farthest=2)) == pytest.approx(whole("test", 8, farthest=2))
    values = {measured(one) for one in (exam, replace(exam, memory=3), replace(exam, farthest=2))}
    assert len(values) == 3
