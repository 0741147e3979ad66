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
from typing import Any, ClassVar

import pytest
import torch

import longthink as lt
from longthink.cli import main
from longthink.extensions import VARIABLE, import_extensions, name_extension
from longthink.models import build, models
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
        if name in ("addition", "mine", "broken"):
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
        for i in (0, 123, 299):
            again = task.parse(task.text(batch, i))
            assert torch.equal(again.inputs[0], batch.inputs[i])
            assert torch.equal(again.targets[0], batch.targets[i])
    found["test"].targets[5, 2] ^= 1
    assert task.check(found["test"]).tolist() == [i != 5 for i in range(300)]
    assert torch.equal(task.sample(9, 30, 1).inputs, task.sample(20, 30, 1).inputs[:9])
    assert task.show(task.parse("1011+110").targets[0], task.parse("1011+110")) == "10001"
    for wrong in ((1, 2, 0, "test"), (1, 0, 0, "test"), (-1, 6, 0, "test"), (1, 6, 0, "tset")):
        with pytest.raises(lt.UserError):
            task.sample(*wrong)
    assert all(len(task.sample(5, 3, 0, split)) == 5 for split in ("train", "valid", "test"))


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
    to = ["--folder", str(tmp_path)]
    shorter = {"train": [*SMALL, *to], "eval": ["--samples", "2"], "inspect": ["--samples", "2"]}
    shorter["study"] = [*SMALL, *to, "--results", str(tmp_path / "results")]
    shown: dict[str, str] = {}
    written = run = ""
    for line in block.splitlines():
        line = line.replace("examples/addition.py", str(EXAMPLE))
        words = shlex.split(line.replace(written, run) if run else line)
        command = next(word for word in words[3:] if word in ("train", "eval", "solve", "inspect", "study"))
        more = shorter.get(command, [])
        if command == "study":
            words = [word if word != "0,1,2" else "0" for word in words]
        assert main([*words[1:], *more]) == 0
        shown[command] = capsys.readouterr().out
        if command == "train":
            run = shown[command].split()[1]
            written = str(RunFolder(Path("runs"), lt.recipe("addition-cells"), 0).path)
            assert written in block
    assert [line.split()[0] for line in shown["eval"].splitlines()[-3:]] == ["12", "64", "256"]
    assert "110101+001011" in shown["solve"]
    assert sum(int(count) for count in re.findall(r"problems +(\d+) +(\d+) +(\d+) +(\d+)", shown["inspect"])[0]) == 2
    table = (tmp_path / "results" / "addition.md").read_text()
    assert "| gated cells | - |" in table
    assert "| Deep Thinking | - |" in table


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
        "add(Study('mine', 'Mine', 'nowhere', (Row('cells', 'addition-cells'),), (Exam('sums', 12, 5, 2),)))\n"
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


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("my.task.py", "Python cannot import my.task.py by its name"),
        ("my-task.py", "Python cannot import my-task.py by its name"),
        ("a:b.py", "has ':' in its path"),
        ("mine.txt", "There is no Python file or package"),
        (".", "There is no Python file or package"),
    ],
)
def test_files_that_have_the_wrong_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if name != ".":
        (tmp_path / name).write_text("")
    assert main(["--with", name if name == "." else f"./{name}", "list", "tasks"]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("place", ["mine", "mine/", "mine/__init__.py"])
def test_packages_by_their_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("from mine.parts import *\n")
    (tmp_path / "mine" / "parts.py").write_text(
        "from longthink.models import models\n@models.add('of_a_package')\n"
        "def of_a_package(dims, inputs, classes): return {}['x']\n"
    )
    (tmp_path / "typing.py").write_text("boom")  # what lies beside takes nobody's name
    monkeypatch.chdir(tmp_path)
    try:
        assert "of_a_package" in {row["name"] for row in json_of(capsys, "--with", place, "list", "models")}
        train = ["train", "addition-cells", "--with", str(EXAMPLE), "--set", "model=of_a_package"]
        assert main(["--with", place, *train]) == 2
        assert "Something went wrong in parts.py, line 3 (KeyError: 'x')" in capsys.readouterr().err
    finally:
        for name in ("mine.parts", "mine"):
            sys.modules.pop(name, None)


def test_a_broken_file_in_the_environment_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("import sys\nsys.exit('not today')\n")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "broken.py"))
    assert main(["--help"]) == 2
    assert "SystemExit: not today" in (said := capsys.readouterr().err)
    assert "LONGTHINK_WITH names it" in said


class Odd:
    """A task of somebody who leaves out what can be left out, and more."""

    name, unit = "odd", "bits"
    shape: ClassVar[dict[str, int]] = {"dims": 1, "inputs": 1, "classes": 2}

    def sample(self, n: int, difficulty: int, seed: int, split: str = "test") -> lt.Batch:
        inputs = torch.stack([torch.full((1, difficulty), float(i)) for i in range(n)])  # not of nothing
        return lt.Batch(inputs, inputs[:, 0].long() % 2, difficulty=difficulty)

    def predict(self, logits: torch.Tensor, batch: lt.Batch) -> torch.Tensor:
        return logits.argmax(1)

    def score(self, logits: torch.Tensor, batch: lt.Batch) -> torch.Tensor:
        return (logits.argmax(1) == batch.targets).all(1)


@pytest.mark.usefixtures("example")
def test_tasks_that_leave_things_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tasks.add("odd")(Odd)
    recipe = lt.override(
        lt.recipe("addition-cells"), ["task=odd", "train_samples=16", "batch=8", "valid_samples=4", "epochs=1"]
    )
    run = str(train(recipe, 0, options(tmp_path)))
    found = json_of(capsys, "eval", run, "--difficulty", "12,14", "--steps", "3", "--samples", "4")
    assert [curve["difficulty"] for curve in found["curves"]] == [12, 14]
    assert json_of(capsys, "inspect", "convergence", run, "--samples", "2", "--steps", "9")["task"] == "odd"
    for command in (["solve", "odd", "--weights"], ["inspect", "attention"]):
        assert main([*command, run]) == 2
        assert "The task odd has no method 'text'" in capsys.readouterr().err
    monkeypatch.setattr(Odd, "score", lambda self, logits, batch: logits.argmax(1) == batch.targets)
    assert main(["eval", run, "--samples", "4", "--steps", "2"]) == 2
    assert "must be one bool for each problem, [4], not bool [4, 12]" in capsys.readouterr().err
    monkeypatch.setattr(Odd, "score", lambda self, logits, batch: (logits.argmax(1) == batch.targets).float().mean(1))
    with pytest.raises(lt.UserError, match=r"not float32 \[4\]"):
        train(lt.override(recipe, ["epochs=2"]), 0, options(tmp_path))


@pytest.mark.usefixtures("example")
def test_parts_that_every_task_and_model_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks.add("odd")(Odd)
    monkeypatch.delattr(Odd, "unit")
    with pytest.raises(lt.UserError, match="The task 'odd' has no unit"):
        lt.task("odd")
    tasks.add("even")(Odd)
    monkeypatch.setattr(Odd, "unit", "bits", raising=False)
    with pytest.raises(lt.UserError, match="calls itself 'odd'"):
        lt.task("even")
    models.add("half")(type("Half", (torch.nn.Module,), {"look": None, "start": abs}))
    models.add("list")(lambda: type("All", (), dict.fromkeys(("look", "start", "step", "read"), abs))())
    with pytest.raises(lt.UserError, match="has no method look and no step and no read"):
        build("half")
    with pytest.raises(lt.UserError, match=r"is no torch\.nn\.Module"):
        build("list")


def test_what_is_registered_has_a_name_of_its_own(example: ModuleType) -> None:
    with pytest.raises(lt.UserError, match="A task is added by its name"):
        tasks.add(Odd)  # type: ignore[arg-type]
    with pytest.raises(lt.UserError, match="There is a task named 'mazes' already"):
        tasks.add("mazes")(Odd)
    models.add("gated_cells")(example.GatedCells)  # a notebook's cell is run again
    with pytest.raises(lt.UserError, match="There is a recipe named 'addition-cells' already"):
        lt.recipes.add(lt.override(lt.recipe("addition-cells"), ["epochs=3"]))


def test_modules_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = f"add(Recipe(**{ {**TOY.to_json(), 'name': 'mine'}!r}))"
    (tmp_path / "mine.py").write_text(
        f"from longthink.recipes import add\nfrom longthink.training.recipe import Recipe\n{recipe}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert "mine" in {row["name"] for row in json_of(capsys, "--with", "mine", "list", "recipes")}
    assert os.environ[VARIABLE] == "mine"  # for the processes of this one
