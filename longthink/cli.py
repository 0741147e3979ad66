"""The command line. Torch is imported inside the commands, so that help comes at once."""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from longthink.errors import UserError, at_least, check_precision, unknown, whole_numbers
from longthink.explore.command import explore
from longthink.extensions import import_extensions, name_extension, named_extensions, place_in_an_extension
from longthink.inspect.command_line import Device, Json, Settings
from longthink.inspect.commands import app as inspection

app = typer.Typer(
    help="Train on easy problems, think longer, solve hard ones.",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(inspection, name="inspect")
app.command()(explore)

Compile = Annotated[
    bool | None,
    typer.Option(help="Compile the step: by default on a GPU, where it is worth it; twice as fast for a DNC on a CPU."),
]


def main(args: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 2 for what the user can mend, 130 for Ctrl-C, 1 for our own mistakes."""
    given = list(sys.argv[1:] if args is None else args)
    debug, as_json = "--debug" in given, "--json" in given
    given = [arg for arg in given if arg != "--debug"]  # it may stand anywhere
    try:
        given = _with_extensions(given)
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
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            as_json = False  # there is no room for a document
            # What could not be written would fail again when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if as_json:
            print(json.dumps({"error": message}))
        elif not debug:
            print(message, file=sys.stderr)
        return code
    if code == 130:
        print("Stopped.", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _with_extensions(given: list[str]) -> list[str]:
    """Import what stands behind ``--with``, anywhere, and return the other arguments."""
    rest, arguments, before = [], iter(given), named_extensions()
    for argument in arguments:
        name, equals, place = argument.partition("=")
        if name != "--with":
            rest.append(argument)
            continue
        place = place if equals else next(arguments, "")
        if not place or place.startswith("-"):
            raise UserError("--with needs a Python file or a module: longthink --with addition.py list tasks.")
        name_extension(place)
    import_extensions({*named_extensions()} - {*before})
    return rest


def _explain(error: Exception) -> tuple[str, int]:
    """One line for any error, and the exit code."""
    text = " ".join(str(error).split())
    if isinstance(error, UserError):
        return text, 2
    if hasattr(error, "format_message"):  # a usage error of Typer, whose base class moves between versions
        command = getattr(getattr(error, "ctx", None), "command_path", "longthink")
        said = " ".join(error.format_message().split()).rstrip(".")
        if "unexpected extra argument" in said:
            said += "; put quotes around what has spaces, and write settings as key=value"
        return f"{said}. See {command} --help.", 2
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "The output could not be written: no space is left where it goes.", 2
    if isinstance(error, MemoryError) or "memory" in text.lower():
        return "There is not enough memory for this; choose a smaller size, fewer samples or a smaller --chunk.", 2
    where = place_in_an_extension(error)
    inside, code = ("inside longthink", 1) if where is None else (f"in {where}", 2)
    return f"Something went wrong {inside} ({type(error).__name__}: {text}); --debug shows where.", code


@app.callback(invoke_without_command=True)
def _global(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    extensions: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="FILE",
            help="A Python file or module with tasks, models, recipes or studies of your own; several are fine.",
        ),
    ] = None,
) -> None:
    if version:
        from longthink import __version__

        print(__version__)
    elif ctx.invoked_subcommand is None:
        print(ctx.get_help())


@app.command()
def solve(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="Its name; longthink list tasks shows them. Where no weights are shipped, name --weights.",
        ),
    ],
    problem: Annotated[
        str | None,
        typer.Argument(
            metavar="PROBLEM",
            help="Bits, a sudoku's 81 cells, a maze's file, a FEN, an expression, a story; - reads it from the input.",
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(help="How large or hard a problem to make, in the task's unit.")] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="At most so many steps of thinking; the harder the problem, the more if left out."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Which problem to make.")] = None,
    weights: Annotated[str | None, typer.Option(help="Shipped weights by name, or a run's folder.")] = None,
    style: Annotated[
        str | None, typer.Option(help="Mazes: depth_first (as trained on), kruskal, wilson, percolation, ...")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a picture: problem and answer, as PNG.")] = None,
    as_json: Json = False,
    all_steps: Annotated[bool, typer.Option("--all-steps", help="Don't stop when the state is at rest.")] = False,
    settings: Settings = None,
    device: Device = "cpu",
    prompt: Annotated[str | None, typer.Option(help="Text: what to go on with; a new document if left out.")] = None,
    length: Annotated[int | None, typer.Option(help="Text: at most so many tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Text: 0 for the likeliest; 0.8 if left out.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Text: choose among so many tokens; 40 if left out.")] = None,
) -> None:
    """Solve a problem, typed or made, and watch the network think."""
    from longthink import pictures, solving

    if task == "text":
        wrong = (size, style, out, settings) != (None, None, None, None) or all_steps
        if wrong or (prompt is not None and problem is not None):
            raise UserError("Text takes one prompt; leave out --size, --style, --out, --set and --all-steps.")
        given = prompt if problem is None else problem
        wishes = {"length": length, "temperature": temperature, "top_k": top_k, "seed": seed, "steps": steps}
        _write(weights, _standard_input() if given == "-" else given or "", wishes, as_json, device)
        return
    if (prompt, length, temperature, top_k) != (None, None, None, None):
        raise UserError("--prompt, --length, --temperature and --top-k are for text alone; leave them out.")
    if problem is not None and (size, seed, style) != (None, None, None):
        raise UserError("A typed problem is what it is; leave out --size, --seed and --style.")
    if out is not None:
        pictures.check_place(out)
    name, loaded = solving.find_weights(task, weights, device)
    loaded = loaded.with_settings(settings or ())
    typed, drawn = ("parse",) if problem is not None else (), ("draw",) if out is not None else ()
    solving.check_methods(loaded.task, "text", "show", *typed, *drawn)
    text = _standard_input() if problem == "-" else problem
    batch = solving.pose(loaded, text, size=size, seed=seed or 0, style=style)
    budget = solving.default_steps(loaded, batch) if steps is None else steps
    from longthink.terminal import Watching, report, tell_training

    limits = solving.patience(loaded, budget) if steps is None else []
    with Watching(loaded.task, batch, budget, quiet=as_json) as watching:
        solution = solving.solve(
            loaded, batch, budget, weights=name, until_rest=not all_steps, on_step=[watching.on_step, *limits]
        )
    if out is not None:
        pictures.save_figure(pictures.answer_picture(solution), out)
    if as_json:
        print(json.dumps({**solution.to_json(), **loaded.changes(settings or ())}))
        return
    report(solution)
    tell_training(loaded, settings or ())
    if out is not None:
        print(f"picture  {out}")


def _write(weights: str | None, prompt: str, wishes: dict[str, Any], as_json: bool, device: str) -> None:
    """``solve text``: go on with a prompt; what nobody wished for keeps its default."""
    from longthink import sampling, solving

    name, loaded = solving.find_weights("text", weights, device)
    made = {key: value for key, value in wishes.items() if value is not None}
    style = sampling.Style(**{key: made.pop(key) for key in ("temperature", "top_k", "seed") if key in made})
    writing = sampling.write(loaded, prompt, style=style, weights=name, show=not as_json, **made)
    if as_json:
        print(json.dumps(writing.to_json()))


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Its name; longthink list recipes shows them.")],
    seed: Annotated[int, typer.Option(help="Decides weights, problems and their order.")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, model.key=value or task.key=value; several are fine.")
    ] = None,
    devices: Annotated[int, typer.Option(help="How many devices share a batch.")] = 1,
    precision: Annotated[str | None, typer.Option(help="32-true or bf16-mixed; fits the device if left out.")] = None,
    accelerator: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    folder: Annotated[str, typer.Option(help="Where the run's folder is made.")] = "runs",
    seconds: Annotated[float | None, typer.Option(help="Stop after this time; the same command goes on.")] = None,
    compile: Compile = None,
) -> None:
    """Train a recipe, or go on where it was interrupted."""
    import longthink as lt
    from longthink.training.validation import in_words

    at_least(0, seed=seed)
    at_least(1, devices=devices)
    _check_seconds(seconds)
    chosen = lt.override(lt.recipe(recipe), settings or [])
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
    print(f"run         {path}")
    unit = "tokens" if "bits_per_byte" in found else "problems"
    print(f"validation  {in_words(found)} ({found['samples']:,} {unit})")
    again = [part for place in named_extensions() for part in ("--with", place)]
    print(f"next        {shlex.join(['longthink', *again, 'eval', str(path)])}")


@app.command("eval")
def evaluate(
    weights: Annotated[str, typer.Argument(metavar="NAME_OR_FOLDER", help="Shipped weights, or a run's folder.")],
    difficulty: Annotated[str | None, typer.Option(help="A,B,..: sizes to test; the trained ones if left out.")] = None,
    steps: Annotated[int | None, typer.Option(help="How long to think; 5 times the training if left out.")] = None,
    samples: Annotated[int, typer.Option(help="Problems a difficulty.")] = 100,
    seed: Annotated[int, typer.Option(help="Which problems.")] = 0,
    read_every: Annotated[int, typer.Option(help="Read the answer every so many steps.")] = 1,
    chunk: Annotated[int | None, typer.Option(help="Problems at once; fits the device if left out.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="ListOps: an original file; of its problems the first --samples that fit.")
    ] = None,
    settings: Settings = None,
    memory: Annotated[
        str | None, typer.Option(help="A,B,..: how far a language model looks back, beside what it does by itself.")
    ] = None,
    farthest: Annotated[
        int | None, typer.Option(help="Distances beyond this count as this one for a language model.")
    ] = None,
    device: Device = "cpu",
    precision: Annotated[str, typer.Option(help="32 or bf16.")] = "32",
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option(help="Write the JSON document to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw accuracy over steps: PNG, PDF or SVG.")] = None,
) -> None:
    """Measure accuracy at every step of thinking.

    Peak: the best accuracy of any step, and the first step that has it. Final: after the last step. Most confident: if
    each problem is answered with the surest step so far. Steps to solve: until a problem is first right, the mean of
    those that ever are.
    """
    import longthink as lt
    from longthink import eval_command, pictures
    from longthink.hardware import usable_device

    at_least(1, samples=samples, read_every=read_every, **({} if chunk is None else {"chunk": chunk}))
    at_least(0, seed=seed)
    check_precision(precision)
    for path, kinds in ((out, (".json",)), (plot, (".png", ".pdf", ".svg"))):
        if path is not None:
            pictures.check_place(path, kinds)
    loaded = lt.load(weights, usable_device(device)).with_settings(settings or ())
    how = eval_command.How(weights, samples, settings or (), precision, as_json, out)
    if hasattr(loaded.task, "stream"):
        if (difficulty, steps, chunk, plot, file) != (None,) * 5 or (seed, read_every) != (0, 1):
            raise UserError(
                "A language model reads the first --samples blocks of its test text; leave out --difficulty, --steps, "
                "--seed, --read-every, --chunk, --file and --plot."
            )
        eval_command.bits(loaded, how, memory, farthest)
        return
    if (memory, farthest) != (None, None):
        raise UserError(f"Only language models look back; leave out --memory and --farthest for {weights}.")
    eval_command.accuracy(loaded, how, difficulty, file, seed, steps, read_every, chunk, plot)


def _check_seconds(seconds: float | None) -> None:
    if seconds is not None and not seconds > 0:
        raise UserError(f"--seconds must be above 0, not {seconds:g}.")


@app.command()
def study(
    names: Annotated[
        list[str], typer.Argument(metavar="STUDY", help="Its name, or several; longthink list studies shows them.")
    ],
    seeds: Annotated[str, typer.Option(help="A,B,..: which seeds to train and test.")] = "0",
    rows: Annotated[list[str] | None, typer.Option("--row", help="Only this row; several are fine.")] = None,
    results: Annotated[Path, typer.Option(help="Where results are kept.")] = Path("results"),
    folder: Annotated[str, typer.Option(help="Where runs are kept.")] = "runs",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value for the rows' recipes, and what those go on from.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop each training after this time.")] = None,
    workers: Annotated[int, typer.Option(help="Runs at a time, a process each.")] = 1,
    together: Annotated[
        int, typer.Option(help="Runs that differ in their data alone, up to so many, as one network: for GPUs.")
    ] = 1,
    compile: Compile = None,
    report: Annotated[bool, typer.Option("--report", help="Only make table and pictures from stored results.")] = False,
) -> None:
    """Run a published table: train and test its rows, and write it with ours beside it."""
    import longthink as lt
    from longthink import studies

    _check_seconds(seconds)
    chosen = [studies.studies[name] for name in names]
    if not report:
        options = lt.TrainingOptions(folder=folder, seconds=seconds, compile=compile)
        studies.run(
            chosen, whole_numbers("seeds", seeds), rows or (), results, options, settings or (), workers, together
        )
    for one in chosen:
        print(f"written  {studies.report(one, results)}")


@app.command()
def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="cvmm (a mixture of experts), deepthinking (a maze network), dnc, explore (the page), generators "
            "(making problems), language (a language model) or router.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="A folder for <hardware>.json.")] = None,
    as_json: Json = False,
) -> None:
    """Time fast paths beside the plain ones that they replace, in one run."""
    from longthink.bench import cvmm, deepthinking, dnc, explore, generators, language, router, shown, timing

    gpu = timing.device() == "cuda"
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        # On a CPU just enough to see that it runs.
        "cvmm": lambda: cvmm.measure() if gpu else cvmm.measure(256, 32, 2, 16, (4, 8), 100),
        "deepthinking": lambda: (
            deepthinking.measure((50, 200, 400)) if gpu else deepthinking.measure((4,), 16, 3, False)
        ),
        "dnc": lambda: dnc.measure(32, 200) if gpu else dnc.measure(2, 10, 2, cells=16),
        "generators": generators.measure,
        "explore": lambda: explore.measure((9, 33), 100, 20),
        "language": lambda: language.measure() if gpu else language.measure(("dense", "sigma_moe"), 2, small=True),
        "router": lambda: router.measure(512 if gpu else 4, 10 if gpu else 3),
    }
    if what not in measures:
        raise unknown("benchmark", what, measures)
    found = measures[what]()
    if out is not None:
        timing.save(what, found, out)
    if as_json:
        print(json.dumps(found))
        return
    shown.show(what, found, gpu)


@app.command("list")
def show_list(
    kind: Annotated[str, typer.Argument(metavar="tasks|models|recipes|weights|studies", help="What to list.")],
    like: Annotated[str, typer.Argument(metavar="PART", help="Only names with this in them.")] = "",
    as_json: Json = False,
) -> None:
    """List what there is."""
    from longthink import catalogue

    rows = [row for row in catalogue.table(kind) if like in row["name"]]
    if not rows:
        raise UserError(f"No {kind} have {like!r} in their name; leave it out to see all.")
    settings = catalogue.settings(like) if kind == "recipes" and like in catalogue.list(kind) else {}
    if as_json:
        print(json.dumps([{**row, "settings": settings} if settings and row["name"] == like else row for row in rows]))
        return
    from longthink.terminal import print_table

    texts = [[_cell(value) for value in row.values()] for row in rows]
    print_table(list(rows[0]), texts)
    if settings:
        print(f"longthink train {like} --set SETTING=VALUE changes any of these:")
        print_table(["setting", "value"], [[*pair] for pair in settings.items()])


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return f"{value[0]} to {value[-1]}" if len(value) > 3 else ", ".join(map(str, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise UserError("The standard input is not text; pipe a text file into it.") from None
