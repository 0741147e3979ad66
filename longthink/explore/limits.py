"""How much a page may ask for. Everything is bounded, so that one careless tab cannot stop the others."""

from __future__ import annotations

from longthink.errors import UserError

MOST_VIEWS = 40
"""Open WebSockets; a race has two."""
MOST_STEPS = 5_000
MOST_CHANGES = 200
MOST_BYTES_OF_FRAMES = 128 << 20
"""A page keeps all frames, so that going back costs nothing."""
MOST_BYTES_OF_STATES = 48 << 20
"""States that a view keeps, so that thinking again from an earlier step is quick."""
MOST_BYTES_OF_MESSAGE = 256 << 10
MOST_SEED = 2**32 - 1
MOST_STD = 100.0
LARGEST: dict[str, int] = {"mazes": 101, "prefix_sums": 2048}
"""Cells a side, bits."""
MOST_TOKENS = 120


def check_size(task: str, size: int) -> None:
    most = LARGEST.get(task)
    if most is not None and size > most:
        what = {"mazes": "cells a side", "prefix_sums": "bits"}[task]
        raise UserError(f"The page goes up to {most} {what}, not {size}; take fewer.")


def check_tokens(count: int) -> None:
    if count > MOST_TOKENS:
        raise UserError(f"The page goes up to {MOST_TOKENS} tokens, not {count}; take a shorter expression.")
