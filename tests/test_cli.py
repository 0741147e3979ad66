"""The command line: what it prints where, its exit codes, and one sentence for every mistake."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import pytest
import torch
from rich.console import Console

import longthink as lt
from longthink import solving, terminal
from longthink.cli import main
from longthink.loading import rebuild, shipped
from longthink.recipes import recipes
from tests.commands import json_of

COMMAND = [sys.executable, "-m", "longthink"]
FIELDS = {"task", "problem", "answer", "truth", "solved", "steps", "seconds", "weights"}
TOY = [
    *("model.width=8", "model.head=[8,4]", "difficulty=8", "steps=4", "first_n=0", "horizon=8"),
    *("train_samples=64", "batch=32", "epochs=2", "valid_samples=16", "validate_every=1"),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small convolutions on the threads of a busy machine spend their time waiting for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_solves_a_made_prefix_sum(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "solve", "prefix_sums", "--size", "16", "--seed", "3")
    assert set(found) >= FIELDS
    assert found["solved"] is True
    assert found["at_rest"] is True
    assert found["answer"] == found["truth"]
    assert (found["task"], found["weights"], found["size"]) == ("prefix_sums", "prefix_sums", 16)
    assert 1 < found["steps"] < found["budget"] == 82
    batch = lt.task("prefix_sums").parse(found["problem"])
    assert torch.equal(batch.inputs, lt.task("prefix_sums").sample(1, 16, 3).inputs)


def test_solves_a_made_maze_and_draws_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "new" / "maze.png"
    found = json_of(capsys, "solve", "mazes", "--size", "9", "--out", str(out))
    assert found["solved"] is True
    assert "*" in found["answer"]
    assert "*" not in found["problem"]
    assert matplotlib.image.imread(out).shape[1] > 600
    assert [path.name for path in out.parent.iterdir()] == ["maze.png"]


def test_other_styles_are_reported_as_they_come_out(capsys: pytest.CaptureFixture[str]) -> None:
    # The shipped weights saw depth-first mazes alone and fail on some of the others: solved must say which.
    for seed in ("0", "1"):
        found = json_of(capsys, "solve", "mazes", "--size", "9", "--style", "kruskal", "--seed", seed)
        batch = lt.task("mazes", style="kruskal").sample(1, 9, int(seed))
        assert found["problem"] == lt.task("mazes").text(batch)
        assert found["solved"] is (found["answer"] == found["truth"])  # a tree has one path


def test_solves_typed_problems(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert json_of(capsys, "solve", "prefix_sums", "1011")["answer"] == "1101"
    maze = "S..\n##.\nG..\n"
    path = tmp_path / "maze.txt"
    path.write_text(maze)
    by_file = json_of(capsys, "solve", "mazes", str(path))
    assert by_file["answer"].splitlines()[1:-1] == ["#S**#", "###*#", "#G**#"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(maze))
    assert json_of(capsys, "solve", "mazes", "-")["answer"] == by_file["answer"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(by_file["problem"]))
    assert json_of(capsys, "solve", "mazes", "-")["problem"] == by_file["problem"]


def test_routers_are_asked_for_more_than_they_were_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    for name, depth in (("ctl", 10), ("arithmetic", 8), ("listops", 8)):
        found = json_of(capsys, "solve", name, "--seed", "1")
        assert (found["size"], found["solved"]) == (depth, True)
    assert main(["solve", "arithmetic", "((4*7)+2)"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^answer +0$", shown, re.MULTILINE)
    assert re.search(r"^truth +0$", shown, re.MULTILINE)


def test_models_that_answer_while_they_read(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "solve", "repeat_copy", "10110010,00000001")
    assert (found["answer"], found["solved"], found["steps"]) == ("10110010,00000001,end", True, 0)
    assert main(["solve", "repeat_copy", "10110010,00000001", "--steps", "5"]) == 0
    assert "other --steps" not in capsys.readouterr().out
    curve = json_of(capsys, "eval", "repeat_copy", "--difficulty", "2", "--samples", "5")["curves"][0]
    assert (curve["peak_accuracy"], curve["peak_step"]) == (1.0, 0)


def test_files_and_problems_longer_than_in_training(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "some.tsv"
    file.write_text("6\t( ( [SM 9 3 4 ] )\n3\t[MAX 1 3 ]\n9\t[MAX 1 [MIN 9 9 ] ]\n1\t[FIRST 1 9 ]\n")
    found = json_of(capsys, "eval", "listops", "--file", str(file), "--samples", "3", "--steps", "22")
    assert found["file"] == "some.tsv"
    assert found["curves"][0]["samples"] == 3
    assert found["curves"][0]["accuracy"][-1] == 1
    assert found["left_out"] == {"other_operators": 0, "too_long": 0}  # of those up to the third that fits
    short = json_of(capsys, "eval", "listops", "--file", str(file), "--set", "task.longest=4", "--steps", "22")
    assert short["curves"][0]["samples"] == 1
    assert short["left_out"] == {"other_operators": 1, "too_long": 2}
    typed = ["eval", "listops", "--file", str(file), "--steps", "2"]
    assert main([*typed, "--set", "task.longest=4"]) == 0
    assert "\nleft out  3 of 4 problems: 1 with operators that the task lacks, 2 too long\n" in capsys.readouterr().out
    assert main([*typed, "--samples", "3"]) == 0
    assert "left out" not in capsys.readouterr().out
    file.write_text("3\t[MAX 1 3]\n4\t(([MIN 4)7)]\n")  # as people type them
    assert json_of(capsys, "eval", "listops", "--file", str(file), "--steps", "20")["curves"][0]["samples"] == 2
    longer = json_of(capsys, "solve", "listops", "--size", "20", "--set", "task.longest=none", "--steps", "2")
    assert longer["size"] == 20
    assert longer["problem"].count("[") >= 20


def test_problems_unlike_those_of_training_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "ctl", "b a d 101", "--set", "task.backward=true", "--steps", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "trained  with task.backward=False"
    command = ["eval", "ctl", "--samples", "2", "--steps", "2", "--difficulty", "2"]
    assert main([*command, "--set", "task.table_seed=3", "--set", "task.backward=false"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "trained  with task.table_seed=0"
    assert main([*command, "--set", "task.table_seed=0"]) == 0
    assert "trained" not in capsys.readouterr().out


def test_how_far_a_test_is_comes_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "ctl", "--samples", "3", "--steps", "7", "--chunk", "2", "--difficulty", "2,4"]) == 0
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("steps of all samples  2/42  ")
    assert last.startswith("steps of all samples  42/42  ")


def test_every_shipped_network_can_be_tested_as_it_was_trained() -> None:
    for name in shipped():
        loaded = lt.load(name)
        if not hasattr(loaded.task, "stream") and name not in ("babi", "chess"):  # these need data
            for difficulty in loaded.recipe.valid_difficulty or loaded.recipe.difficulty:
                assert len(loaded.task.sample(1, difficulty, 0, "test")) == 1


def test_routers_that_are_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    for task, problem, answer in (
        ("listops", "[SM [MAX 2 9] 3 [MED 1 4 8]]", "6"),
        ("arithmetic", "((4*7)+2)", "0"),
        ("ctl", "101 d a b e", None),
    ):
        found = json_of(capsys, "solve", task, problem)
        assert found["solved"] is True
        assert found["answer"] == (answer or found["truth"])


def test_text_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "prefix_sums", "1011", "--steps", "9", "--all-steps"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["problem  1011", "answer   1101", "truth    the same"]
    assert lines[3] == "solved   yes"
    assert lines[4].startswith("steps    9 (not at rest: other --steps")


def test_all_steps_goes_on_at_rest(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "solve", "prefix_sums", "1011", "--steps", "60", "--all-steps")
    assert (found["steps"], found["at_rest"]) == (60, True)
    assert json_of(capsys, "solve", "prefix_sums", "1011", "--steps", str(10**9))["steps"] < 60


def test_a_typed_chess_position_has_no_truth() -> None:
    pytest.importorskip("chess")
    problem, fen = lt.task("chess"), "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"
    batch = problem.parse(fen)
    logits = torch.zeros(1, 2, 8, 8)
    spent = {"steps": 1, "budget": 1, "seconds": 0.0, "change": float("nan"), "trained_steps": 1}
    solution = solving.Solution(problem, batch, logits, "w", **spent)
    assert solution.solved is None
    assert solution.truth is None
    assert solution.to_json()["change"] is None
    assert solution.problem == fen
    black = fen.replace(" w ", " b ")
    assert problem.text(problem.parse(black)) == black


BAD = [
    "solve",
    "solve nothing",
    "solve maze",
    "solve mazes --bogus",
    "solve mazes --size x",
    "solve mazes --size 8",
    "solve mazes --size 0",
    "solve mazes --size -3",
    "solve mazes --size 4001",
    "solve mazes --size 1000001",
    "solve mazes --size 9 --steps 0",
    "solve mazes --size 9 --steps -5",
    "solve mazes --size 9 --seed -1",
    "solve mazes --style nope",
    "solve mazes nofile.txt",
    "solve mazes .",
    "solve mazes --weights nope",
    "solve mazes --weights ./nope",
    "solve mazes --weights .",
    "solve mazes --weights prefix_sums",
    "solve mazes --size 9 --device quantum",
    "solve mazes --size 9 --out FILE/x.png",
    "solve mazes --size 9 --out x.jpg",
    "solve mazes --size 9 --out .",
    "solve prefix_sums --size 2",
    "solve prefix_sums --size 16777216",
    "solve prefix_sums --size 99999999999999999999999",
    "solve prefix_sums --size 16 --steps 9999999999999999",
    "solve prefix_sums --style kruskal",
    "solve prefix_sums 1012",
    "solve prefix_sums 101 --size 4",
    "solve prefix_sums 101 --seed 0",
    "solve chess",
    "nothing",
    "train mazes-lon",
    "train mazes-long --set stepss=3",
    "train mazes-long --set steps",
    "train mazes-long --seed -1",
    "train mazes-long --devices 0",
    "train mazes-long --devices 3",
    "train mazes-long --precision nope",
    "train mazes-long --accelerator nope",
    "train mazes-long --seconds 0",
    "study mazes --seconds -1",
    "train mazes-long --folder FILE",
    "eval nope",
    "eval mazes --difficulty x",
    "eval mazes --difficulty 8",
    "eval mazes --difficulty 9,4001",
    "eval mazes --steps 0",
    "eval mazes --steps 10 --read-every 3",
    "eval mazes --read-every 0",
    "eval mazes --samples 0",
    "eval mazes --samples 1000000000000",
    "eval mazes --steps 1000000000000",
    "eval mazes --chunk 0",
    "eval mazes --seed -1",
    "eval mazes --precision 16",
    "eval mazes --memory 4",
    "eval mazes --file x.tsv",
    "eval listops --file x.tsv",
    "eval listops --file x.tsv --difficulty 3",
    "eval listops --set model.width=8",
    "eval listops --set task.nonsense=8",
    "eval sudoku --set task.longest=8",
    "solve listops --size 20",
    "solve ctl --size 1000000",
    "solve text --set task.pieces=8",
    "eval text --memory -1",
    "eval text --memory x",
    "eval text --farthest -1",
    "eval mazes --farthest 3",
    "eval mazes --device nope",
    "eval mazes --out x.txt",
    "eval mazes --out FILE/x.json",
    "eval mazes --plot x.gif",
    "list",
    "list task",
]


@pytest.mark.parametrize("line", BAD)
def test_mistakes_get_one_sentence(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("")
    assert main(line.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert shown.err.rstrip().endswith((".", "?"))
    assert "Traceback" not in shown.err
    assert main([*line.split(), "--json"]) == 2  # also where a command has no such option: the document says so
    assert list(json.loads(capsys.readouterr().out)) == ["error"]


def test_a_task_without_weights_says_to_train_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solving, "shipped", dict)
    assert main(["solve", "sudoku"]) == 2
    assert "train a recipe" in capsys.readouterr().err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "nothing", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_our_own_mistakes_are_one_line_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "pose", lambda *_, **__: 1 / 0)
    assert main(["solve", "mazes"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_train_then_eval_then_solve(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = [part for setting in TOY for part in ("--set", setting)]
    train = ["train", "prefix_sums-long", "--folder", str(tmp_path), "--seed", "1", "--accelerator", "cpu", *settings]
    assert main(train) == 0
    run, validation, advice = capsys.readouterr().out.splitlines()
    folder = run.split()[1]
    assert Path(folder, "best.safetensors").exists()
    assert advice.split() == ["next", "longthink", "eval", folder]
    assert "after 4 steps, " in validation
    out, plot = tmp_path / "new" / "e.json", tmp_path / "e.png"
    places = ["--out", str(out), "--plot", str(plot)]
    found = json_of(capsys, "eval", folder, "--difficulty", "8,12", "--steps", "6", "--samples", "5", *places)
    assert [curve["difficulty"] for curve in found["curves"]] == [8, 12]
    assert [len(curve["accuracy"]) for curve in found["curves"]] == [6, 6]
    assert json.loads(out.read_text()) == found
    assert matplotlib.image.imread(plot).shape[1] > 600
    assert set(json_of(capsys, "solve", "prefix_sums", "1011", "--weights", folder)) >= FIELDS
    assert main(["solve", "mazes", "--weights", folder]) == 2


def test_eval_says_that_a_run_has_not_ended(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = [part for setting in TOY for part in ("--set", setting)]
    assert main(["train", "prefix_sums-long", *settings, "--folder", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    request = ["eval", str(run), "--samples", "2", "--steps", "3"]
    assert main(request) == 0
    assert "unfinished" not in capsys.readouterr().out
    (run / "card.json").unlink()
    assert main(request) == 0
    assert re.search(r"unfinished  weights of update [24] of 4; its training can go on", capsys.readouterr().out)


def test_eval_in_pieces_is_eval_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    request = ["eval", "prefix_sums", "--difficulty", "8", "--steps", "12", "--samples", "5", "--read-every", "3"]
    pieces = json_of(capsys, *request, "--chunk", "2")["curves"][0]
    loaded = lt.load("prefix_sums")
    whole = lt.evaluate(loaded.model, loaded.task, [8], 12, samples=5, read_every=3)[0].to_json()
    assert pieces["accuracy"] == whole["accuracy"]
    assert pieces["steps"] == [3, 6, 9, 12]
    assert main([*request[:6], "--samples", "2", "--precision", "bf16"]) == 0
    assert "most confident" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["tasks", "models", "recipes", "weights"])
def test_lists(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json_of(capsys, "list", kind)
    assert [row["name"] for row in rows] == list(lt.list(kind))
    some = json_of(capsys, "list", kind, "e")
    assert [row["name"] for row in some] == [name for name in lt.list(kind) if "e" in name]
    assert main(["list", kind, "no such part"]) == 2
    assert "in their name" in capsys.readouterr().err
    assert main(["list", kind]) == 0
    assert rows[0]["name"] in capsys.readouterr().out


def test_settings_of_a_recipe_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "recipes", "text-small-sigma_moe"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["model.feedforward_options.experts", "8"] in lines
    assert ["learning_rate", "0.001"] in lines
    assert ["horizon", "none"] in lines
    assert main(["list", "recipes", "text-small-sigma_mo"]) == 0
    assert "--set" not in capsys.readouterr().out


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == lt.__version__
    for args in ([], ["--help"], ["solve", "--help"], ["train", "-h"], ["eval", "-h"], ["list", "-h"]):
        assert main(args) == 0
        assert "Usage: longthink" in capsys.readouterr().out


def test_help_needs_no_torch() -> None:
    program = """
import sys
from longthink.cli import main
assert main(["solve", "--help"]) == 0
assert not {"torch", "numba", "matplotlib"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_a_closed_pipe_and_an_interrupt_end_quietly() -> None:
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    long = [*COMMAND, "solve", "prefix_sums", "--size", "20000"]
    thinking = subprocess.Popen(long, stderr=subprocess.PIPE, text=True, env=alone)
    assert thinking.stderr is not None
    assert thinking.stderr.readline().startswith("step ")
    reading = subprocess.Popen(
        [*COMMAND, "list", "recipes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=alone
    )
    assert reading.stdout is not None
    reading.stdout.close()
    thinking.send_signal(signal.SIGINT)
    assert thinking.communicate(timeout=60)[1].splitlines()[-1] == "Stopped."
    assert thinking.returncode == 130
    assert reading.stderr is not None
    assert reading.stderr.read() == ""
    assert reading.wait() != 0


def test_a_large_problem_is_told_before_its_first_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ["solve", "prefix_sums", "--size", "1001", "--steps", "1"]
    assert main(request) == 0
    assert "places" not in capsys.readouterr().err
    monkeypatch.setattr(terminal, "_MANY", 1000)
    assert main(request) == 0
    assert capsys.readouterr().err.startswith("1,001 places, at most 1 steps\n")


def test_a_terminal_sees_the_network_think(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from longthink.terminal import Watching, sketch

    monkeypatch.setenv("TERM", "xterm-256color")
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=80, height=24)
    for name, size, lines in (("mazes", 9, 6), ("prefix_sums", 100, 4), ("sudoku", 30, 11)):
        problem = lt.task(name)
        drawing = sketch(problem, problem.sample(1, size, 0), None, console)
        assert drawing is not None
        assert len(drawing.split("\n")) == lines
    mazes = lt.task("mazes")
    assert sketch(mazes, mazes.sample(1, 99, 0), None, console) is None  # too wide

    loaded = lt.load("mazes")
    batch = mazes.sample(1, 9, 0)
    with Watching(mazes, batch, 9, console=console) as watching:
        watching.interval = 0
        solving.solve(loaded, batch, 9, on_step=[watching.on_step])
    assert "step 9 of at most 9" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "▀" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("recipe", ["ctl-router", "ctl-lstm", "ctl-dnc", "repeat_copy-dnc"])
def test_solve_with_a_model_of_tokens(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"width": 8, "hidden": 8} if "router" in recipe else {"width": 8} if "lstm" in recipe else {"size": 8}
    chosen = replace(recipes[recipe], model_options={**recipes[recipe].model_options, **small})
    task, model = rebuild(chosen)
    weights = lt.save(lt.Loaded(model, task, {"recipe": chosen.to_json()}), tmp_path / "run")
    for more in ([], ["--size", "9"]):
        assert main(["solve", chosen.task, "--weights", str(weights), "--json", *more]) == 0
        found = json.loads(capsys.readouterr().out)
        deeper = max(0, found["size"] - max(chosen.difficulty))
        assert found["budget"] == (chosen.steps + math.ceil(1.5 * deeper) if chosen.steps else 0)
        assert found["solved"] in (True, False)
        assert found["answer"]
        assert found["truth"]
    assert main(["solve", chosen.task, "--weights", str(weights)]) == 0
    assert capsys.readouterr().out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("command", [["list", "recipes"], ["solve", "prefix_sums", "101", "--json"]])
def test_output_without_room_is_one_sentence(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *command], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["The output could not be written: no space is left where it goes."]


def test_a_task_without_shipped_weights(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longthink.solving.shipped", dict)
    assert main(["solve", "babi", "x"]) == 2
    assert capsys.readouterr().err.startswith("No weights for babi are shipped; train a recipe")


def test_tables_that_are_too_wide_for_a_terminal_keep_names_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(terminal, "Console", lambda **_: Console(file=screen, force_terminal=True, width=40))
    columns, long = ("name", "task", "note"), "a-name-that-somebody-wants-to-copy-and-paste"
    terminal.print_table(columns, [[long, "mazes", "words " * 20], ["short", "ctl", ""]])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()
    assert lines[0] == long
    assert lines[1].startswith("  task: mazes; note: words")
    assert "  task: ctl" in [line.rstrip() for line in lines]
    screen.truncate(0)
    terminal.print_table(columns, [["short", "ctl", "x"]])
    assert "│" not in screen.getvalue()
    assert re.search(r"name +task +note", re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()))
