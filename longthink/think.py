"""The loop that every model shares.

A model that thinks is a plain ``nn.Module`` with four methods (``Thinker``). ``think`` applies its step again and
again, keeps what you ask for with ``watch``, and stops each sample when ``halt`` (halting.py) says so::

    thought = think(model, x, steps=300, halt=Converged(1e-3), watch=("change",))
    thought.logits, thought.steps_used, thought.trace["change"]    # trace entries are [batch, steps, ...]

States and contexts are any nesting of tuples, lists, dicts and named tuples whose tensors have the batch first.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from longthink.errors import UserError

State: TypeAlias = Any
Context: TypeAlias = Any


class Thinker(Protocol):
    """What ``think`` needs of a model; there is no base class."""

    def look(self, x: Any) -> Context:
        """What depends on the input alone, computed once and recalled at every step."""

    def start(self, context: Context) -> State:
        """The first state (the papers' p)."""

    def step(self, state: State, context: Context) -> State:
        """One application of the shared weights (the papers' r)."""

    def read(self, state: State, context: Context) -> Tensor:
        """Logits [batch, classes, ...] from a state (the papers' h)."""


if TYPE_CHECKING:
    from longthink.halting import Halt

    class ThinkingModule(nn.Module, Thinker):
        """A module that thinks; for annotations only."""

else:
    ThinkingModule = nn.Module


class Moment:
    """What can be seen right after one step. Logits and change are computed when somebody looks, and only then."""

    def __init__(
        self,
        model: Thinker,
        count: int,
        state: State,
        previous: State,
        context: Context,
        notes: Notes,
        alive: Tensor | None = None,
    ) -> None:
        self.model, self.count, self.context, self.notes = model, count, context, notes
        self.state, self.previous = state, previous
        self.alive = alive
        """Rows of the batch that still think; None means all."""

    @cached_property
    def logits(self) -> Tensor:
        return self.model.read(self.state, self.context)

    @cached_property
    def change(self) -> Tensor:
        """How far the state moved in this step, relative to its length: [batch]."""
        moved: Tensor | float = 0.0
        size: Tensor | float = 0.0
        for new, old in zip(tensors(self.state), tensors(self.previous), strict=True):
            new, old = new.reshape(len(new), -1).float(), old.reshape(len(old), -1).float()
            moved = moved + (new - old).square().sum(1)
            size = size + new.square().sum(1)
        if isinstance(moved, float) or isinstance(size, float):
            raise UserError("This model's state holds no tensors, so its change cannot be measured.")
        return (moved / size.clamp_min(1e-30)).sqrt()

    @cached_property
    def confidence(self) -> Tensor:
        """Largest class probability, averaged over the outputs: [batch]."""
        return confidence(self.logits)


Watcher: TypeAlias = Callable[[Moment], Tensor]
Watch: TypeAlias = Iterable[str] | Mapping[str, Watcher]


@dataclass
class Thought:
    """What thinking came to."""

    logits: Any  # a tensor [batch, classes, ...]; None with read=False
    steps_used: Tensor  # [batch]
    state: State
    trace: dict[str, Tensor] = field(default_factory=dict)  # [batch, steps, ...]


def unfold(
    model: Thinker,
    x: Any,
    steps: int | None,
    *,
    state: State = None,
    context: Context = None,
    notes: Iterable[str] = (),
    keep_previous: bool = True,
) -> Iterator[Moment]:
    """Yield a ``Moment`` after every step: the loop itself, for those who want to pause, draw or interfere.

    ``moment.state`` and ``moment.context`` may be replaced between two steps: put noise into the state, or look at a
    changed problem (``moment.context = model.look(other_x)``) and think on.
    """
    if steps is not None:
        check_steps(model, steps)
    context = _looked(model, x) if context is None else context
    state = model.start(context) if state is None else state
    wanted_notes = tuple(notes)
    count = 0
    while steps is None or count < steps:
        count += 1
        taken = Notes(wanted_notes)
        with _taking(taken):
            new = model.step(state, context)
        moment = Moment(model, count, new, state if keep_previous else None, context, taken)
        yield moment
        state, context = moment.state, moment.context


def check_steps(model: Thinker, steps: int, fewest: int = 0) -> None:
    """Complain about steps that no network takes, or not this one."""
    if steps < fewest:
        raise UserError(f"The number of steps must be {fewest} or more, not {steps}.")
    if isinstance(steps, float):
        raise UserError(f"The number of steps must be a whole number, not {steps}.")
    limit = getattr(model, "max_steps", None)
    if limit is not None and steps > limit:
        raise UserError(
            f"Each step of this network has weights of its own; ask for at most {limit} steps, not {steps}."
        )


def _looked(model: Thinker, x: Any) -> Context:
    if isinstance(getattr(x, "inputs", None), Tensor):
        raise UserError("A network looks at the inputs of a batch: give batch.inputs, not the batch.")
    return model.look(x)


def think(
    model: Thinker,
    x: Any,
    steps: int,
    halt: Halt | None = None,
    watch: Watch = (),
    *,
    state: State = None,
    context: Context = None,
    read: bool = True,
) -> Thought:
    """Think for at most ``steps`` steps.

    ``watch`` names what to keep: "logits", "change", "confidence", "state", whatever the model notes ("attention",
    "gate", ...), or a mapping of names to functions of a ``Moment``. Nothing else is stored. ``halt`` stops samples one
    by one; those that stopped leave the batch, and their trace repeats its last entry. What a model that reads a
    sequence notes in its ``start``, [batch, time, ...], comes before what its steps note. ``state`` continues an
    earlier thought, ``context`` saves looking again; with ``read=False`` nobody needs the last logits, and none are
    made.
    """
    if halt is not None and not hasattr(halt, "begin"):
        raise UserError(f"A halting rule is an object such as lt.Converged(1e-3), not {halt!r}.")
    if callable(watch):
        raise UserError("Watch a function under a name of yours, as in watch={'mine': function}.")
    names = (watch,) if isinstance(watch, str) else tuple(watch)
    noted = [] if isinstance(watch, Mapping) else [name for name in names if name not in _BUILT_IN]
    beginning = Notes(noted)
    if isinstance(watch, Mapping):
        watchers = {name: _own_watcher(name, function) for name, function in watch.items()}
    else:
        watchers = {name: _watcher(name, beginning) for name in names}
    keep_previous = halt is not None or "change" in watchers or isinstance(watch, Mapping)
    with _taking(beginning):
        context = _looked(model, x) if context is None else context
        state = model.start(context) if state is None else state
    batch, device = _batch_and_device(state)

    moments = unfold(model, x, steps, state=state, context=context, notes=noted, keep_previous=keep_previous)
    records: dict[str, list[Tensor]] = {name: [] for name in watchers}
    if halt is None:
        for moment in moments:
            for name, watcher in watchers.items():
                records[name].append(watcher(moment))
            state, context = moment.state, moment.context
        return Thought(
            logits=model.read(state, context) if read else None,
            steps_used=torch.full((batch,), steps, device=device),
            state=state,
            trace=_stack(records, beginning),
        )

    halting = halt.begin(batch, device)
    alive = torch.arange(batch, device=device)
    steps_used = torch.full((batch,), steps, device=device)
    logits: Tensor | None = None
    final_state = state
    for moment in moments:
        moment.alive = alive
        for name, watcher in watchers.items():
            value = watcher(moment)
            if len(alive) < batch:  # those that stopped repeat their last entry
                value = records[name][-1].index_copy(0, alive, value)
            records[name].append(value)
        stop = halting.after(moment)
        if moment.count == steps:
            stop = torch.ones_like(alive, dtype=torch.bool)
        if stop is None or not bool(stop.any()):
            continue
        answer = halting.answer(moment)
        if logits is None:
            logits = answer.new_zeros(batch, *answer.shape[1:])
        logits = logits.index_copy(0, alive[stop], answer[stop])
        steps_used[alive[stop]] = moment.count
        final_state = _put_rows(final_state, alive[stop], _rows(moment.state, stop))
        keep = ~stop
        alive = alive[keep]
        if len(alive) == 0:
            break
        moment.state, moment.context = _rows(moment.state, keep), _rows(moment.context, keep)
    if logits is None:  # no step was taken
        logits = model.read(state, context)
    return Thought(logits, steps_used, final_state, _stack(records, beginning))


class Notes(dict[str, Tensor | None]):
    """What layers noted, in one step or at the start, under the names that somebody watches."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(dict.fromkeys(names))
        self.offered: set[str] = set()
        """All that they could have noted."""


_notes: ContextVar[Notes | None] = ContextVar("notes", default=None)


@contextmanager
def _taking(taken: Notes) -> Iterator[None]:
    token = _notes.set(taken)
    try:
        yield
    finally:
        _notes.reset(token)


_layer: ContextVar[str] = ContextVar("layer", default="")


@contextmanager
def in_layer(number: int) -> Iterator[None]:
    """What is noted inside is "layer1.attention" and not "attention", for models whose steps have several layers."""
    token = _layer.set(f"layer{number}.")
    try:
        yield
    finally:
        _layer.reset(token)


def wanted(name: str) -> bool:
    """True while somebody watches ``name``: lets a layer skip work that nobody asked for."""
    if torch.compiler.is_compiling():
        return False
    notes = _notes.get()
    if not notes:
        return False
    whole = _layer.get() + name
    notes.offered.add(whole)
    return whole in notes


def note(name: str, value: Tensor) -> None:
    """Called by layers inside ``step``: keep ``value`` [batch, ...] if somebody watches ``name``."""
    if wanted(name):
        notes = _notes.get()
        assert notes is not None
        notes[_layer.get() + name] = value


def confidence(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Largest class probability, averaged over the outputs that count: [batch]."""
    # The largest softmax entry is 1 / sum(exp(logit - largest logit)): no softmax tensor is made.
    n, precise = len(logits), logits.float()
    largest = (precise.amax(1) - precise.logsumexp(1)).exp().reshape(n, -1)
    if mask is None:
        return largest.mean(1)
    weight = mask.reshape(n, -1).to(largest.dtype)
    return (largest * weight).sum(1) / weight.sum(1).clamp_min(1)


def tensors(tree: Any) -> list[Tensor]:
    """The tensors of a nested state, in a fixed order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def detach(tree: Any) -> Any:
    """The same state without its history."""
    return tree_map_only(Tensor, lambda t: t.detach(), tree)


def _rows(tree: Any, rows: Tensor) -> Any:
    return tree_map_only(Tensor, lambda t: t[rows], tree)


def _put_rows(tree: Any, rows: Tensor, values: Any) -> Any:
    """What is no tensor, such as a count of steps, is that of the values."""
    old = iter(tensors(tree))
    return tree_map_only(Tensor, lambda t: (kept := next(old)).index_copy(0, rows, t.to(kept.dtype)), values)


def _batch_and_device(state: State) -> tuple[int, torch.device]:
    found = tensors(state)
    if not found:
        raise UserError("The model's start() returned a state without tensors; a state needs at least one.")
    return found[0].shape[0], found[0].device


_BUILT_IN: dict[str, Watcher] = {
    "logits": lambda moment: moment.logits,
    "change": lambda moment: moment.change,
    "confidence": lambda moment: moment.confidence,
    "state": lambda moment: tensors(moment.state)[0],
}


def _watcher(name: str, beginning: Notes) -> Watcher:
    if name in _BUILT_IN:
        return _BUILT_IN[name]

    def read_note(moment: Moment) -> Tensor:
        value = moment.notes[name]
        if value is None:
            known = [*sorted(moment.notes.offered | beginning.offered), *_BUILT_IN]
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)  # a gate is no state
            hint = f"did you mean {near[0]!r}?" if near else f"what it has is: {', '.join(known)}."
            raise UserError(f"This model notes nothing named {name!r}; {hint}")
        return value

    return read_note


def _own_watcher(name: str, function: Watcher) -> Watcher:
    def see(moment: Moment) -> Tensor:
        value = function(moment)
        if not isinstance(value, Tensor) or value.dim() == 0:
            raise UserError(f"What is watched as {name!r} must be a tensor with the batch first, not {value!r}.")
        return value

    return see


def _stack(records: dict[str, list[Tensor]], beginning: Notes) -> dict[str, Tensor]:
    """One tensor a name, time at axis 1: what was noted at the start, then the steps."""
    trace = {}
    for name, values in records.items():
        early = beginning.get(name)
        parts = ([] if early is None else [early]) + ([torch.stack(values, 1)] if values else [])
        if parts:
            trace[name] = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
    return trace
