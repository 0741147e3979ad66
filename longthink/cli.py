"""The command line. Torch is imported inside the commands, so that help comes at once."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longthink.errors import UserError, unknown

if TYPE_CHECKING:
    import torch
    from rich.console import Console, RenderableType
    from rich.text import Text

    import longthink as lt
    from longthink.solving import Solution

app = typer.Typer(
    help="Train on easy problems, think longer, solve hard ones.",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")]


def main(args: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 2 for what the user can mend, 130 for Ctrl-C, 1 for our own mistakes."""
    given = list(sys.argv[1:] if args is None else args)
    debug, as_json = "--debug" in given, "--json" in given
    given = [arg for arg in given if arg != "--debug"]  # it may stand anywhere
    try:
        code = typer.main.get_command(app).main(given, prog_name="longthink", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        # Whoever read our output has gone; the interpreter must not complain when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if debug:
            traceback.print_exc()
        message, code = _explain(error)
        if as_json:
            print(json.dumps({"error": message}))
        elif not debug:
            print(message, file=sys.stderr)
        return code
    if code == 130:
        print("Stopped.", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _explain(error: Exception) -> tuple[str, int]:
    """One line for any error, and the exit code."""
    text = " ".join(str(error).split())
    if isinstance(error, UserError):
        return text, 2
    if hasattr(error, "format_message"):  # a usage error of Typer, whose base class moves between versions
        command = getattr(getattr(error, "ctx", None), "command_path", "longthink")
        return f"{' '.join(error.format_message().split()).rstrip('.')}. See {command} --help.", 2
    if isinstance(error, MemoryError) or "memory" in text.lower():
        return "There is not enough memory for this; choose a smaller size, fewer samples or a smaller --chunk.", 2
    return f"Something went wrong inside longthink ({type(error).__name__}: {text}); --debug shows where.", 1


@app.callback(invoke_without_command=True)
def _global(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    if version:
        from longthink import __version__

        print(__version__)
    elif ctx.invoked_subcommand is None:
        print(ctx.get_help())


@app.command()
def solve(
    task: Annotated[str, typer.Argument(metavar="TASK", help="prefix_sums, mazes, sudoku or chess.")],
    problem: Annotated[
        str | None,
        typer.Argument(
            metavar="PROBLEM", help="Bits, a sudoku's 81 cells, a maze's file, a FEN; - reads it from the input."
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(help="Bits, cells a side, given cells or tenth by rating.")] = None,
    steps: Annotated[int | None, typer.Option(help="At most so many steps of thinking.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which problem to make.")] = None,
    weights: Annotated[str | None, typer.Option(help="Shipped weights by name, or a run's folder.")] = None,
    style: Annotated[
        str | None, typer.Option(help="Mazes: depth_first (as trained on), kruskal, wilson, percolation, ...")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a picture: problem and answer, as PNG.")] = None,
    as_json: Json = False,
    all_steps: Annotated[bool, typer.Option("--all-steps", help="Don't stop when the state is at rest.")] = False,
    device: Device = "cpu",
) -> None:
    """Solve a problem, typed or made, and watch the network think."""
    from longthink import solving

    if problem is not None and (size, seed, style) != (None, None, None):
        raise UserError("A typed problem is what it is; leave out --size, --seed and --style.")
    if out is not None:
        solving.check_place(out)
    name, loaded = solving.find_weights(task, weights, device)
    text = _standard_input() if problem == "-" else problem
    batch = solving.pose(loaded, text, size=size, seed=seed or 0, style=style)
    budget = solving.default_steps(loaded, batch) if steps is None else steps
    with Watching(loaded.task, batch, budget, quiet=as_json) as watching:
        solution = solving.solve(
            loaded, batch, budget, weights=name, until_rest=not all_steps, on_step=[watching.on_step]
        )
    if out is not None:
        solving.save_figure(solving.answer_picture(solution), out)
    if as_json:
        print(json.dumps(solution.to_json()))
        return
    report(solution)
    if out is not None:
        print(f"picture  {out}")


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Its name; longthink list recipes shows them.")],
    seed: Annotated[int, typer.Option(help="Decides weights, problems and their order.")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, model.key=value or task.key=value; repeat it.")
    ] = None,
    devices: Annotated[int, typer.Option(help="How many devices share a batch.")] = 1,
    precision: Annotated[
        str | None, typer.Option(help="32-true, bf16-mixed, ...; fits the device if left out.")
    ] = None,
    accelerator: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    folder: Annotated[str, typer.Option(help="Where the run's folder is made.")] = "runs",
    seconds: Annotated[float | None, typer.Option(help="Stop after this time; the same command goes on.")] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Compile the step.")] = False,
) -> None:
    """Train a recipe, or go on where it was interrupted."""
    import longthink as lt

    _at_least(0, seed=seed)
    _at_least(1, devices=devices)
    if seconds is not None and not seconds > 0:
        raise UserError(f"--seconds must be above 0, not {seconds:g}.")
    chosen = lt.override(lt.recipes[recipe], settings or [])
    options = lt.TrainingOptions(
        folder=folder,
        accelerator=accelerator,
        devices=devices,
        precision=precision,
        seconds=seconds,
        compile=compile,
    )
    path = lt.train(chosen, seed, options)
    if os.environ.get("LOCAL_RANK", "0") != "0":  # one voice is enough
        return
    found = lt.load(path).card["validation"]
    at = " and ".join(
        f"{right:.2%} after {steps} steps" for steps, right in zip(found["steps"], found["accuracy"], strict=True)
    )
    print(f"run         {path}")
    print(f"validation  {at} ({found['samples']} problems)")


@app.command("eval")
def evaluate(
    weights: Annotated[str, typer.Argument(metavar="NAME_OR_FOLDER", help="Shipped weights, or a run's folder.")],
    difficulty: Annotated[str | None, typer.Option(help="A,B,..: sizes to test; the trained ones if left out.")] = None,
    steps: Annotated[int | None, typer.Option(help="How long to think; 5 times the training if left out.")] = None,
    samples: Annotated[int, typer.Option(help="Problems a difficulty.")] = 100,
    seed: Annotated[int, typer.Option(help="Which problems.")] = 0,
    read_every: Annotated[int, typer.Option(help="Read the answer every so many steps.")] = 1,
    chunk: Annotated[int | None, typer.Option(help="Problems at once; fits the device if left out.")] = None,
    device: Device = "cpu",
    precision: Annotated[str, typer.Option(help="32 or bf16.")] = "32",
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option(help="Write the JSON document to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw accuracy over steps: PNG, PDF or SVG.")] = None,
) -> None:
    """Measure accuracy at every step of thinking."""
    import longthink as lt
    from longthink import solving
    from longthink.training.files import write_json

    _at_least(1, samples=samples, read_every=read_every, **({} if chunk is None else {"chunk": chunk}))
    _at_least(0, seed=seed)
    if precision not in ("32", "bf16"):
        raise UserError(f"--precision must be 32 or bf16, not {precision!r}.")
    for path, kinds in ((out, (".json",)), (plot, (".png", ".pdf", ".svg"))):
        if path is not None:
            solving.check_place(path, kinds)
    place = solving.usable_device(device)
    loaded = lt.load(weights, place)
    recipe = loaded.recipe
    chosen = recipe.difficulty if difficulty is None else _numbers("difficulty", difficulty)
    if steps is None:
        steps = min(5 * recipe.steps, getattr(loaded.model, "max_steps", None) or 5 * recipe.steps)
        steps -= steps % read_every
    _at_least(1, steps=steps)
    if chunk is None:
        chunk = 100 if place.type == "cuda" else 20
    curves = _curves(loaded, chosen, steps, samples, seed, min(chunk, samples), read_every, precision, as_json)
    document: dict[str, Any] = {
        "weights": weights,
        "task": loaded.task.name,
        "unit": loaded.task.unit,
        "trained": {"difficulty": list(recipe.difficulty), "steps": recipe.steps},
        "seed": seed,
        "device": str(place),
        "precision": precision,
        "curves": [curve.to_json() for curve in curves],
    }
    if out is not None:
        write_json(out, document)
    if plot is not None:
        solving.save_figure(accuracy_plot(document), plot)
    if as_json:
        print(json.dumps(document))
        return
    columns = ("peak", "at step", "final", "most confident", "steps to solve", "n")
    rows = [_summary(curve) for curve in document["curves"]]
    print_table((loaded.task.unit, *columns), rows, f"{weights}: solved within {steps} steps")
    for path in (out, plot):
        if path is not None:
            print(f"written  {path}")


@app.command("list")
def show_list(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="tasks, models, recipes or weights.")],
    as_json: Json = False,
) -> None:
    """List what there is."""
    kinds: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "tasks": _tasks,
        "models": _models,
        "recipes": _recipes,
        "weights": _weights,
    }
    if kind not in kinds:
        raise unknown("list", kind, kinds)
    rows = kinds[kind]()
    if as_json:
        print(json.dumps(rows))
        return
    texts = [[_cell(value) for value in row.values()] for row in rows]
    print_table(list(rows[0]) if rows else ["name"], texts)


def _tasks() -> list[dict[str, Any]]:
    import longthink as lt
    from longthink.solving import HABITS

    ready = lt.list("weights")
    return [
        {
            "name": name,
            "size counts": lt.task(name).unit,
            "usual size": HABITS[name].size if name in HABITS else None,
            "weights": "shipped" if name in ready else "train them",
            "what it is": _first_line(sys.modules[type(lt.task(name)).__module__]),
        }
        for name in lt.tasks
    ]


def _models() -> list[dict[str, Any]]:
    import longthink as lt

    return [{"name": name, "what it is": _first_line(sys.modules[lt.models[name].__module__])} for name in lt.models]


def _recipes() -> list[dict[str, Any]]:
    import longthink as lt

    chosen = [lt.recipes[name] for name in lt.recipes]
    return [
        {
            "name": r.name,
            "task": r.task,
            "sizes": list(r.difficulty),
            "steps": r.steps,
            "alpha": r.alpha,
            "updates": r.updates,
            "batch": r.batch,
            "note": r.note,
        }
        for r in chosen
    ]


def _weights() -> list[dict[str, Any]]:
    from longthink.loading import shipped

    return [
        {
            "name": name,
            "task": card["recipe"]["task"],
            "recipe": card["recipe"]["name"],
            "parameters": card["parameters"],
            "minutes": card["minutes"],
            "hardware": card["hardware"],
            "trained on": card["recipe"]["difficulty"],
            "validated": ", ".join(
                f"{right:.1%} at {steps} steps"
                for steps, right in zip(card["validation"]["steps"], card["validation"]["accuracy"], strict=True)
            ),
            "n": card["validation"]["samples"],
        }
        for name, card in shipped().items()
    ]


class Watching:
    """Shows a network think: a drawing or a line that changes on a terminal, plain lines now and then elsewhere."""

    def __init__(
        self, task: lt.Task, batch: lt.Batch, budget: int, quiet: bool = False, console: Console | None = None
    ) -> None:
        from rich.console import Console as Screen
        from rich.live import Live

        self.task, self.batch, self.budget = task, batch, budget
        self.console = console or Screen(stderr=True)
        self.live: Live | None = None
        self.quiet = quiet
        if not quiet and self.console.is_terminal and not self.console.is_dumb_terminal:
            self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.interval = 0.12 if self.live else 2.0
        self._shown = time.monotonic() if self.live is None else 0.0

    def __enter__(self) -> Watching:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live:
            self.live.stop()

    def on_step(self, moment: lt.Moment) -> None:
        """Reads the answer only when it is time to show it."""
        if self.quiet or time.monotonic() - self._shown < self.interval:
            return
        from longthink.think import confidence

        logits = moment.logits.cpu()
        sure = float(confidence(logits, self.batch.mask))
        line = f"step {moment.count} of at most {self.budget}   change {float(moment.change):.1e}"
        line += f"   confidence {sure:.1%}"
        if self.live:
            self.live.update(self._drawing(logits, line), refresh=True)
        else:
            print(line, file=sys.stderr, flush=True)
            self.interval = min(30.0, 1.5 * self.interval)  # a long thought must not fill a log
        self._shown = time.monotonic()

    def _drawing(self, logits: torch.Tensor, line: str) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        drawing = sketch(self.task, self.batch, logits, self.console)
        fits = drawing is not None and len(drawing.split("\n")) < self.console.height - 2
        return Group(drawing, Text(line, "dim")) if drawing is not None and fits else Text(line)


def sketch(task: lt.Task, batch: lt.Batch, logits: torch.Tensor | None, console: Console) -> Text | None:
    """An answer (without logits: the true one) in coloured characters; None where the terminal cannot show it."""
    draw = {"mazes": _sketch_maze, "prefix_sums": _sketch_bits, "sudoku": _sketch_sudoku}.get(task.name)
    if draw is None or console.color_system is None or console.no_color or not console.encoding.startswith("utf"):
        return None
    import torch

    if logits is None:
        classes = torch.nn.functional.one_hot(batch.targets, task.shape["classes"]).movedim(-1, 1)
        return draw(batch, classes[0].float(), console.width)
    return draw(batch, logits.float().softmax(1)[0], console.width)


def _sketch_maze(batch: lt.Batch, likely: torch.Tensor, width: int) -> Text | None:
    """Half blocks: a character shows two cells, the upper one in its colour, the lower one in its background."""
    import torch
    from rich.text import Text

    picture = batch.inputs[0, :, 3:-3:2, 3:-3:2]  # a pixel of each cell
    if picture.shape[2] + 2 > width:
        return None
    path = _cell_means(likely[1])
    shades = torch.stack([255 - path * (255 - full) for full in (37, 99, 235)])
    walls, start, goal = (picture == 0).all(0), picture[0] < picture[1], picture[0] > picture[1]
    for where, colour in ((walls, (30, 41, 59)), (start, (22, 163, 74)), (goal, (220, 38, 38))):
        shades[:, where] = torch.tensor(colour, dtype=shades.dtype)[:, None]
    framed = torch.empty(3, shades.shape[1] + 3, shades.shape[2] + 2)
    framed[:] = torch.tensor((30.0, 41.0, 59.0))[:, None, None]
    framed[:, 1:-2, 1:-1] = shades
    rows = framed.round().int().permute(1, 2, 0).tolist()
    text = Text(no_wrap=True)
    for upper, lower in zip(rows[::2], rows[1::2], strict=True):
        for above, below in zip(upper, lower, strict=True):
            text.append("▀", f"rgb({above[0]},{above[1]},{above[2]}) on rgb({below[0]},{below[1]},{below[2]})")
        text.append("\n")
    text.rstrip()
    return text


def _cell_means(pixels: torch.Tensor) -> torch.Tensor:
    inner = pixels[3:-3, 3:-3]
    return inner.unflatten(0, (-1, 2)).unflatten(2, (-1, 2)).mean((1, 3))


def _sketch_bits(batch: lt.Batch, likely: torch.Tensor, width: int) -> Text | None:
    """Pairs of lines: the problem's bits, and below them the answer's: the brighter the surer, red where wrong."""
    from rich.text import Text

    bits, truth = (batch.inputs[0, 0] > 0).tolist(), batch.targets[0].tolist()
    ones = likely[1].tolist()
    text = Text(no_wrap=True)
    for start in range(0, len(bits), width):
        text.append("".join("01"[bit] for bit in bits[start : start + width]) + "\n", "bright_black")
        for p, true in zip(ones[start : start + width], truth[start : start + width], strict=True):
            text.append("1" if p > 0.5 else "0", _ink(2 * abs(p - 0.5), (p > 0.5) == true))
        text.append("\n")
    text.rstrip()
    return text


def _sketch_sudoku(batch: lt.Batch, likely: torch.Tensor, width: int) -> Text | None:
    """Givens in bold; a digit appears when it is likelier than all others together, in red where it is wrong."""
    from rich.text import Text

    givens, truth = batch.inputs[0].argmax(0).tolist(), batch.targets[0].tolist()
    chance, digits = (part.tolist() for part in likely.max(0))
    text = Text(no_wrap=True)
    for row in range(9):
        if row in (3, 6):
            text.append("──────┼───────┼──────\n", "bright_black")
        for column in range(9):
            if column in (3, 6):
                text.append("│ ", "bright_black")
            given, p = givens[row][column], chance[row][column]
            if given:
                text.append(f"{given} ", "bold")
            else:
                digit = digits[row][column]
                text.append(f"{digit + 1} " if p > 0.5 else "· ", _ink(2 * (p - 0.5), digit == truth[row][column]))
        text.append("\n")
    text.rstrip()
    return text


def _ink(sure: float, right: bool) -> str:
    """From grey to amber, or to red where the answer is wrong, in 16 shades."""
    part = round(15 * min(1.0, max(0.0, sure))) / 15
    full = (251, 191, 36) if right else (239, 68, 68)
    red, green, blue = (round(low + part * (high - low)) for low, high in zip((75, 85, 99), full, strict=True))
    return f"rgb({red},{green},{blue})"


def report(solution: Solution) -> None:
    """The answer, the truth, whether they agree, and what it took."""
    from rich.columns import Columns
    from rich.console import Console, Group
    from rich.text import Text

    console = Console()
    drawings = []
    if console.is_terminal:
        for label, logits in (("answer", solution.logits), ("truth", None)):
            drawing = sketch(solution.task, solution.batch, logits, console)
            if drawing is not None and (label == "answer" or solution.solved is False):
                drawings.append(Group(Text(label, "bold"), drawing, ""))
    if drawings:
        console.print(Columns(drawings, padding=(0, 4)) if len(drawings) > 1 else drawings[0])
    else:
        if "\n" not in solution.problem:  # a maze is part of its answer
            print(f"problem  {solution.problem}")
        truth = "the same" if solution.truth == solution.answer else solution.truth or "not known"
        for label, text in (("answer", solution.answer), ("truth", truth)):
            print(f"{label}\n{text}" if "\n" in text else f"{label:<9}{text}")
    verdict = {True: "yes", False: "no", None: "not known"}[solution.solved]
    colour = {True: "bold green", False: "bold red", None: "bold"}[solution.solved]
    console.print(Text.assemble("solved   ", (verdict, colour)))
    rest = "the state is at rest" if solution.at_rest else "not at rest yet: more --steps may change the answer"
    print(f"steps    {solution.steps} ({rest})")
    print(f"seconds  {solution.seconds:.1f}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # files and pipes have no width that lines must be folded at
    table = Table(
        title=title, box=SIMPLE_HEAD, show_edge=False, title_justify="left", title_style="bold", header_style="bold"
    )
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        numeric = all(value[:1].isdigit() or value in ("", "-") for value in values)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


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


def _curves(
    loaded: lt.Loaded,
    difficulties: Sequence[int],
    steps: int,
    samples: int,
    seed: int,
    chunk: int,
    read_every: int,
    precision: str,
    quiet: bool,
) -> list[lt.Curve]:
    """``lt.evaluate`` in pieces, so that people see how far it is."""
    import torch

    import longthink as lt
    from longthink import solving
    from longthink.training.report import Report

    device = next(loaded.model.parameters()).device
    bf16 = torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
    for difficulty in difficulties:
        loaded.task.sample(0, difficulty, seed, "test")  # complaints about any of them come before the work
        habits = solving.HABITS.get(loaded.task.name)
        if habits is not None:
            outputs = habits.outputs(difficulty)
            # A problem has its input, a target and a mask at each place; a curve three numbers at each step.
            kept = samples * (outputs * (4 * loaded.task.shape.get("inputs", 2) + 9) + steps // read_every * 12)
            solving.check_memory(loaded, outputs, chunk, kept)
    curves: list[lt.Curve] = []
    with Report("problems", samples * len(difficulties), 0, quiet) as progress, bf16:
        for difficulty in difficulties:
            batch = loaded.task.sample(samples, difficulty, seed, "test")
            parts = []
            for start in range(0, samples, chunk):
                piece = batch[start : start + chunk]
                parts.append(lt.curve(loaded.model, loaded.task, piece, steps, chunk=chunk, read_every=read_every))
                done = len(curves) * samples + start + len(piece)
                progress.update(done, f"{difficulty} {loaded.task.unit}")
            right, sure, change = (
                torch.cat([getattr(part, name) for part in parts]) for name in ("right", "confidence", "change")
            )
            curves.append(lt.Curve(difficulty, right, sure, change, read_every))
    return curves


def _summary(curve: dict[str, Any]) -> list[str]:
    mean = curve["mean_steps_to_solution"]
    return [
        str(curve["difficulty"]),
        f"{curve['peak_accuracy']:.1%}",
        str(curve["peak_step"]),
        f"{curve['final_accuracy']:.1%}",
        f"{curve['most_confident_accuracy']:.1%}",
        "-" if mean is None else f"{mean:.1f}",
        str(curve["samples"]),
    ]


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return f"{value[0]} to {value[-1]}" if len(value) > 3 else ", ".join(map(str, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _first_line(module: Any) -> str:
    return (module.__doc__ or "").strip().split("\n", 1)[0].rstrip(".:")


def _at_least(low: int, **options: int) -> None:
    for name, value in options.items():
        if value < low:
            raise UserError(f"--{name.replace('_', '-')} must be {low} or more, not {value}.")


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--{name} must be whole numbers with commas, as in 9,13, not {text!r}.") from None


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise UserError("The standard input is not text; pipe a text file into it.") from None


if __name__ == "__main__":
    sys.exit(main())
