"""Curves of accuracy over steps."""

from __future__ import annotations

from typing import Any


def accuracy_plot(document: dict[str, Any]) -> Any:
    """Accuracy over steps, a curve a difficulty, with the steps of training shaded (as the published Figure 5.3); bars
    where a network takes no steps."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves, trained = document["curves"], document["trained"]
    figure = Figure(figsize=(6.4, 3.6), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    sizes = ", ".join(map(str, trained["difficulty"]))
    if all(curve["steps"] == [0] for curve in curves):  # answers while it reads: there are no steps to draw
        places = range(len(curves))
        axes.bar(places, [100 * curve["final_accuracy"] for curve in curves], color="#2563eb", width=0.7)
        axes.set(ylim=(0, 100), xlabel=document["unit"], ylabel="problems solved (%)")
        axes.set_xticks(places, [str(curve["difficulty"]) for curve in curves])
        _finish(axes, f"{document['weights']}: trained on {sizes} {document['unit']}")
        return figure
    axes.axvspan(0, trained["steps"], color="#e2e8f0", lw=0, zorder=0)
    for i, curve in enumerate(curves):
        colour = colormaps["viridis"](0.9 * i / max(1, len(curves) - 1))
        percent = [100 * a for a in curve["accuracy"]]
        axes.plot(curve["steps"], percent, color=colour, lw=1.8, label=str(curve["difficulty"]), clip_on=False)
    last = max(curve["final_step"] for curve in curves)
    axes.set(xlim=(0, last), ylim=(0, 100), xlabel="steps of thinking", ylabel="problems solved (%)")
    _finish(
        axes, f"{document['weights']}: trained on {sizes} {document['unit']} with {trained['steps']} steps (shaded)"
    )
    figure.legend(title=document["unit"], loc="outside right upper", frameon=False, fontsize=9, title_fontsize=9)
    return figure


def _finish(axes: Any, title: str) -> None:
    axes.set_title(title, size=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e2e8f0", lw=0.6)
    axes.set_axisbelow(True)
