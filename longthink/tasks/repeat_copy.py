"""Long repeated copy (Csordás, section 2.3): hear a block of bit vectors and repeat it, then another, again and again.

input   a b c !             d e !           answers come after the mark (!), which is repeated too
answer          a b c !           d e !
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba import njit

from longthink.errors import UserError
from longthink.tasks.base import Batch, Split, mixed_seed, tasks
from longthink.tasks.rng import SPLIT_CODES, absorb, below, draw, split_code, stream
from longthink.tasks.sequences import BitmapTask, write_bits

# As in the public code. Appendix A.2 prints L in [1, 8] and N in [2, 14], but reads in Figure 2.4 are 13 steps long.
PUBLISHED_BLOCKS = tuple(range(1, 9))
_LONGEST_BLOCK = 1000


@tasks.add("repeat_copy")
@dataclass(frozen=True)
class RepeatCopy(BitmapTask):
    """Difficulty is the number of blocks, N; each has its own content and length, L, as in the public code.

    Together they exceed a memory that can hold any one of them, so its cells must be used again.
    The last input bit and the last output bit are the mark at the end of a block.
    """

    name: ClassVar[str] = "repeat_copy"
    unit: ClassVar[str] = "blocks"
    controls: ClassVar[int] = 1

    bits: int = 8
    shortest: int = 2
    longest: int = 14
    every_step: bool = True
    """Steps that want no answer count too: all outputs must be 0 there, as in the public code."""

    def __post_init__(self) -> None:
        self.check_bits()
        if not 1 <= self.shortest <= self.longest <= _LONGEST_BLOCK:
            chosen = f"shortest {self.shortest} and longest {self.longest}"
            raise UserError(
                f"Blocks have 1 to {_LONGEST_BLOCK} vectors, the shortest at most the longest; not {chosen}."
            )

    @property
    def outputs(self) -> int:
        return self.bits + 1

    def sample(self, n: int, difficulty: int, seed: int, split: Split = "test") -> Batch:
        self.check_request(n, difficulty, seed, split)
        if difficulty * self.shortest * self.bits < 8:
            raise UserError("The shortest problem needs 8 bits or more: with fewer, a split may be empty.")
        seen, wanted, asked = self.empty(n, 2 * difficulty * (self.longest + 1))
        lengths = np.zeros(n, np.int64)
        sizes = (self.bits, self.shortest, self.longest, difficulty)
        _fill(mixed_seed(self.name, difficulty, seed), SPLIT_CODES[split], *sizes, seen, wanted, asked, lengths)
        return self.batch(seen, wanted, asked, lengths, difficulty)

    def parse(self, text: str) -> Batch:
        """Blocks with | between them, vectors with commas: 10110010,01100001 | 11110000."""
        seen: list[str] = []
        wanted: list[str | None] = []
        blocks = [[self.vector(word) for word in block.split(",")] for block in text.split("|")]
        mark, silent = "0" * self.bits + "1", "0" * (self.bits + 1)
        for block in blocks:
            told = [*(word + "0" for word in block), mark]
            seen += told + [silent] * len(told)
            wanted += [*([None] * len(told)), *told]
        return self.built(seen, wanted, len(blocks))

    def text(self, batch: Batch, index: int = 0) -> str:
        steps = self.steps(batch, index)
        words = (steps[2 * part.start - part.stop : part.start - 1] for part in self.asked(steps))
        return " | ".join(",".join(word[:-1] for word in block) for block in words)

    def asked(self, steps: Sequence[str]) -> list[range]:
        parts, start = [], 0
        while "1" in (marks := [step[-1] for step in steps[start:]]):
            length = marks.index("1") + 1
            start += 2 * length
            parts.append(range(start - length, min(start, len(steps))))
        return parts

    def shown(self, row: Sequence[int]) -> str:
        word = "".join(map(str, row[:-1]))
        if not row[-1]:
            return word
        return f"{word}+end" if "1" in word else "end"


@njit(cache=True)
def _fill(
    seed: np.uint64,
    wanted_split: int,
    bits: int,
    shortest: int,
    longest: int,
    blocks: int,
    seen: np.ndarray,
    wanted: np.ndarray,
    asked: np.ndarray,
    lengths: np.ndarray,
) -> None:
    words = np.empty(blocks * longest, np.uint64)
    sizes = np.empty(blocks, np.int64)
    for i in range(len(seen)):
        state = stream(seed, i)
        found = False
        while not found:
            digest = np.uint64(blocks)
            total = 0
            for b in range(blocks):
                sizes[b] = shortest + below(state, longest - shortest + 1)
                digest = absorb(digest, sizes[b])
                for _ in range(sizes[b]):
                    words[total] = draw(state) >> np.uint64(64 - bits)
                    digest = absorb(digest, words[total])
                    total += 1
            found = split_code(digest) == wanted_split
        step, first = 0, 0
        for b in range(blocks):
            answer = step + sizes[b] + 1
            for j in range(sizes[b]):
                write_bits(seen[i, step + j], 0, words[first + j], bits)
                write_bits(wanted[i, answer + j], 0, words[first + j], bits)
            seen[i, answer - 1, bits] = 1
            wanted[i, answer + sizes[b], bits] = 1
            step = answer + sizes[b] + 1
            first += sizes[b]
            asked[i, answer:step] = True
        lengths[i] = step
