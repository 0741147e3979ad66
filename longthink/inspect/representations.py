"""Do all functions mean the same by a symbol? (CTL++: section 6.3.1, Figures 6.3, E.2 and E.5 to E.7)

Functions are bijective: for each function f and each output symbol there is one input symbol s with f(s) = symbol.
Fed with "f s", a network has a vector of the symbol, as f makes it, right under its last linear layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longthink.errors import UserError
from longthink.inspect.pieces import at_test_time, device_of, pieces, rounded
from longthink.tasks.base import Task
from longthink.tasks.ctlpp import CTLPP
from longthink.think import Thinker, think

_PASSES = 20
CAMPS = ("C1", "C2")


@dataclass(frozen=True, eq=False)
class Similarities:
    """Cosines between the functions' representations of each symbol; functions are in the order of their groups."""

    symbols: tuple[str, ...]
    functions: tuple[str, ...]
    groups: tuple[str, ...]
    """Of each function."""
    cosines: Tensor  # [symbols, functions, functions]
    clusters: Tensor  # long [symbols, functions]: the two most different camps, 0 and 1

    @property
    def clearest(self) -> str:
        """The symbol whose two camps differ most from each other, beside what they differ within."""
        apart = []
        for cosines, camps in zip(self.cosines, self.clusters, strict=True):
            same = camps[:, None] == camps
            apart.append(float(cosines[same].mean() - cosines[~same].mean()) if not same.all() else 0.0)
        return self.symbols[apart.index(max(apart))]

    def gap(self) -> Tensor:
        """By how much functions agree more with their own group than with others, for each symbol: [symbols]."""
        same = torch.tensor([[a == b for b in self.groups] for a in self.groups])
        other = ~torch.eye(len(self.groups), dtype=torch.bool)
        return self.cosines[:, same & other].mean(1) - self.cosines[:, ~same].mean(1)

    def to_json(self) -> dict[str, Any]:
        return {
            "symbols": list(self.symbols),
            "functions": list(self.functions),
            "groups": list(self.groups),
            "cosines": rounded(self.cosines),
            "clusters": self.clusters.tolist(),
            "clearest": self.clearest,
            "group_gap": rounded(self.gap()),
        }


def similarities(
    model: Thinker, task: Task, steps: int, symbols: Sequence[str] = (), *, chunk: int = 256
) -> Similarities:
    """Feed every "f s" with f(s) = symbol, and compare what the functions make of each symbol (all by default)."""
    ctlpp, chosen = _ctlpp(task), _symbols(task, symbols)
    functions, groups = _ordered(ctlpp)
    problems = [[f, _source(ctlpp, f, symbol)] for symbol in chosen for f in functions]
    vectors = _vectors(model, ctlpp, problems, steps, chunk).unflatten(0, (len(chosen), len(functions)))
    unit = nn.functional.normalize(vectors, dim=-1)
    cosines = unit @ unit.transpose(1, 2)
    clusters = torch.stack([_two_camps(one) for one in unit])
    return Similarities(chosen, functions, groups, cosines, clusters)


def _vectors(model: Thinker, task: CTLPP, problems: Sequence[Sequence[str]], steps: int, chunk: int) -> Tensor:
    """What the last linear layer of ``read`` is given: [problems, width]."""
    if not isinstance(model, nn.Module):
        raise UserError("Only the layers of a PyTorch module can be looked into.")
    taken: list[Tensor] = []

    def take(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        taken.append(given[0])

    lasts = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == task.classes]
    found = []
    with at_test_time(model):
        inputs = task.encoded(problems).to(device_of(model))
        for piece in pieces(len(inputs), chunk):
            context = model.look(inputs[piece])
            state = think(model, None, steps, context=context, read=False).state
            hooks = [layer.register_forward_pre_hook(take) for layer in lasts]
            try:
                taken.clear()
                model.read(state, context)
            finally:
                for hook in hooks:
                    hook.remove()
            if len(taken) != 1 or taken[0].dim() != 2:
                raise UserError("This model's answer is not read by one linear layer, so there is nothing under it.")
            found.append(taken[0].double().cpu())
    return torch.cat(found)


def _two_camps(unit: Tensor) -> Tensor:
    """Two means on the sphere, from the two functions that differ most: long [functions]."""
    cosines = unit @ unit.T
    first, second = divmod(int(cosines.argmin()), len(unit))
    centres = torch.stack([unit[first], unit[second]])
    camps = torch.zeros(len(unit), dtype=torch.long)
    for _ in range(_PASSES):
        new = (unit @ centres.T).argmax(1)
        if torch.equal(new, camps):
            break
        camps = new
        centres = torch.stack([unit[camps == k].sum(0) if (camps == k).any() else centres[k] for k in (0, 1)])
        centres = nn.functional.normalize(centres, dim=-1)
    # The camp of the first function is camp 0.
    return camps if camps[0] == 0 else 1 - camps


@dataclass(frozen=True, eq=False)
class Compatibility:
    """Figure E.2: who understands whose results. Accuracy on "g f s" over all pairs of functions."""

    rows: tuple[str, ...]
    """Where f, which is applied first, comes from: groups or clusters."""
    columns: tuple[str, ...]
    """The group of g."""
    accuracy: Tensor  # [rows, columns]; NaN where there is no pair
    pairs: Tensor  # long [rows, columns]

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": list(self.rows),
            "columns": list(self.columns),
            "accuracy": rounded(self.accuracy, 6),
            "pairs": self.pairs.tolist(),
        }


def compatibility(
    model: Thinker,
    task: Task,
    steps: int,
    symbols: Sequence[str] = (),
    clusters: Similarities | None = None,
    *,
    chunk: int = 256,
) -> Compatibility:
    """Apply f, which makes the symbol, then g, for all pairs and all ``symbols``.

    Rows are the groups of f; with ``clusters``, for one symbol, they are its two camps (Figure E.2a).
    """
    ctlpp, chosen = _ctlpp(task), _symbols(task, symbols)
    functions, groups = _ordered(ctlpp)
    columns = tuple(ctlpp.groups)
    if clusters is None:
        rows, row_of = columns, [columns.index(group) for group in groups]
    else:
        if len(chosen) != 1 or chosen[0] not in clusters.symbols:
            raise UserError("Clusters belong to one symbol; choose one that was compared.")
        rows, row_of = CAMPS, clusters.clusters[clusters.symbols.index(chosen[0])].tolist()
    pairs = [(i, j, symbol) for symbol in chosen for i in range(len(functions)) for j in range(len(functions))]
    problems = [[functions[j], functions[i], _source(ctlpp, functions[i], symbol)] for i, j, symbol in pairs]
    truth = torch.tensor([ctlpp.evaluate(words)[0] for words in problems])
    inputs = ctlpp.encoded(problems)
    right = []
    with at_test_time(model):
        for piece in pieces(len(inputs), chunk):
            logits = think(model, inputs[piece].to(device_of(model)), steps).logits
            right.append(logits.argmax(1).cpu() == truth[piece])
    solved, counts = torch.zeros(len(rows), len(columns), dtype=torch.double), torch.zeros(len(rows), len(columns))
    for (i, j, _), good in zip(pairs, torch.cat(right).tolist(), strict=True):
        cell = row_of[i], columns.index(groups[j])
        solved[cell] += good
        counts[cell] += 1
    return Compatibility(rows, columns, solved / counts, counts.long())


def draw(found: Similarities, tables: Sequence[Compatibility] = (), title: str = "") -> Any:
    """A matrix a symbol, functions coloured by their group, and tables of pairs: groups, or the camps of one symbol."""
    from longthink.inspect.figures import COLOURS, figure, heat

    count = len(found.symbols) + len(tables)
    columns = min(4, count)
    rows = -(-count // columns)
    new = figure(3.0 * columns + 0.5, 3.0 * rows + 0.3)
    if title:
        new.suptitle(title, size=11, x=0.01, ha="left")
    names = list(dict.fromkeys(found.groups))
    ink = {name: ("#dc2626", "#2563eb", *COLOURS[2:3], *COLOURS[4:])[i] for i, name in enumerate(names)}
    image, low = None, min(0.0, float(found.cosines.min()))
    for i, symbol in enumerate(found.symbols):
        axes = new.add_subplot(rows, columns, i + 1)
        image = heat(axes, found.cosines[i], f"symbol {symbol}", low=low)
        axes.set_xticks(range(len(found.functions)), found.functions, rotation=90)
        axes.set_yticks(range(len(found.functions)), found.functions)
        axes.tick_params(labelsize=4, length=0)
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            for label, group in zip(labels, found.groups, strict=True):
                label.set_color(ink[group])
    for i, table in enumerate(tables):
        axes = new.add_subplot(rows, columns, len(found.symbols) + i + 1)
        camps = table.rows == CAMPS
        heat(axes, table.accuracy, f"g(f(s)) = g({found.clearest}) is right" if camps else "g(f(s)) is right")
        axes.set_xticks(range(len(table.columns)), table.columns)
        axes.set_yticks(range(len(table.rows)), table.rows)
        axes.set_xlabel("g, applied second", size=8)
        axes.set_ylabel("f, applied first", size=8)
        for y, row in enumerate(table.accuracy.tolist()):
            for x, value in enumerate(row):
                ink_here = "w" if value < 0.6 else "k"
                axes.text(x, y, f"{100 * value:.0f}%", ha="center", va="center", size=8, color=ink_here)
    if image is not None:
        new.colorbar(image, ax=new.axes, shrink=0.6, label="cosine")
    return new


def _ctlpp(task: Task) -> CTLPP:
    if not isinstance(task, CTLPP):
        raise UserError(f"Representations of symbols are compared on ctlpp; this network was trained for {task.name}.")
    return task


def _symbols(task: Task, symbols: Sequence[str]) -> tuple[str, ...]:
    known = _ctlpp(task).answers
    for symbol in symbols:
        if symbol not in known:
            raise UserError(f"There is no symbol {symbol!r}; choose from {', '.join(known)}.")
    return tuple(symbols) or known


def _ordered(task: CTLPP) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The functions, group by group, and the group of each."""
    pairs = [(name, group) for group, names in task.groups.items() for name in names]
    return tuple(name for name, _ in pairs), tuple(group for _, group in pairs)


def _source(task: CTLPP, function: str, symbol: str) -> str:
    """The symbol that the function turns into this one."""
    return next(s for s in task.answers if task.evaluate([function, s])[0] == task.answers.index(symbol))
