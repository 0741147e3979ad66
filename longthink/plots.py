"""Curves of accuracy over steps."""

from __future__ import annotations

from typing import Any


def accuracy_plot(document: dict[str, Any]) -> Any:
    """Accuracy over steps, a curve a difficulty, with the steps of training shaded (as the published Figure 5.3)."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves, trained = document["curves"], document["trained"]
    figure = Figure(figsize=(6.4, 3.6), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.axvspan(0, trained["steps"], color="#e2e8f0", lw=0, zorder=0)
    for i, curve in enumerate(curves):
        colour = colormaps["viridis"](0.9 * i / max(1, len(curves) - 1))
        percent = [100 * a for a in curve["accuracy"]]
        axes.plot(curve["steps"], percent, color=colour, lw=1.8, label=str(curve["difficulty"]), clip_on=False)
    last = max(curve["final_step"] for curve in curves)
    axes.set(xlim=(0, last), ylim=(0, 100), xlabel="steps of thinking", ylabel="problems solved (%)")
    sizes = ", ".join(map(str, trained["difficulty"]))
    axes.set_title(
        f"{document['weights']}: trained on {sizes} {document['unit']} with {trained['steps']} steps (shaded)",
        size=10,
        loc="left",
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e2e8f0", lw=0.6)
    axes.set_axisbelow(True)
    figure.legend(title=document["unit"], loc="outside right upper", frameon=False, fontsize=9, title_fontsize=9)
    return figure
