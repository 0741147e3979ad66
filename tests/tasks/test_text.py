"""Text as a task and as a stream: windows, blocks, token files, tokenisers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longthink.errors import UserError
from longthink.tasks import Batch, corpora, task
from longthink.tasks.base import SPLITS
from longthink.tasks.downloads import Published
from longthink.tasks.text import Stream, Text
from longthink.tasks.tokenisers import BOUNDARY, Bytes, SentencePiece, train_sentencepiece
from tests.fixtures import real_data

VERSE = "Es war einmal ein König, der hatte 12 Töchter, eine immer schöner als die andere.\n"


@pytest.fixture
def text(tmp_path: Path) -> Text:
    path = tmp_path / "tale.txt"
    path.write_text("".join(f"{i} {VERSE}" for i in range(400)))
    found = task("text", corpus=str(path), folder=str(tmp_path / "cache"))
    assert isinstance(found, Text)
    return found


def test_windows_are_text_and_their_next_tokens(text: Text) -> None:
    for split in SPLITS:
        batch = text.sample(5, 40, 3, split)
        assert batch.inputs.shape == batch.targets.shape == (5, 40)
        assert text.check(batch).all()
        whole = "".join(p.text.decode(errors="replace") for p in text._corpus().pieces(split))
        assert text.text(batch, 2).strip("\ufffd") in whole
        again = text.sample(5, 40, 3, split)
        assert torch.equal(again.inputs, batch.inputs)
        assert not torch.equal(text.sample(5, 40, 4, split).inputs, batch.inputs)
        first = text.sample(2, 40, 3, split)  # sample i does not depend on how many there are
        assert torch.equal(first.inputs, batch.inputs[:2])
    wrong = replace(batch, targets=batch.targets.clone())
    wrong.targets[1, -1] += 1
    wrong.targets[2, 3] += 1
    assert text.check(wrong).tolist() == [True, False, False, True, True]


def test_no_text_is_in_two_splits(text: Text) -> None:
    numbers = {}
    for split in SPLITS:
        tokens, about = text.tokens(split)
        written = Bytes().decode(tokens.tolist()).splitlines()
        numbers[split] = {line.split()[0] for line in written}
        assert tokens.dtype == np.uint8
        assert tokens[0] == BOUNDARY
        assert (about.tokens, about.documents, about.bytes) == (len(tokens), 1, len(tokens) - 1)
    assert set.union(*numbers.values()) == {str(i) for i in range(400)}
    assert sum(map(len, numbers.values())) == 400


@given(
    tokens=st.integers(2, 60), streams=st.integers(1, 5), length=st.integers(1, 9), whole=st.booleans(), seed=st.data()
)
@settings(max_examples=200)
def test_streams_read_every_token_once_and_in_order(
    tokens: int, streams: int, length: int, whole: bool, seed: st.DataObject
) -> None:
    numbers = np.arange(1, tokens + 1, dtype=np.uint8)
    if not whole and (tokens - 1) // streams < length:
        with pytest.raises(UserError, match=r"^The text has .* choose a smaller batch, fewer samples or a smaller"):
            Stream(numbers, streams, length)
        return
    stream = Stream(numbers, streams, length, whole=whole)
    read: list[list[int]] = [[] for _ in range(streams)]
    for number in range(stream.blocks):
        batch = stream.block(number)
        there = torch.ones_like(batch.inputs, dtype=torch.bool) if batch.mask is None else batch.mask
        assert (batch.targets == batch.inputs + 1)[there].all()
        assert (batch.inputs == 0)[~there].all()
        assert batch.info["fresh"].tolist() == [number == 0] * streams
        for row in range(streams):
            read[row] += batch.inputs[row][there[row]].tolist()
    for row in read:
        assert row == list(range(row[0], row[-1] + 1)) if row else whole
    flat = [token for row in read for token in row]
    if whole:  # all but the last token, which nothing comes after
        assert flat == list(range(1, tokens))
    else:
        assert len(flat) == stream.blocks * streams * length
        assert len(flat) > tokens - 1 - streams * length - streams
    # Any block can be had by its number alone, and the next pass is the same.
    number = seed.draw(st.integers(0, 3 * stream.blocks))
    a, b = stream.block(number), stream.block(number % stream.blocks)
    assert torch.equal(a.inputs, b.inputs)
    assert torch.equal(a.targets, b.targets)


def test_blocks_of_a_task_go_on(text: Text) -> None:
    stream = text.stream("train", 4, 16)
    tokens, _ = text.tokens("train")
    joined = torch.cat([stream.block(u).inputs for u in range(5)], 1)
    assert joined[0].tolist() == tokens[:80].tolist()
    assert joined[2].tolist() == tokens[2 * stream.part : 2 * stream.part + 80].tolist()
    measured = text.stream("valid", 1, 16, whole=True)
    _, about = text.tokens("valid")
    assert (about.tokens - 1) * measured.bytes_a_token == pytest.approx(about.bytes)


def test_bits_are_those_of_the_true_tokens(text: Text) -> None:
    batch = text.sample(3, 8, 0)
    sure = torch.full((3, 256, 8), -200.0).scatter_(1, batch.targets[:, None], 200.0)
    torch.testing.assert_close(text.bits(sure, batch), torch.zeros(3).double())
    assert text.score(sure, batch).all()
    even = torch.zeros(3, 256, 8)
    torch.testing.assert_close(text.bits(even, batch), torch.full((3,), 64.0).double())
    batch.mask = torch.arange(8).expand(3, 8) < 2
    torch.testing.assert_close(text.bits(even, batch), torch.full((3,), 16.0).double())
    assert not text.score(even, batch).any()
    assert text.predict(even, batch).shape == (3, 8)


@pytest.mark.parametrize("damage", ["cut", "flip", "card", "no card", "empty", "not json"])
def test_damaged_token_files_are_made_again(text: Text, damage: str) -> None:
    before = text.tokens("valid")[0].copy()
    path = next(Path(str(text.folder)).rglob("valid-bytes.tokens"))
    card, data = path.with_suffix(".json"), bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "flip":
        data[7] ^= 1
        path.write_bytes(data)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "no card":
        card.unlink()
    else:
        card.write_text("{" if damage == "not json" else '{"tokens": 1}')
        path.touch()
    assert np.array_equal(text.tokens("valid")[0], before)
    assert path.stat().st_size == len(before)
    assert not list(path.parent.glob("*.part"))


def test_a_changed_text_gets_new_tokens(text: Text) -> None:
    before = len(text.tokens("train")[0])
    Path(text.corpus).write_text(VERSE * 900)
    assert len(text.tokens("train")[0]) > 1.5 * before


def test_typed_text(text: Text) -> None:
    batch = text.parse("König")
    assert batch.inputs.tolist() == [[0, *"König".encode()[:-1]]]
    assert text.text(batch) == "König"
    assert text.show(batch.targets[0], batch) == "König"
    assert text.check(batch).all()
    assert batch.difficulty == 6
    with pytest.raises(UserError, match="Type some text"):
        text.parse("")
    with pytest.raises(UserError, match="holds the byte NUL"):
        text.parse("a\0b")


@given(st.text().filter(lambda s: "\0" not in s))
def test_bytes_come_back(written: str) -> None:
    code = Bytes()
    assert code.decode(code.encode(written.encode()).tolist()) == written
    assert code.complaint(written.encode()) is None


def test_pictures(text: Text) -> None:
    batch = text.sample(2, 120, 0)
    plain = text.draw(batch, 1)
    assert plain.dtype == np.uint8
    costly = text.draw(batch, 1, torch.zeros(2, 256, 120))
    sure = torch.zeros(2, 256, 120).scatter_(1, batch.targets[:, None], 50.0)
    cheap = text.draw(batch, 1, sure)
    assert plain.shape == costly.shape == cheap.shape
    assert costly[..., 2].mean() < cheap[..., 2].mean() == pytest.approx(plain[..., 2].mean(), abs=0.5)


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        (lambda t: t.sample(1, 0, 0), "difficulty must be 1"),
        (lambda t: t.sample(1, 10**6, 0), "choose a smaller size"),
        (lambda t: t.tokens("tset"), "choose train, valid or test"),
        (lambda t: t.stream("valid", 1000, 1000), "^The valid text of .* need 1000001; choose a smaller batch"),
        (lambda t: t.stream("valid", 0, 10), "1 stream or more"),
        (lambda t: replace(t, corpus="nowhere.txt").tokens("train"), "There is no corpus"),
        (lambda t: replace(t, tokeniser="words").tokens("train"), "choose bytes, sentencepiece or"),
        (lambda t: replace(t, pieces=1), "4 pieces or more"),
    ],
)
def test_bad_requests_get_a_sentence(text: Text, use, sentence: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=sentence):
        use(text)


@pytest.mark.parametrize("content", ["", "\n"])
def test_an_empty_corpus_gets_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "empty.txt").write_text(content)
    found = Text(corpus=str(tmp_path / "empty.txt"), folder=str(tmp_path))
    with pytest.raises(UserError, match="has no train text; choose a larger one"):
        found.tokens("train")
    with pytest.raises(UserError, match="has no train text; choose a larger one"):
        found.origin()
    with pytest.raises(UserError, match="has no train text; choose a larger one"):
        replace(found, tokeniser="sentencepiece", pieces=80).tokens("train")


def test_what_cannot_be_had_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def obtain(file: Published, folder: Path) -> Path:
        tried.append(file.name)
        raise UserError("Could not download it.")

    monkeypatch.setattr(corpora, "obtain", obtain)
    with pytest.raises(UserError, match="Could not download"):
        Text(corpus="enwik8", folder=str(tmp_path)).origin()
    assert tried == ["enwik8.zip"]


@pytest.fixture(scope="module")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> SentencePiece:
    pytest.importorskip("sentencepiece")
    path = tmp_path_factory.mktemp("pieces") / "model"
    train_sentencepiece(iter([CODE.encode() * 30]), 60, path)
    return SentencePiece(path.read_bytes())


@given(st.text(alphabet="def (x):\n\tЖж漢", max_size=60))
def test_bytes_without_tokens_are_counted(spaced: SentencePiece, text: str) -> None:
    assert spaced.lost(text.encode(), spaced.encode(text.encode())) == sum(len(c.encode()) for c in text if c in "Жж漢")


def test_subwords(text: Text, tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    code = replace(text, tokeniser="sentencepiece", pieces=80)
    assert code.shape == {"vocabulary": 80, "classes": 80}
    tokens, about = code.tokens("valid")
    assert tokens.dtype == np.uint16
    assert tokens[0] == BOUNDARY
    assert (tokens[1:] > 0).all()
    assert len(tokens) < about.bytes / 1.5
    written = "".join(piece.text.decode() for piece in text._corpus().pieces("valid"))
    assert code.tokens_of().decode(tokens.tolist()) == written
    batch = code.sample(3, 10, 0)
    assert code.check(batch).all()
    assert code.text(code.parse("König, der\nhatte")) == "König, der\nhatte"
    with pytest.raises(UserError, match="does not know: Ж ж"):
        code.parse("ein ЖЖж")
    with pytest.raises(UserError, match=r"does not know: U\+000D U\+001B; leave it out"):
        code.parse("ein\r \x1b")
    model = next(tmp_path.rglob("sentencepiece-80.model"))
    kept = tmp_path / "kept.model"
    kept.write_bytes(model.read_bytes())
    same = replace(text, tokeniser=str(kept), pieces=80)
    assert np.array_equal(same.tokens("valid")[0], tokens)
    strange = tmp_path / "strange.txt"
    strange.write_text("eine ЖЖж hatte\n" * 40)
    about = replace(same, corpus=str(strange)).tokens("test")[1]
    assert about.lost == (about.bytes + about.lost) * 6 / len("eine ЖЖж hatte\n".encode())
    train_sentencepiece(iter([VERSE.upper().encode() * 20]), 80, kept)  # another model in the same place
    assert not np.array_equal(same.tokens("valid")[0], tokens)
    with pytest.raises(UserError, match="has 80 pieces, not 90"):
        replace(same, pieces=90).tokens("valid")
    kept.write_bytes(b"nonsense")
    with pytest.raises(UserError, match="not a SentencePiece model"):
        same.tokens("valid")
    with pytest.raises(UserError, match="set pieces"):
        replace(code, pieces=100_000).tokens("valid")


CODE = "def f(x):\n        return  x²   # ① two  spaces \n\tif a:\n\n  b = 'ﬁ'\n"


@settings(max_examples=30, deadline=None)
@given(st.text(st.sampled_from(sorted(set(CODE))), max_size=40))
def test_subwords_keep_every_space(spaced: SentencePiece, written: str) -> None:
    for text in (CODE, written):
        tokens = spaced.encode(text.encode())
        assert spaced.unknown not in tokens
        assert spaced.decode(tokens.tolist()) == text


def test_published_subwords_do_not_keep_spaces(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    train_sentencepiece(iter([CODE.encode() * 30]), 60, tmp_path / "usual", verbatim=False)
    usual = SentencePiece((tmp_path / "usual").read_bytes())
    assert usual.decode(usual.encode(b"  a   b ").tolist()) == "a b"


def test_learned_subwords_depend_on_the_text_alone(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    for name in ("a", "b"):
        train_sentencepiece(iter([VERSE.encode() * 20]), 60, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    code = SentencePiece((tmp_path / "a").read_bytes())
    assert code.vocabulary == 60
    assert math.isclose(len(code.encode(b"12")), 3)  # a space's mark, and each digit by itself


def test_a_batch_of_text_is_a_sequence_of_full_length(text: Text) -> None:
    batch: Batch = text.stream("train", 2, 8).block(1)
    assert batch.is_sequence
    assert batch.lengths().tolist() == [8, 8]


def test_a_real_text(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    found = Text(corpus=str(real_data("text/tinyshakespeare.txt.zst")), folder=str(tmp_path))
    sizes = [found.tokens(split)[1].bytes for split in SPLITS]
    assert sum(sizes) == 1_115_394
    assert sizes[1:] == pytest.approx([55_770, 55_770], rel=0.01)
    assert found.check(found.sample(20, 100, 0, "valid")).all()
