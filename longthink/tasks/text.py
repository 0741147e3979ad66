"""Text: what comes next, at every place of a text, in bytes or in subwords.

input   def add(a, b):        the default corpus is the source of Python's standard library: nothing to download
answer  ef add(a, b):\\n

Problems are windows anywhere in a split, as in every task. Training reads the text in order instead, as ``streams`` of
blocks: text that goes on where the block before ended, so that a model can remember. An answer is measured in bits.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from longthink.errors import UserError
from longthink.ops.kernels import precise
from longthink.tasks.base import SPLITS, Batch, Split, check_request, correct_everywhere, mixed_seed, tasks
from longthink.tasks.corpora import Corpus, corpus
from longthink.tasks.downloads import cache_folder
from longthink.tasks.token_files import About, read_tokens, write_tokens
from longthink.tasks.tokenisers import BOUNDARY, Bytes, Tokeniser, load_sentencepiece, train_sentencepiece

_COLUMNS, _MOST_ROWS = 80, 60  # of a picture
_MARKS = {"": "\u22a2", " ": "\u2423", "\n": "\u21b5", "\t": "\u2192"}


@dataclass(frozen=True, eq=False)
class Stream:
    """A split in ``streams`` contiguous parts that are read side by side, a block of ``length`` tokens at a time.

    Which tokens a block has depends on its number alone: whoever goes on with the next number goes on with the next
    token. After the last block of a pass comes the first again.
    """

    tokens: np.ndarray
    streams: int
    length: int
    bytes_a_token: float = 1.0
    whole: bool = False
    """To measure: every token but the first is predicted once, with masks where parts end early. To train: all blocks
    are full, and the few tokens that don't fill one are left out."""
    called: str = "The text"

    def __post_init__(self) -> None:
        if self.streams < 1 or self.length < 1:
            raise UserError(f"A text is read in 1 stream or more and blocks of 1 token or more, not {self}.")
        if self.blocks < 1:
            need = self.streams * self.length + 1
            raise UserError(
                f"{self.called} has {len(self.tokens)} tokens, and {self.streams} readers with blocks of {self.length} "
                f"need {need}; choose a smaller batch, fewer samples or a smaller difficulty, or more text."
            )

    def __repr__(self) -> str:
        return f"{self.streams} streams and blocks of {self.length}"

    @property
    def part(self) -> int:
        """Predictions in a stream."""
        predictions = len(self.tokens) - 1
        return -(-predictions // self.streams) if self.whole else predictions // self.streams

    @property
    def blocks(self) -> int:
        """In a pass."""
        return -(-self.part // self.length) if self.whole else self.part // self.length

    def block(self, number: int) -> Batch:
        """Inputs and targets [streams, length]; ``info["fresh"]`` [streams]: it does not go on with the one before."""
        place = number % self.blocks * self.length
        inside = np.arange(place, min(place + self.length, self.part) if self.whole else place + self.length)
        places = self.part * np.arange(self.streams)[:, None] + inside
        there = places < len(self.tokens) - 1
        rows = np.where(there, places, 0)
        mask = None if there.all() else torch.from_numpy(there)
        return Batch(
            inputs=_long(np.where(there, self.tokens[rows], BOUNDARY)),
            targets=_long(np.where(there, self.tokens[rows + 1], BOUNDARY)),
            mask=mask,
            difficulty=self.length,
            info={"fresh": torch.full((self.streams,), place == 0)},
        )


@tasks.add("text")
@dataclass(frozen=True)
class Text:
    """Difficulty is the number of tokens in a window. Inputs and targets are long [n, difficulty], one token apart."""

    name: ClassVar[str] = "text"
    unit: ClassVar[str] = "tokens"

    corpus: str = "python"
    """Or sources (of Python, PyTorch and what it needs), enwik8, wikitext103, or the path of a text file or of a folder
    with text files."""
    tokeniser: str = "bytes"
    """Or sentencepiece, learned from the training split, or the path of a SentencePiece model that it learned."""
    pieces: int = 8000
    """The vocabulary of SentencePiece."""
    folder: str | None = None
    """For downloads and token files; $LONGTHINK_CACHE or ~/.cache/longthink where it is None."""

    def __post_init__(self) -> None:
        if self.pieces < 4:
            raise UserError(f"A SentencePiece vocabulary has 4 pieces or more, not {self.pieces}.")

    @property
    def shape(self) -> dict[str, int]:
        vocabulary = Bytes.vocabulary if self.tokeniser == "bytes" else self.pieces
        return {"vocabulary": vocabulary, "classes": vocabulary}

    def stream(self, split: Split, streams: int, length: int, whole: bool = False) -> Stream:
        """The split's text in order: see ``Stream``."""
        tokens, about = self.tokens(split)
        # The first token stands before the first document and is never predicted.
        called = f"The {split} text of {self.corpus}"
        return Stream(tokens, streams, length, about.bytes / (about.tokens - 1), whole, called)

    def sample(self, n: int, difficulty: int, seed: int, split: Split = "test") -> Batch:
        check_request(n, difficulty, seed, split)
        tokens, _ = self.tokens(split)
        if len(tokens) <= difficulty:
            raise UserError(f"The {split} text of {self.corpus} has {len(tokens)} tokens; choose a smaller size.")
        # Raw bits: the stream of a bit generator is the same in every NumPy.
        bits = np.random.PCG64(int(mixed_seed(self.name, difficulty, seed))).random_raw(n)
        places = (bits % np.uint64(len(tokens) - difficulty)).astype(np.int64)
        rows = places[:, None] + np.arange(difficulty)
        return Batch(
            inputs=_long(tokens[rows]),
            targets=_long(tokens[rows + 1]),
            difficulty=difficulty,
            info={"place": torch.from_numpy(places), "split": torch.full((n,), SPLITS.index(split))},
        )

    def check(self, batch: Batch) -> Tensor:
        """Targets must be the inputs one token later, and the whole window what a new reading of the texts gives."""
        right = (batch.targets[:, :-1] == batch.inputs[:, 1:]).all(1).cpu()
        if "place" not in batch.info:  # somebody typed it
            return right
        code = self.tokens_of()
        for split in {SPLITS[int(i)] for i in batch.info["split"]}:
            again = np.concatenate(
                [np.append([BOUNDARY] * p.begins, code.encode(p.text)) for p in self._corpus().pieces(split)]
            ).astype(np.int64)
            for i in (batch.info["split"] == SPLITS.index(split)).nonzero()[:, 0].tolist():
                first = int(batch.info["place"][i])
                window = again[first : first + batch.inputs.shape[1] + 1]
                ours = np.append(batch.inputs[i].cpu().numpy(), int(batch.targets[i, -1]))
                right[i] &= bool(np.array_equal(window, ours))
        return right.to(batch.targets.device)

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        return logits.argmax(1)

    def score(self, logits: Tensor, batch: Batch) -> Tensor:
        """Is every next token guessed? Hardly ever; ``bits`` is what tells models apart."""
        return correct_everywhere(self.predict(logits, batch), batch)

    def bits(self, logits: Tensor, batch: Batch) -> Tensor:
        return bits(logits, batch)

    def parse(self, text: str) -> Batch:
        """A text of a person, as a document of its own: what comes next is asked from its first token on."""
        tokens = torch.cat([torch.tensor([BOUNDARY]), _long(self.encode(text))])
        if len(tokens) < 2:
            raise UserError("Type some text.")
        return Batch(tokens[None, :-1], tokens[None, 1:], difficulty=len(tokens) - 1)

    def encode(self, text: str) -> np.ndarray:
        """Tokens of what a person typed; a sentence where it holds what no token stands for."""
        try:
            data = text.encode("utf-8", "surrogateescape")  # bytes of the command line that are no text come so
        except UnicodeEncodeError:
            raise UserError("This text holds half characters; type it again.") from None
        code = self.tokens_of()
        complaint = code.complaint(data)
        if complaint:
            raise UserError(f"This text {complaint}; leave it out.")
        return code.encode(data)

    def text(self, batch: Batch, index: int = 0) -> str:
        return self.show(torch.cat([batch.inputs[index], batch.targets[index, -1:]]), batch, index)

    def show(self, classes: Tensor, batch: Batch, index: int = 0) -> str:
        return self.tokens_of().decode(classes.tolist())

    def decoded(self, batch: Batch, index: int = 0) -> list[str]:
        """The inputs one by one, with marks for what cannot be seen."""
        code = self.tokens_of()
        words = [code.decode([token]) for token in batch.inputs[index].tolist()]
        return [_MARKS.get(word, word) for word in words]

    def draw(self, batch: Batch, index: int = 0, logits: Tensor | None = None) -> np.ndarray:
        """The window's text; with logits, the redder the more bits a token costs."""
        code = self.tokens_of()
        costs = None
        if logits is not None:
            costs = F.cross_entropy(logits[index].float().T, batch.targets[index], reduction="none") / math.log(2)
        words = [code.decode([token]) or "\n" for token in batch.targets[index].tolist()]
        return _drawing(words, None if costs is None else costs.tolist())

    def tokens(self, split: Split) -> tuple[np.ndarray, About]:
        """The split as one row of numbers mapped from the disk, and what is known of it."""
        check_request(0, 1, 0, split)
        code, source = self.tokens_of(), self._corpus()
        path = self._place(source) / f"{split}-{self._code_name()}.tokens"
        found = read_tokens(path)
        if found is None:
            write_tokens(path, source.pieces(split), code, f"The corpus {self.corpus}")
            found = read_tokens(path)
        if found is None:
            raise UserError(f"{path} cannot be read back after it was written; check the disk.")
        if found[1].tokens < 2:
            raise self._too_short(split)
        return found

    def _too_short(self, split: Split) -> UserError:
        return UserError(f"The corpus {self.corpus} has no {split} text; choose a larger one.")

    def tokens_of(self) -> Tokeniser:
        """The tokeniser; SentencePiece is learned from the training split where that was not done yet."""
        if self.tokeniser == "bytes":
            return Bytes()
        path = self._model_file()
        if self.tokeniser == "sentencepiece" and not path.exists():
            source = self._corpus()
            pieces = (piece.text for piece in source.pieces("train") if piece.text.strip())
            first = next(pieces, None)
            if first is None:
                raise self._too_short("train")
            train_sentencepiece(chain([first], pieces), self.pieces, path, source.verbatim)
        if not path.is_file():
            raise UserError(f"There is no tokeniser {self.tokeniser!r}; choose bytes, sentencepiece or a model's file.")
        code = load_sentencepiece(str(path), path.stat().st_mtime_ns)
        if code.vocabulary != self.pieces:
            raise UserError(f"{path} has {code.vocabulary} pieces, not {self.pieces}; set pieces to that.")
        return code

    def origin(self) -> dict[str, Any]:
        """Which text this is: where two say the same of a split, it has the same tokens."""
        found: dict[str, Any] = {"corpus": self.corpus, "version": self._corpus().version}
        for split in SPLITS:
            try:
                about = self.tokens(split)[1]
            except UserError:  # a short text may have nothing to test on, which is no matter until one tests
                if split == "train":  # what is wrong with this one is said at once: a download is not tried again
                    raise
                continue
            found[split] = {"bytes": about.bytes + about.lost, "crc32": f"{about.checksum:08x}"}
        return found

    def learned(self) -> dict[str, Path]:
        """Files that belong to weights, by the option that names them: the same numbers must stay the same subwords."""
        if self.tokeniser == "bytes":
            return {}
        self.tokens_of()
        return {"tokeniser": self._model_file()}

    def _model_file(self) -> Path:
        if self.tokeniser != "sentencepiece":
            return Path(self.tokeniser)
        return self._place(self._corpus()) / f"sentencepiece-{self.pieces}.model"

    def _code_name(self) -> str:
        """Of the tokeniser, in names of token files; another model under the same path has another name."""
        if self.tokeniser == "bytes":
            return "bytes"
        if self.tokeniser == "sentencepiece":
            return f"sentencepiece-{self.pieces}"
        return f"sentencepiece-{hashlib.sha256(Path(self.tokeniser).read_bytes()).hexdigest()[:16]}"

    def _corpus(self) -> Corpus:
        return corpus(self.corpus, cache_folder(self.folder) / "downloads")

    def _place(self, source: Corpus) -> Path:
        return cache_folder(self.folder) / "text" / f"{_name(source.name)}-{source.identity()[-16:]}"


def bits(logits: Tensor, batch: Batch) -> Tensor:
    """What the true tokens that count cost each sample: [n]."""
    losses = F.cross_entropy(precise(logits), batch.targets, reduction="none")
    if batch.mask is not None:
        losses = losses * batch.mask
    return losses.double().sum(1) / math.log(2)


def _long(numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int64))


@lru_cache(maxsize=64)
def _name(path: str) -> str:
    """A path as part of a file's name: its last part, and a hash where there is more."""
    plain = Path(path).stem if "/" in path or "\\" in path else path
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in plain)[:40]
    return safe if safe == path else f"{safe}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def _drawing(words: list[str], costs: list[float] | None) -> np.ndarray:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    places: list[tuple[int, int, str, int]] = []  # row, column, what is written, number of its token
    row = column = 0
    for number, word in enumerate(words):
        for letter in word:
            if column == _COLUMNS:
                row, column = row + 1, 0
            shown = {"\n": "\u21b5", "\t": "\u2192"}.get(letter, letter if letter.isprintable() else "\u00b7")
            places.append((row, column, shown, number))
            row, column = (row + 1, 0) if letter == "\n" else (row, column + 1)
    rows = min(_MOST_ROWS, (places[-1][0] if places else 0) + 1)
    figure = Figure(figsize=(0.1 * _COLUMNS, 0.2 * rows + 0.1), dpi=100)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-0.5, _COLUMNS + 0.5), ylim=(rows + 0.25, -0.25))
    axes.axis("off")
    for row, column, shown, number in places:
        if row >= rows:
            break
        if costs is not None:
            shade = 1 - 0.8 * (1 - 2 ** (-costs[number] / 3))  # from white to red, ever more slowly
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=(1.0, shade, shade), lw=0))
        ink = "#94a3b8" if shown in "\u21b5\u2192\u00b7" else "#0f172a"
        axes.text(column + 0.5, row + 0.52, shown, ha="center", va="center", size=9, color=ink, family="monospace")
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
