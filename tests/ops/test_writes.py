"""What torch.compile believes that a kernel writes: each tensor that it cannot rule out is copied before every call.

It follows pointers through a kernel, and takes all that a function returns for whatever pointers the function was
given. So places to store at must come from functions that take no pointers.
"""
# ruff: noqa: E402 (without Triton there is nothing to import)

from __future__ import annotations

from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="the kernels need Triton")
wrap = pytest.importorskip("torch._higher_order_ops.triton_kernel_wrap")

from longthink.ops.biased import fast as biased
from longthink.ops.cvmm import fast as cvmm
from longthink.ops.cvmm import sorting
from longthink.ops.geometric import fast as geometric
from longthink.ops.geometric import fused
from longthink.ops.largest import fast as largest
from longthink.ops.relative import fast as relative

TILE = {"PRECISION": "tf32", "ROWS": 64, "COLUMNS": 64}
WHOLE = {"n": 10, "heads": 4, "CHANNELS": 32, "N": 16, "D": 32, "PRECISION": "tf32"}
ATTENTION = {"n": 512, "total": 1024, "heads": 8, "CHANNELS": 64, "D": 64, **TILE}
SIDES = {"DIRECTED": True, "PADDED": True}
RANKS = {"n": 100, "heads": 4, "BLOCK": 64, "ROWS": 4, **SIDES}
CHOICE = {"rows": 100, "N": 16, "K": 4, "LANES": 16, "ROWS": 64}
ROUTES = {"K": 4, "EXPERTS": 16, "STEP": 32, **TILE}
KERNELS: dict[str, tuple[Any, dict[str, Any], set[str]]] = {
    "biased forward": (biased._forward, {**WHOLE, "BIASED": True}, {"out"}),
    "biased backward": (biased._backward, {**WHOLE, "BIASED": True}, {"d_q", "d_kv", "d_bias"}),
    "backward without scores": (biased._backward, {**WHOLE, "BIASED": False}, {"d_q", "d_kv"}),
    "geometric forward": (geometric._forward, RANKS, {"weights"}),
    "geometric backward": (geometric._backward, RANKS, {"d_logits", "d_direction"}),
    "fused forward": (fused._forward, {**WHOLE, **SIDES, "PARTS": 2}, {"out"}),
    "fused backward": (fused._backward, {**WHOLE, **SIDES, "PARTS": 2}, {"d_q", "d_kv", "d_direction"}),
    "relative forward": (relative._forward, ATTENTION, {"out", "sums"}),
    "relative along keys": (relative._along_keys, ATTENTION, {"d_q", "d_scores", "deltas"}),
    "relative along queries": (relative._along_queries, ATTENTION, {"d_kv"}),
    "largest": (largest._largest, {**CHOICE, "SIGMOID": False, "GROUPS": 0}, {"places"}),
    "largest sigmoids": (largest._largest, {**CHOICE, "SIGMOID": True, "GROUPS": 1}, {"places", "values"}),
    "gradient of sigmoids": (largest._sigmoid_gradient, CHOICE, {"d_numbers"}),
    "count": (sorting._count, {"routes": 1000, "span": 256, "LANES": 16, "CHUNK": 64}, {"counts"}),
    "plan": (
        sorting._plan,
        {"tiles": 99, "EXPERTS": 16, "LANES": 16, "BLOCKS": 256, "AT_ONCE": 64, "ROWS": 64, "CHUNK": 128},
        {"places", "starts", "tile_expert", "tile_row"},
    ),
    "place": (sorting._place, {"routes": 1000, "span": 256, "LANES": 16, "CHUNK": 64}, {"order"}),
    "sum of routes": (
        cvmm._sum_routes,
        {"numbers": 9, "first": 128, "width": 512, "K": 4, "COLUMNS": 256, "BLOCK": 1024},
        {"total"},
    ),
    "grouped": (
        cvmm._grouped,
        {
            **dict.fromkeys(("stride_expert", "stride_in", "stride_out"), 1),
            **dict.fromkeys(("IN", "OUT"), 64),
            **dict.fromkeys(("RELU", "BIASED", "GATED"), True),
            "FROM": "token",
            "TO": "route",
            **ROUTES,
        },
        {"out"},
    ),
    "hidden gradient": (
        cvmm._hidden_gradient,
        {"WIDTH": 64, "SIZE": 64, **ROUTES},
        {"d_gates", "d_hidden", "gated"},
    ),
    "weight gradient": (
        cvmm._weight_gradient,
        {"IN": 64, "OUT": 64, "LEFT": "token", "RIGHT": "place", "BIASED": True, "INPUTS": 64, **ROUTES},
        {"d_weights", "d_bias"},
    ),
}
WHOLE_NUMBERS = {"experts", "order", "starts", "tile_expert", "tile_row", "counts", "places", "padding"}


@pytest.fixture(autouse=True)
def some_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are only translated, which needs no GPU but wants to know one."""

    class Driver:
        def get_current_target(self) -> Any:
            return triton.backends.compiler.GPUTarget("cuda", 90, 32)

    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())


def believed(kernel: Any, arguments: dict[str, Any]) -> set[str]:
    if hasattr(wrap, "identify_accessed_tensors"):
        return {one.name for one in wrap.identify_accessed_tensors(kernel, arguments, {}).read_writes.writes}
    return set(wrap.identify_mutated_tensors(kernel, arguments, {}))  # PyTorch before 2.13


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_else_is_copied(name: str) -> None:
    kernel, numbers, written = KERNELS[name]
    arguments = {one: numbers[one] for one in kernel.arg_names if one in numbers}
    for one in kernel.arg_names:
        if one not in numbers:
            kind = torch.int32 if one in WHOLE_NUMBERS else torch.float32
            arguments[one] = torch.empty(2, dtype=kind)
    assert believed(kernel, arguments) == written
