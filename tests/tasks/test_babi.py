from __future__ import annotations

import json
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longthink.cli import main
from longthink.errors import UserError
from longthink.loading import Loaded, load
from longthink.models import build
from longthink.recipes import recipes
from longthink.solving import solve
from longthink.studies.dnc import WordErrors
from longthink.tasks.babi import Babi
from longthink.tasks.babi_files import read_stories
from longthink.tasks.babi_stories import BLANK, WORDS
from longthink.tasks.base import SPLITS, Batch, Split
from longthink.think import think
from longthink.training.validation import Solved, in_words
from tests.tasks.babi_toys import LINES, PLACES, everything, made_story, small_copy, write

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "babi"
real = pytest.mark.skipif(not REAL.exists(), reason="bAbI is not in ../shared/data")

few = settings(max_examples=30, deadline=None)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_copy(tmp_path_factory.mktemp("babi"))


def sharp(classes: torch.Tensor) -> torch.Tensor:
    return 9.0 * torch.nn.functional.one_hot(classes, Babi().shape["classes"]).transpose(1, 2)


def contents(task: Babi, batch: Batch) -> set[str]:
    return {task.text(batch, i) for i in range(len(batch))}


def test_a_story_step_by_step() -> None:
    batch = Babi(think=2).parse(LINES[: LINES.index("1 The")])
    words = [Babi.tokens[token] for token in batch.inputs[0].tolist()]
    assert " ".join(words) == (
        "mary moved to the bathroom . john went to the hallway . where is mary ? <blank> <blank> <blank> "
        "john went to the garden . where is john ? <blank> <blank> <blank>"
    )
    assert batch.mask is not None
    assert batch.mask[0].nonzero().flatten().tolist() == [18, len(words) - 1]
    assert [Babi.tokens[target] for target in batch.targets[0][batch.mask[0]].tolist()] == ["bathroom", "garden"]
    assert not batch.targets[~batch.mask].any()
    assert Babi(think=2).check(batch).all()
    assert not Babi(think=3).check(batch).any()
    assert Babi().show(batch.targets[0], batch) == "bathroom; garden"


def test_an_answer_of_two_words() -> None:
    batch = Babi().parse(LINES[LINES.index("1 The") :])
    assert batch.mask is not None
    assert batch.inputs[0, -6:].tolist() == [Babi.tokens.index("?"), *[BLANK] * 5]
    assert batch.mask[0].tolist() == [False] * (batch.mask.shape[1] - 2) + [True, True]
    assert Babi().show(batch.targets[0], batch) == "s, w"
    assert batch.info["truth_known"].all()


def test_no_story_is_lost(small: Path, tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_text(LINES)
    assert [len(story) for story in read_stories(tmp_path / "story.txt")] == [5, 3]
    task = Babi(str(small))
    assert [task.stories(1, split) for split in SPLITS] == [87, 13, 5]
    last = made_story("John", ("kitchen", "bathroom", "bathroom"))
    texts = contents(task, everything(task, 1, "test"))
    assert len(texts) == 5
    assert task.text(task.parse(last)) in texts


def test_samples(small: Path) -> None:
    task = Babi(str(small))
    batch = task.sample(230, 2, 5, "train")
    assert (batch.inputs.dtype, batch.targets.dtype) == (torch.int64, torch.int64)
    assert task.check(batch).all()
    assert batch.difficulty == 2
    numbers = batch.info["story"].tolist()
    assert sorted(numbers[:87]) == sorted(numbers[87:174]) == sorted(set(numbers))  # all before any comes again
    assert numbers[:87] != numbers[87:174]
    fewer = task.sample(100, 2, 5, "train")
    assert torch.equal(fewer.inputs, batch.inputs[:100])
    assert task.sample(87, 2, 6, "train").info["story"].tolist() != numbers[:87]
    assert len(task.sample(0, 2, 5)) == 0
    sets = [contents(task, everything(task, 2, split)) for split in SPLITS]
    assert len(set().union(*sets)) == sum(map(len, sets)) == 105


def test_stories_of_the_test_file_are_not_for_training(tmp_path: Path) -> None:
    write(tmp_path, "en", range(1, 21), 20)
    file = tmp_path / "en" / "qa4_some-name_train.txt"
    file.write_text(file.read_text() + 2 * (tmp_path / "en" / "qa4_some-name_test.txt").read_text())
    strict, published = Babi(str(tmp_path), "en"), Babi(str(tmp_path), "en", repeated=True)
    assert strict.stories(4, "train") + strict.stories(4, "valid") == 20
    assert published.stories(4, "train") + published.stories(4, "valid") == 30
    # The number of a story is that in its file, whatever was left out.
    assert strict.check(everything(strict, 4, "train")).all()


def test_long_training_stories_end_early(tmp_path: Path) -> None:
    lines = ""
    for story in range(20):
        for question in range(3):
            lines += f"{3 * question + 1} Mary went to the {PLACES[(story + question) % 6]}.\n"
            lines += f"{3 * question + 2} John went to the {PLACES[story // 6]}.\n"
            lines += f"{3 * question + 3} Where is Mary?\t{PLACES[(story + question) % 6]}\t1\n"
    folder = tmp_path / "en-10k"
    folder.mkdir()
    (folder / "qa1_x_train.txt").write_text(lines)
    (folder / "qa1_x_test.txt").write_text(lines.replace("Mary", "Sandra"))
    whole = Babi(folder=str(tmp_path), think=1)
    question = 6 + 6 + 4 + 1 + 1  # tokens of two sentences, a question, a blank to think in and one to answer in
    for longest, left in ((question, 1), (2 * question - 1, 1), (2 * question, 2), (3 * question, 3)):
        task = replace(whole, longest=longest)
        batch = everything(task, 1, "train")
        assert batch.inputs.shape[1] == left * question
        assert int(batch.mask.sum()) == left * len(batch)
        assert task.check(batch).all()
        assert bool(whole.check(batch).all()) == (left == 3)
        tests = everything(task, 1, "test")
        assert tests.inputs.shape[1] == 3 * question
        assert task.check(tests).all()
        torn = batch.cut(left * question - 1)  # not after an answer
        assert not task.check(torn).any()
    short = replace(whole, longest=question - 1)
    assert short.stories(1, "train") == 0
    with pytest.raises(UserError, match="No story of task 1 has a question within 17 tokens; raise longest"):
        short.sample(1, 1, 0, "train")
    with pytest.raises(UserError, match="1 token or more, not 0"):
        Babi(longest=0)


def test_typed_stories() -> None:
    task = Babi()
    batch = task.parse("Mary went to the park.  WHERE is Mary? [park]\nJohn left. How do you go? [n, W]")
    assert task.text(batch) == "Mary went to the park. Where is Mary? [park] John left. How do you go? [n, w]"
    assert task.show(batch.targets[0], batch) == "park; n, w"
    assert task.check(batch).all()
    assert batch.info["truth_known"].tolist() == [True]
    assert torch.equal(task.parse(task.text(batch)).inputs, batch.inputs)
    unknown = task.parse("Mary went to the park. Where is Mary? Where is Mary? [?, ?]")
    assert unknown.info["truth_known"].tolist() == [False]
    assert unknown.mask is not None
    assert int(unknown.mask.sum()) == 3
    assert task.text(unknown).endswith("Mary? [?] Where is Mary? [?, ?]")
    assert not task.check(unknown).any()
    way = task.parse("Mary, left. How do you go from the park to the school?")
    assert task.text(way) == "Mary left. How do you go from the park to the school? [?, ?]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "There is no story"),
        ("Where is Mary?", "no story before it"),
        ("Mary went to the park.", "does not end with a question"),
        ("Mary went to the park", "'Mary went to the park' does not end"),
        ("Mary went to the park. Where is Mary", "'Where is Mary' does not end"),
        ("Mary flew to the park. Where is Mary?", "unknown word 'flew'"),
        ("Mary went to the park. Where is Mary? [zoo]", "The answer has the unknown word 'zoo'"),
        ("Mary went to the park. Where is Mary? []", "no answer in '[]'"),
        ("Mary went to the park. Where is Mary? [.]", "no answer in '[.]'"),
        ("Mary went to the park. [park] Where is Mary?", "do not hold the answer"),
        ("Mary went to the park. Where is Mary? [park", "do not hold the answer"),
        ("Mary went to the park. Where is Mary? park", "'park' does not end"),
        ("Mary went to the park. . Where is Mary?", "without a sentence; remove it or write one."),
        ("Mary went to the park! Where is Mary?", "has 'park!' in it; write words, sentences with . or ?, answers in"),
        ("Mary left. Where is Mary? (park)", "has '(park)' in it"),
        ("Mary left. Where is Mary? [park] [park]", "do not hold the answer to a question"),
        ("42", "Line 1 of what you typed must begin with 1: a story counts its lines."),
        ("1 Mary went to the park.", "Line 1 of what you typed ends a story without a question"),
        (LINES, "There are 2 stories; type one"),
    ],
)
def test_parse_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(UserError, match=r"^[^\n]*[.?]$") as caught:
        Babi().parse(text)
    assert says in str(caught.value)


typing = st.lists(
    st.sampled_from(["mary", "went", ".", "?", "[", "]", "[n]", ",", "1", "\n", "\t", "zoo"]), max_size=12
)


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=20) | typing.map(" ".join))
def test_parse_answers_anything_with_a_problem_or_a_sentence(text: str) -> None:
    problem = ""
    try:
        batch = Babi().parse(text)
        assert bool(Babi().check(batch)) == bool(batch.info["truth_known"])
        assert Babi().text(Babi().parse(Babi().text(batch))) == Babi().text(batch)
    except UserError as error:
        problem = str(error)
    assert not problem or (problem[-1] in ".?" and "\n" not in problem)


@few
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.booleans()), min_size=1, max_size=9), st.integers(0, 5))
def test_typed_stories_come_back(moves: list[tuple[str, bool]], think: int) -> None:
    lines = [f"Mary went to the {place}." + f" Where is Mary? [{place}]" * asked for place, asked in moves]
    text = " ".join([*lines, f"Where is Mary? [{moves[-1][0]}]"])
    task = Babi(think=think)
    batch = task.parse(text)
    assert task.text(batch) == text
    assert task.check(batch).all()
    answers = [place for place, asked in moves if asked] + [moves[-1][0]]
    assert task.show(batch.targets[0], batch) == "; ".join(answers)


def test_corrupt_samples_are_found(small: Path) -> None:
    task = Babi(str(small))
    batch = task.sample(4, 1, 0)
    assert batch.mask is not None
    targets, mask, inputs = batch.targets.clone(), batch.mask.clone(), batch.inputs.clone()
    targets[batch.mask] = Babi.tokens.index("school")
    assert not task.check(replace(batch, targets=targets)).any()
    mask[1] = False
    assert task.check(replace(batch, mask=mask)).tolist() == [True, False, True, True]
    inputs[2, 0] = Babi.tokens.index("sandra")
    assert task.check(replace(batch, inputs=inputs)).tolist() == [True, True, False, True]
    assert not Babi(str(small), think=2).check(batch).any()


def test_score_and_errors() -> None:
    task = Babi()
    batch = task.parse("Mary left. Where is Mary? [park] Mary left. How do you go? [n, w] Where is Mary? [park]")
    assert batch.mask is not None
    two = Batch(batch.inputs.repeat(2, 1), batch.targets.repeat(2, 1), batch.mask.repeat(2, 1))
    classes = torch.where(two.mask, two.targets, 7)  # other steps do not count
    assert torch.equal(task.predict(sharp(classes), two), classes)
    assert task.score(sharp(classes), two).all()
    assert task.wrong_parts(sharp(classes), two).tolist() == [0, 0]
    steps = two.mask[1].nonzero().flatten().tolist()
    for step in steps[1:3]:
        classes[1, step] = Babi.tokens.index("e")
    assert task.score(sharp(classes), two).tolist() == [True, False]
    assert task.wrong_parts(sharp(classes), two).tolist() == [0, 2]
    classes[0, steps[-1]] = 0
    assert task.wrong_parts(sharp(classes), two).tolist() == [1, 2]


def test_the_published_error_counts_words(small: Path) -> None:
    torch.manual_seed(0)
    task = Babi(str(small))
    model = build("dnc", **task.shape, size=8, cells=4, width=4).eval()
    found = WordErrors("task 1", 1, 1_000, 0, chunk=2).measure(Loaded(model, task, {}), half=False)
    wrong = 0
    batch = everything(task, 1, "test")
    said = think(model, batch.inputs, 0).logits.argmax(1)
    for i in range(len(batch)):
        for t in range(batch.inputs.shape[1]):
            if batch.mask[i, t]:
                wrong += int(said[i, t] != batch.targets[i, t])
    assert found == {"samples": 5, "words": 5, "wrong": wrong, "error": 20.0 * wrong}


def test_training_keeps_the_weights_with_fewest_wrong_words(small: Path) -> None:
    task = Babi(str(small))
    recipe = replace(recipes["babi-dnc"], difficulty=(1, 2), valid_samples=6)
    torch.manual_seed(0)
    model = build("dnc", **task.shape, size=8, cells=4, width=4)
    judge = Solved(recipe, task)
    verdict = judge(model)
    wrong = int(task.wrong_parts(think(model, judge.problems.inputs, 0).logits, judge.problems).sum())
    assert verdict.score[0] == -wrong / int(judge.problems.mask.sum()) == -verdict.card["error"]
    said = in_words({**verdict.card, "error": 0.125, "accuracy": [0.5, 0.5]})
    assert said == "12.50% of the words wrong, 50.00% of the problems solved"


def test_the_shipped_network_answers_a_story_that_somebody_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longthink.tasks.babi_files.PUBLISHED", ())  # the data are not needed
    loaded = load("babi")
    asked = "Mary moved to the bathroom. John took the milk. John went to the hallway. "
    asked += (
        "Where is Mary? [bathroom] Where is the milk? [hallway] Sandra went to the garden. Where is Sandra? [garden]"
    )
    batch = loaded.task.parse(asked)
    found = solve(loaded, batch)
    assert found.solved
    assert found.to_json()["at_rest"] is None  # there are no steps


def test_eval_tells_the_share_of_wrong_words(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["model.size=8", "model.cells=4", "model.width=4", "model.heads=1", f"task.folder={small}"]
    toy = ["train_samples=8", "valid_samples=4", "batch=4", "epochs=1", "difficulty=1,2"]
    settings = [part for setting in (*sizes, *toy) for part in ("--set", setting)]
    assert main(["train", "babi-dnc", "--folder", str(tmp_path), "--accelerator", "cpu", *settings]) == 0
    folder = capsys.readouterr().out.split()[1]
    request = ["eval", folder, "--samples", "5", "--out", str(tmp_path / "e.json")]
    assert main(request) == 0
    printed = capsys.readouterr().out
    curves = json.loads((tmp_path / "e.json").read_text())["curves"]
    errors = []
    loaded = load(folder)
    for curve in curves:
        batch = loaded.task.sample(5, curve["difficulty"], 0, "test")
        said = think(loaded.model, batch.inputs, 0).logits.argmax(1)
        errors.append(float((said != batch.targets)[batch.mask].double().mean()))
        assert curve["error"] == [pytest.approx(errors[-1], abs=1e-6)]
    assert "wrong words" in printed
    assert f"{sum(errors) / 2:.1%} on average, {sum(error > 0.05 for error in errors)} above 5%" in printed


def test_impossible_requests(small: Path) -> None:
    task = Babi(str(small))
    for difficulty, seed, split in ((0, 0, "train"), (21, 0, "test"), (3, -1, "test"), (3, 0, "x")):
        with pytest.raises(UserError, match=r"^[^\n]*\.$"):
            task.sample(1, difficulty, seed, split)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="choose en or en-10k"):
        Babi(variant="hn")
    with pytest.raises(UserError, match="0 or more, not -1"):
        Babi(think=-1)


def test_draw() -> None:
    task = Babi()
    batch = task.parse(12 * "Mary went to the park. " + "Where is Mary? [park] How do you go? [n, w]")
    pictures = [
        task.draw(batch),
        task.draw(batch, 0, sharp(batch.targets)),
        task.draw(batch, 0, sharp(0 * batch.targets)),
    ]
    for pixels in pictures:
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3
        assert pixels.shape[1] < 901
        assert pixels.shape[2] == 3
    red = [(pixels[..., 0].astype(int) - pixels[..., 1] > 100).sum() for pixels in pictures]
    assert red[0] == red[1] == 0 < red[2]
    long = task.parse(80 * "Mary went to the park. Where is Mary? [park] ")
    assert task.draw(long).shape[0] < 1600


@real
def test_the_real_files() -> None:
    task = Babi(str(REAL))
    assert task.missing == ("en-10k/qa3_train",)
    counts = {d: task.stories(d, "test") for d in range(1, 21)}
    assert [counts[d] for d in (1, 4, 15, 16, 17, 18, 19, 20)] == [200, 1000, 250, 1000, 125, 199, 1000, 93]
    assert task.stories(1, "train") + task.stories(1, "valid") == 2000
    assert task.stories(3, "train") + task.stories(3, "valid") == 200  # of 2,000: the file of 1,000 questions
    assert task.stories(4, "train") + task.stories(4, "valid") == 10_000 - 1480
    words: set[int] = set()
    for difficulty in range(1, 21):
        batch = everything(task, difficulty, "test")
        assert batch.mask is not None
        assert task.check(batch).all(), difficulty
        questions = batch.mask.clone()
        questions[:, 1:] &= ~batch.mask[:, :-1]
        assert questions.sum() == 1000
        assert batch.mask.sum() == {8: 1069, 19: 2000}.get(difficulty, 1000)
        assert sorted(batch.info["story"].tolist()) == list(range(counts[difficulty]))
        words |= set(batch.inputs.unique().tolist()) | set(batch.targets.unique().tolist())
    # The lexicon has all words, and no others; only typed stories have commas.
    assert words == set(range(len(Babi.tokens))) - {Babi.tokens.index(",")}
    assert len(WORDS) == 156


@real
def test_real_labels_by_walking() -> None:
    """Tasks 1 and 19 are easy to solve: follow the people, search the map."""
    task = Babi(str(REAL))
    batch = everything(task, 1, "test")
    for i in range(len(batch)):
        place: dict[str, str] = {}
        for line in re.findall(r"[^.?]*[.?](?: \[\w+\])?", task.text(batch, i)):
            line = line.strip().lower()
            if match := re.match(r"where is (\w+)\? \[(\w+)\]", line):
                assert place[match[1]] == match[2]
            else:
                place[line.split()[0]] = line.rstrip(".").split()[-1]
    batch = everything(task, 19, "test")
    for i in range(len(batch)):
        text = task.text(batch, i).lower()
        way = re.search(r"from the (\w+) to the (\w+)\? \[(\w), (\w)\]", text)
        assert way
        here = {way[1]}
        for direction in way[3], way[4]:
            said = {"n": "north", "s": "south", "e": "east", "w": "west"}[direction]
            back = {"n": "south", "s": "north", "e": "west", "w": "east"}[direction]
            there = {a for h in here for a in re.findall(rf"the (\w+) is {said} of the {h}\.", text)}
            here = there | {b for h in here for b in re.findall(rf"the {h} is {back} of the (\w+)\.", text)}
        assert way[2] in here


@real
@pytest.mark.parametrize(
    ("difficulty", "split", "golden"),
    [(1, "train", "8d9e954c01b54146"), (4, "valid", "d9f6f56cdce2d58a"), (8, "test", "cde0268779391350")],
)
def test_the_same_everywhere(difficulty: int, split: Split, golden: str) -> None:
    batch = Babi(str(REAL)).sample(50, difficulty, 3, split)
    numbers = batch.inputs.numpy().astype("<i8").tobytes() + batch.targets.numpy().astype("<i8").tobytes()
    assert sha256(numbers).hexdigest()[:16] == golden


def test_a_task_that_does_not_exist_is_refused_before_the_data_are_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tasks 1 to 20; there is no task 21"):
        Babi(str(tmp_path / "not there")).sample(1, 21, 0)
