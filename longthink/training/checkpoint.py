"""A run's folder: the recipe, the metrics, the best weights, and all that is needed to go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longthink.errors import UserError
from longthink.training.files import explain_full_disk, read_json, read_tensors, write_json, write_tensors
from longthink.training.recipe import Recipe


class RunFolder:
    """``runs/<recipe>-<hash>-seed<seed>``; every file in it is whole at any moment."""

    def __init__(self, root: Path, recipe: Recipe, seed: int) -> None:
        self.path = root / f"{recipe.name}-{recipe.hash()}-seed{seed}"
        self.recipe, self.seed = recipe, seed
        self.best, self.last = self.path / "best.safetensors", self.path / "last.safetensors"
        self.metrics, self.card = self.path / "metrics.jsonl", self.path / "card.json"

    def begin(self) -> None:
        write_json(self.path / "recipe.json", {"recipe": self.recipe.to_json(), "seed": self.seed})

    def finished(self) -> dict[str, Any] | None:
        """The card of a run that has ended well."""
        return read_json(self.card) if self.card.exists() else None

    def log(self, line: dict[str, Any]) -> None:
        with explain_full_disk(self.metrics), open(self.metrics, "a") as file:
            file.write(json.dumps(line) + "\n")

    def forget_after(self, update: int) -> None:
        """Drop metrics of updates that were made after the last checkpoint and will be made again."""
        if not self.metrics.exists():
            return
        kept = []
        for line in self.metrics.read_text().splitlines():
            try:
                if json.loads(line)["update"] <= update:
                    kept.append(line)
            except (json.JSONDecodeError, KeyError):
                continue  # cut off in the middle of a write
        part = self.metrics.with_suffix(".part")
        with explain_full_disk(self.metrics):
            part.write_text("".join(line + "\n" for line in kept))
            part.replace(self.metrics)


def pack(model: nn.Module, optimizer: torch.optim.Optimizer, average: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """Model, optimiser and average as one flat dictionary of tensors."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for index, slots in optimizer.state_dict()["state"].items():
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{slot}"] = value
    for name, value in (average or {}).items():
        tensors[f"average.{name}"] = value
    return tensors


def unpack(
    tensors: dict[str, Tensor],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor] | None,
) -> None:
    """Put everything back in place."""
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "average": {}}
    for name, value in tensors.items():
        kind, _, rest = name.partition(".")
        parts[kind][rest] = value
    try:
        model.load_state_dict(parts["model"])
    except RuntimeError as error:
        raise UserError(f"The checkpoint does not fit this recipe's model: {str(error).splitlines()[-1]}.") from None
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in parts["optimizer"].items():
        index, _, slot = name.partition(".")
        state.setdefault(int(index), {})[slot] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for name, value in parts["average"].items():
        assert average is not None
        average[name].copy_(value)


def save_last(
    folder: RunFolder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor] | None,
    about: dict[str, Any],
) -> None:
    write_tensors(folder.last, pack(model, optimizer, average), about)


def load_last(
    folder: RunFolder, model: nn.Module, optimizer: torch.optim.Optimizer, average: dict[str, Tensor] | None
) -> dict[str, Any] | None:
    """Continue from the last checkpoint, if there is one."""
    if not folder.last.exists():
        return None
    tensors, about = read_tensors(folder.last)
    unpack(tensors, model, optimizer, average)
    return about


def save_best(folder: RunFolder, weights: dict[str, Tensor], about: dict[str, Any]) -> None:
    write_tensors(folder.best, weights, about)
