"""A script becomes frames: think, and at the steps that the script names, let things happen.

A thought is worked at in small pieces, a step at most, so that many views can share a processor and a closed one stops
at once. States of recent steps and some earlier ones are kept: whoever goes back and changes something need not wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from longthink.errors import UserError
from longthink.explore.frames import HEADER, Frame, chances
from longthink.explore.limits import MOST_BYTES_OF_FRAMES, MOST_BYTES_OF_STATES, MOST_STEPS
from longthink.explore.messages import Change, Script, Wanted
from longthink.explore.problems import (
    Posed,
    answer_sections,
    can_be_made,
    columns_of,
    describe,
    how_right,
    posed,
    sizes,
)
from longthink.explore.shelf import Shelf
from longthink.inspect.attention import WATCHED
from longthink.inspect.disturbances import noise, zeros
from longthink.inspect.pieces import at_test_time, device_of
from longthink.loading import Loaded
from longthink.solving import AT_REST, default_steps
from longthink.tasks.base import mixed_seed
from longthink.think import Context, Moment, State, confidence, tensors, unfold

_ALL_OF_THE_LAST = 24
_CANDIDATES = 500


@dataclass(frozen=True)
class Kept:
    """A state as it was after its step, before anything happened to it."""

    step: int
    state: State
    change: float
    milliseconds: float
    notes: dict[str, Tensor | None]


class Memory:
    """The last states, and ever fewer of those before them, within a number of bytes."""

    def __init__(self, most_bytes: int = MOST_BYTES_OF_STATES) -> None:
        self.most_bytes, self.every, self.kept = most_bytes, 1, dict[int, Kept]()

    def keep(self, one: Kept) -> None:
        self.kept[one.step] = one
        recent = one.step - _ALL_OF_THE_LAST
        if recent > 0 and recent % self.every:
            self.kept.pop(recent, None)
        room = max(2, self.most_bytes // max(1, sum(t.nbytes for t in tensors((one.state, one.notes)))))
        while len(self.kept) > min(room, 2 * _ALL_OF_THE_LAST):
            old = [step for step in self.kept if 0 < step <= recent]
            if not old:  # not even the last ones fit
                self.kept.pop(min(step for step in self.kept if step > 0))
                continue
            self.every *= 2
            for step in old:
                if step % self.every:
                    del self.kept[step]

    def forget_after(self, step: int) -> None:
        self.kept = {at: one for at, one in self.kept.items() if at <= step}

    def nearest(self, step: int) -> Kept | None:
        before = [at for at in self.kept if at <= step]
        return self.kept[max(before)] if before else None


class Plan(NamedTuple):
    """A script with all that it needs."""

    script: Script
    loaded: Loaded
    problems: dict[Wanted, Posed]
    others: dict[Change, Posed]
    """Whose thoughts are put in."""


class Thoughts:
    """What one view thinks about: ``plan`` a script, ``follow`` the plan, then take ``frames``, piece by piece.

    Only one thread at a time may follow and take frames, of all thoughts together: counting operations sees them all.
    """

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._script: Script | None = None
        self._memory = Memory()
        self._posed: dict[Wanted, Posed] = {}
        self._others: dict[Change, Posed] = {}
        self._loaded: Loaded | None = None
        self._sections: dict[str, list[int]] = {}
        self._flops = 0

    def plan(self, script: Script) -> Plan:
        return next(plan for plan in self.planning(script) if plan is not None)

    def planning(self, script: Script) -> Iterator[Plan | None]:
        """Load, pose and check everything. Nothing has happened yet: the thought before goes on if this fails.

        None after each piece of work, and at last the plan.
        """
        loaded = self.shelf.load(script.weights)
        known = self._posed if loaded is self._loaded else {}
        problems: dict[Wanted, Posed] = {}
        for one in [script.problem, *(change.problem for change in script.changes if change.problem is not None)]:
            if one not in problems:
                yield None
                problems[one] = known[one] if one in known else posed(loaded, one)
        first = problems[script.problem].batch.inputs.shape
        for shape in (it.batch.inputs.shape for it in problems.values()):
            if shape != first:
                raise UserError(
                    f"A problem that changes while the network thinks keeps its size: {first[-1]}, "
                    f"not {shape[-1]}; start again with it."
                )
        others, problem = {}, problems[script.problem]
        for change in script.changes:
            if change.problem is not None:
                problem = problems[change.problem]
            elif change.kind == "swapped":
                yield None
                others[change] = _another(loaded, problem, change.seed)
        yield Plan(script, loaded, problems, others)

    def follow(self, plan: Plan) -> dict[str, Any]:
        """Make this the thought, and say what the page must know before the first frame. Takes a step at most."""
        script, loaded = plan.script, plan.loaded
        same = None if self._script is None or self._loaded is not loaded else self._script.same_until(script)
        first = plan.problems[script.problem]
        if same is None:
            sections, flops = _look_ahead(loaded, first)
            self._memory, self._sections, self._flops = Memory(), sections, flops
        else:
            self._memory.forget_after(same)
        self._script, self._posed, self._others, self._loaded = script, plan.problems, plan.others, loaded
        return self._about(loaded, first)

    @property
    def most_steps(self) -> int:
        """A feed-forward network has so many blocks; a page has so much memory."""
        assert self._loaded is not None
        bytes_of_frame = HEADER.size + sum(int(np.prod(shape)) for shape in self._sections.values())
        blocks = getattr(self._loaded.model, "max_steps", None) or MOST_STEPS
        return int(min(blocks, MOST_STEPS, MOST_BYTES_OF_FRAMES // bytes_of_frame))

    def frames(self, first: int) -> Iterator[Frame | None]:
        """The frames of the script from a step on. None after a piece of work that there is nothing to see of."""
        assert self._script is not None
        assert self._loaded is not None
        script, loaded, memory = self._script, self._loaded, self._memory
        model, device = loaded.model, device_of(loaded.model)
        problems = {one: Posed(it.task, it.batch.to(device)) for one, it in self._posed.items()}
        now = memory.nearest(first)
        with at_test_time(model):
            if now is None:
                context = model.look(problems[script.problem].batch.inputs)
                now = Kept(0, model.start(context), float("nan"), 0.0, {})
                memory.keep(now)
            problem = problems[script.problem]
            for change in script.changes:
                if change.problem is not None and change.step < now.step:
                    problem = problems[change.problem]
            context = model.look(problem.batch.inputs)
        while True:
            state = now.state
            for change in (change for change in script.changes if change.step == now.step):
                if change.problem is not None:
                    problem = problems[change.problem]
                    with at_test_time(model):
                        context = model.look(problem.batch.inputs)  # look again and keep the state
                elif change.kind == "swapped":
                    for state in _thoughts_of(self._others[change], loaded, change.step):  # noqa: B007
                        yield None
                else:
                    disturb = zeros().state if change.kind == "zeros" else noise(std=change.std).state
                    assert disturb is not None
                    state = disturb(state, [_random(change)])
            if now.step >= first:
                with at_test_time(model):
                    frame = self._frame(loaded, problem, now, state, context)
                yield frame
            else:
                yield None
            if now.step >= self.most_steps:
                return
            with at_test_time(model):
                now = _next(loaded, now.step, state, context)
            memory.keep(now)

    def _frame(self, loaded: Loaded, problem: Posed, now: Kept, state: State, context: Context) -> Frame:
        began = time.perf_counter()
        logits = loaded.model.read(state, context)
        right, correct = how_right(problem, logits)
        parts = {**answer_sections(problem, logits), **_notes(now.notes)}
        sections = tuple(
            parts[name] if name in parts else np.zeros(shape, np.uint8) for name, shape in self._sections.items()
        )
        return Frame(
            step=now.step,
            right=right,
            correct=correct,
            confidence=float(confidence(logits, problem.batch.mask)),
            change=now.change,
            at_rest=now.change < AT_REST,
            milliseconds=now.milliseconds + 1000 * (time.perf_counter() - began),
            sections=sections,
        )

    def _about(self, loaded: Loaded, first: Posed) -> dict[str, Any]:
        assert self._script is not None
        at: list[tuple[int, Wanted]] = [(0, self._script.problem)]
        at += [(change.step, change.problem) for change in self._script.changes if change.problem is not None]
        columns = self._sections.get("gate", self._sections.get("attention", [0]))[-1]
        return {
            "weights": self._script.weights,
            "task": loaded.task.name,
            "problems": [
                {"step": step, **describe(self._posed[one]), "columns": columns_of(self._posed[one], columns)}
                for step, one in at
            ],
            "sections": [{"name": name, "shape": shape} for name, shape in self._sections.items()],
            "sizes": sizes(loaded.task),
            "steps": min(self.most_steps, default_steps(loaded, first.batch)),
            "most_steps": self.most_steps,
            "trained_steps": loaded.recipe.steps,
            "parameters": sum(weight.numel() for weight in loaded.model.parameters()),
            "flops": self._flops,
        }


def _look_ahead(loaded: Loaded, problem: Posed) -> tuple[dict[str, list[int]], int]:
    """What frames will hold, and the floating-point operations of a step: found by taking one."""
    model = loaded.model
    inputs = problem.batch.inputs.to(device_of(model))
    with at_test_time(model):
        context = model.look(inputs)
        state = model.start(context)
        with FlopCounterMode(display=False) as counter:
            moment = next(unfold(model, None, 1, state=state, context=context, notes=WATCHED))
        parts = {**answer_sections(problem, moment.logits.cpu()), **_notes(moment.notes)}
    return {name: list(part.shape) for name, part in parts.items()}, int(counter.get_total_flops())


def _next(loaded: Loaded, step: int, state: State, context: Context) -> Kept:
    began = time.perf_counter()
    moment: Moment = next(unfold(loaded.model, None, 1, state=state, context=context, notes=WATCHED))
    change = float(moment.change)
    return Kept(step + 1, moment.state, change, 1000 * (time.perf_counter() - began), moment.notes)


def _notes(notes: dict[str, Tensor | None]) -> dict[str, np.ndarray]:
    """Gates as the mean over channels [columns], attention as [heads, targets, sources]."""
    gate, attention = notes.get("gate"), notes.get("attention")
    parts = {}
    if gate is not None:
        parts["gate"] = chances(gate[0].float().flatten(1).mean(1))
    if attention is not None:
        parts["attention"] = chances(attention[0])
    return parts


def _another(loaded: Loaded, problem: Posed, seed: int) -> Posed:
    """Another problem of the same size."""
    # Boards are all of one size, whatever their difficulty.
    size = None if problem.task.name in ("chess", "sudoku") else problem.batch.difficulty
    if size is None or can_be_made(problem.task, size):
        other, length = posed(loaded, Wanted(size=size, seed=seed)), problem.batch.inputs.shape[1]
        if other.batch.inputs.shape == problem.batch.inputs.shape:
            return other
        if problem.batch.is_sequence:  # expressions of one depth have different lengths
            many = problem.task.sample(_CANDIDATES, problem.batch.difficulty, seed, "test")
            fitting = (many.lengths() == length).nonzero()
            if len(fitting):
                return Posed(problem.task, many[fitting[0]].cut(length))
    raise UserError("No other problem of this size was found; put noise or zeros in instead.")


def _thoughts_of(other: Posed, loaded: Loaded, steps: int) -> Iterator[State]:
    """Of another problem, after as many steps; the last state is the one."""
    model = loaded.model
    with at_test_time(model):
        context = model.look(other.batch.inputs.to(device_of(model)))
        state = model.start(context)
    yield state
    for _ in range(steps):
        with at_test_time(model):
            state = next(unfold(model, None, 1, state=state, context=context, keep_previous=False)).state
        yield state


def _random(change: Change) -> torch.Generator:
    return torch.Generator().manual_seed(int(mixed_seed("explore", change.step, change.seed)))
