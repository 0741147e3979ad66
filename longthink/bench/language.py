"""One training update of the language model with each feed-forward kind: tokens a second and memory."""

from __future__ import annotations

from typing import Any

import torch

from longthink.bench.timing import device, median_seconds, surroundings
from longthink.hardware import fast_products
from longthink.models import build
from longthink.recipes import recipes
from longthink.tasks import Batch
from longthink.training.compiled import CompiledStep
from longthink.training.graphs import GraphedObjective
from longthink.training.losses import Objective, Past, Plan
from longthink.training.recipe import Recipe, override
from longthink.training.schedule import make_optimizer

KINDS = ("dense", "top_k", "pkm_softmax", "pkm_relu", "switch", "s_base", "sigma_moe")
SMALL = ("model.width=32", "model.distinct_steps=2", "model.heads=2", "model.head_size=8", "model.memory=16", "steps=2")


@fast_products()
def measure(kinds: tuple[str, ...] = KINDS, repeats: int = 10, small: bool = False) -> dict[str, Any]:
    """Random tokens; a full memory; forward, backward and the optimiser's step."""
    rows = []
    for kind in kinds:
        recipe = recipes[f"text-{kind}"]
        if small:
            recipe = override(recipe, [*SMALL, "difficulty=16", "batch=2"])
        for path in ("plain", "compiled graph") if device() == "cuda" else ("plain",):
            rows.append({"kind": kind, "path": path, **_time(recipe, path, repeats)})
    return {"benchmark": "one training update of a language model", **surroundings(repeats), "rows": rows}


def _time(recipe: Recipe, path: str, repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    here, gpu, length = device(), device() == "cuda", max(recipe.difficulty)
    others = torch.cuda.memory_allocated() if gpu else 0
    model = build(recipe.model, vocabulary=256, classes=256, **recipe.model_options).to(here)
    optimizer = make_optimizer(recipe, model, fused=gpu)
    tokens = torch.randint(1, 256, (recipe.batch, length + 1), device=here)
    batch, plan = Batch(tokens[:, :-1], tokens[:, 1:].contiguous()), Plan(0, 1, recipe.steps, 0.0)
    fast = path == "compiled graph"
    objective = Objective(model, CompiledStep(model) if fast else None)
    graphed = GraphedObjective(objective, half=True, full_alone=True) if fast else None
    past = Past(None)

    def update() -> None:
        nonlocal past
        if graphed is not None and graphed.takes(plan, past):
            losses = graphed.backward(batch, plan, past)
        else:
            optimizer.zero_grad()
            with torch.autocast(here, torch.bfloat16, enabled=gpu):
                losses = objective(batch, plan, past=past)
            losses["loss"].backward()
        past = Past(losses["memory"])
        optimizer.step()

    if gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds = median_seconds(update, repeats)
    peak = (torch.cuda.max_memory_allocated() - others) / 2**30 if gpu else None
    parameters = sum(weight.numel() for weight in model.parameters())
    return {
        "milliseconds": 1e3 * seconds,
        "tokens_per_second": recipe.batch * length / seconds,
        "gigabytes": peak,
        "parameters": parameters,
    }
