"""The look of the pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
SHADE, INK = "#e2e8f0", "#334155"


def figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    new = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(new)
    return new


def plain(axes: Any, title: str = "", **labels: Any) -> None:
    """Axes for curves: no frame, a faint grid."""
    axes.set(**labels)
    if title:
        axes.set_title(title, size=10, loc="left", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=SHADE, lw=0.6)
    axes.set_axisbelow(True)


def heat(axes: Any, values: Tensor, title: str = "", low: float = 0.0, high: float = 1.0, **options: Any) -> Any:
    """A matrix as a picture."""
    image = axes.imshow(values.numpy(), vmin=low, vmax=high, interpolation="nearest", **{"cmap": "viridis", **options})
    if title:
        axes.set_title(title, size=9, loc="left", color=INK)
    axes.tick_params(labelsize=7, length=2)
    return image
