"""One training update of a maze network: the equations as they stand beside the fast path.

The naive update does what the public code does: it concatenates state and input at every step, reads the answer after
every step, computes the first n steps of the progressive term again, and works in float32 (TF32 on a GPU).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from longthink.bench.timing import device, median_seconds, surroundings
from longthink.hardware import fast_products
from longthink.models.deepthinking import Context, DeepThinking
from longthink.tasks import Batch, task
from longthink.think import ThinkingModule, detach, think
from longthink.training.compiled import CompiledStep
from longthink.training.losses import Objective, Plan, cross_entropy

TYPICAL = Plan(n=14, k=8, m=30, alpha=0.01)
"""The mean draw of Algorithm 1 with m = 30, and the published weight for mazes."""


class NaiveDeepThinking(DeepThinking):
    """Eq. 5.2 as it stands: one convolution over [state, x] at every step."""

    def look(self, x: Tensor) -> Context:
        return Context(x, None)

    def step(self, state: Any, context: Context) -> Tensor:
        assert self.recall_state is not None
        assert self.recall_input is not None
        weight = torch.cat([self.recall_state.weight, self.recall_input.weight], 1)
        dilation = self.recall_state.dilation
        convolve = F.conv1d if self.recall_state.dims == 1 else F.conv2d
        h = convolve(torch.cat([state, context.x], 1), weight, padding=dilation, dilation=dilation)
        return self.blocks[0](h.relu() if self.recall_relu else h)


def naive_loss(model: DeepThinking, batch: Batch, plan: Plan) -> Tensor:
    """Algorithm 1 with a forward pass for each term and the head after every step."""
    full = think(model, batch.inputs, plan.m, watch=("logits",))
    early = think(model, batch.inputs, plan.n, watch=("logits",))
    start = detach(early.state) if plan.n > 0 else early.state  # with n = 0 the projection learns too
    late = think(model, batch.inputs, plan.k, state=start, watch=("logits",))
    losses = cross_entropy(full.logits, batch), cross_entropy(late.logits, batch)
    return (1 - plan.alpha) * losses[0] + plan.alpha * losses[1]


@fast_products()
def measure(batch_sizes: tuple[int, ...], width: int = 128, repeats: int = 10, compiled: bool = True) -> dict[str, Any]:
    """Milliseconds an update and samples a second of each path at each batch size."""
    here = device()
    rows = []
    for size in batch_sizes:
        batch = task("mazes").sample(size, 9, 0, "train").to(here)
        for name in ("naive", "fast", "compiled") if compiled else ("naive", "fast"):
            run = _update(name, width, batch, here)
            seconds = median_seconds(run, repeats)
            rate = size / seconds
            rows.append({"path": name, "batch": size, "milliseconds": 1e3 * seconds, "samples_per_second": rate})
    return {
        "benchmark": "one training update on 9x9 mazes",
        "width": width,
        "plan": TYPICAL._asdict(),
        **surroundings(repeats),
        "precision": {"naive": "TF32", "fast": "bfloat16", "compiled": "bfloat16"} if here == "cuda" else "float32",
        "rows": rows,
    }


def _update(name: str, width: int, batch: Batch, here: str) -> Callable[[], None]:
    torch.manual_seed(0)
    fast = name != "naive"
    model = (DeepThinking if fast else NaiveDeepThinking)(width=width).to(here)
    if not fast:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    whole = cast(ThinkingModule, model)
    objective = Objective(whole, CompiledStep(whole) if name == "compiled" else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=fast and here == "cuda")

    def update() -> None:
        optimizer.zero_grad()
        with torch.autocast(here, torch.bfloat16, enabled=fast and here == "cuda"):
            loss = objective(batch, TYPICAL)["loss"] if fast else naive_loss(model, batch, TYPICAL)
        loss.backward()
        optimizer.step()

    return update
