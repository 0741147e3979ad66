"""Tasks, models, recipes and studies that are not part of the package: the example, and files that are named."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import longthink as lt
from longthink.cli import main
from longthink.extensions import VARIABLE, import_extensions, name_extension
from longthink.models import models
from longthink.recipes import recipes
from longthink.studies import studies
from longthink.tasks import tasks
from longthink.training.checkpoint import RunFolder
from longthink.training.train import train
from tests.commands import json_of
from tests.training.toy import TOY, options

EXAMPLE = Path(__file__).parents[1] / "examples" / "addition.py"
WITH = ("--with", str(EXAMPLE))
SMALL = ["--set", "train_samples=128", "--set", "epochs=1", "--set", "valid_samples=20"]


@pytest.fixture(autouse=True)
def _leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    registries: tuple[Any, ...] = (tasks, models, recipes, studies)
    for registry in registries:
        monkeypatch.setattr(registry, "_items", {**registry._items})
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        if name in ("addition", "mine", "broken", "json5"):
            del sys.modules[name]


@pytest.fixture
def example() -> ModuleType:
    name_extension(str(EXAMPLE))
    import_extensions()
    return sys.modules["addition"]


@pytest.mark.usefixtures("example")
def test_sums_are_right_and_splits_share_nothing() -> None:
    task = lt.task("addition")
    found = {split: task.sample(300, 6, 3, split) for split in ("train", "valid", "test")}
    problems = {split: {task.text(batch, i) for i in range(300)} for split, batch in found.items()}
    assert not problems["train"] & problems["valid"]
    assert not (problems["train"] | problems["valid"]) & problems["test"]
    for batch in found.values():
        assert task.check(batch).all()
        i = int(torch.randint(300, ()))
        again = task.parse(task.text(batch, i))
        assert torch.equal(again.inputs[0], batch.inputs[i])
        assert torch.equal(again.targets[0], batch.targets[i])
    found["test"].targets[5, 2] ^= 1
    assert task.check(found["test"]).tolist() == [i != 5 for i in range(300)]
    assert torch.equal(task.sample(9, 30, 1).inputs, task.sample(20, 30, 1).inputs[:9])
    assert task.show(task.parse("1011+110").targets[0], task.parse("1011+110")) == "10001"


def test_it_is_trained_tested_and_asked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for recipe in ("addition-cells", "addition-dt"):
        assert main([*WITH, "train", recipe, *SMALL, "--folder", str(tmp_path)]) == 0
        run = capsys.readouterr().out.split()[1]
        found = json_of(capsys, "eval", run, "--difficulty", "12,20", "--steps", "4", "--samples", "5")
        assert [curve["difficulty"] for curve in found["curves"]] == [12, 20]
        solved = json_of(capsys, "solve", "addition", "1011+110", "--weights", run)
        assert (solved["problem"], solved["truth"], len(solved["answer"])) == ("1011+0110", "10001", 5)
    assert main(["solve", "addition", "--weights", run, "--out", str(tmp_path / "sum.png")]) == 2
    assert "no method 'draw'" in capsys.readouterr().err
    assert main(["solve", "addition", "1+2", "--weights", run]) == 2
    assert "two binary numbers" in capsys.readouterr().err


def test_commands_of_the_guide(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One after the other, with less to do."""
    root = EXAMPLE.parents[1]
    (block,) = re.findall(r"^```console\n(.*?)^```", (root / "docs" / "guide.md").read_text(), re.MULTILINE | re.DOTALL)
    shorter = {"train": [*SMALL, "--folder", str(tmp_path)], "eval": ["--samples", "2"], "inspect": ["--samples", "2"]}
    written = run = ""
    for line in block.splitlines():
        line = line.replace("examples/addition.py", str(EXAMPLE))
        words = shlex.split(line.replace(written, run) if run else line)
        more = next((options for command, options in shorter.items() if command in words), [])
        assert main([*words[1:], *more]) == 0
        shown = capsys.readouterr().out
        if "train" in words:
            run = shown.split()[1]
            written = str(RunFolder(Path("runs"), lt.recipe("addition-cells"), 0).path)
            assert written in block
    assert "fixed point" in shown


def test_weights_say_what_they_lack(example: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = train(lt.override(lt.recipe("addition-cells"), SMALL[1::2]), 0, options(tmp_path))
    monkeypatch.delitem(models._items, "gated_cells")
    with pytest.raises(lt.UserError, match=r"need the model 'gated_cells', .* --with FILE"):
        lt.load(run)
    monkeypatch.delitem(tasks._items, "addition")
    with pytest.raises(lt.UserError, match="need the task 'addition'"):
        lt.load(run)


def test_processes_that_a_command_starts_know_them_too(tmp_path: Path) -> None:
    """Devices that share a batch, and runs of a study side by side."""
    (tmp_path / "mine.py").write_text(
        "from addition import recipes\n"
        "from longthink.studies import Exam, Row, Study, add\n"
        "class Mine(Exam):\n"
        "    pass\n"
        "add(Study('mine', 'Mine', 'nowhere', (Row('cells', 'addition-cells'),), (Mine('sums', 12, 5, 2),)))\n"
    )
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        VARIABLE: os.pathsep.join([str(EXAMPLE), str(tmp_path / "mine.py")]),
    }

    def longthink(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "longthink", *words, *SMALL, "--folder", "runs"]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    two = longthink("train", "addition-cells", "--devices", "2", "--accelerator", "cpu")
    assert two.returncode == 0, two.stderr
    studied = longthink("study", "mine", "--workers", "2", "--seeds", "0,1")
    assert studied.returncode == 0, studied.stderr
    assert len(list((tmp_path / "results" / "mine").glob("*.json"))) == 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "There is no Python file"),
        ("boom", "could not be imported (NameError: name 'boom' is not defined); --debug shows where."),
        ("(", "could not be imported (SyntaxError"),
        ("import longthink as lt\nraise lt.UserError('Install it first.')", "Install it first."),
    ],
)
def test_files_that_cannot_be_imported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str | None, sentence: str
) -> None:
    file = tmp_path / "broken.py"
    if content is not None:
        file.write_text(content)
    assert main(["list", "tasks", f"--with={file}"]) == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert shown.out == ""


def test_names_that_are_taken_or_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("")
    assert main(["--with", str(tmp_path / "json.py"), "list", "tasks"]) == 2
    assert "has the name of another module, json;" in capsys.readouterr().err
    os.environ[VARIABLE] = ""
    assert main(["list", "tasks", "--with", "no_such_module"]) == 2
    assert "no_such_module could not be imported (ModuleNotFoundError" in capsys.readouterr().err
    os.environ[VARIABLE] = ""
    assert main(["list", "tasks", "--with"]) == 2
    assert "--with needs a Python file" in capsys.readouterr().err


def test_modules_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = f"add(Recipe(**{ {**TOY.to_json(), 'name': 'mine'}!r}))"
    (tmp_path / "mine.py").write_text(
        f"from longthink.recipes import add\nfrom longthink.training.recipe import Recipe\n{recipe}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert "mine" in {row["name"] for row in json_of(capsys, "--with", "mine", "list", "recipes")}
    assert "mine" in {row["name"] for row in json_of(capsys, "list", "recipes")}  # as do processes of this one
