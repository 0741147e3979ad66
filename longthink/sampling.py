"""Let a language model write: ``longthink solve text --prompt "def "``.

What was written is remembered and never read again: each new token is one short thought. Chance comes from a seed
alone: the same seed writes the same text, and without the memory too, as long as all of it fits into one.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.loading import Loaded
from longthink.models.language import Language, Memory
from longthink.perplexity import remembering
from longthink.tasks.text import Text
from longthink.tasks.tokenisers import BOUNDARY
from longthink.think import think

LONGEST = 1_000_000


@dataclass(frozen=True)
class Style:
    """How to choose among the next tokens."""

    temperature: float = 0.8
    """0 takes the likeliest token, 1 draws as the model believes."""
    top_k: int | None = 40
    """Only so many of the likeliest tokens may come; None for all."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(f"The temperature must be 0 or more, not {self.temperature}.")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top-k must keep 1 token or more, not {self.top_k}.")
        if self.seed < 0:
            raise UserError(f"The seed must be 0 or more, not {self.seed}.")


@torch.no_grad()
def sample(
    model: Language,
    prompt: Sequence[int],
    length: int,
    steps: int,
    style: Style | None = None,
    *,
    memory: int | None = None,
    block: int = 512,
    cache: bool = True,
) -> Iterator[int]:
    """Up to ``length`` tokens that go on after ``prompt``; a document's end is the last one.

    A prompt is read in blocks, which should be those of training; each sees the ``memory`` positions before it (None:
    as many as the model remembers in evaluation), as does each new token. Without the cache all of them are read again
    for each token, which is slow and there to check against.
    """
    style = style or Style()
    if not 1 <= length <= LONGEST:
        raise UserError(f"Write between 1 and {LONGEST} tokens, not {length}.")
    written = list(prompt) or [BOUNDARY]
    if min(written) < 0 or max(written) >= model.embedding.num_embeddings:
        raise UserError(f"The prompt has tokens that are not among the model's {model.embedding.num_embeddings}.")
    chance = np.random.PCG64(np.random.SeedSequence([style.seed, 0x7E47]))
    past: Memory | None = None
    new = list(written)
    with remembering(model, memory):
        for _ in range(length):
            if cache:
                logits, past = _read_on(model, new, past, steps, block)
            else:
                logits, _ = _read_on(model, written[-model.evaluation_memory - 1 :], None, steps, LONGEST)
            token = choose(logits, style, float(chance.random_raw() >> 11) / 2**53)
            written.append(token)
            new = [token]
            yield token
            if token == BOUNDARY:
                return


def _read_on(
    model: Language, tokens: Sequence[int], past: Memory | None, steps: int, block: int
) -> tuple[Tensor, Memory]:
    """Logits [classes] after the last of these tokens, and what to remember."""
    device = next(model.parameters()).device
    # What lies further back does not reach the last token: a layer looks back at the memory of its block at most.
    reach = model.depth * (model.evaluation_memory + block)
    for start in range(max(0, (len(tokens) - reach) // block * block), len(tokens), block):
        context = model.look((torch.tensor([tokens[start : start + block]], device=device), past))
        thought = think(model, None, steps, context=context)
        past = model.remember(thought.state, context)
    assert past is not None
    return thought.logits[0, :, -1], past


def choose(logits: Tensor, style: Style, chance: float) -> int:
    """The token at this place, a number in [0, 1), of the distribution that the style makes of the logits."""
    precise = logits.detach().double().cpu()
    if not bool(torch.isfinite(precise).all()):
        raise UserError("The model's answer is not a number; its weights are damaged or its training diverged.")
    if style.temperature == 0:
        return int(precise.argmax())
    kept = torch.arange(len(precise))
    if style.top_k is not None and style.top_k < len(precise):
        kept = precise.topk(style.top_k).indices.sort().values
    below = precise[kept] - precise.max()  # or the coldest would divide beyond all numbers
    chances = (below / style.temperature).softmax(0).cumsum(0)
    place = int(torch.searchsorted(chances, chance * float(chances[-1]), right=True))
    return int(kept[min(place, len(kept) - 1)])


@dataclass(frozen=True)
class Writing:
    """A prompt and how it went on."""

    prompt: str
    answer: str
    tokens: int
    ended: bool
    """The model ended the document before its length was reached."""
    steps: int
    seconds: float
    style: Style
    weights: str

    def to_json(self) -> dict[str, Any]:
        return {
            "task": "text",
            # Bytes of the command line that are no text came as half characters, which no JSON may hold.
            "prompt": self.prompt.encode("utf-8", "surrogateescape").decode(errors="replace"),
            "answer": self.answer,
            "truth": None,  # nobody knows how a text goes on
            "solved": None,
            "steps": self.steps,
            "tokens": self.tokens,
            "ended": self.ended,
            "temperature": self.style.temperature,
            "top_k": self.style.top_k,
            "seed": self.style.seed,
            "seconds": round(self.seconds, 3),
            "weights": self.weights,
        }


def write(
    loaded: Loaded,
    prompt: str,
    length: int = 400,
    style: Style | None = None,
    *,
    steps: int | None = None,
    weights: str = "",
    show: bool = False,
) -> Writing:
    """Go on with a prompt, or with nothing, as a document begins; ``show`` prints the text while it comes.

    A prompt is taken for the beginning of a line somewhere in a document, not for that of the document. It may have any
    length: it is read block by block, and what lies further back than the model's memory is forgotten, as in any text.
    """
    task, model, style = loaded.task, loaded.model, style or Style()
    if not isinstance(task, Text) or not isinstance(model, Language):
        raise UserError(f"The weights {weights or 'given'} are not of a language model; train one on text.")
    steps = loaded.recipe.steps if steps is None else steps
    if steps < 1:
        raise UserError(f"The number of steps must be 1 or more, not {steps}.")
    code, given = task.tokens_of(), task.encode(prompt).tolist()
    # In training most tokens have others before them. With nothing before a short prompt a network may write one letter
    # again and again; with a line's end, the five bytes after a line's "def " cost the shipped ones a quarter to a
    # third less (results/shipped/text.json).
    seen = [*task.encode("\n").tolist(), *(given or [BOUNDARY])]
    block, memory = max(loaded.recipe.difficulty), model.evaluation_memory
    if not memory:  # it saw a block at a time: it gets as much to look back at, and no more of the prompt
        memory, seen = block - 1, seen[-block:]
    began, tokens, page = time.perf_counter(), list[int](), Page(code.decode if show else None)
    for token in sample(model, seen, length, steps, style, memory=memory, block=block):
        page.add([token] if tokens else [*given, token])  # complaints come before the first one
        tokens.append(token)
    page.end()
    answer, whole = code.decode(tokens), code.decode(given + tokens)
    before = code.decode(given)
    if whole.startswith(before):  # subwords know at a line's start only whether a space comes before them
        answer = whole[len(before) :]
    ended = tokens[-1] == BOUNDARY
    return Writing(prompt, answer, len(tokens), ended, steps, time.perf_counter() - began, style, weights)


class Page:
    """Prints a text that grows, or nothing where there is nothing to decode it with.

    Subwords can only be read beside others, so what is new is what the last tokens have more to say than those before.
    """

    def __init__(self, decode: Callable[[list[int]], str] | None) -> None:
        self.decode, self.tokens, self.shown = decode, list[int](), 0
        """Of the tokens, those that are printed; they stay until the next ones are."""

    def add(self, tokens: Sequence[int]) -> None:
        if self.decode is None:
            return
        self.tokens += tokens
        new = self._new()
        if new and not new.endswith("\ufffd"):  # a character of several bytes may be in the making
            sys.stdout.write(printable(new))
            sys.stdout.flush()
            self.tokens, self.shown = self.tokens[self.shown :], len(self.tokens) - self.shown

    def end(self) -> None:
        if self.decode is not None:
            sys.stdout.write(printable(self._new()) + "\n")

    def _new(self) -> str:
        assert self.decode is not None
        return self.decode(self.tokens)[len(self.decode(self.tokens[: self.shown])) :]


def printable(text: str) -> str:
    """What a terminal may see: a model can write control characters, and a terminal obeys them."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\u00b7" for c in text)
