"""Where bAbI's files are found, and what is said about bad ones."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest
import torch
import zstandard

from longthink.errors import UserError
from longthink.tasks.babi import Babi
from longthink.tasks.babi_files import read_stories
from longthink.tasks.downloads import Published
from tests.tasks.babi_toys import LINES, everything, small_copy


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_copy(tmp_path_factory.mktemp("babi"))


def test_missing_files_are_told(small: Path) -> None:
    task = Babi(str(small))
    assert task.missing == ("en-10k/qa3_train",)
    assert task.warning.startswith("This copy of bAbI lacks en-10k/qa3_train; ")
    assert task.stories(3, "train") + task.stories(3, "valid") == 20
    assert task.stories(3, "test") == 5
    assert task.check(everything(task, 3, "train")).all()
    assert Babi(str(small), "en").missing == ()
    assert Babi(str(small), "en").warning == ""


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.zst"])
def test_archives(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        archive.add(small, "tasks_1-20_v1-2")
    packed = {"tar": bytes, "tar.gz": gzip.compress, "tar.zst": zstandard.ZstdCompressor().compress}[kind]
    folder = tmp_path / "data" / "babi"
    folder.mkdir(parents=True)
    file = folder / f"babi.{kind}"
    file.write_bytes(packed(plain.getvalue()))
    expected = Babi(str(small)).sample(7, 3, 1, "train")
    monkeypatch.chdir(tmp_path)
    for task in (Babi(), Babi(str(file))):
        batch = task.sample(7, 3, 1, "train")
        assert torch.equal(batch.inputs, expected.inputs)
        assert task.check(batch).all()
        assert task.missing == ("en-10k/qa3_train",)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(UserError, match=rf"^babi\.{kind} is no archive that can be read .* again\.$"):
        Babi().sample(1, 1, 0)


@pytest.mark.parametrize("gone", [False, True], ids=["official", "copy"])
def test_an_archive_is_downloaded_once(
    gone: bool, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offered = tmp_path / "offered.tar.gz"
    with tarfile.open(offered, "w:gz") as archive:
        archive.add(small, "tasks_1-20_v1-2")
    official = Published("tasks_1-20_v1-2.tar.gz", ((tmp_path / "nowhere" if gone else offered).as_uri(),))
    copy = Published("babi_tasks_1-20_v1-2.tar.gz", (offered.as_uri(),))
    monkeypatch.setattr("longthink.tasks.babi_files.PUBLISHED", (official, copy))
    monkeypatch.setenv("LONGTHINK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LONGTHINK_DATA", raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    expected = Babi(str(small)).sample(7, 3, 1, "train")
    assert torch.equal(Babi().sample(7, 3, 1, "train").inputs, expected.inputs)
    assert capsys.readouterr().err.count("downloading file:") == 1 + gone
    offered.unlink()
    assert torch.equal(Babi().sample(7, 3, 1, "train").inputs, expected.inputs)
    assert capsys.readouterr().err == ""


def test_places(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LONGTHINK_DATA", raising=False)
    monkeypatch.setenv("LONGTHINK_CACHE", str(tmp_path / "cache"))
    nowhere = Published("tasks_1-20_v1-2.tar.gz", ((tmp_path / "nowhere.tar.gz").as_uri(),))
    elsewhere = Published("babi_tasks_1-20_v1-2.tar.gz", ((tmp_path / "elsewhere.tar.gz").as_uri(),))
    monkeypatch.setattr("longthink.tasks.babi_files.PUBLISHED", (nowhere, elsewhere))
    with pytest.raises(UserError, match=r"^Could not download file:.*nowhere\.tar\.gz .*put it into \./data .*\.$"):
        Babi().sample(1, 1, 0)
    with pytest.raises(
        UserError, match=r"^There is no bAbI data in 'mine'; unpack http.*v1-2\.tar\.gz in \./data, .*\.$"
    ):
        Babi("mine").sample(1, 1, 0)
    assert Babi().shape == {"vocabulary": 161, "classes": 161}  # known without the data
    monkeypatch.setenv("LONGTHINK_DATA", str(small.parent))
    assert len(Babi().sample(1, 1, 0)) == 1
    assert len(Babi(str(small.parent)).sample(1, 1, 0)) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no story in bad.txt"),
        ("Mary went to the park.\n", "Line 1 of bad.txt must begin with 1: a story counts its lines."),
        ("1 Mary went to the park.\n3 Where is Mary?\tpark\t1\n", "Line 2 of bad.txt must begin with 1 or with 2"),
        ("1 Mary went to the park.\n\n2 Where is Mary?\tpark\t1\n", "Line 2 of bad.txt must begin"),
        ("1 Where is Mary?\tpark\t1\n", "Line 1 of bad.txt is a question without a story"),
        ("1 Mary went to the park.\n2 Where is Mary?\n", "Line 2 of bad.txt is no sentence that ends"),
        ("1 Mary went to the park.\n2 Where is Mary?\t\t1\n", "Line 2 of bad.txt is a question without an answer"),
        ("1 Mary went to the park.\n2 Where is Mary.\tpark\t1\n", "Line 2 of bad.txt has an answer and must be"),
        ("1 Mary went to the park\n", "Line 1 of bad.txt is no sentence"),
        ("1 Mary went. To the park.\n", "Line 1 of bad.txt is no sentence"),
        ("1 \n", "Line 1 of bad.txt is empty"),
        ("1 .\n", "Line 1 of bad.txt is no sentence"),
        ("1 Mary went to the zoo.\n", "Line 1 of bad.txt has the unknown word 'zoo'"),
        ("1 Mary went to the gardn.\n", "Line 1 of bad.txt has the unknown word 'gardn'; did you mean 'garden'?"),
        ("1 <pad> went to the park.\n", "Line 1 of bad.txt has '<pad>' in it; write words"),
        ("1 Mary went to the park.\n", "Line 1 of bad.txt ends a story without a question"),
        (LINES + "1 Mary went to the park.\n1 John went to the park.\n", "Line 9 of bad.txt ends a story without"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "bad.txt").write_text(text)
    with pytest.raises(UserError, match=r"^[^\n]*[.?]$") as caught:
        read_stories(tmp_path / "bad.txt")
    assert says in str(caught.value)


def test_files_that_are_no_text_and_no_files(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"1 Mary went to the park.\n2 \xff\n")
    with pytest.raises(UserError, match=r"^Line 2 of bad\.txt is not text"):
        read_stories(tmp_path / "bad.txt")
    with pytest.raises(UserError, match=r"^There is no file .*\.$"):
        read_stories(tmp_path / "none.txt")
