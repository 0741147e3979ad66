"""What the commands of ``longthink inspect`` share: options, and where answers go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longthink.errors import at_least, whole_numbers

if TYPE_CHECKING:
    import longthink as lt
    from longthink.inspect.pieces import Seen

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
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="task.key=value or, of gated networks, model.gate_threshold=value; several are fine."),
]
Table = tuple[Sequence[str], Sequence[Sequence[str]], str]


@app.callback(invoke_without_command=True)
def _help(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def called(weights: str) -> str:
    """Their name, or that of their folder: where it lies is nobody's business."""
    return Path(weights).name or Path(weights).resolve().name


@contextmanager
def counted(total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Shows how many of all the samples' steps were taken."""
    from longthink.training.report import Report

    with Report("steps of all samples", total, 0, quiet) as report:
        yield lambda samples: report.update(report.done + samples, "")


@dataclass(frozen=True)
class Opened:
    """Loaded weights, and where what is found out about them goes."""

    weights: str
    loaded: lt.Loaded
    as_json: bool
    out: Path | None
    plot: Path | None
    settings: Sequence[str] = ()

    @property
    def name(self) -> str:
        return called(self.weights)

    def size(self, difficulty: int | None) -> int:
        return max(self.loaded.recipe.difficulty) if difficulty is None else difficulty

    def steps(self, steps: int | None) -> int:
        """Those of the training; a model that was trained without any takes one."""
        return max(1, self.loaded.recipe.steps) if steps is None else steps

    def steps_for(self, batch: lt.Batch, steps: int | None) -> int:
        """The same; for a problem of tokens that is deeper than in training, as many as ``longthink solve`` takes."""
        from longthink import solving

        deeper = batch.difficulty > max(self.loaded.recipe.difficulty) and self.loaded.task.name not in solving.HABITS
        return max(1, solving.default_steps(self.loaded, batch)) if deeper and steps is None else self.steps(steps)

    def sample(self, samples: int, difficulty: int | None, seed: int) -> lt.Batch:
        return self.loaded.task.sample(samples, self.size(difficulty), seed, "test")

    def seen(self, samples: int, difficulty: int | None, seed: int) -> Seen:
        """Problems to look at; of a text, places in it with as much before them as the model looks back at."""
        from longthink.models.language import Language
        from longthink.tasks.text import Text

        task, model = self.loaded.task, self.loaded.model
        if not (isinstance(task, Text) and isinstance(model, Language)):
            return self.sample(samples, difficulty, seed).inputs
        stream = task.stream("test", samples, self.size(difficulty))
        before = min(stream.blocks - 1, -(-model.evaluation_memory // stream.length))
        first = seed % (stream.blocks // (before + 1)) * (before + 1)  # no block has the text's end before it
        return [stream.block(first + number).inputs for number in range(before + 1)]

    def posed(self, problem: str | None, difficulty: int | None, seed: int) -> lt.Batch:
        from longthink import solving

        solving.check_methods(self.loaded.task, "text", *(() if problem is None else ("parse",)))
        return solving.pose(self.loaded, problem, size=self.size(difficulty), seed=seed)

    def fitting(self, batch: lt.Batch, chunk: int) -> lt.Batch:
        """The same problems; complains where so many at once cannot fit into memory."""
        from longthink import limits

        limits.check_memory(self.loaded, limits.places_of(batch), min(chunk, len(batch)))
        return batch

    def give(self, found: dict[str, Any], table: Table, draw: Callable[[], Any]) -> None:
        """The document, the picture and the table, each where it was asked for."""
        from longthink.pictures import save_figure
        from longthink.training.files import write_json

        task, recipe = self.loaded.task, self.loaded.recipe
        trained = {"difficulty": list(recipe.difficulty), "steps": recipe.steps}
        changes = self.loaded.changes(self.settings)
        document = {"weights": self.name, "task": task.name, "unit": task.unit, "trained": trained, **changes, **found}
        if self.out is not None:
            write_json(self.out, document)
        if self.plot is not None:
            save_figure(draw(), self.plot)
        if self.as_json:
            print(json.dumps(document))
            return
        from longthink.terminal import print_table

        columns, rows, title = table
        print(title)  # as the title of a narrow table it would be folded
        print_table(columns, rows)
        for path in (self.out, self.plot):
            if path is not None:
                print(f"written  {path}")


def _opened(
    weights: str, device: str, as_json: bool, out: Path | None, plot: Path | None, settings: Sequence[str]
) -> Opened:
    """Complaints come before the work."""
    from longthink.loading import load
    from longthink.pictures import check_place

    for path, kinds in ((out, (".json",)), (plot, (".png", ".pdf", ".svg"))):
        if path is not None:
            check_place(path, kinds)
    loaded = load(weights, device).with_settings(settings)
    return Opened(weights, loaded, as_json, out, plot, settings)


def command(
    name: str | None = None, *, answers: bool = False, repeats: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that is given opened weights, with the options that all of them have.

    Some need problems with ``answers``, which a language model has not, some a step that ``repeats``.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        # A network thinks for a step at least; a DNC's steps after its reading may be none, as its default says.
        steps = signature(function).parameters.get("steps")
        fewest_steps = 0 if steps is not None and steps.default == 0 else 1

        def run(
            weights: Weights,
            device: Device = "cpu",
            as_json: Json = False,
            out: Out = None,
            plot: Plot = None,
            settings: Settings = None,
            **own: Any,
        ) -> None:
            at_least(1, **{name: own[name] for name in ("samples", "chunk") if name in own})
            at_least(0, seed=own.get("seed", 0))
            if own.get("steps") is not None:
                at_least(fewest_steps, steps=own["steps"])
            opened = _opened(weights, device, as_json, out, plot, settings or ())
            from longthink.inspect.pieces import check_answers, check_repeats

            if answers:
                check_answers(opened.loaded.task, opened.name)
            if repeats:
                check_repeats(opened.loaded.model, opened.name)
            function(opened, **own)

        first, *shared = list(signature(run, eval_str=True).parameters.values())[:-1]
        own = list(signature(function, eval_str=True).parameters.values())[1:]
        parameters = [part.replace(kind=Parameter.KEYWORD_ONLY) for part in (first, *own, *shared)]
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {part.name: part.annotation for part in parameters}
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        app.command(name)(run)
        return function

    return add


def whole_sizes(text: str | None) -> tuple[int, ...]:
    return () if text is None else whole_numbers("difficulty", text)


def listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))
