"""Small runs for the tests of training, and what it means that two of them ended alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from longthink.training.files import read_json, read_tensors
from longthink.training.recipe import Recipe
from longthink.training.train import TrainingOptions, train

# 9 updates an epoch are logged in pairs, so that checkpoints fall between two lines of metrics.
TOY = Recipe(
    name="toy",
    task="prefix_sums",
    difficulty=(8,),
    model_options={"width": 4, "head": [4, 4]},
    steps=3,
    alpha=0.5,
    horizon=9,
    train_samples=37,
    valid_samples=20,
    batch=4,
    epochs=2,
    warmup_epochs=0,
    learning_rate=0.01,
    clip=1.0,
    average=0.9,
)


def options(folder: Path, **changes: Any) -> TrainingOptions:
    fields: dict[str, Any] = {"accelerator": "cpu", "quiet": True, "tensorboard": False, **changes}
    return TrainingOptions(folder=str(folder), **fields)


def train_on_one_thread(recipe: Recipe, seed: int, how: TrainingOptions) -> None:
    """For a process of its own, which is to agree with this one to the last bit."""
    torch.set_num_threads(1)
    train(recipe, seed, how)


def metrics(run: Path) -> list[dict[str, Any]]:
    """Lines of the run's metrics, without the time they took."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def without_times(about: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in about.items() if key not in ("seconds", "minutes")}
    return {key: without_times(value) if isinstance(value, dict) else value for key, value in kept.items()}


def assert_same_end(first: Path, second: Path) -> None:
    """Weights, optimiser, averages, metrics and cards are the same to the last bit."""
    for name in ("last.safetensors", "best.safetensors"):
        (a, about_a), (b, about_b) = read_tensors(first / name), read_tensors(second / name)
        assert a.keys() == b.keys()
        for key, value in a.items():
            assert torch.equal(value, b[key]), f"{name}: {key}"
        assert without_times(about_a) == without_times(about_b)
    assert metrics(first) == metrics(second)
    assert without_times(read_json(first / "card.json")) == without_times(read_json(second / "card.json"))
