"""bAbI (Csordás, section 2.3.2): stories of simple sentences with questions in between, answered in a word or a few.

input   mary moved to the bathroom . where is mary ? _ _ _ _        the blanks (_) are steps to think and to answer in
answer                                                      bathroom

The data are at http://www.thespermwhale.com/jaseweston/babi/tasks_1-20_v1-2.tar.gz (CC BY 3.0).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.tasks.babi_files import (
    ADDRESS,
    FOLDER,
    TASKS,
    Part,
    Stamp,
    all_files,
    check_task,
    find_data,
    parsed,
    raw_stories,
    stamp_of,
    story_numbers,
)
from longthink.tasks.babi_stories import (
    BLANK,
    PAD,
    QUESTION,
    TOKENS,
    WORDS,
    Line,
    Story,
    line_text,
    listed,
    parse_stories,
    sentence_text,
    typed_story,
)
from longthink.tasks.base import Batch, Split, check_request, correct_everywhere, mixed_seed, tasks
from longthink.tasks.rng import shuffled_rounds

_COLUMNS, _MOST_ROWS = 90, 60  # of a picture


@tasks.add("babi")
@dataclass(frozen=True)
class Babi:
    """Difficulty is not a size but the number of the task, 1 to 20. A sample is a story with all its questions.

    After each question come ``think`` blanks, then one blank for each word of its answer; only the latter count.
    ``sample`` gives all stories in random order, and again in another when ``n`` is larger. A tenth of the training
    file, by content, is the valid split.

    ``info`` has the ``task``, the number of the ``story`` in its file (-1 where a person typed it), whether that is the
    ``test`` file, and ``truth_known``.
    """

    name: ClassVar[str] = "babi"
    unit: ClassVar[str] = "task"
    parts: ClassVar[str] = "words"
    failed_above: ClassVar[float] = 0.05
    """A task counts as failed when more of its answer words than this are wrong (section 2.3.2)."""
    tokens: ClassVar[tuple[str, ...]] = TOKENS
    shape: ClassVar[dict[str, int]] = {"vocabulary": len(TOKENS), "classes": len(TOKENS)}

    folder: str = FOLDER
    """The unpacked data, the archive or a folder with it; looked for in ., ./data and $LONGTHINK_DATA. The official
    archive is downloaded where there is none and nothing else was named."""
    variant: str = "en-10k"
    """Or en, with a tenth of the training stories."""
    think: int = 3
    """Blanks before an answer, T."""
    repeated: bool = False
    """Train on stories that the test file has too, as published. Task 4 has 1,480 such of 10,000 (they are 741 of its
    1,000 test stories), the others none; the large training file of task 3 was not at hand."""
    longest: int | None = None
    """Training stories of more tokens end with the last question that fits; without one they are left out. Those of
    the other splits are always whole."""

    def __post_init__(self) -> None:
        if self.variant not in ("en", "en-10k"):
            raise UserError(f"There is no variant {self.variant[:40]!r} of bAbI; choose en or en-10k.")
        if self.think < 0:
            raise UserError(f"The number of blanks to think in must be 0 or more, not {self.think}.")
        if self.longest is not None and self.longest < 1:
            raise UserError(f"The longest story must have 1 token or more, not {self.longest}.")

    @property
    def missing(self) -> tuple[str, ...]:
        """The files that this copy of the data lacks, as en-10k/qa3_train; those of en stand in for them."""
        root, stamp, _ = self._data()
        files = all_files(root, stamp)
        every = [(task, part) for task in range(1, TASKS + 1) for part in ("train", "test")]
        return tuple(f"{self.variant}/qa{t}_{part}" for t, part in every if (self.variant, t, part) not in files)

    @property
    def warning(self) -> str:
        """One sentence about missing files; empty where all are there."""
        missing = self.missing
        if not missing:
            return ""
        return f"This copy of bAbI lacks {', '.join(missing)}; the file of 1,000 questions in en is used for it."

    def stories(self, difficulty: int, split: Split) -> int:
        """How many there are; the published training draws from the stories of all tasks alike."""
        check_request(0, difficulty, 0, split)
        return len(self._pool(difficulty, split))

    def sample(self, n: int, difficulty: int, seed: int, split: Split = "test") -> Batch:
        check_request(n, difficulty, seed, split)
        check_task(difficulty)  # before the data are looked for, which may be a download
        pool = self._pool(difficulty, split)
        if not len(pool):
            if self.longest is not None and split == "train":
                raise UserError(
                    f"No story of task {difficulty} has a question within {self.longest} tokens; raise longest."
                )
            raise UserError(f"There is no {split} story of task {difficulty} in {self.folder}; get {ADDRESS}.")
        picks = np.empty(n, np.int64)
        shuffled_rounds(mixed_seed(self.name, difficulty, seed), len(pool), picks)
        numbers = pool[picks]
        stories = parsed(*self._data(), difficulty, "test" if split == "test" else "train")
        chosen = [stories[i] for i in numbers.tolist()]
        if split == "train":
            chosen = [story[: self._end(story)] for story in chosen]
        batch = self._batch(chosen, difficulty)
        batch.info["task"] = torch.full((n,), difficulty)
        batch.info["story"] = torch.from_numpy(numbers)
        batch.info["test"] = torch.full((n,), split == "test")
        return batch

    def check(self, batch: Batch) -> Tensor:
        """Reads the lines of the file again in the simplest way; of a typed story, where the answers are wanted."""
        right = torch.zeros(len(batch), dtype=torch.bool)
        for i, number in enumerate(batch.info["story"].tolist()):
            words, wanted = self._words(batch, i)
            if number >= 0:
                part: Part = "test" if bool(batch.info["test"][i]) else "train"
                stories = raw_stories(*self._data(), int(batch.info["task"][i]), part)
                if number >= len(stories):
                    continue
                seen, answers = _simply_read(stories[number], self.think)
                if self.longest is not None and part == "train" and words and wanted[-1]:  # it may end after an answer
                    seen, answers = seen[: len(words)], answers[: len(words)]
                right[i] = (words, wanted) == (seen, answers)
            else:
                right[i] = _in_place(words, wanted, self.think)
        return right.to(batch.targets.device)

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        return logits.argmax(1)

    def score(self, logits: Tensor, batch: Batch) -> Tensor:
        """Are all the answers of a story right? ``wrong_parts`` is the published measure."""
        return correct_everywhere(self.predict(logits, batch), batch)

    def wrong_parts(self, logits: Tensor, batch: Batch) -> Tensor:
        """Wrong words of each story's answers: [n]. Their share in a task's test file is the published error."""
        assert batch.mask is not None
        return ((self.predict(logits, batch) != batch.targets) & batch.mask).sum(1)

    def parse(self, text: str) -> Batch:
        """Sentences and questions, the latter with their answers in brackets if known, or lines as in the files.

        Mary went to the park. Where is Mary? [park] How do you go from the park to the school? [n, w]
        A question without brackets has an answer of one word, the way two; [?, ?] stands for two that nobody knows.
        """
        if re.match(r"\s*\d", text):
            stories = parse_stories(text.strip().splitlines(), "what you typed")
            if len(stories) > 1:
                raise UserError(f"There are {len(stories)} stories; type one, whose lines count up from 1.")
            return self._batch(stories, 0)
        return self._batch([typed_story(text)], 0)

    def text(self, batch: Batch, index: int = 0) -> str:
        return " ".join(line_text(line) for line in self._story(batch, index))

    def show(self, classes: Tensor, batch: Batch, index: int = 0) -> str:
        """The answers to the questions in turn: park; n, w."""
        return "; ".join(map(listed, self._answers(classes, batch, index)))

    def draw(self, batch: Batch, index: int = 0, logits: Tensor | None = None) -> np.ndarray:
        """The story, each question with its answer in blue; with logits, right answers are blue and wrong ones red."""
        answers = self._answers(batch.targets[index], batch, index)
        said = answers
        if logits is not None:
            said = self._answers(logits[index].argmax(0), batch, index)
        rows: list[tuple[str, str, bool]] = []
        plain: list[str] = []
        turn = 0
        for line in self._story(batch, index):
            plain.append(sentence_text(line.words))
            if line.answer is None:
                continue
            *before, question = plain
            rows += [(row, "", True) for row in wrap(" ".join(before), _COLUMNS)]
            right = said[turn] == answers[turn] or not bool(batch.info["truth_known"][index])
            known = "" if right else f" (right: {listed(answers[turn])})"
            rows.append((question, listed(said[turn]) + known, right))
            plain, turn = [], turn + 1
        return _page(rows)

    def _data(self) -> tuple[Path, Stamp, str]:
        root = find_data(self.folder)
        return root, stamp_of(root), self.variant

    def _batch(self, stories: Sequence[Story], difficulty: int) -> Batch:
        rows = [self._encoded(story) for story in stories]
        longest = max((len(tokens) for tokens, _ in rows), default=0)
        inputs = np.zeros((len(rows), longest), np.int64)
        targets = np.full((len(rows), longest), -1, np.int64)
        for i, (tokens, answers) in enumerate(rows):
            inputs[i, : len(tokens)] = tokens
            targets[i, : len(tokens)] = answers
        known = [not any(line.answer is not None and PAD in line.answer for line in story) for story in stories]
        return Batch(
            inputs=torch.from_numpy(inputs),
            targets=torch.from_numpy(np.maximum(targets, PAD)),
            mask=torch.from_numpy(targets >= 0),
            difficulty=difficulty,
            info={
                "task": torch.full((len(rows),), difficulty),
                "story": torch.full((len(rows),), -1),
                "test": torch.zeros(len(rows), dtype=torch.bool),
                "truth_known": torch.tensor(known, dtype=torch.bool),
            },
        )

    def _pool(self, difficulty: int, split: Split) -> np.ndarray:
        """The numbers of the stories to draw from."""
        numbers = story_numbers(*self._data(), difficulty, split, self.repeated)
        if self.longest is None or split != "train":
            return numbers
        stories = parsed(*self._data(), difficulty, "train")
        return np.array([i for i in numbers.tolist() if self._end(stories[i])], np.int64)

    def _end(self, story: Story) -> int:
        """How many lines of a training story there are to the last question that fits."""
        if self.longest is None:
            return len(story)
        tokens, end = 0, 0
        for i, (words, answer) in enumerate(story):
            tokens += len(words) + (self.think + len(answer) if answer is not None else 0)
            if tokens > self.longest:
                break
            if answer is not None:
                end = i + 1
        return end

    def _encoded(self, story: Story) -> tuple[list[int], list[int]]:
        """Tokens and, at the steps that count, the answers; -1 at the others."""
        tokens: list[int] = []
        answers: list[int] = []
        for words, answer in story:
            tokens += words
            answers += [-1] * len(words)
            if answer is not None:
                tokens += [BLANK] * (self.think + len(answer))
                answers += [-1] * self.think
                answers += answer
        return tokens, answers

    def _words(self, batch: Batch, index: int) -> tuple[list[str], list[str]]:
        """A sample as words, and what is wanted at each step, empty where nothing is."""
        tokens = np.trim_zeros(batch.inputs[index].cpu().numpy(), "b").tolist()
        targets = batch.targets[index].tolist()
        counts = [True] * len(targets) if batch.mask is None else batch.mask[index].tolist()
        seen = [TOKENS[token] if 0 <= token < len(TOKENS) else "" for token in tokens]
        wanted = [TOKENS[target] if counted else "" for target, counted in zip(targets, counts, strict=True)]
        return seen, wanted[: len(seen)] if not any(wanted[len(seen) :]) else wanted

    def _story(self, batch: Batch, index: int) -> list[Line]:
        tokens, targets = batch.inputs[index].tolist(), batch.targets[index].tolist()
        counted = [False] * len(tokens) if batch.mask is None else batch.mask[index].tolist()
        lines: list[Line] = []
        words: list[int] = []
        for token, target, here in zip(tokens, targets, counted, strict=True):
            if token > BLANK:
                words.append(token)
            if TOKENS[token] in (".", "?"):
                lines.append(Line(tuple(words), () if token == QUESTION else None))
                words = []
            if here and lines:
                lines[-1] = Line(lines[-1].words, (*(lines[-1].answer or ()), target))
        return lines

    def _answers(self, classes: Tensor, batch: Batch, index: int) -> list[list[int]]:
        """The words at the steps that count, question by question."""
        answers: list[list[int]] = []
        before = False
        counted = torch.zeros_like(classes) if batch.mask is None else batch.mask[index]
        for word, here in zip(classes.tolist(), counted.tolist(), strict=True):
            if here and not before:
                answers.append([])
            if here:
                answers[-1].append(word)
            before = bool(here)
        return answers


def _simply_read(lines: Sequence[str], think: int) -> tuple[list[str], list[str]]:
    """The words that are seen and the words that are wanted, step by step."""
    seen: list[str] = []
    wanted: list[str] = []
    for line in lines:
        sentence, *rest = line.lower().split("\t")
        answer = rest[0].split(",") if rest else []
        seen += re.findall(r"[a-z]+|[.?,]", sentence) + [TOKENS[BLANK]] * (think + len(answer) if rest else 0)
        wanted += [""] * (len(seen) - len(wanted) - len(answer)) + answer
    return seen, wanted


def _in_place(seen: Sequence[str], wanted: Sequence[str], think: int) -> bool:
    """Are the blanks after the questions, and words wanted at the last of them alone?"""
    kinds = {".": "s", "?": "q", TOKENS[BLANK]: "b"}
    if len(seen) != len(wanted):
        return False
    code = ""
    for word, answer in zip(seen, wanted, strict=True):
        code += kinds.get(word, "w") if not answer else "a" if word == TOKENS[BLANK] and answer in WORDS else "x"
    question = f"w+qb{{{think}}}a+"
    return re.fullmatch(f"w+s(w+s|{question})*{question}", code) is not None


def _page(rows: list[tuple[str, str, bool]]) -> np.ndarray:
    """Lines of text; answers stand behind their questions."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if len(rows) > _MOST_ROWS:
        rows = [*rows[: _MOST_ROWS // 2], ("...", "", True), *rows[-_MOST_ROWS // 2 :]]
    columns = max(len(text) + len(answer) for text, answer, _ in rows) + 4
    lines = max(3, len(rows))
    figure = Figure(figsize=(0.085 * (columns + 1), 0.24 * (lines + 1)), dpi=100)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-1, columns), ylim=(lines + 0.5, -0.5))
    axes.axis("off")
    style: dict[str, Any] = {"va": "center_baseline", "size": 10, "family": "monospace"}
    for y, (text, answer, right) in enumerate(rows):
        axes.text(
            0, y + 0.5, text, color="#0f172a" if answer else "#475569", weight="bold" if answer else "normal", **style
        )
        colour = "#2563eb" if right else "#b91c1c"
        axes.text(len(text) + 2, y + 0.5, answer, color=colour, weight="bold", **style)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
