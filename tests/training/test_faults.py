"""What goes wrong on real machines: killed processes, full disks, damaged files, losses that explode."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longthink.errors import UserError
from longthink.loading import load
from longthink.training import files
from longthink.training import trainer as training
from longthink.training.checkpoint import RunFolder
from longthink.training.files import read_tensors, write_json, write_tensors
from longthink.training.member import Member
from longthink.training.train import train
from tests.training.toy import TOY, assert_same_end, metrics, options, train_on_one_thread

LONG = replace(TOY, epochs=6, fresh=True)


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith(".part")]


def test_killing_at_any_moment_loses_at_most_one_interval(tmp_path: Path) -> None:
    whole = train(LONG, 0, options(tmp_path / "whole"))
    run = RunFolder(tmp_path / "killed", LONG, 0)
    # Processes are forked from one that has imported everything: starting one takes no time.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["longthink", "torch.utils.tensorboard"])
    dice = random.Random(0)
    reached = kills = 0
    while not run.finished():
        how = options(tmp_path / "killed", tensorboard=True)
        process = context.Process(target=train_on_one_thread, args=(LONG, 0, how))
        process.start()
        if kills < 4:
            aim = reached + dice.randint(1, 2 * LONG.updates_an_epoch)
            while process.is_alive() and made_so_far(run) < aim:
                time.sleep(0.001)
            time.sleep(dice.uniform(0, 0.02))
            process.kill()
            kills += 1
        process.join()
        for path in (run.last, run.best):
            if path.exists():
                read_tensors(path)
        saved = read_tensors(run.last)[1]["update"] if run.last.exists() else 0
        assert saved >= reached
        assert made_so_far(run) - saved <= LONG.updates_an_epoch
        assert saved % LONG.updates_an_epoch == 0
        reached = saved
    assert kills == 4
    assert leftovers(run.path) == []
    assert_same_end(whole, run.path)


def made_so_far(run: RunFolder) -> int:
    """Updates that are known to have been made: the last whole line of the metrics."""
    lines = run.metrics.read_text().split("\n")[:-1] if run.metrics.exists() else []
    return max((json.loads(line)["update"] for line in lines), default=0)


class Killed(BaseException):
    """As a kill: nothing catches it but ``finally``."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    return train(TOY, 0, options(tmp_path_factory.mktemp("whole")))


@pytest.mark.parametrize("call", range(1, 6))
def test_dying_at_every_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, call: int) -> None:
    """Each file is renamed into place; dying just before any of these loses nothing that was there before."""
    rename, calls = os.replace, 0

    def die(source: Any, target: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        rename(source, target)

    run = RunFolder(tmp_path / "killed", TOY, 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(Killed):
            train(TOY, 0, options(tmp_path / "killed"))
    assert not run.finished()
    train(TOY, 0, options(tmp_path / "killed"))
    assert_same_end(whole, run.path)


def test_parts_of_a_killed_process_are_swept_away(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, TOY, 0)
    run.path.mkdir(parents=True)
    (run.path / ".best.safetensors.4711.part").write_bytes(b"half")
    train(TOY, 0, options(tmp_path))
    assert leftovers(tmp_path) == []


def explode(monkeypatch: pytest.MonkeyPatch, at: int, value: float) -> None:
    """Make the loss of one update, and so the weights after it, useless."""
    mix = training.Objective.forward
    update = 0

    def forward(self: Any, *args: Any) -> dict[str, torch.Tensor]:
        nonlocal update
        update += 1
        losses = mix(self, *args)
        if update == at:
            losses["loss"] = losses["loss"] * value
        return losses

    monkeypatch.setattr(training.Objective, "forward", forward)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("at", "logged"), [(3, 4), (9, 9), (13, 14)])
def test_a_loss_that_explodes_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, logged: int, value: float
) -> None:
    explode(monkeypatch, at, value)
    with pytest.raises(UserError, match=f"NaN or infinite before update {logged}.*learning_rate") as error:
        train(TOY, 0, options(tmp_path))
    run = RunFolder(tmp_path, TOY, 0)
    assert not run.finished()
    assert run.last.exists() == run.best.exists() == (at > 9)
    assert ("is kept" in str(error.value)) == (at > 9)
    if at > 9:
        tensors, about = read_tensors(run.last)
        assert about["update"] == 9
        assert all(torch.isfinite(value).all() for value in tensors.values())
        assert all(torch.isfinite(value).all() for value in load(run.path).model.state_dict().values())


def test_a_huge_learning_rate_stops_by_itself(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="NaN or infinite"):
        train(replace(TOY, learning_rate=1e30, epochs=20, clip=None), 0, options(tmp_path))


def test_resuming_after_an_explosion_goes_on_from_the_checkpoint(tmp_path: Path, whole: Path) -> None:
    stopped_run(tmp_path)
    assert_same_end(whole, train(TOY, 0, options(tmp_path)))


def stopped_run(folder: Path) -> RunFolder:
    """A run with a checkpoint at update 9 that still has updates to make."""
    with pytest.MonkeyPatch.context() as patch:
        explode(patch, 13, float("nan"))
        with pytest.raises(UserError):
            train(TOY, 0, options(folder))
    return RunFolder(folder, TOY, 0)


@pytest.mark.parametrize("where", ["save_file", "fsync", "replace", "metrics"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_gets_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken_run: RunFolder, where: str, code: int
) -> None:
    run = RunFolder(tmp_path, TOY, 0)
    shutil.copytree(broken_run.path, run.path)
    before = {path: path.read_bytes() for path in (run.last, run.best)}

    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    def full_later(path: Any, mode: str = "r") -> Any:
        return full() if mode == "a" else open(path, mode)

    with monkeypatch.context() as patch:
        if where == "metrics":
            patch.setattr("longthink.training.checkpoint.open", full_later, raising=False)
        else:
            patch.setattr(*{"save_file": (files, where), "fsync": (os, where), "replace": (os, where)}[where], full)
        with pytest.raises(UserError, match="disk is full") as error:
            train(TOY, 0, options(tmp_path))
    assert "\n" not in str(error.value)
    assert str(run.path) in str(error.value)
    assert leftovers(tmp_path) == []
    assert {path: path.read_bytes() for path in before} == before
    train(TOY, 0, options(tmp_path))  # with space again, the same command goes on
    assert run.finished()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user cannot mount a file system of 1 MB")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_really_full(tiny_disk: Path) -> None:
    run = stopped_run(tiny_disk)
    before = {path: path.read_bytes() for path in (run.last, run.best)}
    with open(tiny_disk / "ballast", "wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(b"x" * 4096)
    with pytest.raises(UserError, match="disk is full") as error:
        train(TOY, 0, options(tiny_disk))
    assert "\n" not in str(error.value)
    assert leftovers(tiny_disk) == []
    assert {path: path.read_bytes() for path in before} == before
    (tiny_disk / "ballast").unlink()
    train(TOY, 0, options(tiny_disk))
    assert run.finished()


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, TOY, 0)
    with run.alone(), pytest.raises(UserError, match=r"Another process is training in .*; wait for it"):
        train(TOY, 0, options(tmp_path))
    train(TOY, 0, options(tmp_path))
    assert run.finished()


def test_complaints_leave_no_empty_folder(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, TOY, 0)
    with run.alone():
        assert run.path.exists()
    assert list(tmp_path.iterdir()) == []
    with run.alone():
        run.begin()
    assert run.path.exists()


def test_a_first_update_that_fails_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a model of somebody's own")

    monkeypatch.setattr(training.Trainer, "_one_update", fail)
    with pytest.raises(RuntimeError, match="somebody's own"):
        train(LONG, 0, options(tmp_path / "runs", tensorboard=True))
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    with pytest.raises(UserError, match="Could not write"):
        train(TOY, 0, options(tmp_path / "runs"))


@pytest.fixture(scope="module")
def broken_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return stopped_run(tmp_path_factory.mktemp("broken"))


def resume(run: RunFolder) -> None:
    """As ``train`` on this folder, up to where it would make updates."""
    from longthink.loading import rebuild
    from longthink.training.checkpoint import load_last
    from longthink.training.schedule import make_optimizer

    model = rebuild(TOY)[1]
    average = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = make_optimizer(TOY, model)
    found = load_last([run], model, optimizer, average)
    assert found is not None
    assert found[0].keys() == {"update", "seconds", "best", "flawless", "owes_validation", "sums", "memory", "data"}
    for weight in model.parameters():  # an optimiser whose memory has gone bad fails only when it is used
        weight.grad = torch.ones_like(weight)
    optimizer.step()


def header_length(data: bytes) -> int:
    return 8 + struct.unpack("<Q", data[:8])[0]


def damaged(name: str, data: bytes, folder: Path) -> RunFolder:
    other = RunFolder(folder, TOY, 0)
    other.path.mkdir(parents=True, exist_ok=True)
    (other.path / name).write_bytes(data)
    return other


@pytest.mark.parametrize("name", ["best.safetensors", "last.safetensors"])
def test_truncated_weights_get_one_sentence(broken_run: RunFolder, tmp_path: Path, name: str) -> None:
    whole = (broken_run.path / name).read_bytes()
    header = header_length(whole)
    points = {0, 1, 7, 8, 9, header - 1, header, header + 1, len(whole) - 1}
    cuts = [whole[:length] for length in sorted(points | set(range(0, len(whole), len(whole) // 60)))]
    for data in (*cuts, whole + b"x"):
        run = damaged(name, data, tmp_path)
        with pytest.raises(UserError, match=r"damaged.*delete it"):
            load(run.path) if name.startswith("best") else resume(run)


@pytest.mark.parametrize("name", ["best.safetensors", "last.safetensors"])
def test_flipped_bytes_never_crash(broken_run: RunFolder, tmp_path: Path, name: str) -> None:
    """Damage may go unnoticed, in a note or among the weights, but whatever is noticed is one sentence."""
    whole = (broken_run.path / name).read_bytes()
    noticed: list[str] = []

    @given(st.integers(0, header_length(whole) - 1), st.sampled_from(b'0123456789-.,:"{}[]_abeFU\\\x00\xff'))
    @settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def flip(place: int, byte: int) -> None:
        run = damaged(name, whole[:place] + bytes([byte]) + whole[place + 1 :], tmp_path)
        try:
            load(run.path) if name.startswith("best") else resume(run)
        except UserError as error:
            noticed.append(str(error))

    flip()
    assert len(noticed) > 100
    assert not any("\n" in sentence for sentence in noticed)


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"update": 9},
        {"update": -1, "seconds": 0.0, "best": None, "sums": {}},
        {"update": 19, "seconds": 0.0, "best": None, "sums": {}},
        {"update": "x", "seconds": 0.0, "best": None, "sums": {}},
        {"update": 9, "seconds": None, "best": None, "sums": {}},
        {"update": 9, "seconds": 0.0, "best": 3, "sums": {}},
        {"update": 9, "seconds": 0.0, "best": None, "sums": {"loss": 3}},
    ],
)
def test_a_checkpoint_with_a_wrong_header_gets_one_sentence(
    broken_run: RunFolder, tmp_path: Path, about: dict[str, Any]
) -> None:
    run = damaged("last.safetensors", b"", tmp_path)
    write_tensors(run.last, read_tensors(broken_run.last)[0], about)
    with pytest.raises(UserError, match=r"does not fit its recipe.*delete it"):
        train(TOY, 0, options(tmp_path))


@pytest.mark.parametrize("part", ["model.", "optimizer.0.", "optimizer.1.exp_avg", "average."])
@pytest.mark.parametrize("damage", ["missing", "renamed", "reshaped"])
def test_a_checkpoint_with_wrong_tensors_gets_one_sentence(
    broken_run: RunFolder, tmp_path: Path, part: str, damage: str
) -> None:
    tensors, about = read_tensors(broken_run.last)
    name = next(name for name in tensors if name.startswith(part) and tensors[name].dim())
    value = tensors.pop(name)
    if damage == "renamed":
        tensors[f"{part.partition('.')[0]}.99.odd"] = value
    elif damage == "reshaped":
        tensors[name] = value.flatten()
    run = damaged("last.safetensors", b"", tmp_path)
    write_tensors(run.last, tensors, about)
    with pytest.raises(UserError, match=r"does not fit its recipe.*delete it"):
        train(TOY, 0, options(tmp_path))


@pytest.mark.parametrize("end", [b'{"update": 9, "lo', b'{"update"', b"{", b"17", b"[1, 2", b"\xff\xfe", b"null\n"])
def test_metrics_cut_in_the_middle_of_a_line(tmp_path: Path, broken_run: RunFolder, whole: Path, end: bytes) -> None:
    run = RunFolder(tmp_path, TOY, 0)
    shutil.copytree(broken_run.path, run.path)
    with open(run.metrics, "ab") as file:
        file.write(end)
    train(TOY, 0, options(tmp_path))
    assert metrics(run.path) == metrics(whole)


def test_missing_metrics_and_a_damaged_recipe_do_not_matter(tmp_path: Path) -> None:
    run = stopped_run(tmp_path)
    run.metrics.unlink()
    whole = (run.path / "recipe.json").read_bytes()
    (run.path / "recipe.json").write_bytes(whole[:100])
    train(TOY, 0, options(tmp_path))
    assert (run.path / "recipe.json").read_bytes() == whole
    assert [line["update"] for line in metrics(run.path)] == [10, 12, 14, 16, 18, 18]


def test_a_damaged_card_gets_one_sentence(tmp_path: Path) -> None:
    run = train(TOY, 0, options(tmp_path))
    (run / "card.json").write_bytes((run / "card.json").read_bytes()[:50])
    with pytest.raises(UserError, match="not valid JSON"):
        train(TOY, 0, options(tmp_path))


def test_weights_that_do_not_fit_their_recipe(broken_run: RunFolder, tmp_path: Path) -> None:
    tensors, card = read_tensors(broken_run.best)
    card["recipe"]["model_options"]["width"] = 6
    write_tensors(tmp_path / "best.safetensors", tensors, card)
    with pytest.raises(UserError, match="do not fit their recipe") as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("card", [{}, {"recipe": {}}, {"recipe": []}, {"recipe": {"name": 1}}, {"recipe": None}])
def test_weights_without_a_recipe(broken_run: RunFolder, tmp_path: Path, card: dict[str, Any]) -> None:
    write_tensors(tmp_path / "best.safetensors", read_tensors(broken_run.best)[0], card)
    with pytest.raises(UserError):
        load(tmp_path)


@pytest.mark.parametrize("card", [5, "text", [1], {"recipe": 5}])
def test_a_config_that_is_no_card(broken_run: RunFolder, tmp_path: Path, card: Any) -> None:
    write_tensors(tmp_path / "model.safetensors", read_tensors(broken_run.best)[0], {})
    write_json(tmp_path / "config.json", card)
    with pytest.raises(UserError):
        load(tmp_path)


def test_damaged_or_missing_configs(broken_run: RunFolder, tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", read_tensors(broken_run.best)[0], {})
    with pytest.raises(UserError, match=r"no file .*config.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"recipe": {"na')
    with pytest.raises(UserError, match="not valid JSON"):
        load(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path)


def test_a_folder_where_weights_should_be(tmp_path: Path) -> None:
    (tmp_path / "best.safetensors").mkdir()
    with pytest.raises(UserError):
        load(tmp_path)


def test_an_interrupt_keeps_every_update(tmp_path: Path) -> None:
    """The first Ctrl-C ends the update in hand, saves, and says how to go on."""
    settings = ["model.width=8", "model.head=[8,8]", "difficulty=8", "train_samples=4000", "batch=10", "epochs=50"]
    command = [sys.executable, "-m", "longthink", "train", "prefix_sums-dt_recall-alpha1"]
    command += [
        "--folder",
        str(tmp_path),
        "--accelerator",
        "cpu",
        *(word for setting in settings for word in ("--set", setting)),
    ]
    training = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert training.stderr is not None
    while "loss" not in (line := training.stderr.readline()):
        assert line, "it ended before its first line of progress"
    training.send_signal(signal.SIGINT)
    out, rest = training.communicate(timeout=60)
    assert training.returncode == 130, rest
    assert "run again to go on" in out + rest
    (run,) = tmp_path.iterdir()
    assert read_tensors(run / "last.safetensors")[1]["update"] >= 50


@pytest.mark.parametrize("early", [1, 0])
def test_an_interrupt_in_the_last_update_does_not_lose_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: int
) -> None:
    asked: list[int] = []
    make_update = training.Trainer._one_update

    def update(trainer: training.Trainer) -> None:
        make_update(trainer)
        if trainer.update == TOY.updates - early:
            asked.append(signal.SIGINT)

    monkeypatch.setattr(training.Trainer, "_one_update", update)
    monkeypatch.setattr(training, "_polite_interrupt", lambda _: nullcontext(asked))
    with pytest.raises(KeyboardInterrupt) if early else nullcontext():
        train(TOY, 0, options(tmp_path))
    asked.clear()
    monkeypatch.setattr(training.Trainer, "_one_update", make_update)
    run = train(TOY, 0, options(tmp_path))
    assert json.loads((run / "card.json").read_text())["finished"]["updates"] == TOY.updates


@pytest.mark.parametrize("ended", [signal.SIGTERM, signal.SIGHUP])
def test_a_job_that_is_ended_keeps_every_update(tmp_path: Path, ended: signal.Signals) -> None:
    made = training.Trainer._one_update

    def update(trainer: training.Trainer) -> None:
        made(trainer)
        if trainer.update == 5:
            signal.raise_signal(ended)

    before = signal.signal(ended, signal.SIG_DFL)  # whoever started the tests with nohup has it ignored
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(training.Trainer, "_one_update", update)
            with pytest.raises(KeyboardInterrupt):
                train(TOY, 0, options(tmp_path))
        assert signal.getsignal(ended) == signal.SIG_DFL
    finally:
        signal.signal(ended, before)
    (run,) = tmp_path.iterdir()
    assert read_tensors(run / "last.safetensors")[1]["update"] == 5


def test_who_is_told_to_ignore_a_closed_terminal_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As nohup does."""
    made = training.Trainer._one_update

    def update(trainer: training.Trainer) -> None:
        made(trainer)
        signal.raise_signal(signal.SIGHUP)

    monkeypatch.setattr(training.Trainer, "_one_update", update)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = train(TOY, 0, options(tmp_path))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (run / "card.json").exists()


@pytest.mark.parametrize("which", [1, 2])
@pytest.mark.parametrize("logged", [False, True])
def test_being_killed_in_a_validation_loses_nothing(tmp_path: Path, which: int, logged: bool) -> None:
    """The first validation, or the last one: it is made when the run goes on, and noted once."""
    whole = train(TOY, 0, options(tmp_path / "whole"))
    validate, calls = Member.validate, []

    def killed(member: Member, *arguments: Any) -> str:
        calls.append(member)
        if len(calls) == which:
            if logged:
                validate(member, *arguments)
            raise RuntimeError("killed")
        return validate(member, *arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training, "_SLOW", -1.0)
        patched.setattr(Member, "validate", killed)
        with pytest.raises(RuntimeError, match="killed"):
            train(TOY, 0, options(tmp_path / "cut"))
    (cut,) = (tmp_path / "cut").iterdir()
    assert read_tensors(cut / "last.safetensors")[1]["update"] == which * TOY.updates_an_epoch
    assert_same_end(train(TOY, 0, options(tmp_path / "cut")), whole)
