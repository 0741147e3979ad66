"""A run's folder: the recipe, the metrics, the best weights, and all that is needed to go on."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longthink.errors import UserError
from longthink.training.files import (
    explain_full_disk,
    read_about,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
    write_text,
)
from longthink.training.recipe import Recipe

_RECIPE, _CARD = "recipe.json", "card.json"  # a run begins with the one and ends with the other


class RunFolder:
    """``runs/<recipe>-<hash>-seed<seed>``; every file in it is whole at any moment."""

    def __init__(self, root: Path, recipe: Recipe, seed: int) -> None:
        self.path = root / f"{recipe.name}-{recipe.hash()}-seed{seed}"
        self.recipe, self.seed = recipe, seed
        self.best, self.last = self.path / "best.safetensors", self.path / "last.safetensors"
        self.metrics, self.card = self.path / "metrics.jsonl", self.path / _CARD
        self.begun = self.path / _RECIPE

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other process of this machine may train here meanwhile; the lock is gone with its process."""
        try:
            import fcntl

            self.path.mkdir(parents=True, exist_ok=True)
            folder = os.open(self.path, os.O_RDONLY)
        except (ImportError, OSError):  # no such locks here, or a place that cannot be written, which writing will say
            yield
            return
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                os.close(folder)
                raise UserError(
                    f"Another process is training in {self.path}; wait for it, or choose a --folder."
                ) from None
        try:
            yield
        except Exception:
            if not any(file.exists() for file in (self.last, self.best, self.card, self.metrics)):  # no update was made
                for file in (self.begun, *self.path.glob("events.out.*")):
                    file.unlink(missing_ok=True)
            raise
        finally:
            with suppress(OSError):  # where nothing was written, or what was is no use
                self.path.rmdir()
            os.close(folder)

    def begin(self) -> None:
        for part in self.path.glob(".*.part"):  # left by a process that was killed while it wrote
            part.unlink(missing_ok=True)
        write_json(self.begun, {"recipe": self.recipe.to_json(), "seed": self.seed})

    def finished(self) -> dict[str, Any] | None:
        """The card of a run that has ended well."""
        return read_json(self.card) if self.card.exists() else None

    def stands_at(self) -> int:
        """The update of its last checkpoint; less than 0 where that does not say."""
        update = read_about(self.last).get("update") if self.last.exists() else 0
        return update if isinstance(update, int) else -1

    def log(self, line: dict[str, Any]) -> None:
        with explain_full_disk(self.metrics), open(self.metrics, "a") as file:
            file.write(json.dumps(line) + "\n")

    def forget_after(self, update: int, validation_too: bool = False) -> None:
        """Drop metrics of updates that were made after the last checkpoint and will be made again; or, at the update of
        the checkpoint itself, of a validation that will be made again."""
        if not self.metrics.exists():
            return
        kept = []
        for line in self.metrics.read_text(errors="replace").splitlines():
            try:
                found = json.loads(line)
                again = validation_too and found["update"] == update and "loss" not in found
                if found["update"] <= update and not again:
                    kept.append(line)
            except (json.JSONDecodeError, KeyError, TypeError):
                continue  # cut off in the middle of a write
        write_text(self.metrics, "".join(line + "\n" for line in kept))


def unfinished(path: str | Path) -> bool:
    """Is this the folder of a run that has not ended?"""
    folder = Path(path)
    return (folder / _RECIPE).exists() and not (folder / _CARD).exists()


def pack(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor] | None,
    memory: Sequence[Tensor] = (),
) -> dict[str, Tensor]:
    """Model, optimiser, average and what is remembered of a text as one flat dictionary of tensors."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for index, slots in optimizer.state_dict()["state"].items():
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{slot}"] = value
    for name, value in (average or {}).items():
        tensors[f"average.{name}"] = value
    return tensors | {f"memory.{layer}": part for layer, part in enumerate(memory)}


def unpack(
    tensors: dict[str, Tensor],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor] | None,
) -> tuple[Tensor, ...]:
    """Put everything back in place and return the memory; a ValueError, KeyError or RuntimeError says what does not
    fit."""
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "average": {}, "memory": {}}
    for name, value in tensors.items():
        kind, _, rest = name.partition(".")
        parts[kind][rest] = value
    model.load_state_dict(parts["model"])
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in parts["optimizer"].items():
        index, _, slot = name.partition(".")
        state.setdefault(int(index), {})[slot] = value
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    _check_optimizer(state, [weight.shape for weight in weights])
    # Files forget how values lie in memory, and fused optimisers insist on the order of the weights.
    for place, slots in state.items():
        for slot, value in slots.items():
            if value.dim():
                slots[slot] = torch.empty_like(weights[place]).copy_(value)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    if parts["average"].keys() != (average or {}).keys():
        raise ValueError("its averaged weights are not those of this model")
    for name, value in parts["average"].items():
        (average or {})[name].copy_(value)
    return tuple(parts["memory"][str(layer)] for layer in range(len(parts["memory"])))


def _check_optimizer(state: dict[int, dict[str, Tensor]], shapes: Sequence[torch.Size]) -> None:
    # PyTorch takes anything here and fails at the next update.
    for index, slots in state.items():
        there = 0 <= index < len(shapes)
        fits = there and all(value.dim() == 0 or value.shape == shapes[index] for value in slots.values())
        if not fits or slots.keys() != next(iter(state.values())).keys():
            raise ValueError(f"its optimiser's memory of weight {index} is not that of this model")


def save_last(folder: RunFolder, packed: dict[str, Tensor], about: dict[str, Any]) -> None:
    write_tensors(folder.last, packed, about)


def load_last(
    folders: Sequence[RunFolder],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor] | None,
) -> list[dict[str, Any]] | None:
    """Continue from the last checkpoints, if there are any; those of several runs were made at the same update."""
    if not folders[0].last.exists():
        return None
    read = [read_tensors(folder.last) for folder in folders]
    for folder, (tensors, _) in zip(folders, read, strict=True):
        with _fitting(folder):
            _check_names(tensors, read[0][0])
    with _fitting(folders[0]):
        memory = unpack(read[0][0] if len(read) == 1 else stacked([one for one, _ in read]), model, optimizer, average)
    found = []
    for folder, (_, about) in zip(folders, read, strict=True):
        with _fitting(folder):
            found.append(_understood(about, folder.recipe, memory))
    return found


@contextmanager
def _fitting(folder: RunFolder) -> Iterator[None]:
    """Turn whatever is wrong with a checkpoint into a sentence."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = str(error).splitlines()[-1].strip().rstrip(".")
        raise UserError(
            f"{folder.last} does not fit its recipe ({reason}); delete it to train from the start."
        ) from None


def _check_names(tensors: dict[str, Tensor], first: dict[str, Tensor]) -> None:
    if {name: value.shape for name, value in tensors.items()} != {name: value.shape for name, value in first.items()}:
        raise ValueError("its weights are not those of the runs beside it")


def stacked(packed: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Of several networks one; what has no dimensions, like the optimiser's count, is the same for all."""
    first = packed[0]
    return {name: torch.stack([one[name] for one in packed]) if first[name].dim() else first[name] for name in first}


def share(packed: dict[str, Tensor], place: int) -> dict[str, Tensor]:
    """What belongs to one of several networks."""
    return {name: value[place] if value.dim() else value for name, value in packed.items()}


def _understood(about: dict[str, Any], recipe: Recipe, memory: tuple[Tensor, ...]) -> dict[str, Any]:
    update, best = int(about["update"]), about["best"]
    if not 0 <= update <= recipe.updates:
        raise ValueError(f"it says that {update} of {recipe.updates} updates were made")
    return {
        "update": update,
        "seconds": float(about["seconds"]),
        "best": None if best is None else [float(part) for part in best],
        "flawless": int(about.get("flawless", 0)),
        "owes_validation": bool(about.get("owes_validation", False)),
        "sums": {name: (float(total), int(count)) for name, (total, count) in about["sums"].items()},
        "memory": memory,
        "data": None if about.get("data") is None else dict(about["data"]),
    }


def save_best(folder: RunFolder, weights: dict[str, Tensor], about: dict[str, Any]) -> None:
    write_tensors(folder.best, weights, about)
