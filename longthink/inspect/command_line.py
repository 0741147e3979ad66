"""What the commands of ``longthink inspect`` share: options, and where answers go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longthink.errors import at_least, whole_numbers

if TYPE_CHECKING:
    import longthink as lt

app = typer.Typer(
    help="Look inside: what a network does when it is disturbed, thinks on, attends, remembers.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Weights = Annotated[str, typer.Argument(metavar="NAME_OR_FOLDER", help="Shipped weights, or a run's folder.")]
Difficulty = Annotated[int | None, typer.Option(help="Size of the problems; that of the training if left out.")]
Difficulties = Annotated[str | None, typer.Option(help="A,B,..: sizes of the problems.")]
Steps = Annotated[int | None, typer.Option(help="How long to think.")]
Samples = Annotated[int, typer.Option(help="How many problems.")]
Chunk = Annotated[int, typer.Option(help="Problems at once.")]
Seed = Annotated[int, typer.Option(help="Which problems, and which random numbers.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Out = Annotated[Path | None, typer.Option(help="Write the JSON document to this file.")]
Plot = Annotated[Path | None, typer.Option(help="Draw it: PNG, PDF or SVG.")]
Problem = Annotated[str | None, typer.Option(help="A problem, typed as for solve; one is made if left out.")]
Table = tuple[Sequence[str], Sequence[Sequence[str]], str]


@app.callback(invoke_without_command=True)
def _help(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def load_weights(weights: str, device: str, out: Path | None, plot: Path | None, samples: int, seed: int) -> lt.Loaded:
    """Complaints come before the work."""
    from longthink import solving
    from longthink.loading import load

    at_least(1, samples=samples)
    at_least(0, seed=seed)
    for path, kinds in ((out, (".json",)), (plot, (".png", ".pdf", ".svg"))):
        if path is not None:
            solving.check_place(path, kinds)
    return load(weights, solving.usable_device(device))


def called(weights: str) -> str:
    """Their name, or that of their folder: where it lies is nobody's business."""
    return Path(weights).name or Path(weights).resolve().name


@contextmanager
def counted(total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Shows how many of all the samples' steps were taken."""
    from longthink.training.report import Report

    with Report("steps of all samples", total, 0, quiet) as report:
        yield lambda samples: report.update(report.done + samples, "")


def give(
    weights: str,
    loaded: lt.Loaded,
    found: dict[str, Any],
    table: Table,
    as_json: bool,
    out: Path | None,
    plot: Path | None,
    draw: Callable[[], Any],
) -> None:
    """The document, the picture and the table, each where it was asked for."""
    from longthink import solving
    from longthink.training.files import write_json

    trained = {"difficulty": list(loaded.recipe.difficulty), "steps": loaded.recipe.steps}
    document = {
        "weights": called(weights),
        "task": loaded.task.name,
        "unit": loaded.task.unit,
        "trained": trained,
        **found,
    }
    if out is not None:
        write_json(out, document)
    if plot is not None:
        solving.save_figure(draw(), plot)
    if as_json:
        print(json.dumps(document))
        return
    from longthink.terminal import print_table

    columns, rows, title = table
    print(title)  # as the title of a narrow table it would be folded
    print_table(columns, rows)
    for path in (out, plot):
        if path is not None:
            print(f"written  {path}")


def size_or_trained(loaded: lt.Loaded, difficulty: int | None) -> int:
    return max(loaded.recipe.difficulty) if difficulty is None else difficulty


def posed(loaded: lt.Loaded, problem: str | None, difficulty: int | None, seed: int) -> lt.Batch:
    if problem is not None:
        return loaded.task.parse(problem)
    return loaded.task.sample(1, size_or_trained(loaded, difficulty), seed, "test")


def whole_sizes(text: str | None) -> tuple[int, ...]:
    return () if text is None else whole_numbers("difficulty", text)


def listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))
