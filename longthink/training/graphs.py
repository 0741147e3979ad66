"""CUDA graphs for updates of small networks, which otherwise wait for the host to launch kernels.

With alpha = 1 an update is: look and start, n steps without gradient, k steps with. Three kinds of graphs replay that:
one for the beginning, one for a step (replayed n times), and one for each k with its backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.utils._pytree import tree_map_only

from longthink.tasks.base import Batch
from longthink.think import tensors, think
from longthink.training.losses import Objective, Plan
from longthink.training.recipe import Recipe


@dataclass
class _Captured:
    graph: torch.cuda.CUDAGraph
    losses: dict[str, Tensor]


class GraphedProgress:
    """Does what ``objective(batch, plan)["loss"].backward()`` does, for alpha = 1 on one GPU."""

    @staticmethod
    def possible(recipe: Recipe, fabric: Fabric) -> bool:
        one_gpu = fabric.device.type == "cuda" and fabric.world_size == 1
        shared = recipe.model_options.get("distinct_steps") is None
        return one_gpu and shared and recipe.alpha == 1

    def __init__(self, objective: Objective) -> None:
        self.objective, self.model = objective, objective.model
        self.pool: Any = None
        self.graphs: dict[tuple[int, bool], _Captured] = {}
        self.batch: Batch | None = None

    def backward(self, batch: Batch, plan: Plan) -> dict[str, Tensor]:
        """Losses, with the gradients left in the parameters' ``grad`` (those of this update alone)."""
        if self.batch is None:
            self._prepare(batch)
        assert self.batch is not None
        for mine, theirs in zip(_parts(self.batch), _parts(batch), strict=True):
            mine.copy_(theirs)
        if plan.n > 0:
            self.begin.replay()
            for _ in range(plan.n):
                self.step.replay()
        key = (plan.k, plan.n == 0)
        if key not in self.graphs:
            self.graphs[key] = self._capture_update(*key)
        captured = self.graphs[key]
        captured.graph.replay()
        for weight, gradient in self.gradients[key]:
            weight.grad = gradient
        return captured.losses

    def _prepare(self, batch: Batch) -> None:
        self.batch = batch._map(torch.clone)
        self.gradients: dict[tuple[int, bool], list[tuple[Tensor, Tensor | None]]] = {}
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            self._warm_up(lambda: think(self.model, batch.inputs, 2, read=False))
            self.begin = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.begin):
                self.context = self.model.look(self.batch.inputs)
                self.state = self.model.start(self.context)
            self.pool = self.begin.pool()
            self.begin.replay()
            self.step = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.step, pool=self.pool):
                new = think(self.model, None, 1, state=self.state, context=self.context, read=False).state
                for old, fresh in zip(tensors(self.state), tensors(new), strict=True):
                    old.copy_(fresh)

    def _capture_update(self, k: int, from_start: bool) -> _Captured:
        assert self.batch is not None
        state = None if from_start else tree_map_only(Tensor, torch.clone, self.state)
        kept = None if state is None else [t.clone() for t in tensors(self.state)]

        def run() -> dict[str, Tensor]:
            for weight in self.model.parameters():
                weight.grad = None
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                assert self.batch is not None
                losses = self.objective.progress(self.batch, None if from_start else self.state, k)
            losses["loss"].backward()
            return losses

        self._warm_up(run)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            losses = run()
        self.gradients[k, from_start] = [(w, w.grad) for w in self.model.parameters()]
        if kept is not None:
            for mine, old in zip(tensors(self.state), kept, strict=True):
                mine.copy_(old)
        return _Captured(graph, {name: value.detach() for name, value in losses.items()})

    @staticmethod
    def _warm_up(run: Any) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(side)


def _parts(batch: Batch) -> list[Tensor]:
    return [batch.inputs, batch.targets] + ([] if batch.mask is None else [batch.mask])
