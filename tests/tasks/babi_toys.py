"""Made-up stories in the layout of bAbI's files."""

from __future__ import annotations

from pathlib import Path

from longthink.tasks.babi import Babi
from longthink.tasks.base import Batch, Split

# Two stories as in the files: one with two questions, one whose answer has two words.
LINES = """\
1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 John went to the garden.
5 Where is John?\tgarden\t4
1 The garden is west of the office.
2 The office is south of the kitchen.
3 How do you go from the kitchen to the garden?\ts,w\t2 1
"""
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")


def made_story(who: str, places: tuple[str, ...]) -> str:
    told = "".join(f"{i} {who} went to the {place}.\n" for i, place in enumerate(places, 1))
    return f"{told}{len(places) + 1} Where is {who}?\t{places[-1]}\t{len(places)}\n"


def write(root: Path, variant: str, tasks: range, stories: int) -> None:
    folder = root / variant
    folder.mkdir(parents=True)
    for task in tasks:
        for part, count in (("train", stories), ("test", 5)):
            who = "Mary" if part == "train" else "John"
            texts = [made_story(who, (PLACES[i % 6], PLACES[i // 6 % 6], PLACES[i // 36])) for i in range(count)]
            (folder / f"qa{task}_some-name_{part}.txt").write_text("".join(texts))


def small_copy(folder: Path) -> Path:
    """The layout of the archive; task 3 has no large training file."""
    root = folder / "tasks_1-20_v1-2"
    write(root, "en-10k", range(1, 21), 100)
    write(root, "en", range(1, 21), 20)
    (root / "en-10k" / "qa3_some-name_train.txt").unlink()
    (root / "en-valid-10k").mkdir()
    (root / "en-valid-10k" / "qa3_test.txt").write_text("nothing to read here")
    return root


def everything(task: Babi, difficulty: int, split: Split) -> Batch:
    return task.sample(task.stories(difficulty, split), difficulty, 0, split)
