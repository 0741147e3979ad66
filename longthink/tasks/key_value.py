"""Key-value retrieval (Csordás, section 2.3): hear pairs of bit vectors, then complete each from either half.

input   a=A b=B c=C !  b c a  !  C A B  !       the marks (!) differ
answer                 B C A     c a b
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
from longthink.tasks.sequences import MOST, BitmapTask, write_bits

PUBLISHED_PAIRS = tuple(range(2, 17))


@tasks.add("key_value")
@dataclass(frozen=True)
class KeyValue(BitmapTask):
    """Difficulty is the number of pairs, L. The answer is wanted at the step of the query.

    As in the public code, every query is seen in the place of the first half, and after the pairs, the first queries
    and the second ones comes a step with the next to last control bit, the last one, and both.
    Unlike there, second halves differ too, so that they can be looked for, and pairs do not come sorted.
    """

    name: ClassVar[str] = "key_value"
    unit: ClassVar[str] = "pairs"
    controls: ClassVar[int] = 2

    bits: int = 8
    """Of each half, W (appendix A.2); the public code has 6."""
    every_step: bool = True
    """Steps that want no answer count too: all outputs must be 0 there, as in the public code."""

    def __post_init__(self) -> None:
        self.check_bits(fewest=4)

    @property
    def inputs(self) -> int:
        return 2 * self.bits + self.controls

    def sample(self, n: int, difficulty: int, seed: int, split: Split = "test") -> Batch:
        self.check_request(n, difficulty, seed, split)
        if difficulty > 2**self.bits:
            raise UserError(
                f"There are {2**self.bits} different halves of {self.bits} bits; ask for fewer than {difficulty} pairs."
            )
        steps = 3 * (difficulty + 1)
        seen, wanted, asked = self.empty(n, steps)
        _fill(mixed_seed(self.name, difficulty, seed), SPLIT_CODES[split], self.bits, difficulty, seen, wanted)
        for part in _queries(difficulty):
            asked[:, part] = True
        return self.batch(seen, wanted, asked, np.full(n, steps), difficulty)

    def parse(self, text: str) -> Batch:
        """Pairs, first halves and second halves: 1011=0110, 0001=1111 ? 0001, 1011 ? 0110, 1111.

        Without the queries, each is asked in the order of the pairs.
        """
        told, *asked = text.split("?")
        pairs = [self._pair(pair) for pair in told.split(",")]
        value, key = dict(pairs), {second: first for first, second in pairs}
        if len(pairs) > MOST or len(value) < len(pairs) or len(key) < len(pairs):
            raise UserError(f"There may be {MOST} pairs, and neither first nor second halves may come twice.")
        if not asked:
            asked = [",".join(value), ",".join(key)]
        if len(asked) != 2:
            raise UserError("After the pairs type ? and all first halves, then ? and all second halves.")
        queries = [[self.vector(word) for word in part.split(",")] for part in asked]
        for part, answers, which in zip(queries, (value, key), ("first", "second"), strict=True):
            if sorted(part) != sorted(answers):
                raise UserError(f"The {which} queries must be the {which} halves of the pairs, each once.")
        silent, end = "0" * self.bits, "0" * 2 * self.bits
        seen = [*(first + second + "00" for first, second in pairs), end + "10"]
        seen += [*(word + silent + "00" for word in queries[0]), end + "01"]
        seen += [*(word + silent + "00" for word in queries[1]), end + "11"]
        wanted = [*[None] * (len(pairs) + 1), *(value[word] for word in queries[0]), None]
        return self.built(seen, [*wanted, *(key[word] for word in queries[1]), None], len(pairs))

    def text(self, batch: Batch, index: int = 0) -> str:
        steps, bits = self.steps(batch, index), self.bits
        pairs = ", ".join(f"{row[:bits]}={row[bits : 2 * bits]}" for row in steps[: len(steps) // 3 - 1])
        queries = (", ".join(steps[i][:bits] for i in part) for part in self.asked(steps))
        return " ? ".join([pairs, *queries])

    def asked(self, steps: Sequence[str]) -> list[range]:
        return _queries(max(0, len(steps) // 3 - 1))

    def _pair(self, text: str) -> tuple[str, str]:
        halves = text.split("=")
        if len(halves) != 2:
            raise UserError(f"{text.strip()[:40]!r} is no pair; type two halves with = between them.")
        return self.vector(halves[0]), self.vector(halves[1])


def _queries(pairs: int) -> list[range]:
    return [range(pairs + 1, 2 * pairs + 1), range(2 * pairs + 2, 3 * pairs + 2)]


@njit(cache=True)
def _fill(seed: np.uint64, wanted_split: int, bits: int, pairs: int, seen: np.ndarray, wanted: np.ndarray) -> None:
    halves = np.empty((2, pairs), np.uint64)
    order = np.empty(pairs, np.int64)
    for i in range(len(seen)):
        state = stream(seed, i)
        found = False
        while not found:
            digest = np.uint64(pairs)
            for half in range(2):
                for j in range(pairs):
                    new = False
                    while not new:
                        halves[half, j] = draw(state) >> np.uint64(64 - bits)
                        new = True
                        for k in range(j):
                            new &= halves[half, j] != halves[half, k]
                    digest = absorb(digest, halves[half, j])
            found = split_code(digest) == wanted_split
        for j in range(pairs):
            write_bits(seen[i, j], 0, halves[0, j], bits)
            write_bits(seen[i, j], bits, halves[1, j], bits)
        for half in range(2):
            order[:] = np.arange(pairs)
            start = (half + 1) * (pairs + 1)
            for j in range(pairs - 1, -1, -1):
                other = below(state, j + 1)
                order[j], order[other] = order[other], order[j]
                write_bits(seen[i, start + j], 0, halves[half, order[j]], bits)
                write_bits(wanted[i, start + j], 0, halves[1 - half, order[j]], bits)
        seen[i, pairs, 2 * bits] = 1
        seen[i, 2 * pairs + 1, 2 * bits + 1] = 1
        seen[i, 3 * pairs + 2, 2 * bits :] = 1
