"""A mixture of experts beside dense layers, forward and backward, and beside what the hardware could do.

The floor counts what must be multiplied, read and written (see ops/cvmm/README.md) and divides it by the speed of one
large product and of one large copy, measured in the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from longthink.bench.timing import device, median_seconds, surroundings
from longthink.layers.experts import Experts, mixture
from longthink.layers.feedforward import Dense
from longthink.ops.cvmm.plain import plain_feedforward
from longthink.training.graphs import warm_up

EXPERTS = (16, 32, 64, 128)
How = Literal["launched", "captured", "torch.compile"]


class PlainExperts(nn.Module):
    """The same layer with a block of rows for each expert: sorted, but with PyTorch's own operations."""

    def __init__(self, layer: Experts) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        kind = torch.bfloat16 if x.is_cuda else x.dtype
        chosen, layer = self.layer.selection(x), self.layer
        up, down = layer.up.to(kind), layer.down.to(kind)
        return plain_feedforward(x.to(kind), chosen.experts, chosen.gates, up, down)


def measure(
    tokens: int = 32_768,
    width: int = 512,
    k: int = 4,
    size: int = 128,
    experts: tuple[int, ...] = EXPERTS,
    repeats: int = 50,
) -> dict[str, Any]:
    """Milliseconds and peak memory of one layer in bfloat16 (float32 on a CPU), weights and their gradients in float32.

    Memory is what a pass needs beside the weights, its input and the output's gradient; all gradients count.
    """
    speed = _ceilings() if device() == "cuda" else None
    rows = []
    for number in experts:
        for name, layer, how in _paths(width, k, size, number):
            milliseconds, megabytes = _time(layer.to(device()), tokens, width, repeats, how)
            rows.append(
                {
                    "experts": number,
                    "path": name if how == "launched" else f"{name}, {how}",
                    "milliseconds": milliseconds,
                    "megabytes": megabytes,
                }
            )
        if speed is not None:
            floor = _floor(tokens, width, k, size, number, *speed)
            rows.append({"experts": number, "path": "floor", "milliseconds": floor, "megabytes": None})
        if device() == "cuda":
            torch.cuda.empty_cache()
            torch.compiler.reset()  # it gives up on code that was compiled for many layers
    about = (
        f"a mixture of experts beside dense layers: one layer forward and backward, {tokens:,} tokens of width "
        f"{width}, each through {k} of the experts, which have {size} hidden units each"
    )
    ceilings = {} if speed is None else {"teraflops": speed[0] / 1e12, "terabytes_a_second": speed[1] / 1e12}
    return {"benchmark": about, **surroundings(repeats), **ceilings, "rows": rows}


def _paths(width: int, k: int, size: int, experts: int) -> list[tuple[str, nn.Module, How]]:
    torch.manual_seed(0)
    layer = cast(Experts, mixture(width, experts * size, experts=experts, k=k, balance=None))
    paths: list[tuple[str, nn.Module, How]] = [
        ("dense, same parameters", Dense(width, experts * size), "launched"),
        ("dense, same operations", Dense(width, k * size), "launched"),
        ("plain", PlainExperts(layer), "launched"),
        ("ours", layer, "launched"),
    ]
    if device() == "cuda":  # without the time that launching takes: one graph that we capture, or torch.compile's
        fast = [(name, part) for name, part, _ in paths if name != "plain"]  # which waits for the device
        paths += [(name, part, "captured") for name, part in fast]
        graphs = partial(torch.compile, mode="reduce-overhead")
        # Copies: what a compiled layer leaves at its weights would be in the way of others.
        paths += [(name, cast(nn.Module, graphs(deepcopy(part))), "torch.compile") for name, part in fast]
    return paths


def _time(layer: nn.Module, tokens: int, width: int, repeats: int, how: How) -> tuple[float, float | None]:
    kind = torch.bfloat16 if device() == "cuda" else torch.float32
    x = torch.randn(tokens, width, device=device(), dtype=kind, requires_grad=True)
    probe = torch.randn_like(x)
    weights = [x, *layer.parameters()]

    def run() -> None:
        if how == "torch.compile":
            torch.compiler.cudagraph_mark_step_begin()
        for weight in weights:
            weight.grad = None
        with torch.autocast(device(), torch.bfloat16, enabled=x.is_cuda, cache_enabled=False):
            y = layer(x)
        y.backward(probe.to(y.dtype))

    if not x.is_cuda:
        return 1e3 * median_seconds(run, repeats), None
    stream = torch.cuda.Stream()
    for each in (torch.cuda.current_stream(), stream):
        _give_workspaces(each)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    go = _capture(run, stream) if how == "captured" else run
    for _ in range(5):
        go()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    for event in events[:-1]:
        event.record()
        go()
    events[-1].record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in pairwise(events)]
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    for weight in weights:
        weight.grad = None
    # The graphs of torch.compile share memory that is not given back between layers.
    return statistics.median(times), None if how == "torch.compile" else peak


def _give_workspaces(stream: torch.cuda.Stream) -> None:
    """cuBLAS keeps 32 MB for each stream and each thread that multiplies: not a layer's memory."""
    with torch.cuda.stream(stream):
        small = torch.ones(16, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        (small @ small).sum().backward()


def _capture(run: Callable[[], None], stream: torch.cuda.Stream) -> Callable[[], None]:
    warm_up(run, stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph.replay


def _ceilings() -> tuple[float, float]:
    """Operations a second of a large product and bytes a second of a large copy."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.empty(2**29, device="cuda", dtype=torch.bfloat16)
    c = torch.empty_like(b)
    return 2 * 8192**3 / median_seconds(lambda: a @ a, 10), 2 * b.nbytes / median_seconds(lambda: c.copy_(b), 10)


def _floor(tokens: int, width: int, k: int, size: int, experts: int, operations: float, traffic: float) -> float:
    """Milliseconds: six products of all routes; every tensor that must be read or written, once, in half precision."""
    routes = tokens * k
    products = 6 * 2 * routes * width * size
    rows = 2 * (4 * tokens * width + 3 * routes * size * 2)  # x, y and their gradients; h, du, s h written and read
    weights = 2 * experts * width * size * (2 * 3 + 4)  # read three times in half precision, gradients in float32
    return 1e3 * max(products / operations, (rows + weights) / traffic)
