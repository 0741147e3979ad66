"""``longthink inspect``: one JSON document, a file, a picture, a table, and one sentence for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
import torch
import typer

import longthink as lt
from longthink.errors import UserError
from longthink.hardware import usable_device
from longthink.inspect.commands import app
from longthink.loading import rebuild
from longthink.training.recipe import Recipe
from tests import commands

ALWAYS = {"weights", "task", "unit", "trained"}


def run(*args: str) -> None:
    typer.main.get_command(app).main(list(args), standalone_mode=False)


def json_of(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    return commands.json_of(capsys, "inspect", *args)


def folder(path: Path, model: str, **options: Any) -> str:
    recipe = Recipe(name="toy", task="ctlpp", difficulty=(2,), model=model, model_options=options, steps=3)
    task, built = rebuild(recipe)
    return str(lt.save(lt.Loaded(built, task, {"recipe": recipe.to_json()}), path / model))


def test_perturb(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, plot = tmp_path / "new" / "found.json", tmp_path / "found.png"
    args = ("perturb", "prefix_sums", "--difficulty", "16", "--samples", "2", "--steps", "40")
    found = json_of(capsys, *args, "--disturb", "noise@1", "--disturb", "flips@30", "--out", str(out))
    assert set(found) >= ALWAYS | {"recoveries", "difficulty", "samples", "seed"}
    assert [one["final_accuracy"] for one in found["recoveries"]] == [1.0, 1.0]
    assert json.loads(out.read_text()) == found
    run(*args, "--disturb", "clean", "--plot", str(plot))
    assert "100.0%" in capsys.readouterr().out
    assert matplotlib.image.imread(plot)[..., :3].std() > 0.02


def test_each_bit(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("perturb", "prefix_sums", "--difficulty", "8", "--samples", "1", "--steps", "40", "--each-bit")
    found = json_of(capsys, *args)
    assert len(found["mean_steps_to_solution"]) == 8


def test_convergence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = ("convergence", "prefix_sums", "--difficulty", "16", "--samples", "1", "--steps", "130")
    found = json_of(capsys, *args, "--plot", str(tmp_path / "a.svg"))
    assert [one["inputs"] for one in found["settlings"]] == ["problems", "noise"]
    assert found["settlings"][0]["verdicts"]["fixed point"] == 1
    assert (tmp_path / "a.svg").stat().st_size > 1000
    run(*args)
    assert "limit cycle" in capsys.readouterr().out


def test_overthinking(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = ("overthinking", "prefix_sums", "--difficulty", "16,24", "--samples", "1", "--multiples", "1,3")
    found = json_of(capsys, *args, "--plot", str(tmp_path / "a.png"))
    assert [one["verdict"] for one in found["reports"]] == ["Keeps its answers up to 3 m."] * 2
    run(*args)
    assert "Keeps its answers" in capsys.readouterr().out


def test_hard_to_easy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = ("hard-to-easy", "prefix_sums", "--samples", "1", "--steps", "50")
    found = json_of(capsys, *args, "--plot", str(tmp_path / "a.png"))
    assert [one["difficulty"] for one in found["curves"]] == [16, 24, 32]
    run(*args, "--difficulty", "8")
    assert "bits" in capsys.readouterr().out


def test_receptive_field(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = ("receptive-field", "prefix_sums", "--samples", "1", "--steps", "2", "--place", "3")
    found = json_of(capsys, *args, "--plot", str(tmp_path / "a.png"))
    assert (found["place"], found["per_step"], found["solution_radius"]) == ([3], 5, 31)
    assert found["fewest_steps"] < found["mean_steps_to_solution"]
    run(*args)
    assert "5 places a step" in capsys.readouterr().out


def test_models_of_tokens(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    router = folder(tmp_path, "router", width=16, hidden=16)
    plot = ("--plot", str(tmp_path / "a.png"))
    found = json_of(capsys, "attention", router, "--problem", "c b a 3", *plot)
    assert set(found) >= ALWAYS | {"attention", "gate", "labels", "problem"}
    assert (found["problem"], found["labels"][1:-1]) == ("c b a 3", ["c", "b", "a", "3"])
    run("attention", router, "--head", "0")
    shown = capsys.readouterr()
    assert "gates most open" in shown.out
    assert "steps of all samples  3/3" in shown.err
    found = json_of(capsys, "representations", router, "--symbol", "6", *plot)
    assert set(found) >= ALWAYS | {"similarities", "compatibility", "clusters"}
    assert found["clusters"]["rows"] == ["C1", "C2"]
    assert found["clusters"]["symbol"] == "6"
    run("representations", router, "--symbol", "6")
    assert "second from b" in capsys.readouterr().out
    dnc = folder(tmp_path, "dnc", answer="last", cells=4, width=4)
    found = json_of(capsys, "memory", dnc, *plot)
    assert set(found) >= ALWAYS | {"usage", "link", "problem"}
    run("memory", dnc, "--steps", "1")
    assert "writes to cell" in capsys.readouterr().out
    found = json_of(capsys, "memory", "repeat_copy-no_sharpness", "--beside", "repeat_copy", "--difficulty", "2", *plot)
    assert found["beside"]["weights"] == "repeat_copy"
    assert len(found["beside"]["forward_links"]) == len(found["forward_links"]) == found["time_steps"]


def test_attention_is_shown_until_the_answer_is_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As ``longthink solve`` does: more steps for deeper problems than those of training, and the answer beside it."""
    router = folder(tmp_path, "router", width=16, hidden=16)
    for problem, more, steps in (("b 3", (), 3), ("c b a 3", (), 5), ("c b a 3", ("--steps", "4"), 4)):
        found = json_of(capsys, "attention", router, "--problem", problem, *more)
        solved = commands.json_of(capsys, "solve", "ctlpp", problem, "--weights", router, "--steps", str(steps))
        assert found["steps"] == len(found["gate"]) == steps
        assert (found["answer"], found["truth"]) == (solved["answer"], solved["truth"])
    run("attention", router, "--problem", "b 3")
    assert "b 3; answer " in capsys.readouterr().out


def test_gates(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    router = folder(tmp_path, "router", width=16, hidden=16)
    small = ("--samples", "4", "--steps", "5", "--thresholds", "0,0.05,0.5")
    found = json_of(capsys, "gates", router, *small, "--plot", str(tmp_path / "a.png"))
    assert set(found) >= ALWAYS | {"best_threshold", "thresholds", "gates", "difficulty", "split"}
    assert [one["threshold"] for one in found["thresholds"]] == [0, 0.05, 0.5]
    assert (found["difficulty"], found["split"]) == (2, "valid")
    assert sum(found["gates"]["shares"]) == pytest.approx(1, abs=1e-3)
    assert found["thresholds"][2]["change"] == [0.0] * 5  # a new router's gates are all below a half
    assert matplotlib.image.imread(tmp_path / "a.png").std() > 0.05
    run("gates", router, *small, "--difficulty", "3")
    assert "3 functions, test problems" in capsys.readouterr().out


def test_a_network_may_think_in_another_way(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    router = folder(tmp_path, "router", width=16, hidden=16)
    found = json_of(capsys, "attention", router, "--set", "model.gate_threshold=0.9", "--problem", "c b a 3")
    assert found["settings"] == ["model.gate_threshold=0.9"]
    assert {gate for step in found["gate"] for gate in step} == {0.0}
    assert "settings" not in json_of(capsys, "attention", router, "--problem", "c b a 3")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("perturb", "mazez"), "no network or folder named 'mazez'"),
        (("perturb", "mazes", "--samples", "0"), "--samples must be 1 or more"),
        (("perturb", "mazes", "--seed", "-1"), "--seed must be 0 or more"),
        (("perturb", "mazes", "--disturb", "flips@1", "--samples", "2", "--steps", "1"), "in prefix_sums only"),
        (("perturb", "prefix_sums", "--out", "a.txt"), "must end in .json"),
        (("perturb", "prefix_sums", "--plot", "a.txt"), "must end in .png"),
        (("convergence", "prefix_sums", "--steps", "3"), "at least 8 steps"),
        (("convergence", "prefix_sums", "--tolerance", "0"), "--tolerance must be above 0"),
        (("overthinking", "prefix_sums", "--multiples", "a"), "--multiples must be whole numbers"),
        (("hard-to-easy", "mazes", "--difficulty", "4"), "odd maze size"),
        (("receptive-field", "prefix_sums", "--place", "99", "--samples", "1"), "is not in an input of 32"),
        (("sizes", "prefix_sums"), "nothing to compare with"),
        (("sizes", "prefix_sums", "--beside", "mazes"), "one task, and these are for mazes and prefix_sums"),
        (("attention", "ctl", "--steps", "0"), "--steps must be 1 or more"),
        (("gates", "mazes"), "has no gates; look at a router"),
        (("gates", "ctl-relative"), "has no gates; look at a router"),
        (("gates", "text"), "text is a language model: it has no answers"),
        (("gates", "ctl", "--thresholds", "0,x"), "--thresholds must be numbers with commas"),
        (("gates", "ctl", "--thresholds", "0,2"), "gate_threshold must be 0 or more and below 1, not 2"),
        (("attention", "ctl", "--set", "model.width=3"), "only its task .* and model.gate_threshold may change"),
        (("attention", "ctl-relative", "--set", "model.gate_threshold=0.1"), "only its task .* may change"),
        (("perturb", "mazes", "--set", "model.gate_threshold=0.1"), "only its task .* may change"),
        (("attention", "ctl", "--at", "3"), "say where to with --plot"),
        (("perturb", "prefix_sums", "--disturb", "noise@10", "--steps", "0"), "--steps must be 1 or more"),
        (("perturb", "prefix_sums", "--each-bit", "--steps", "0"), "--steps must be 1 or more"),
        (("perturb", "text", "--steps", "2"), "text is a language model: it has no answers"),
        (("overthinking", "text"), "text is a language model: it has no answers"),
        (("convergence", "text"), "text cannot think on: its .* steps are layers with weights of their own"),
        (("memory", "repeat_copy", "--steps", "-1"), "--steps must be 0 or more"),
        (("attention", "repeat_copy"), "notes neither attention nor gates"),
        (("perturb", "prefix_sums", "--each-bit", "--disturb", "noise@1"), "leave out --disturb"),
        (("convergence", "prefix_sums", "--precision", "8"), "--precision must be 32 or bf16"),
        (("attention", "prefix_sums"), "notes neither attention nor gates"),
        (("memory", "prefix_sums"), "notes no memory"),
        (("memory", "repeat_copy", "--beside", "key_value"), "does not read the same problems"),
        (("memory", "repeat_copy", "--head", "1"), "there is no head 1"),
        (("representations", "prefix_sums"), "compared on ctlpp"),
        (("perturb", "mazes", "--device", "abacus"), "cannot be used on this machine"),
    ],
)
def test_one_sentence_for_every_mistake(args: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        run(*args)
    assert "\n" not in str(caught.value)


def test_a_gpu_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)  # which refuses one without a number
    assert usable_device("cuda").type == "cuda"
    assert chosen == []
    usable_device("cuda:1")
    assert chosen == [torch.device("cuda:1")]


def test_nothing_is_written_when_heads_cannot_be_drawn(tmp_path: Path) -> None:
    out, plot = tmp_path / "a.json", tmp_path / "a.png"
    with pytest.raises(UserError, match="steps 1 to 5, not at 3, 900"):
        run("attention", "ctl", "--steps", "5", "--at", "3,900", "--out", str(out), "--plot", str(plot))
    assert not out.exists()
    run("attention", "ctl", "--steps", "5", "--at", "3,5", "--out", str(out), "--plot", str(plot))
    assert matplotlib.image.imread(plot).std() > 0.05


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, longthink.inspect.commands; assert not {'torch', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = []
    for width, steps in ((8, 3), (16, 3), (16, 5)):
        recipe = Recipe("toy", "prefix_sums", (8,), model_options={"width": width, "head": [8, 4]}, steps=steps)
        task, built = rebuild(recipe)
        saved = lt.save(lt.Loaded(built, task, {"recipe": recipe.to_json()}), tmp_path / f"w{width}-m{steps}")
        names.append(str(saved))
    args = ["sizes", names[2], "--beside", names[0], "--beside", names[1], "--samples", "3", "--steps", "6"]
    found = json_of(capsys, *args, "--plot", str(tmp_path / "sizes.png"))
    assert [(one["width"], one["train_steps"]) for one in found["networks"]] == [(8, 3), (16, 3), (16, 5)]
    assert all(len(one["accuracy"]) == 6 for one in found["networks"])
    assert matplotlib.image.imread(tmp_path / "sizes.png")[..., :3].std() > 0.02
    run(*args)
    assert "w16-m5" in capsys.readouterr().out


def test_experts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixture = {"feedforward": "experts", "feedforward_options": {"experts": 4, "k": 2}}
    weights = folder(tmp_path, "transformer", width=16, hidden=32, heads=2, **mixture)
    found = json_of(capsys, "experts", weights, "--samples", "3", "--plot", str(tmp_path / "experts.png"))
    assert found.keys() == ALWAYS | {"k", "tokens", "entries", "share", "weight", "evenness", "unused", "together"}
    assert len(found["share"]) == 3
    assert matplotlib.image.imread(tmp_path / "experts.png").std() > 0.05
    run("experts", weights)
    text = capsys.readouterr().out
    assert "each goes to 2 of 4 experts" in text
    assert text.count("%)") == 3 * (3 + 1)  # the busiest three of each step, and the pair


def test_active(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = folder(tmp_path, "transformer", width=16, hidden=32, heads=2)
    found = json_of(capsys, "active", weights, "--samples", "3", "--plot", str(tmp_path / "active.png"))
    assert found.keys() == ALWAYS | {"tokens", "entries", "units", "mean", "deviation"}
    assert (len(found["mean"]), found["units"]) == (3, 32)
    assert matplotlib.image.imread(tmp_path / "active.png").std() > 0.05
    run("active", weights)
    assert " of 32 " in capsys.readouterr().out


def test_layers_with_weights_of_their_own_set_the_usual_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Recipe(
        "toy",
        "prefix_sums",
        (8,),
        model_options={"width": 8, "head": [8, 4], "distinct_steps": 5},
        steps=5,
    )
    task, built = rebuild(recipe)
    weights = str(lt.save(lt.Loaded(built, task, {"recipe": recipe.to_json()}), tmp_path / "twin"))
    found = json_of(capsys, "perturb", weights, "--samples", "2", "--disturb", "noise@2")
    assert len(found["recoveries"][0]["accuracy"]) == 2 + 3
    found = json_of(capsys, "receptive-field", weights, "--samples", "1")
    assert found["steps"] == [0, 1, 2, 3, 4, 5]
    for question in ("convergence", "overthinking"):
        with pytest.raises(UserError, match="cannot think on: its 5 steps are layers with weights of their own"):
            run(question, weights)
