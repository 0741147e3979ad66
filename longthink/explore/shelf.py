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
from longthink.training.recipe import Recipe

_FILES = ("model.safetensors", "best.safetensors")  # in the order in which ``load`` looks for them
_CARDS = ("config.json", "card.json", "recipe.json")
_DEEPEST = 4  # folders below the one that was given
_MOST_RUNS = 1_000
_MOST_LOADED = 8
_LARGE = 10**15


class Found(NamedTuple):
    """Weights that can be loaded, and their card as far as it is known before."""

    name: str
    place: str | Path
    """As ``load`` takes it."""
    stamp: int
    recipe: Recipe
    card: dict[str, Any]
    shipped: bool

    def to_json(self) -> dict[str, Any]:
        recipe = self.recipe
        return {
            "name": self.name,
            "shipped": self.shipped,
            "task": recipe.task,
            "recipe": recipe.name,
            "model": recipe.model,
            "recall": bool(recipe.model_options.get("recall", True)) if recipe.model == "deepthinking" else None,
            "trained_on": list(recipe.difficulty),
            "trained_steps": recipe.steps,
            "validation": _validation(self.card.get("validation")),
        }


class Shelf:
    """Weights by name. The folder is looked through again at every call: a run that has just ended is there."""

    def __init__(self, runs: Path | None = None, device: str | torch.device = "cpu") -> None:
        self.runs, self.device = runs, device
        self._loaded: OrderedDict[tuple[str, int], Loaded] = OrderedDict()
        self._lock = threading.Lock()

    def found(self) -> dict[str, Found]:
        ready = {
            name: Found(name, name, 0, Recipe.from_json(card["recipe"]), card, True) for name, card in shipped().items()
        }
        if self.runs is None:
            return ready
        root = self.runs.absolute()  # a path that nobody takes for the name of shipped weights
        for place, file in _weights_below(root):
            name = root.resolve().name if place == root else place.relative_to(root).as_posix()
            name = f"./{name}" if name in ready else name  # both can be chosen
            known = _card(place)
            try:
                stamp = file.stat().st_mtime_ns
            except OSError:  # it was deleted a moment ago
                continue
            if known is not None and _can_be_sent(name):
                ready[name] = Found(name, place, stamp, *known, False)
        return ready

    def load(self, name: str) -> Loaded:
        found = self.found()
        if name not in found:
            raise unknown("network", name[:80], found)
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
    """Folders with weights, this one or below it, and the file that will be read; links to other folders are not
    followed."""
    count = 0
    for here, folders, files in os.walk(root):
        place = Path(here)
        if len(place.relative_to(root).parts) >= _DEEPEST:
            folders.clear()
        folders.sort()
        file = next((name for name in _FILES if name in files), None)
        if file is not None:
            folders.clear()
            count += 1
            if count > _MOST_RUNS:
                return
            yield place, place / file


def _card(place: Path) -> tuple[Recipe, dict[str, Any]] | None:
    """What is known about a run without reading its weights; None where that is not a card at all."""
    for name in _CARDS:
        try:
            card = read_json(place / name)
            recipe = Recipe.from_json(card["recipe"]) if isinstance(card, dict) and "recipe" in card else None
        except (UserError, ValueError, ArithmeticError, RecursionError):  # numbers and brackets without end, too
            continue
        if recipe is not None and _can_be_sent(recipe.name):
            return recipe, card
    return None


def _can_be_sent(name: str) -> bool:
    """Not so for a file's name that is no text in its encoding, or for half a character."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def _validation(found: Any) -> dict[str, Any] | None:
    """What the page shows of it; None where somebody wrote something else there."""
    if not isinstance(found, dict):
        return None
    steps, accuracy, samples = (found.get(key) for key in ("steps", "accuracy", "samples"))
    if not isinstance(steps, list) or not isinstance(accuracy, list) or len(steps) != len(accuracy):
        return None
    numbers = [*steps, *accuracy, samples]
    if not all(isinstance(one, int | float) and -_LARGE < one < _LARGE for one in numbers):  # nor what is no number
        return None
    return {"steps": steps, "accuracy": accuracy, "samples": samples}
