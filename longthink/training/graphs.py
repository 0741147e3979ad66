"""CUDA graphs for updates of networks that are too small to keep a GPU busy while kernels are launched one by one.

An update is made of pieces that are captured once and replayed: the full pass of m steps with its backward pass, one
step without gradient (replayed as often as n asks for), and k steps with gradient for each k that was drawn.

Graphs that share a pool may overwrite each other's results: one that is captured later is given memory that an earlier
one still uses while it runs. So each kind of piece has a pool of its own; of one kind, an update replays one at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from longthink.tasks.base import Batch
from longthink.think import Context, State, tensors, think
from longthink.training.losses import Objective, Past, Plan


@dataclass
class _Piece:
    """A captured forward and backward pass: where its losses and gradients appear when it is replayed."""

    graph: torch.cuda.CUDAGraph
    losses: dict[str, Tensor]
    penalties: dict[str, Tensor]
    gradients: list[Tensor | None]


@dataclass
class _Steps:
    """The start and one step without gradient, and the state that they and full passes leave."""

    begin: torch.cuda.CUDAGraph
    one: torch.cuda.CUDAGraph
    state: State
    context: Context
    """Kept so that nobody else is given its memory."""


@dataclass
class _Stage:
    """Everything that belongs to one shape of batch."""

    batch: Batch
    steps: _Steps | None
    past: Past | None
    pieces: dict[tuple[str, int], _Piece] = field(default_factory=dict)


class GraphedObjective:
    """Does what ``objective(batch, plan)["loss"].sum().backward()`` does, on one GPU, for plans that ``takes`` accepts.

    ``full_alone`` promises that no plan has a progressive term: then single steps need not be captured.
    """

    def __init__(self, objective: Objective, half: bool, full_alone: bool = False) -> None:
        self.objective, self.thinker, self.half, self.full_alone = objective, objective.thinker, half, full_alone
        self.parameters = list(objective.model.parameters())
        self.stages: dict[tuple[torch.Size, ...], _Stage] = {}
        self.pools: dict[str, Any] = {kind: torch.cuda.graph_pool_handle() for kind in ("step", "full", "progressive")}

    def takes(self, plan: Plan, past: Past | None = None) -> bool:
        """Mixed plans that branch off inside the full pass (n < m) would need a graph for every n; while a memory
        grows, every update would need its own."""
        if not getattr(self.thinker, "capturable", True):
            return False
        if past is not None and (plan.alpha > 0 or not _is_full(past.memory, getattr(self.thinker, "memory", 0))):
            return False
        shared = getattr(self.thinker, "max_steps", None) is None and not self.full_alone
        return plan.alpha == 0 or (shared and (plan.alpha == 1 or plan.n >= plan.m))

    def backward(self, batch: Batch, plan: Plan, past: Past | None = None) -> dict[str, Any]:
        """Losses, with the gradients of this update alone left in the parameters' ``grad``."""
        stage = self._stage(batch, past)
        for mine, theirs in zip(_parts(stage.batch), _parts(batch), strict=True):
            mine.copy_(theirs)
        if past is not None and stage.past is not None and past.memory is not stage.past.memory:
            _fill(stage.past.memory, past.memory)
        found: list[tuple[float, _Piece]] = []
        if plan.alpha > 0 and plan.n > 0:
            assert stage.steps is not None
            stage.steps.begin.replay()  # looks at this batch with today's weights; a full pass replaces the state alone
        if plan.alpha < 1:
            full = self._replay(stage, "full", plan.m)
            found.append((1 - plan.alpha, full))
        if plan.alpha > 0:
            for _ in range(plan.n - (plan.m if plan.alpha < 1 else 0)):
                assert stage.steps is not None
                stage.steps.one.replay()
            found.append((plan.alpha, self._replay(stage, "first" if plan.n == 0 else "later", plan.k)))
        losses = {name: value for _, piece in found for name, value in piece.losses.items()}
        penalties = {name: value for _, piece in found for name, value in piece.penalties.items()}
        self._leave_gradients(found)
        memory = {} if stage.past is None else {"memory": stage.past.memory}
        return {**losses, **memory, **self.objective.mixed(plan, losses, penalties)}

    def _leave_gradients(self, found: list[tuple[float, _Piece]]) -> None:
        """Weighted sums; a piece that is alone has weight 1 and is taken as it is."""
        for index, weight in enumerate(self.parameters):
            parts = [(share, piece.gradients[index]) for share, piece in found if piece.gradients[index] is not None]
            if not parts:
                weight.grad = None
            elif len(found) == 1:
                weight.grad = parts[0][1]
            else:
                total = torch.zeros_like(weight)
                for share, gradient in parts:
                    assert gradient is not None
                    total.add_(gradient, alpha=share)
                weight.grad = total

    def _replay(self, stage: _Stage, kind: str, steps: int) -> _Piece:
        if (kind, steps) not in stage.pieces:
            stage.pieces[kind, steps] = self._capture(stage, kind, steps)
        piece = stage.pieces[kind, steps]
        piece.graph.replay()
        return piece

    def _capture(self, stage: _Stage, kind: str, steps: int) -> _Piece:
        name = "full" if kind == "full" else "progressive"
        before = stage.steps
        kept = [] if before is None else [t.clone() for t in tensors(before.state)]
        remembered = [] if stage.past is None else [t.clone() for t in tensors(stage.past.memory)]

        def run() -> tuple[Tensor, Tensor]:
            for weight in self.parameters:
                weight.grad = None
            with self._autocast():
                inputs = stage.batch.inputs
                context = self.thinker.look(inputs if stage.past is None else (inputs, stage.past.memory))
                if kind == "later":
                    assert before is not None
                    state = self.objective.without_history(before.state)
                else:
                    state = self.thinker.start(context)
                term = self.objective.term(stage.batch, state, context, steps)
            term.loss.sum().backward()
            if stage.past is not None:
                _fill(stage.past.memory, self.objective.model.remember(term.state, context))  # type: ignore[operator]
            if kind == "full" and before is not None:  # the progressive term may start here
                _fill(before.state, term.state)
            return term.loss.detach(), term.penalty

        warm_up(run)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pools[name]):
            loss, penalty = run()
        if before is not None:
            _fill(before.state, kept)
        if stage.past is not None:
            _fill(stage.past.memory, remembered)
        return _Piece(graph, {name: loss}, {name: penalty}, [weight.grad for weight in self.parameters])

    def _stage(self, batch: Batch, past: Past | None) -> _Stage:
        shapes = tuple(part.shape for part in _parts(batch))
        if shapes not in self.stages:
            self.stages[shapes] = self._open(batch, past)
        return self.stages[shapes]

    def _open(self, batch: Batch, past: Past | None) -> _Stage:
        mine = batch.map(torch.clone)
        own = None if past is None else Past(tuple(t.clone() for t in past.memory))
        if self.full_alone or own is not None:
            return _Stage(mine, None, own)
        with torch.no_grad(), self._autocast():
            warm_up(lambda: think(self.thinker, mine.inputs, 2, read=False))
            begin = torch.cuda.CUDAGraph()
            with torch.cuda.graph(begin, pool=self.pools["step"]):
                context = self.thinker.look(mine.inputs)
                # Some models start with what they looked at: a state that is overwritten needs a place of its own.
                state = tree_map_only(Tensor, torch.clone, self.thinker.start(context))
            begin.replay()
            one = torch.cuda.CUDAGraph()
            with torch.cuda.graph(one, pool=self.pools["step"]):
                _fill(state, think(self.thinker, None, 1, state=state, context=context, read=False).state)
        return _Stage(mine, _Steps(begin, one, state, context), None)

    def _autocast(self) -> torch.autocast:
        # Casts are captured, so a cache of them from another capture must not be used.
        return torch.autocast("cuda", torch.bfloat16, enabled=self.half, cache_enabled=False)


def _is_full(memory: Any, size: int) -> bool:
    return bool(memory) and memory[0].shape[1] == size


def _fill(old: State, new: State) -> None:
    for mine, fresh in zip(tensors(old), tensors(new), strict=True):
        mine.copy_(fresh)


def warm_up(run: Callable[[], Any], side: torch.cuda.Stream | None = None) -> None:
    """Twice on a side stream, as capturing demands. The memory goes back: a graph has its own and cannot use it."""
    quieten = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if quieten is not None:  # gradients come from another stream than the weights on purpose
        quieten(False)
    side = side or torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.empty_cache()


def _parts(batch: Batch) -> list[Tensor]:
    return [batch.inputs, batch.targets] + ([] if batch.mask is None else [batch.mask])
