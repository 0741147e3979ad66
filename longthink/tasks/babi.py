"""bAbI (section 2.3.2): stories of simple sentences with questions in between, answered in a word or a few.

input   mary moved to the bathroom . where is mary ? _ _ _ _        the blanks (_) are steps to think and to answer in
answer                                                      bathroom

The data are at http://www.thespermwhale.com/jaseweston/babi/tasks_1-20_v1-2.tar.gz (CC BY 3.0).
"""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from textwrap import wrap
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.tasks.base import Batch, Split, check_request, correct_everywhere, mixed_seed, tasks
from longthink.tasks.reading import blocks, data_places
from longthink.tasks.rng import shuffled_rounds

ADDRESS = "http://www.thespermwhale.com/jaseweston/babi/tasks_1-20_v1-2.tar.gz"
TASKS = 20
SOLVED = 0.05
"""A task counts as solved when fewer of its answer words than this are wrong (section 2.3.2)."""
PAD, BLANK = 0, 1
_LEXICON = """
a above afraid after afternoon afterwards and antoine apple are back bathroom bedroom before below bernhard bigger
bill blue bored box brian carrying cat cats chest chocolate chocolates cinema color container daniel did discarded do
does down dropped e east either emily evening fit fits following football fred frog from garden gave gertrude get give
go got grabbed gray green greg hallway handed he how hungry in inside is jason jeff jessica john journeyed julie
julius kitchen left lily lion longer many mary maybe mice milk morning mouse moved n no none north not nothing objects
of office one or pajamas park passed picked pink put received rectangle red rhino right s sandra school she sheep
south sphere square suitcase sumit swan than that the then there they thirsty this three tired to took travelled
triangle two up w was went west what where white who why will winona wolf wolves yann yellow yes yesterday you
"""
WORDS = tuple(_LEXICON.split())
"""All the words of the English files. They are written down so that a token means the same whatever was read."""

_TOKENS = ("<pad>", "<blank>", ".", "?", ",", *WORDS)
_NUMBER = {word: i for i, word in enumerate(_TOKENS)}
_QUESTION = _NUMBER["?"]
_UNKNOWN = "?"  # stands for an answer word that the person who typed a question does not know
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_MEMBER = re.compile(r"(?:^|/)(en|en-10k)/qa(\d+)_(?:[^/]*_)?(train|test)\.txt$")
_COLUMNS, _MOST_ROWS = 90, 60  # of a picture

Part: TypeAlias = Literal["train", "test"]
Stamp: TypeAlias = tuple[tuple[str, int, int], ...]


class Line(NamedTuple):
    """A sentence of a story, or a question with its answer (0 for each word that nobody knows)."""

    words: tuple[int, ...]
    answer: tuple[int, ...] | None = None


Story: TypeAlias = tuple[Line, ...]


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
    tokens: ClassVar[tuple[str, ...]] = _TOKENS
    shape: ClassVar[dict[str, int]] = {"vocabulary": len(_TOKENS), "classes": len(_TOKENS)}

    folder: str = "babi"
    """The unpacked data, the archive or a folder with it; looked for in ., ./data and $LONGTHINK_DATA."""
    variant: str = "en-10k"
    """Or en, with a tenth of the training stories."""
    think: int = 3
    """Blanks before an answer, T."""
    repeated: bool = False
    """Train on stories that the test file has too, as published. Task 4 has 1,480 such of 10,000 (they are 741 of its
    1,000 test stories), the others none; the large training file of task 3 was not at hand."""

    def __post_init__(self) -> None:
        if self.variant not in ("en", "en-10k"):
            raise UserError(f"There is no variant {self.variant[:40]!r} of bAbI; choose en or en-10k.")
        if self.think < 0:
            raise UserError(f"The number of blanks to think in must be 0 or more, not {self.think}.")

    @property
    def missing(self) -> tuple[str, ...]:
        """The files that this copy of the data lacks, as en-10k/qa3_train; those of en stand in for them."""
        root, stamp, _ = self._data()
        files = _files(root, stamp)
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
        return len(_numbers(*self._data(), difficulty, split, self.repeated))

    def sample(self, n: int, difficulty: int, seed: int, split: Split = "test") -> Batch:
        check_request(n, difficulty, seed, split)
        pool = _numbers(*self._data(), difficulty, split, self.repeated)
        if not len(pool):
            raise UserError(f"There is no {split} story of task {difficulty} in {self.folder}; get {ADDRESS}.")
        picks = np.empty(n, np.int64)
        shuffled_rounds(mixed_seed(self.name, difficulty, seed), len(pool), picks)
        numbers = pool[picks]
        stories = _parsed(*self._data(), difficulty, "test" if split == "test" else "train")
        batch = self._batch([stories[i] for i in numbers.tolist()], difficulty)
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
                stories = _raw(*self._data(), int(batch.info["task"][i]), part)
                right[i] = number < len(stories) and (words, wanted) == _simply_read(stories[number], self.think)
            else:
                right[i] = _in_place(words, wanted, self.think)
        return right.to(batch.targets.device)

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        return logits.argmax(1)

    def score(self, logits: Tensor, batch: Batch) -> Tensor:
        """Are all the answers of a story right? See ``word_errors`` for the published measure."""
        return correct_everywhere(self.predict(logits, batch), batch)

    def parse(self, text: str) -> Batch:
        """Sentences and questions, the latter with their answers in brackets if known, or lines as in the files.

        Mary went to the park. Where is Mary? [park] How do you go from the park to the school? [n, w]
        A question without brackets has an answer of one word; [?, ?] stands for two that nobody knows.
        """
        if re.match(r"\s*\d", text):
            stories = _stories(text.strip().splitlines(), "what you typed")
            if len(stories) > 1:
                raise UserError(f"There are {len(stories)} stories; type one, whose lines count up from 1.")
            return self._batch(stories, 0)
        return self._batch([_typed(text)], 0)

    def text(self, batch: Batch, index: int = 0) -> str:
        return " ".join(_line_text(line) for line in self._story(batch, index))

    def show(self, classes: Tensor, batch: Batch, index: int = 0) -> str:
        """The answers to the questions in turn: park; n, w."""
        return "; ".join(map(_listed, self._answers(classes, batch, index)))

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
            plain.append(_sentence(line.words))
            if line.answer is None:
                continue
            *before, question = plain
            rows += [(row, "", True) for row in wrap(" ".join(before), _COLUMNS)]
            right = said[turn] == answers[turn] or not bool(batch.info["truth_known"][index])
            known = "" if right else f" (right: {_listed(answers[turn])})"
            rows.append((question, _listed(said[turn]) + known, right))
            plain, turn = [], turn + 1
        return _page(rows)

    def _data(self) -> tuple[Path, Stamp, str]:
        root = _found(self.folder)
        return root, _stamp(root), self.variant

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
        seen = [_TOKENS[token] if 0 <= token < len(_TOKENS) else "" for token in tokens]
        wanted = [_TOKENS[target] if counted else "" for target, counted in zip(targets, counts, strict=True)]
        return seen, wanted[: len(seen)] if not any(wanted[len(seen) :]) else wanted

    def _story(self, batch: Batch, index: int) -> list[Line]:
        tokens, targets = batch.inputs[index].tolist(), batch.targets[index].tolist()
        counted = [False] * len(tokens) if batch.mask is None else batch.mask[index].tolist()
        lines: list[Line] = []
        words: list[int] = []
        for token, target, here in zip(tokens, targets, counted, strict=True):
            if token > BLANK:
                words.append(token)
            if _TOKENS[token] in (".", "?"):
                lines.append(Line(tuple(words), () if token == _QUESTION else None))
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


def word_errors(logits: Tensor, batch: Batch) -> tuple[int, int]:
    """Wrong answer words and all of them: their ratio over a task's test file is the published error."""
    assert batch.mask is not None
    wrong = (logits.argmax(1) != batch.targets) & batch.mask
    return int(wrong.sum()), int(batch.mask.sum())


def question_errors(logits: Tensor, batch: Batch) -> tuple[int, int]:
    """Questions with a wrong word in their answer, and all questions. The published error counts words."""
    assert batch.mask is not None
    mask = batch.mask
    wrong = (logits.argmax(1) != batch.targets) & mask
    first = mask.clone()
    first[:, 1:] &= ~mask[:, :-1]  # the steps of one answer follow each other, and a question lies between two
    total = int(first.sum())
    question = (first.flatten().cumsum(0) - 1).clamp_min(0)
    any_wrong = torch.zeros(total + 1, device=wrong.device).index_add_(0, question, wrong.flatten().float())
    return int((any_wrong > 0).sum()), total


def read_stories(path: str | Path) -> list[Story]:
    """The stories of one file in the format of bAbI."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    return _stories(_decoded(path.read_bytes(), path.name), path.name)


def _stories(lines: Sequence[str], name: str) -> list[Story]:
    """Stories from lines such as ``3 Where is Mary?<tab>park<tab>1``; a story begins where the count does."""
    stories: list[list[Line]] = []
    known: dict[str, Line] = {}  # most sentences come many times
    count = 0
    for i, line in enumerate(lines):
        where = f"Line {i + 1} of {name}"
        number, _, rest = line.strip().partition(" ")
        if number == "1":
            _check_asked(stories, f"Line {i} of {name}")
            stories.append([])
        elif not stories or number != str(count + 1):
            raise UserError(f"{where} must begin with 1 or with {count + 1}, one more than the line before it.")
        count = int(number)
        if rest not in known:
            known[rest] = _line(rest, where)
        if known[rest].answer is not None and count == 1:
            raise UserError(f"{where} is a question without a story; put some sentences before it.")
        stories[-1].append(known[rest])
    if not stories:
        raise UserError(f"There is no story in {name}.")
    _check_asked(stories, f"Line {len(lines)} of {name}")
    return [tuple(story) for story in stories]


def _check_asked(stories: list[list[Line]], where: str) -> None:
    if stories and stories[-1][-1].answer is None:
        raise UserError(f"{where} ends a story without a question; every story must end with one.")


def _line(text: str, where: str) -> Line:
    sentence, *more = text.split("\t")
    words = _words_of(sentence, where)
    if not words:
        raise UserError(f"{where} is empty; write a sentence after its number.")
    if not more:
        if words[-1] != _NUMBER["."] or words.count(_NUMBER["."]) > 1 or _QUESTION in words or len(words) == 1:
            raise UserError(f"{where} is no sentence that ends with a full stop, nor a question with tab and answer.")
        return Line(words)
    if words[-1] != _QUESTION or words.count(_QUESTION) > 1 or _NUMBER["."] in words or len(words) == 1:
        raise UserError(f"{where} has an answer and must be a question that ends with a question mark.")
    answer = _words_of(more[0].replace(",", " "), where)
    if not answer or min(answer) <= _NUMBER[","]:
        raise UserError(f"{where} is a question without an answer; write it after a tab, several words with commas.")
    return Line(words, answer)


def _typed(text: str) -> Story:
    lines: list[Line] = []
    pieces = re.findall(r"\[[^\[\]]*\]|[^.?\[]*[.?]|\S[^.?\[]*|\[", text)
    for piece in (piece.strip() for piece in pieces):
        here = f"{piece[:40]!r}"
        if piece.startswith("["):
            if not lines or lines[-1].answer != (PAD,) or not piece.endswith("]"):
                raise UserError(f"The brackets {here} do not hold the answer to a question; close them right after it.")
            said = piece[1:-1].replace(",", " ").split()
            answer = [PAD if word == _UNKNOWN else _word_number(word.lower(), "The answer") for word in said]
            if not answer or any(BLANK <= word <= _NUMBER[","] for word in answer):
                raise UserError(f"There is no answer in {here}; type words with commas, or ? for one that is unknown.")
            lines[-1] = Line(lines[-1].words, (*answer,))
            continue
        words = _words_of(piece, f"The sentence {here}")
        if not words or words[-1] not in (_QUESTION, _NUMBER["."]):
            raise UserError(f"{here} does not end; put a full stop after a sentence, a question mark after a question.")
        if len(words) == 1:
            raise UserError("There is a full stop or a question mark without a sentence; write words before it.")
        lines.append(Line(words, (PAD,) if words[-1] == _QUESTION else None))
    if not lines:
        raise UserError("There is no story; type one, as in Mary went to the park. Where is Mary?")
    if lines[0].answer is not None:
        raise UserError("The first question has no story before it; type some sentences first.")
    if lines[-1].answer is None:
        raise UserError("The story does not end with a question; type one, as in Where is Mary?")
    return tuple(lines)


def _words_of(text: str, where: str) -> tuple[int, ...]:
    words = re.sub(r"([.?,])", r" \1 ", text.lower()).split()
    return tuple(_word_number(word, where) for word in words)


def _word_number(word: str, where: str) -> int:
    number = _NUMBER.get(word, PAD)
    if number <= BLANK:
        near = get_close_matches(word, WORDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"bAbI has {len(WORDS)} words, such as mary, went and park."
        raise UserError(f"{where} has the unknown word {word[:40]!r}; {hint}")
    return number


def _sentence(words: Iterable[int]) -> str:
    return re.sub(r" ([.?,])", r"\1", " ".join(_TOKENS[word] for word in words)).capitalize()


def _listed(words: Iterable[int]) -> str:
    return ", ".join(_TOKENS[word] for word in words)


def _line_text(line: Line) -> str:
    sentence = _sentence(line.words)
    if line.answer is None:
        return sentence
    return f"{sentence} [{', '.join(_TOKENS[word] if word else _UNKNOWN for word in line.answer)}]"


def _is_valid(story: Story) -> bool:
    """A tenth of all stories, by their words."""
    return zlib.crc32(b"".join(bytes(line.words) for line in story)) % 10 == 0


def _found(folder: str) -> Path:
    """The folder that has en-10k in it, or an archive."""
    names = [folder, "tasks_1-20_v1-2", "tasks_1-20_v1-2.tar.gz"] if folder == Babi.folder else [folder]
    for path in (place / Path(name).expanduser() for place in data_places() for name in names):
        if path.is_file():
            return path
        for inner in (path, path / "tasks_1-20_v1-2", path / "babi"):
            if (inner / "en-10k").is_dir() or (inner / "en").is_dir():
                return inner
        archives = sorted(file for file in path.iterdir() if file.name.endswith(_ARCHIVES)) if path.is_dir() else []
        if archives:
            return archives[0]
    raise UserError(
        f"There is no bAbI data in {folder[:200]!r}; unpack {ADDRESS} in ./data, or set the option folder to its place."
    )


def _stamp(root: Path) -> Stamp:
    """Changes when the data do."""
    files = sorted(root.glob("en*/qa*.txt")) if root.is_dir() else [root]
    return tuple((str(file), (about := file.stat()).st_mtime_ns, about.st_size) for file in files)


@lru_cache(maxsize=2)
def _files(root: Path, stamp: Stamp) -> dict[tuple[str, int, str], Path | bytes]:
    """The files by variant, task and part; of an archive, what is in them."""
    if root.is_dir():
        return _members((file.relative_to(root).as_posix(), file) for file in root.glob("en*/qa*.txt"))
    try:
        with root.open("rb") as file:
            content = io.BytesIO(b"".join(blocks(file)))
        with tarfile.open(fileobj=content) as archive:
            inside = ((member.name, archive.extractfile(member)) for member in archive if _MEMBER.search(member.name))
            return _members((name, data.read()) for name, data in inside if data is not None)
    except (tarfile.TarError, EOFError, ValueError, OSError, zlib.error) as error:
        raise UserError(f"{root.name} is no archive that can be read ({error}); get {ADDRESS} again.") from error


def _members(named: Iterable[tuple[str, Path | bytes]]) -> dict[tuple[str, int, str], Path | bytes]:
    found = ((_MEMBER.search(name), content) for name, content in named)
    return {(match[1], int(match[2]), match[3]): content for match, content in found if match}


def _file_lines(root: Path, stamp: Stamp, variant: str, task: int, part: Part) -> tuple[str, list[str]]:
    """The name of a file and its lines; the file of en where this one is missing."""
    if not 1 <= task <= TASKS:
        raise UserError(f"bAbI has the tasks 1 to {TASKS}; there is no task {task}.")
    for choice in dict.fromkeys((variant, "en")):
        content = _files(root, stamp).get((choice, task, part))
        if content is not None:
            name = f"{choice}/qa{task}_{part}"
            return name, _decoded(content if isinstance(content, bytes) else content.read_bytes(), name)
    raise UserError(f"{root.name} has no file {variant}/qa{task}_*_{part}.txt; get {ADDRESS}.")


def _decoded(content: bytes, name: str) -> list[str]:
    try:
        return content.decode().splitlines()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"Line {line} of {name} is not text; get {ADDRESS} again.") from error


@lru_cache(maxsize=2 * TASKS)
def _parsed(root: Path, stamp: Stamp, variant: str, task: int, part: Part) -> list[Story]:
    name, lines = _file_lines(root, stamp, variant, task, part)
    return _stories(lines, name)


@lru_cache(maxsize=3 * TASKS)
def _numbers(root: Path, stamp: Stamp, variant: str, task: int, split: Split, repeated: bool) -> np.ndarray:
    """Which stories of their file a split has."""
    tested = _parsed(root, stamp, variant, task, "test")
    if split == "test":
        return np.arange(len(tested))
    known = set() if repeated else set(tested)
    trained = _parsed(root, stamp, variant, task, "train")
    valid = split == "valid"
    return np.array([i for i, s in enumerate(trained) if _is_valid(s) == valid and s not in known], np.int64)


@lru_cache(maxsize=4)
def _raw(root: Path, stamp: Stamp, variant: str, task: int, part: Part) -> list[list[str]]:
    """The lines of each story."""
    _, lines = _file_lines(root, stamp, variant, task, part)
    starts = [i for i, line in enumerate(lines) if re.match("1 ", line)]
    return [lines[start:stop] for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True)]


def _simply_read(lines: Sequence[str], think: int) -> tuple[list[str], list[str]]:
    """The words that are seen and the words that are wanted, step by step."""
    seen: list[str] = []
    wanted: list[str] = []
    for line in lines:
        sentence, *rest = line.lower().split("\t")
        answer = rest[0].split(",") if rest else []
        seen += re.findall(r"[a-z]+|[.?,]", sentence) + [_TOKENS[BLANK]] * (think + len(answer) if rest else 0)
        wanted += [""] * (len(seen) - len(wanted) - len(answer)) + answer
    return seen, wanted


def _in_place(seen: Sequence[str], wanted: Sequence[str], think: int) -> bool:
    """Are the blanks after the questions, and words wanted at the last of them alone?"""
    kinds = {".": "s", "?": "q", _TOKENS[BLANK]: "b"}
    if len(seen) != len(wanted):
        return False
    code = ""
    for word, answer in zip(seen, wanted, strict=True):
        code += kinds.get(word, "w") if not answer else "a" if word == _TOKENS[BLANK] and answer in WORDS else "x"
    question = f"w+qb{{{think}}}a+"
    return re.fullmatch(f"w+s(w+s|{question})*{question}", code) is not None


def _page(rows: list[tuple[str, str, bool]]) -> np.ndarray:
    """Lines of text; answers stand behind their questions."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if len(rows) > _MOST_ROWS:
        rows = [*rows[: _MOST_ROWS // 2], ("...", "", True), *rows[-_MOST_ROWS // 2 :]]
    width, height = 0.085 * (_COLUMNS + 16), 0.24 * (len(rows) + 1)
    figure = Figure(figsize=(width, height), dpi=100)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-1, _COLUMNS + 15), ylim=(len(rows) + 0.5, -0.5))
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
