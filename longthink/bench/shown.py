"""How a benchmark is shown to people: numbers that can be read, and below them what the names mean.

Documents keep all digits and columns.
"""

from __future__ import annotations

from typing import Any

from longthink.terminal import print_table

_GRAPH = {"graph": "the kernels, replayed as one CUDA graph", "compiled graph": "the same, compiled before"}

WORDS: dict[str, dict[str, str]] = {
    "cvmm": {
        "cvmm": "conditional vector-matrix multiplication: each token by the weights of its experts alone",
        "dense": "no experts, with as many parameters or operations as the mixture",
        "plain": "the mixture, one expert after the other with PyTorch's own operations",
        "ours": "the mixture with our kernels, and without a GPU the plain one again",
        "floor": "no less is possible at this hardware's speed",
        "captured": "replayed as one CUDA graph",
        "torch.compile": "compiled by PyTorch",
        "megabytes": "the most that a pass needs beside the weights and its input",
    },
    "deepthinking": {
        "naive": "what the public code does",
        "fast": "ours",
        "compiled": "ours, compiled",
    },
    "dnc": {
        "naive": "the equations as printed, one head after the other",
        "heads together": "all heads at once",
        **_GRAPH,
    },
    "language": {"plain": "PyTorch runs one operation after the other", **_GRAPH},
    "router": {"plain": "PyTorch's own operations", "kernel": "our Triton kernels", **_GRAPH},
}
"""What stands in a table, and what it means: a word is explained where a path or a column has it in its name."""

_FOR_A_GPU = {
    "cvmm": "our kernels need a GPU",
    "deepthinking": "the compiled path is timed on a GPU",
    "dnc": "the graphs need a GPU",
    "language": "every path here is the plain one, the fast one needs a GPU",
    "router": "every path here is the plain one, the fast ones need a GPU",
}


def show(what: str, found: dict[str, Any], gpu: bool) -> None:
    rows = found["rows"]
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    times = f", {found['statistic']} of {found['repeats']}" if found["repeats"] > 1 else ""
    print(f"{found['benchmark']} ({found['hardware']}{times})")  # as the title of a narrow table it would be folded
    print_table([name.replace("_", " ") for name in columns], [[cell(row[name]) for name in columns] for row in rows])
    names = " ".join([what, *columns, *(row.get("path", "") for row in rows)])
    for word, meaning in WORDS.get(what, {}).items():
        if word in names:
            print(f"{word}: {meaning}")
    if not gpu and what in _FOR_A_GPU:
        print(f"A toy size, to see that it runs: {_FOR_A_GPU[what]}, where the table that counts is made.")


def cell(value: Any) -> str:
    """Three digits, or all of those before the point."""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
