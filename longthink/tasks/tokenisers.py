"""How text becomes numbers. Token 0 is never text: it stands before each document."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from longthink.errors import UserError, lacking
from longthink.training.files import replace_file

BOUNDARY = 0


class Tokeniser(Protocol):
    """Text in UTF-8 to tokens and back."""

    @property
    def vocabulary(self) -> int: ...

    def encode(self, text: bytes) -> np.ndarray:
        """Whole numbers of the smallest type that holds the vocabulary."""

    def decode(self, tokens: Sequence[int]) -> str: ...

    def lost(self, text: bytes, tokens: np.ndarray) -> int:
        """How many bytes of a text are not in its tokens, for the vocabulary does not know them."""

    def complaint(self, text: bytes) -> str | None:
        """Why this text has tokens that the vocabulary does not know; None where it has none."""


class Bytes:
    """A token is a byte; NUL stands between documents."""

    vocabulary = 256

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, np.uint8)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token != BOUNDARY).decode(errors="replace")

    def lost(self, text: bytes, tokens: np.ndarray) -> int:
        return 0

    def complaint(self, text: bytes) -> str | None:
        return "holds the byte NUL, which stands for the end of a document" if b"\0" in text else None


class SentencePiece:
    """Subwords of a SentencePiece model. Lines are encoded one by one, and newline is a token of its own.

    Characters that the model does not know become its unknown token; all others come back as they were, where the model
    was learned ``verbatim``.
    """

    def __init__(self, model: bytes) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError:
            raise lacking("Subword tokens need sentencepiece", "text") from None
        self._processor: Any = SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise UserError(f"This is not a SentencePiece model{_reason(error)}; train it again.") from None
        self.vocabulary = int(self._processor.GetPieceSize())
        self.unknown = int(self._processor.unk_id())
        self._newline = int(self._processor.PieceToId("\n"))
        if self._newline == self.unknown or self._processor.pad_id() != BOUNDARY:
            raise UserError("This SentencePiece model lacks a newline token or padding as token 0; train it here.")

    def encode(self, text: bytes) -> np.ndarray:
        lines = text.decode(errors="replace").split("\n")
        tokens: list[int] = []
        for i, line in enumerate(self._processor.EncodeAsIds(lines)):
            tokens += [self._newline, *line] if i else line
        return np.array(tokens, np.uint16 if self.vocabulary <= 1 << 16 else np.uint32)

    def decode(self, tokens: Sequence[int]) -> str:
        lines: list[list[int]] = [[]]
        for token in tokens:
            if token == self._newline:
                lines.append([])
            elif token != BOUNDARY:
                lines[-1].append(int(token))
        return "\n".join(self._processor.DecodeIds(line) for line in lines)

    def lost(self, text: bytes, tokens: np.ndarray) -> int:
        if not (tokens == self.unknown).any():
            return 0
        lines = text.decode(errors="replace").split("\n")
        lost = 0
        for line, numbers in zip(lines, self._processor.EncodeAsIds(lines), strict=True):
            if self.unknown in numbers:  # one token for a run of characters, which the piece spells out
                pieces = zip(numbers, self._processor.EncodeAsPieces(line), strict=True)
                lost += sum(len(piece.encode()) for number, piece in pieces if number == self.unknown)
        return lost

    def complaint(self, text: bytes) -> str | None:
        strange = sorted({c for c in text.decode(errors="replace") if self.unknown in self._processor.EncodeAsIds(c)})
        shown = (c if c.isprintable() else f"U+{ord(c):04X}" for c in strange[:10])
        return f"holds what the vocabulary does not know: {' '.join(shown)}" if strange else None


def train_sentencepiece(text: Iterator[bytes], pieces: int, path: Path, verbatim: bool = True) -> None:
    """Byte-pair encoding with digits apart, as in the published runs, written to ``path``.

    Those had SentencePiece's usual normalisation, which makes one space of many and other characters of some, and loses
    indentation; ``verbatim`` there is none.
    """
    try:
        import sentencepiece
    except ImportError:
        raise lacking("Subword tokens need sentencepiece", "text") from None
    lines = (line for piece in text for line in piece.decode(errors="replace").split("\n") if line.strip())
    model = io.BytesIO()
    as_it_is: dict[str, Any] = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    as_it_is |= {"allow_whitespace_only_pieces": True}  # indentation
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=lines,
            model_writer=model,
            vocab_size=pieces,
            model_type="bpe",
            split_digits=True,
            user_defined_symbols=["\n", "\t"] if verbatim else ["\n"],  # it learns no pieces with tabs
            pad_id=BOUNDARY,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            minloglevel=2,
            **(as_it_is if verbatim else {}),
        )
    except (RuntimeError, OSError) as error:
        raise UserError(f"No {pieces} pieces could be learned from this corpus{_reason(error)}; set pieces.") from None
    replace_file(path, lambda part: part.write_bytes(model.getvalue()))


def _reason(error: Exception) -> str:
    """In brackets, without the places in SentencePiece's sources and its tests that come before it."""
    said = str(error).splitlines()[-1].rpartition("] ")[2].strip().rstrip(".")
    return f" ({said})" if said else ""


@lru_cache(maxsize=8)
def load_sentencepiece(path: str, changed: int) -> SentencePiece:
    """Once a file and time of its last change."""
    try:
        return SentencePiece(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); name a SentencePiece model.") from None
