"""Forward and backward pass of the Neural Data Router at the published sizes, and of CTL++'s Transformer with relative
positions: the plain path beside the fast one; and whole updates, with clipped gradients and AdamW.

The plain path runs in float32 with PyTorch's own operations; the fast one in bfloat16 with the Triton kernels, its
update captured in a graph, and compiled; and several networks as one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from longthink.bench.timing import device, median_seconds, surroundings
from longthink.hardware import fast_products
from longthink.layers.several import together
from longthink.models import build
from longthink.ops.biased.plain import plain_read as plain_biased
from longthink.ops.geometric.plain import plain_read as plain_geometric
from longthink.recipes import recipes
from longthink.tasks import Batch
from longthink.training.compiled import CompiledStep
from longthink.training.graphs import GraphedObjective
from longthink.training.losses import Objective, Plan
from longthink.training.schedule import make_optimizer
from longthink.training.trainer import clip_gradients

SIZES: dict[str, dict[str, Any]] = {
    "ctl": {
        "kind": "router",
        "length": 10,
        "steps": 14,
        "model": {"width": 256, "hidden": 512, "heads": 1, "dropout": 0.5},
    },
    "listops": {
        "kind": "router",
        "length": 48,
        "steps": 20,
        "model": {"width": 512, "hidden": 1024, "heads": 16, "dropout": 0.1},
    },
    "ctlpp, relative": {
        "kind": "transformer",
        "length": 7,
        "steps": 8,
        "model": recipes["ctlpp-A-transformer"].model_options,
    },
}
"""Lengths without the begin and end tokens: the public code was timed at 12 and 50."""
PATHS = ("plain", "kernel", "graph", "compiled graph")
SEVERAL = (5, 10)
"""Networks in one, at the small sizes."""


@fast_products()
def measure(batch: int = 512, repeats: int = 10, only: tuple[str, ...] = PATHS) -> dict[str, Any]:
    """Milliseconds and peak memory of a forward and backward pass, and milliseconds of a whole update; of all networks
    where there are several."""
    rows = []
    for name, size in SIZES.items():
        paths = [(path, 1) for path in (only if device() == "cuda" else ("plain",))]
        if name != "listops":
            paths += [(paths[-1][0], networks) for networks in SEVERAL]
        for path, networks in paths:
            run, update = _passes(path, batch, networks, **size)
            if device() == "cuda":
                torch.cuda.reset_peak_memory_stats()
            seconds = median_seconds(run, repeats)
            memory = torch.cuda.max_memory_allocated() / 2**30 if device() == "cuda" else None
            whole = median_seconds(update, repeats)
            about = {"size": name, "path": path, "networks": networks, "batch": batch}
            times = {"milliseconds": 1e3 * seconds, "milliseconds_of_an_update": 1e3 * whole}
            rows.append({**about, **times, "gigabytes": memory})
            del run, update
            if device() == "cuda":
                torch.cuda.empty_cache()
    return {"benchmark": "one forward and backward pass of the router", **surroundings(repeats), "rows": rows}


def _passes(
    path: str, batch: int, networks: int, kind: str, length: int, steps: int, model: dict[str, Any]
) -> tuple[Callable[[], Any], Callable[[], None]]:
    """A forward and backward pass, and a whole update."""
    torch.manual_seed(0)
    nets = [build(kind, vocabulary=18, classes=10, **model).to(device()).train() for _ in range(networks)]
    net = together(nets)
    tokens = torch.randint(1, 18, (networks * batch, length), device=device())
    problems = Batch(tokens, torch.randint(0, 10, (networks * batch,), device=device()))
    plan = Plan(0, 1, steps, 0.0)
    objective = Objective(net, CompiledStep(net) if path == "compiled graph" else None)
    optimizer = make_optimizer(recipes["ctl-router"], net, fused=device() == "cuda")

    def finish() -> None:
        clip_gradients(net, 5.0)
        optimizer.step()

    if "graph" in path:
        graphed = GraphedObjective(objective, half=True, full_alone=True)
        return _and_update(lambda: graphed.backward(problems, plan), finish)

    def forward_and_backward() -> None:
        net.zero_grad()
        with torch.autocast(device(), torch.bfloat16, enabled=path == "kernel"):
            objective(problems, plan)["loss"].sum().backward()

    def plain() -> None:
        where = "longthink.layers.attention"
        with patch(f"{where}.geometric_read", plain_geometric), patch(f"{where}.biased_read", plain_biased):
            forward_and_backward()

    return _and_update(plain if path == "plain" else forward_and_backward, finish)


def _and_update(run: Callable[[], Any], finish: Callable[[], None]) -> tuple[Callable[[], Any], Callable[[], None]]:
    def update() -> None:
        run()
        finish()

    return run, update
