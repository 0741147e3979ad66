"""torch.compile sees through a kernel's autograd function, in every precision: no part of it is left to Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need Triton")
import torch.utils._triton

from longthink.ops.biased.fast import fast_read
from longthink.ops.cvmm.fast import fast_feedforward
from longthink.ops.kernels import product_precision
from longthink.ops.largest.fast import fast_sigmoids


def traced(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *results: torch.Tensor) -> Any:
    """The names of the kernels that torch.compile finds when it traces the function: only traced, which needs no GPU;
    but torch.compile asks for one."""
    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda *_: True)
    found: list[str] = []

    def look(graph: torch.fx.GraphModule, _: Any) -> Any:
        for module in graph.modules():
            if isinstance(module, torch.fx.GraphModule):
                found.extend(str(node.target) for node in module.graph.nodes if "triton_kernel" in str(node.target))
        return lambda *_: results

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=look, fullgraph=True)

    def run(*arguments: Any) -> list[str]:
        compiled(*arguments)
        return found

    return run


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_all_kernels_are_in_one_graph(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x, gates = torch.randn(64, 32, requires_grad=True), torch.rand(64, 2, requires_grad=True)
    up, down = torch.randn(4, 32, 16, requires_grad=True), torch.randn(4, 16, 32, requires_grad=True)
    found = traced(monkeypatch, lambda *a: fast_feedforward(*a, kind=kind), torch.zeros(64, 32))(
        x, torch.randint(0, 4, (64, 2)), gates, up, down
    )
    # Sorting 3, hidden units 1, the sum of their products 2; their gradient 1, that of the input 2, of the weights 2.
    assert len(found) == 11


@pytest.mark.parametrize("kept", [None, torch.tensor([True, False, True, True])])
def test_the_choice_of_experts_is_in_one_graph(kept: torch.Tensor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    results = torch.zeros(64, 2, dtype=torch.long), torch.zeros(64, 2)
    found = traced(monkeypatch, fast_sigmoids, *results)(torch.randn(64, 4, requires_grad=True), 2, kept)
    assert len(found) == 2  # the choice, and its gradient


@pytest.mark.parametrize("scores", [True, False])
def test_attention_over_short_sequences_is_in_one_graph(scores: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    q, kv, bias = torch.randn(2, 5, 4, 16), torch.randn(2, 5, 4, 2, 16), torch.randn(2, 4, 5, 5)
    padding = torch.zeros(2, 5, dtype=torch.bool)
    found = traced(monkeypatch, fast_read, torch.zeros_like(q))
    assert len(found(q.requires_grad_(), kv.requires_grad_(), bias if scores else None, padding)) == 2


def test_another_precision_is_compiled_anew() -> None:
    before = torch.get_float32_matmul_precision()
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x * (2 if product_precision(x.dtype) == "ieee" else 3), backend="eager")
    try:
        for precision, factor in (("highest", 2), ("high", 3), ("highest", 2)):
            torch.set_float32_matmul_precision(precision)
            assert compiled(torch.ones(1)).item() == factor
    finally:
        torch.set_float32_matmul_precision(before)
