"""Random numbers that are the same on every machine and with every library version (splitmix64), for numba code.

Each sample has its own stream: ``stream(seed, index)`` gives its state, an array of one number that ``draw`` moves on.
The split of a problem is a function of its content, so the same problem can never be in two splits.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_A = np.uint64(0xBF58476D1CE4E5B9)
_B = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
_FNV = np.uint64(0x100000001B3)

SPLIT_CODES = {"train": 0, "valid": 1, "test": 2}


@njit(cache=True, inline="always")
def mix(z: np.uint64) -> np.uint64:
    """The splitmix64 finaliser: a bijection that scrambles all 64 bits."""
    z = (z ^ (z >> _30)) * _A
    z = (z ^ (z >> _27)) * _B
    return z ^ (z >> _31)


@njit(cache=True)
def stream(seed: np.uint64, index: int) -> np.ndarray:
    """The random state of one sample."""
    state = np.empty(1, np.uint64)
    state[0] = mix(seed ^ mix((np.uint64(index) + np.uint64(1)) * _GOLDEN))
    return state


@njit(cache=True, inline="always")
def draw(state: np.ndarray) -> np.uint64:
    """64 random bits."""
    state[0] += _GOLDEN
    return mix(state[0])


@njit(cache=True, inline="always")
def below(state: np.ndarray, n: int) -> np.int64:
    """A whole number from 0 to n - 1, for n < 2**31 (multiply and shift: the bias is below n / 2**32)."""
    return np.int64(((draw(state) >> _32) * np.uint64(n)) >> _32)


@njit(cache=True, inline="always")
def chance(state: np.ndarray) -> float:
    """A number in [0, 1) with 53 random bits."""
    return np.float64(draw(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, inline="always")
def absorb(digest: np.uint64, value: int) -> np.uint64:
    """Add one number to a content hash."""
    return mix((digest ^ np.uint64(value)) * _FNV + _GOLDEN)


@njit(cache=True, inline="always")
def split_code(digest: np.uint64) -> np.int64:
    """0 train (half of all problems), 1 valid (a quarter), 2 test (a quarter)."""
    low = np.int64(digest & np.uint64(3))
    return np.int64(0) if low < 2 else np.int64(low - 1)


@njit(cache=True)
def shuffled_rounds(seed: np.uint64, size: int, picks: np.ndarray) -> None:
    """Numbers below ``size`` in random order, each once before any comes again."""
    order = np.arange(size)
    for start in range(0, len(picks), size):
        state = stream(seed, start)
        for i in range(size - 1, 0, -1):
            j = below(state, i + 1)
            order[i], order[j] = order[j], order[i]
        stop = min(len(picks), start + size)
        picks[start:stop] = order[: stop - start]
