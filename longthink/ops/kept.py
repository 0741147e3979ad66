"""Small tensors that depend on sizes alone are made once and kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

import torch

Made = TypeVar("Made")


def nothing_stays() -> bool:
    """Inside torch.compile and while a CUDA graph is captured: what is made there may not outlive it."""
    return torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def kept(make: Callable[..., Made]) -> Callable[..., Made]:
    """Make once for each set of arguments; where nothing stays, anew."""

    @lru_cache(maxsize=16)
    def remembered(*arguments: object) -> Made:
        with torch.inference_mode(False):  # it may be needed for gradients later
            return make(*arguments)

    @wraps(make)
    def made(*arguments: object) -> Made:
        return make(*arguments) if nothing_stays() else remembered(*arguments)

    return made
