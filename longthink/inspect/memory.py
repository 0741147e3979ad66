"""What does a DNC do with its memory: where it writes and reads, what it frees, what follows what? (chapter 2)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.inspect.pieces import at_test_time, device_of, rounded
from longthink.think import Thinker, think

NOTED = ("write_address", "read_address", "read_modes", "forward_links", "backward_links", "usage")
MASKS = ("read_mask", "write_mask")
MODES = ("backward", "content", "forward")
TOUCHED = 0.1
"""A cell is used when some address gives it more weight."""
_MOST_WORDS = 70


@dataclass(frozen=True, eq=False)
class MemoryTrace:
    """One sample, one row a time step; thinking steps come after the sequence."""

    write_address: Tensor  # [time, cells]
    read_address: Tensor  # [time, heads, cells]
    read_modes: Tensor  # [time, heads, 3]
    forward_links: Tensor  # [time, heads, cells]: where the links lead from the last read, to what was written next
    backward_links: Tensor  # [time, heads, cells]
    usage: Tensor  # [time, cells]
    link: Tensor  # [cells, cells]: (i, j) is how much i was written right after j
    link_step: int
    """The time step, from 1, whose links these are."""
    read_mask: Tensor | None = None  # [time, heads, width]; None without masks
    write_mask: Tensor | None = None  # [time, width]
    heard: Tensor | None = None  # [time, inputs], where the input is vectors
    words: tuple[str, ...] = ()
    """The tokens of the sequence, where it has them."""
    truth: Tensor | None = None  # [time, outputs]: the bits that are right
    said: Tensor | None = None  # [time, outputs]: how likely each bit of the answer is 1

    @property
    def times(self) -> int:
        return len(self.usage)

    def check_head(self, head: int) -> None:
        last = self.read_address.shape[1] - 1
        if not 0 <= head <= last:
            raise UserError(f"This memory has the heads 0 to {last}; there is no head {head}.")

    def to_json(self) -> dict[str, Any]:
        return {
            "time_steps": self.times,
            "cells": self.usage.shape[1],
            "heads": self.read_address.shape[1],
            "modes": list(MODES),
            "write_address": rounded(self.write_address),
            "read_address": rounded(self.read_address),
            "read_modes": rounded(self.read_modes),
            "forward_links": rounded(self.forward_links),
            "backward_links": rounded(self.backward_links),
            "usage": rounded(self.usage),
            "link_step": self.link_step,
            "link": rounded(self.link),
            "read_mask": None if self.read_mask is None else rounded(self.read_mask),
            "write_mask": None if self.write_mask is None else rounded(self.write_mask),
            "heard": None if self.heard is None else rounded(self.heard),
            "words": list(self.words),
            "truth": None if self.truth is None else self.truth.int().tolist(),
            "said": None if self.said is None else rounded(self.said),
        }


def memory_trace(
    model: Thinker,
    inputs: Tensor,
    steps: int = 0,
    link_step: int | None = None,
    targets: Tensor | None = None,
    tokens: Sequence[str] = (),
) -> MemoryTrace:
    """Read the first sample, think on for ``steps`` steps, and keep the addresses (and the links of the last).

    The right answers (``targets``) are only for the picture, above the network's, where both are bits; ``tokens`` are
    the names of the tokens, where the input has them.
    """
    one = inputs[:1].to(device_of(model))
    if steps and one.dim() == 2 and getattr(model, "answer", None) == "every":
        raise UserError("This network answers while it reads, and thinks in blanks of its input; leave out the steps.")
    masks = MASKS if getattr(model, "masks", False) else ()
    with at_test_time(model):
        thought = think(model, one, steps, watch=(*NOTED, "link", *masks))
    trace = thought.trace
    if any(name not in trace for name in (*NOTED, "link")):
        raise UserError("This model notes no memory; look at a DNC.")
    kept = {name: value[0].float().cpu() for name, value in trace.items()}
    times = len(kept["usage"])
    at = times if link_step is None else link_step
    if not 1 <= at <= times:
        raise UserError(f"The links of time steps 1 to {times} can be seen, not of {at}.")
    write_mask = kept.get("write_mask")
    said = thought.logits.softmax(1)[0, 1].float().cpu() if one.dim() == 3 and thought.logits.dim() == 4 else None
    return MemoryTrace(
        **{name: kept[name] for name in NOTED},
        link=kept["link"][at - 1],
        link_step=at,
        read_mask=kept.get("read_mask"),
        write_mask=None if write_mask is None else write_mask.flatten(1),
        heard=one[0].float().cpu() if one.dim() == 3 else None,
        words=tuple(tokens[token] for token in one[0].tolist()) if one.dim() == 2 and tokens else (),
        truth=targets[0].float().cpu() if targets is not None and said is not None else None,
        said=said,
    )


def draw(trace: MemoryTrace, title: str = "", head: int | None = None) -> Any:
    """Time runs to the right in all pictures but that of the links. One head is drawn, the one that looks most firmly
    at the end if left out, and of a memory that is hardly used the used cells alone."""
    from longthink.inspect.figures import figure, heat

    heads = trace.read_address.shape[1]
    if head is None:
        head = int(trace.read_address[-1].amax(-1).argmax()) if trace.times else 0
    trace.check_head(head)
    touched = torch.maximum(trace.write_address.amax(0), trace.read_address[:, head].amax(0)) > TOUCHED
    seen = touched.nonzero().flatten() if int(touched.sum()) < len(touched) / 2 else torch.arange(len(touched))
    cell = "cell" if len(seen) == len(touched) else f"{len(seen)} used cells"
    panels: list[tuple[str, str, Tensor]] = []
    of = f" of head {head}" if heads > 1 else ""
    panels.append(("write address", cell, trace.write_address[:, seen]))
    panels.append((f"read address{of}", cell, trace.read_address[:, head, seen]))
    panels.append((f"forward links{of}", cell, trace.forward_links[:, head, seen]))
    panels.append((f"read modes{of}", "", trace.read_modes[:, head]))
    if trace.read_mask is not None:
        panels.append((f"read mask{of}", "place in a cell", trace.read_mask[:, head]))
    panels.append(("usage", cell, trace.usage[:, seen]))
    if trace.write_mask is not None:
        panels.append(("write mask", "place in a cell", trace.write_mask))
    # On the left, one below the other; the addresses are beside them.
    bits = (("input", trace.heard), ("truth", trace.truth), ("answer", trace.said))
    for i, (name, values) in enumerate((name, values) for name, values in bits if values is not None):
        panels.insert(2 * i, (name, "bit", values))
    count = len(panels) + 1
    worded = 0 < len(trace.words) <= _MOST_WORDS
    columns = 1 if worded else 2  # words need room
    rows = -(-count // columns)
    new = figure(9.0, (2.5 if worded else 2.1) * rows + 0.3)
    _title(new, title, trace)
    for i, (name, unit, values) in enumerate(panels):
        axes = new.add_subplot(rows, columns, i + 1)
        _over_time(axes, trace, values, name, unit)
        if worded:
            axes.set_xticks(range(1, len(trace.words) + 1), trace.words, rotation=90, size=6)
            axes.set_xlabel("")
    axes = new.add_subplot(rows, columns, count)
    image = heat(axes, trace.link[seen][:, seen], f"links after time step {trace.link_step}")
    axes.locator_params(integer=True)
    axes.set_ylabel("written after ...", size=8)
    axes.set_xlabel("... this cell", size=8)
    new.colorbar(image, ax=axes, ticks=(0, 1)).ax.tick_params(labelsize=7)
    return new


def draw_links(traces: Mapping[str, MemoryTrace], title: str = "") -> Any:
    """Where the links lead and whether they are followed, a column a network that read the same (Figure 2.4)."""
    from longthink.inspect.figures import figure

    new = figure(4.6 * len(traces), 5.0)
    _title(new, title, *traces.values())
    for i, (name, trace) in enumerate(traces.items()):
        panels = (("forward links", "cell", trace.forward_links), ("read modes", "", trace.read_modes))
        for row, (what, unit, values) in enumerate(panels):
            axes = new.add_subplot(2, len(traces), row * len(traces) + i + 1)
            _over_time(axes, trace, values[:, 0], f"{name}: {what}", unit)
    return new


def _title(new: Any, title: str, *traces: MemoryTrace) -> None:
    key = "yellow is 1, dark is 0" + ("; red: an answer is due" if any(one.truth is not None for one in traces) else "")
    new.suptitle("\n".join(part for part in (title, key) if part), size=10, x=0.01, ha="left")


def variant(model: Thinker) -> str:
    """Its name in chapter 2: DNC, DNC-D, DNC-MDS ..."""
    switches = (("M", "masks"), ("D", "deallocate"), ("S", "sharpness"))
    letters = "".join(letter for letter, switch in switches if getattr(model, switch, False))
    return f"DNC-{letters}" if letters else "DNC"


def _over_time(axes: Any, trace: MemoryTrace, values: Tensor, title: str, unit: str) -> None:
    """One row a number, one column a time step; red lines above where an answer is due."""
    from longthink.inspect.figures import COLOURS, INK, heat

    heat(axes, values.T, aspect="auto", extent=(0.5, len(values) + 0.5, values.shape[1] - 0.5, -0.5))
    axes.set_xlim(0.5, trace.times + 0.5)  # one time for all: the input ends before the thinking steps
    axes.set_ylabel(unit, size=8)
    axes.set_xlabel("time", size=8)
    axes.locator_params(integer=True)
    if "read modes" in title:
        axes.set_yticks(range(len(MODES)), MODES)
    axes.set_title(title, size=9, loc="left", color=INK, pad=6 if trace.truth is None else 8)
    if trace.truth is not None:
        due = trace.truth.any(-1).nonzero().flatten() + 1
        above = axes.get_xaxis_transform()
        axes.hlines([1.03] * len(due), due - 0.5, due + 0.5, COLOURS[3], lw=1.5, transform=above, clip_on=False)
