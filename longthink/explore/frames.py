"""A frame: what can be seen after a step, as few bytes.

28 bytes of header (little endian), then one byte for each number of each section. Sections and their shapes are the
same for all frames of a thought, and the page is told them before the first one.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
from torch import Tensor

VERSION = 1
HEADER = struct.Struct("<BBHIIffff")  # version, right, at rest, id, step, change, correct, confidence, milliseconds
UNKNOWN = 2
"""Right is 0 or 1, or this where nobody knows the truth."""


@dataclass(frozen=True)
class Frame:
    step: int
    right: bool | None
    correct: float
    """How much of the answer is right, from 0 to 1: the share of its places, or the chance of the right class."""
    confidence: float
    change: float
    at_rest: bool
    milliseconds: float
    sections: tuple[np.ndarray, ...]

    def to_bytes(self, id: int) -> bytes:
        right = UNKNOWN if self.right is None else int(self.right)
        numbers = (self.change, self.correct, self.confidence, self.milliseconds)
        head = HEADER.pack(VERSION, right, int(self.at_rest), id, self.step, *map(_fits, numbers))
        return head + b"".join(section.tobytes() for section in self.sections)


def chances(probabilities: Tensor) -> np.ndarray:
    """Bytes from probabilities; 128 or more means above one half, exactly. What is not a number becomes 0."""
    levels = (probabilities.detach().float() * 256).ceil() - 1
    return levels.nan_to_num(0, 255, 0).clamp(0, 255).byte().cpu().numpy()


def classes(values: Tensor) -> np.ndarray:
    return values.byte().cpu().numpy()


def _fits(number: float) -> float:
    """Numbers that no float32 holds become NaN, which the page shows as a dash."""
    return number if math.isfinite(number) and abs(number) < 3e38 else math.nan
