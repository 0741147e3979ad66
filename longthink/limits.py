"""What is refused before it begins or soon after: what does not fit into memory, and what would take hours."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from longthink.errors import UserError
from longthink.hardware import host_memory
from longthink.loading import Loaded
from longthink.tasks import Batch
from longthink.think import Moment, tensors

MOST_MINUTES = 10.0
"""That a thought may take whose steps nobody chose; memory and time of a step grow with the square of a row's length,
and its steps with the depth."""
_BUFFERS = 9  # copies of the state at the worst moment of a step: measured
_TABLES, _ORDERS = 14, 10
"""Tables of tokens x tokens at that moment, for each head and for the order of geometric attention: measured."""


def places_of(batch: Batch) -> int:
    """Of an image's pixels, or of a row's tokens."""
    return math.prod(batch.inputs.shape[1 if batch.inputs.dim() == 2 else 2 :])


class Patience:
    """Refuses to think for hours, as soon as the first steps tell how long they take; for budgets that nobody chose."""

    def __init__(self, budget: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.budget, self.clock = budget, clock
        self.began = 0.0

    def __call__(self, moment: Moment) -> None:
        now = self.clock()
        if moment.count == 1:  # which is slower where something has to warm up
            self.began = now
            return
        step = (now - self.began) / (moment.count - 1)
        minutes = step * (self.budget - moment.count) / 60
        if minutes > MOST_MINUTES:
            raise UserError(
                f"A step takes {step:.2g} seconds here, so the usual {self.budget:,} may take {minutes:,.0f} minutes; "
                "choose how many with --steps, or a shorter problem."
            )


def check_memory(loaded: Loaded, outputs: int, samples: int = 1, kept: int = 0, less: str = "") -> None:
    """Refuse what cannot fit, before the machine starts to swap: so many problems at once, and ``kept`` bytes."""
    shape, side = loaded.task.shape, 8
    device = next(loaded.model.parameters()).device
    if "dims" not in shape:  # rows of tokens or vectors are short, but every token may look at every other
        heads = loaded.recipe.model_options.get("heads", 1) if loaded.recipe.model == "transformer" else 0
        need = 4.0 * outputs**2 * (_TABLES * samples * heads + _ORDERS) if heads else 0.0
    else:
        with torch.no_grad():
            small = torch.zeros(1, shape["inputs"], *(side,) * shape["dims"], device=device)
            state = loaded.model.start(loaded.model.look(small))
        need = samples * outputs * _BUFFERS * sum(t.nbytes for t in tensors(state)) / side ** shape["dims"]
    memory = host_memory()
    have = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else memory - kept
    if need > have or kept > memory:
        total, most = (need + kept) / 2**30, max(have, memory) / 2**30
        more = ", fewer samples or steps, or a smaller chunk" if samples > 1 else ""
        less = less or f"choose a smaller size{more}"
        raise UserError(f"This takes some {total:.3g} GiB of memory and there are {most:.3g}; {less}.")
