"""Associative recall (Csordás, section 2.3): hear items of several bit vectors, then one again; say which came next.

input   a1 a2 a3 | b1 b2 b3 | c1 c2 c3 ! a1 a2 a3 !             two kinds of marks, | and !
answer                                              b1 b2 b3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numba import njit

from longthink.errors import UserError
from longthink.tasks.base import Batch, Split, mixed_seed, tasks
from longthink.tasks.rng import SPLIT_CODES, absorb, below, draw, split_code, stream
from longthink.tasks.sequences import MOST, BitmapTask, write_bits

PUBLISHED_ITEMS = tuple(range(2, 17))
_MOST_WORDS = 100


@tasks.add("associative_recall")
@dataclass(frozen=True)
class AssociativeRecall(BitmapTask):
    """Difficulty is the number of items, B (the text calls them blocks). All items of a problem differ.

    The next to last input bit stands between items (the text: at their start), the last ends the items and the query.
    The public code has two more outputs, which never want anything but 0.
    """

    name: ClassVar[str] = "associative_recall"
    unit: ClassVar[str] = "items"
    fewest: ClassVar[int] = 2
    controls: ClassVar[int] = 2

    bits: int = 8
    words: int = 3
    """Vectors of an item."""
    every_step: bool = True
    """Steps that want no answer count too: all outputs must be 0 there, as in the public code."""

    def __post_init__(self) -> None:
        self.check_bits()
        if not 1 <= self.words <= _MOST_WORDS:
            raise UserError(f"An item has 1 to {_MOST_WORDS} vectors, not {self.words}.")

    def sample(self, n: int, difficulty: int, seed: int, split: Split = "test") -> Batch:
        self.check_request(n, difficulty, seed, split)
        if self.bits * self.words < 4 or difficulty > 2 ** (self.bits * self.words):
            raise UserError(
                f"{difficulty} different items need more than {self.bits * self.words} bits each; set more."
            )
        steps = (difficulty + 2) * self.words + difficulty + 1
        seen, wanted, asked = self.empty(n, steps)
        mixed = mixed_seed(self.name, difficulty, seed)
        _fill(mixed, SPLIT_CODES[split], self.bits, self.words, difficulty, seen, wanted)
        asked[:, -self.words :] = True
        return self.batch(seen, wanted, asked, np.full(n, steps), difficulty)

    def parse(self, text: str) -> Batch:
        """Items with | between them, their vectors with commas, then ? and the query."""
        told, *asked = text.split("?")
        if len(asked) != 1:
            raise UserError("Type items with | between them, then one ? and the item to look for.")
        items = [self._item(item) for item in told.split("|")]
        query = self._item(asked[0])
        if not 2 <= len(items) <= MOST or len(set(items)) < len(items):
            raise UserError(f"There must be 2 to {MOST} items and all must differ.")
        following = dict(pairwise(items))
        if query not in following:
            where = "the last item" if query == items[-1] else "none of the items"
            raise UserError(f"After ? comes {where}; ask for one that another follows.")
        silent, between, end = ("0" * self.bits + marks for marks in ("00", "10", "01"))
        seen: list[str] = []
        for item in items:
            seen += [*(word + "00" for word in item), between]
        seen[-1] = end
        seen += [*(word + "00" for word in query), end, *[silent] * self.words]
        wanted = [*[None] * (len(seen) - self.words), *following[query]]
        return self.built(seen, wanted, len(items))

    def text(self, batch: Batch, index: int = 0) -> str:
        steps = self.steps(batch, index)
        words, stride = self.words, self.words + 1
        told = steps[: max(0, len(steps) - 2 * words - 1)]
        items = [",".join(word[:-2] for word in told[i : i + words]) for i in range(0, len(told), stride)]
        query = ",".join(word[:-2] for word in steps[len(told) : len(told) + words])
        return f"{' | '.join(items)} ? {query}"

    def asked(self, steps: Sequence[str]) -> list[range]:
        return [range(max(0, len(steps) - self.words), len(steps))]

    def _item(self, text: str) -> tuple[str, ...]:
        item = tuple(self.vector(word) for word in text.split(","))
        if len(item) != self.words:
            raise UserError(f"The item {text.strip()[:40]!r} has {len(item)} vectors; type {self.words} with commas.")
        return item


@njit(cache=True)
def _fill(
    seed: np.uint64, wanted_split: int, bits: int, words: int, count: int, seen: np.ndarray, wanted: np.ndarray
) -> None:
    items = np.empty((count, words), np.uint64)
    for i in range(len(seen)):
        state = stream(seed, i)
        found = False
        while not found:
            digest = np.uint64(count)
            for b in range(count):
                new = False
                while not new:  # the query must not fit two items
                    for j in range(words):
                        items[b, j] = draw(state) >> np.uint64(64 - bits)
                    new = True
                    for c in range(b):
                        new &= (items[b] != items[c]).any()
                for j in range(words):
                    digest = absorb(digest, items[b, j])
            found = split_code(digest) == wanted_split
        query = below(state, count - 1)
        step = 0
        for b in range(count + 1):
            for j in range(words):
                write_bits(seen[i, step + j], 0, items[b if b < count else query, j], bits)
            step += words + 1
            seen[i, step - 1, bits + (b >= count - 1)] = 1
        for j in range(words):
            write_bits(wanted[i, step + j], 0, items[query + 1, j], bits)
