"""Who looks where, and which columns move, at each step? (Figures 5.3, 5.4 and D.4 to D.10 of the router)

Any model that notes "attention" [batch, heads, targets, sources] or "gate" [batch, columns, ...] can be seen; models of
strings and images note [batch, channels, ...] as they compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longthink.errors import UserError
from longthink.inspect.pieces import OnStep, at_test_time, device_of, nobody, rounded
from longthink.think import Thinker, check_steps, unfold

WATCHED = ("attention", "gate")
_MOST_PANELS = 24
_CROWDED = 24  # columns


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """One sample's thoughts. Step t is entry t - 1."""

    labels: tuple[str, ...]
    """What stands in each column."""
    attention: Tensor | None  # [steps, heads, targets, sources]
    gate: Tensor | None  # [steps, columns]: the mean over channels
    answer_column: int
    """From which the answer is read."""
    logits: Tensor  # [1, classes, ...], after the last step

    @property
    def steps(self) -> int:
        there = self.attention if self.attention is not None else self.gate
        assert there is not None
        return len(there)

    def seen(self, head: int | None = None) -> Tensor:
        """Of one head, or the largest of all heads (Figure D.8): [steps, targets, sources]."""
        if self.attention is None:
            raise UserError("This model notes no attention; look at its gates.")
        heads = self.attention.shape[1]
        if head is None:
            return self.attention.amax(1)
        if not 0 <= head < heads:
            raise UserError(f"This model has heads 0 to {heads - 1}, not {head}.")
        return self.attention[:, head]

    def to_json(self, head: int | None = None) -> dict[str, Any]:
        return {
            "labels": list(self.labels),
            "steps": self.steps,
            "heads": 0 if self.attention is None else self.attention.shape[1],
            "head": head,
            "answer_column": self.answer_column,
            "attention": None if self.attention is None else rounded(self.seen(head)),
            "gate": None if self.gate is None else rounded(self.gate),
        }


def attention_maps(
    model: Thinker, inputs: Tensor, steps: int, words: Sequence[str] = (), on_step: OnStep = nobody
) -> AttentionMaps:
    """Think about the first sample and keep its attention and gates. ``words`` are its tokens."""
    check_steps(model, steps, fewest=1)
    one = inputs[:1].to(device_of(model))
    with at_test_time(model):
        kept: dict[str, list[Tensor]] = {name: [] for name in WATCHED}
        for moment in unfold(model, one, steps, notes=WATCHED, keep_previous=False):
            for name, value in moment.notes.items():
                kept[name] += [] if value is None else [value[0].float().cpu()]
            if not any(kept.values()):
                raise UserError("This model notes neither attention nor gates; look at a Transformer or a router.")
            on_step(1)
        logits = moment.logits.cpu()
    attention, gate = (torch.stack(kept[name]) if kept[name] else None for name in WATCHED)
    if gate is not None:  # [steps, columns, ...]
        if gate.shape[2:] == one.shape[2:] and one.is_floating_point():  # strings and images: channels come first
            gate = gate.movedim(1, -1).flatten(1, -2)
        gate = gate.flatten(2).mean(2) if gate.dim() > 2 else gate
    columns = gate.shape[1] if gate is not None else attention.shape[-1] if attention is not None else 0
    labels = column_labels(words, columns)
    last = max((i for i, label in enumerate(labels) if label), default=0)
    answer = 0 if getattr(model, "read_from", "last") == "first" else last
    return AttentionMaps(labels, attention, gate, answer, logits)


def column_labels(words: Sequence[str], columns: int) -> tuple[str, ...]:
    """Transformers put a begin and an end token around the words."""
    if len(words) == columns:
        return tuple(words)
    if words and len(words) + 2 <= columns:
        return ("⊢", *words, "⊣", *[""] * (columns - len(words) - 2))
    return tuple(str(i) for i in range(columns))


def draw(maps: AttentionMaps, head: int | None = None, title: str = "") -> Any:
    """Attention at each step (source to the right, target down), and below it the gates: step by column."""
    from longthink.inspect.figures import figure, heat

    shown, count = _evenly(maps.steps), len(maps.labels)
    columns = min(6 if count <= _CROWDED else 4, len(shown))
    side = 2.1 if count <= _CROWDED else 3.1
    rows = -(-len(shown) // columns) if maps.attention is not None else 0
    strips = _strips(maps, head)
    deep = 0.12 * maps.steps + 0.9
    new = figure(max(side * columns + 0.6, 6.0), (side + 0.1) * rows + deep * len(strips) + 0.3)
    if title:
        new.suptitle(title, size=11, x=0.01, ha="left")
    grid = new.add_gridspec(rows + len(strips), columns, height_ratios=[side + 0.1] * rows + [deep] * len(strips))
    if maps.attention is not None:
        seen = maps.seen(head)
        for i, step in enumerate(shown):
            axes = new.add_subplot(grid[i // columns, i % columns])
            heat(axes, seen[step - 1], f"step {step}")
            _name_columns(axes, maps.labels)
    for i, (name, values) in enumerate(strips):
        axes = new.add_subplot(grid[rows + i, :])
        image = heat(axes, values, name, aspect="auto", extent=(-0.5, count - 0.5, maps.steps + 0.5, 0.5))
        _name_columns(axes, maps.labels, down=False, room=80)
        axes.set_ylabel("step", size=8)
        axes.yaxis.get_major_locator().set_params(integer=True)
        new.colorbar(image, ax=axes, pad=0.01, ticks=(0, 1)).ax.tick_params(labelsize=7)
    return new


def check_drawn(drawn: Sequence[int], steps: int) -> None:
    """Complain about steps that are not among those that are thought."""
    if not drawn or min(drawn) < 1 or max(drawn) > steps:
        raise UserError(f"Heads can be drawn at steps 1 to {steps}, not at {', '.join(map(str, drawn))}.")


def draw_heads(maps: AttentionMaps, steps: Sequence[int], title: str = "") -> Any:
    """Every head at some steps: a row a step, a column a head (Figure 5.4, bottom)."""
    from longthink.inspect.figures import figure, heat

    if maps.attention is None:
        raise UserError("This model notes no attention; look at its gates.")
    check_drawn(steps, maps.steps)
    heads = maps.attention.shape[1]
    new = figure(max(1.9 * heads + 0.6, 4.0), 2.1 * len(steps) + 0.4)
    if title:
        new.suptitle(title, size=11, x=0.01, ha="left")
    for row, step in enumerate(steps):
        for head in range(heads):
            axes = new.add_subplot(len(steps), heads, row * heads + head + 1)
            image = heat(axes, maps.attention[step - 1, head], f"step {step}, head {head}")
            _name_columns(axes, maps.labels)
    new.colorbar(image, ax=new.axes, ticks=(0, 1), shrink=0.5, pad=0.01).ax.tick_params(labelsize=7)
    return new


def _name_columns(axes: Any, labels: Sequence[str], down: bool = True, room: int = _CROWDED) -> None:
    """Where there is no room for all, the longer words: operations and not their digits, brackets and symbols."""
    named = [i for i, label in enumerate(labels) if label]
    if len(named) > room:
        named = [i for i in named if len(labels[i]) > 1] or named
    gap, last = -(-len(labels) // room), -len(labels)
    for i in list(named):
        if i - last < gap:
            named.remove(i)
        else:
            last = i
    words = [labels[i] for i in named]
    small = {"size": max(4.5, min(7.0, (110 if down else 400) / max(1, len(named)))), "family": "monospace"}
    axes.set_xticks(named, words, **small)
    for tick, word in zip(axes.get_xticklabels(), words, strict=True):
        tick.set_rotation(90 if len(word) > 1 and down else 0)  # one letter that lies down is another
    if down:
        axes.set_yticks(named, words, **small)


def _strips(maps: AttentionMaps, head: int | None) -> list[tuple[str, Tensor]]:
    strips = []
    if maps.attention is not None:
        whose = "the largest of all heads" if head is None else f"head {head}"
        name = f"what the answer's column {maps.labels[maps.answer_column]} looks at ({whose})"
        strips.append((name, maps.seen(head)[:, maps.answer_column]))
    if maps.gate is not None:
        strips.append(("how far each column's gate is open", maps.gate))
    return strips


def _evenly(steps: int) -> list[int]:
    """All steps, or as many as there is room for."""
    if steps <= _MOST_PANELS:
        return list(range(1, steps + 1))
    return sorted({round(float(step)) for step in torch.linspace(1, steps, _MOST_PANELS)})
