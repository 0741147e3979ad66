"""Which weights there are: those that are shipped, and every run below one folder. Names are looked up in what was
found, never made into a path, so that no name leads anywhere else."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from longthink.errors import UserError, unknown
from longthink.loading import Loaded, load, shipped
from longthink.training.files import read_json

_FILES = ("model.safetensors", "best.safetensors")  # in the order in which ``load`` looks for them
_CARDS = ("config.json", "card.json", "recipe.json")
_DEEPEST = 4  # folders below the one that was given
_MOST_RUNS = 1_000
_MOST_LOADED = 8


class Found(NamedTuple):
    """Weights that can be loaded, and their card as far as it is known before."""

    name: str
    place: str | Path
    """As ``load`` takes it."""
    stamp: int
    card: dict[str, Any]
    shipped: bool

    def to_json(self) -> dict[str, Any]:
        recipe = self.card["recipe"]
        options = recipe.get("model_options") or {}
        return {
            "name": self.name,
            "shipped": self.shipped,
            "task": recipe["task"],
            "recipe": recipe["name"],
            "model": recipe.get("model", "deepthinking"),
            "recall": options.get("recall", True) if recipe.get("model", "deepthinking") == "deepthinking" else None,
            "trained_on": list(recipe["difficulty"]),
            "trained_steps": recipe.get("steps"),
            "parameters": self.card.get("parameters"),
            "minutes": self.card.get("minutes"),
            "hardware": self.card.get("hardware"),
            "validation": self.card.get("validation"),
        }


class Shelf:
    """Weights by name. The folder is looked through again at every call: a run that has just ended is there."""

    def __init__(self, runs: Path | None = None, device: str | torch.device = "cpu") -> None:
        self.runs, self.device = runs, device
        self._loaded: OrderedDict[tuple[str, int], Loaded] = OrderedDict()
        self._lock = threading.Lock()

    def found(self) -> dict[str, Found]:
        ready = {name: Found(name, name, 0, card, True) for name, card in shipped().items()}
        for place, file in [] if self.runs is None else _weights_below(self.runs):
            name = place.relative_to(self.runs).as_posix() if self.runs is not None else place.name
            card = _card(place)
            if card is not None and name not in ready:
                ready[name] = Found(name, place, file.stat().st_mtime_ns, card, False)
        return ready

    def load(self, name: str) -> Loaded:
        found = self.found()
        if name not in found:
            raise unknown("weights", name[:80], found)
        chosen = found[name]
        key = (name, chosen.stamp)
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = load(chosen.place, self.device)
                while len(self._loaded) > _MOST_LOADED:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(key)
            return self._loaded[key]


def _weights_below(root: Path) -> Iterator[tuple[Path, Path]]:
    """Folders with weights, and the file that will be read; links to other folders are not followed."""
    count = 0
    for here, folders, files in os.walk(root):
        place = Path(here)
        if len(place.relative_to(root).parts) >= _DEEPEST:
            folders.clear()
        folders.sort()
        file = next((name for name in _FILES if name in files), None)
        if file is not None and place != root:
            folders.clear()
            count += 1
            if count > _MOST_RUNS:
                return
            yield place, place / file


def _card(place: Path) -> dict[str, Any] | None:
    """What is known about a run without reading its weights; None where that is not a card at all."""
    for name in _CARDS:
        if (place / name).is_file():
            try:
                card = read_json(place / name)
            except UserError:
                continue
            recipe = card.get("recipe") if isinstance(card, dict) else None
            if isinstance(recipe, dict) and isinstance(recipe.get("difficulty"), list):
                return card if {"name", "task"} <= recipe.keys() else None
    return None
