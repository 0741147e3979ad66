"""How wide must a network be, and trained for how many steps? (Figure 5.17)

Networks of one task that differ in their width, or in m, the steps of their training, think about the same problems.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longthink.errors import UserError
from longthink.evaluate import Curve, evaluate
from longthink.inspect.pieces import OnStep, nobody
from longthink.loading import Loaded


@dataclass(frozen=True, eq=False)
class Sized:
    """A network and how it did."""

    name: str
    width: int | None
    steps: int
    """m."""
    parameters: int
    curve: Curve

    def to_json(self) -> dict[str, Any]:
        about = {"name": self.name, "width": self.width, "train_steps": self.steps, "parameters": self.parameters}
        return {**about, **self.curve.to_json()}


@dataclass(frozen=True, eq=False)
class Sizes:
    difficulty: int
    networks: tuple[Sized, ...]

    def to_json(self) -> dict[str, Any]:
        return {"difficulty": self.difficulty, "networks": [one.to_json() for one in self.networks]}


def sizes(
    networks: Mapping[str, Loaded],
    difficulty: int,
    steps: int,
    *,
    samples: int = 100,
    seed: int = 0,
    chunk: int = 20,
    on_step: OnStep = nobody,
) -> Sizes:
    """All of them on the same problems of the test split, in the order of their width and m."""
    tasks = {loaded.task.name for loaded in networks.values()}
    if len(tasks) != 1:
        raise UserError(f"Networks are compared on one task, and these are for {' and '.join(sorted(tasks))}.")
    found = []
    for name, loaded in networks.items():
        taken = min(steps, getattr(loaded.model, "max_steps", None) or steps)
        (measured,) = evaluate(loaded.model, loaded.task, (difficulty,), taken, samples=samples, seed=seed, chunk=chunk)
        on_step(samples * taken)
        width = loaded.recipe.model_options.get("width", getattr(loaded.model, "width", None))
        parameters = sum(weight.numel() for weight in loaded.model.parameters())
        found.append(Sized(name, width, loaded.recipe.steps, parameters, measured))
    return Sizes(difficulty, tuple(sorted(found, key=lambda one: (one.width or 0, one.steps))))


def draw(found: Sizes, title: str = "") -> Any:
    """Left, networks of different widths and the most common m; right, of different m and the most common width."""
    from matplotlib import colormaps

    from longthink.inspect.figures import figure, plain

    steps, width = (
        Counter(values).most_common(1)[0][0]
        for values in ([one.steps for one in found.networks], [one.width for one in found.networks])
    )
    panels = (
        (f"width (m = {steps})", [(f"{one.width}", one) for one in found.networks if one.steps == steps]),
        (f"m (width {width})", [(f"{one.steps}", one) for one in found.networks if one.width == width]),
    )
    new = figure(9.0, 3.4)
    if title:
        new.suptitle(title, size=11, x=0.01, ha="left")
    for place, (name, shown) in enumerate(panels):
        axes = new.add_subplot(1, 2, place + 1)
        for i, (label, one) in enumerate(sorted(shown, key=lambda pair: int(pair[0]) if pair[0].isdigit() else 0)):
            colour = colormaps["viridis"](0.9 * i / max(1, len(shown) - 1))
            axes.plot(one.curve.steps.tolist(), (100 * one.curve.accuracy).tolist(), color=colour, lw=1.6, label=label)
        plain(axes, name, xlabel="steps of thinking", ylabel="problems solved (%)", ylim=(-2, 102))
        axes.legend(frameon=False, fontsize=8)
    return new
