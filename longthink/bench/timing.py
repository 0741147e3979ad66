"""How things are timed: warm up, repeat, take the median, wait for the GPU."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from longthink.hardware import hardware
from longthink.training.files import write_json


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def median_seconds(run: Callable[[], Any], repeats: int) -> float:
    gpu = torch.cuda.is_available()
    for _ in range(3 if gpu else 1):
        run()
    times = []
    for _ in range(repeats):
        if gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        if gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def surroundings(repeats: int) -> dict[str, Any]:
    """What a timing means nothing without."""
    return {
        "hardware": hardware(device()),
        "torch": torch.__version__,
        "repeats": repeats,
        "statistic": "median",
    }


def save(name: str, result: dict[str, Any], folder: Path) -> Path:
    """Into ``<folder>/<hardware>.json``, beside the other benchmarks of this machine."""
    path = folder / (result["hardware"].lower().replace(" ", "-") + ".json")
    known = json.loads(path.read_text()) if path.exists() else {}
    write_json(path, {**known, name: result})
    return path
