"""Captured graphs on a CPU: what is run while capturing is recorded, and a replay writes into the same tensors again.

Not the speed and not the memory pools, but everything else of a CUDA graph: what was captured does not notice that
Python variables have changed, and reads and writes the tensors that it read and wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longthink.training import graphs


class RecordedGraph:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def replay(self) -> None:
        with torch.no_grad():
            for function, args, kwargs, before in self.calls:
                given = {_memory(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
                now = function(*args, **kwargs)
                for old, new in zip(tree_leaves(before), tree_leaves(now), strict=True):
                    # Views and results written in place are there already.
                    if isinstance(old, Tensor) and old.numel() and _memory(old) not in given:
                        old.copy_(new)


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.graph.calls.append((func, args, kwargs or {}, out))
        return out


def _memory(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


@contextmanager
def _record(graph: RecordedGraph, pool: Any = None) -> Iterator[None]:
    with _Recorder(graph):
        yield


def _twice(run: Callable[[], Any]) -> None:
    run()
    run()


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", _record)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(graphs, "warm_up", _twice)
    monkeypatch.setattr(graphs.GraphedObjective, "_autocast", lambda _: nullcontext())
