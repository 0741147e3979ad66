"""``longthink inspect ...``: the questions of this folder. Torch is imported inside the commands, for quick help."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longthink.errors import UserError, at_least, whole_numbers

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


@app.command()
def perturb(
    weights: Weights,
    disturb: Annotated[
        list[str] | None,
        typer.Option(
            help="noise@1, zeros@50, swapped@50, flips@50, goal@50, other@50, clean; repeat it. "
            "Those of Table 5.5 if left out."
        ),
    ] = None,
    difficulty: Difficulty = None,
    steps: Annotated[int, typer.Option(help="Steps after the disturbance.")] = 100,
    std: Annotated[float, typer.Option(help="Of the noise.")] = 1.0,
    flips: Annotated[int, typer.Option(help="How many bits are flipped.")] = 1,
    rooms: Annotated[int, typer.Option(help="How far the goal moves.")] = 2,
    each_bit: Annotated[bool, typer.Option("--each-bit", help="Flip each bit in turn instead (Figure 5.8).")] = False,
    samples: Samples = 10,
    chunk: Chunk = 20,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Disturb its thoughts or its problem, and see whether it recovers."""
    loaded = _load(weights, device, out, plot, samples, seed)
    from longthink.inspect import perturb as asked

    size = _size(loaded, difficulty)
    batch = loaded.task.sample(samples, size, seed, "test")
    about = f"{weights}, {size} {loaded.task.unit}"
    if each_bit:
        profile = asked.flip_profile(loaded.model, loaded.task, batch, steps=steps, chunk=chunk)
        means = profile.mean.tolist()
        rows = [[str(i + 1), f"{mean:.1f}"] for i, mean in enumerate(means)]
        table = ("flipped bit", "steps to recover"), rows, f"{about}: a bit flipped after {profile.at} steps"
        _give(weights, loaded, profile.to_json(), table, as_json, out, plot, lambda: asked.draw_flips(profile, about))
        return
    options: dict[str, dict[str, Any]] = {"noise": {"std": std}, "flips": {"count": flips}, "goal": {"rooms": rooms}}
    chosen = [
        asked.parse(text, **options.get(text.partition("@")[0], {}))
        for text in disturb or [one.label for one in asked.table_5_5()]
    ]
    disturbed = sum(one.name != asked.CLEAN for one in chosen)
    total = samples * (asked.longest_beginning(chosen, steps) + disturbed * steps)
    with _counted(total, as_json) as on_step:
        found = asked.recover(loaded.model, loaded.task, batch, chosen, steps, seed=seed, chunk=chunk, on_step=on_step)
    columns = ("disturbance", "after step", "steps to solution (best)", f"after {steps} steps", "n")
    _give(
        weights,
        loaded,
        found.to_json(),
        (columns, found.table(), about),
        as_json,
        out,
        plot,
        lambda: asked.draw(found, loaded.recipe.steps, about),
    )


@app.command()
def convergence(
    weights: Weights,
    difficulty: Difficulty = None,
    steps: Steps = None,
    tolerance: Annotated[float, typer.Option(help="Relative change below which a state is at rest.")] = 1e-5,
    longest_period: Annotated[int, typer.Option(help="Of the limit cycles that are looked for.")] = 16,
    samples: Samples = 5,
    chunk: Chunk = 20,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Does it come to rest, circle, drift or explode, on problems and on noise?"""
    loaded = _load(weights, device, out, plot, samples, seed)
    from longthink.inspect import convergence as asked

    if not tolerance > 0:
        raise UserError(f"--tolerance must be above 0, not {tolerance:g}.")
    size = _size(loaded, difficulty)
    real = loaded.task.sample(samples, size, seed, "test").inputs
    nonsense = asked.noise_like(real, loaded.task.shape.get("vocabulary"), seed)
    if steps is None:
        steps = getattr(loaded.model, "max_steps", None) or 5 * loaded.recipe.steps
    with _counted(2 * samples * steps, as_json) as on_step:
        found = [
            asked.settle(
                loaded.model,
                inputs,
                steps,
                name=name,
                tolerance=tolerance,
                longest_period=longest_period,
                chunk=chunk,
                on_step=on_step,
            )
            for name, inputs in (("problems", real), ("noise", nonsense))
        ]
    documents = [one.to_json() for one in found]
    rows = [
        [
            str(one["inputs"]),
            *(str(one["verdicts"][verdict]) for verdict in asked.VERDICTS),
            "-" if one["mean_steps_to_rest"] is None else f"{one['mean_steps_to_rest']:.1f}",
            "-" if one["final_change"] is None else f"{one['final_change']:.1e}",
        ]
        for one in documents
    ]
    about = f"{weights}, {size} {loaded.task.unit}, {found[0].steps} steps"
    columns = ("inputs", *asked.VERDICTS, "steps to rest", "last change")
    document = {"difficulty": size, "seed": seed, "settlings": documents}
    _give(
        weights,
        loaded,
        document,
        (columns, rows, about),
        as_json,
        out,
        plot,
        lambda: asked.draw(found, loaded.recipe.steps, about),
    )


@app.command()
def overthinking(
    weights: Weights,
    difficulty: Difficulties = None,
    multiples: Annotated[str, typer.Option(help="A,B,..: multiples of the steps of training.")] = "1,3,10,100",
    samples: Samples = 5,
    chunk: Chunk = 20,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Does it lose its answers when it thinks on for 100 times as long as in training?"""
    loaded = _load(weights, device, out, plot, samples, seed)
    from longthink.inspect import convergence as asked

    sizes = _sizes(difficulty) or (_size(loaded, None),)
    times = whole_numbers("multiples", multiples)
    with _counted(len(sizes) * samples * loaded.recipe.steps * max(times), as_json) as on_step:
        found = [
            asked.overthinking(
                loaded.model,
                loaded.task,
                loaded.recipe.steps,
                size,
                multiples=times,
                samples=samples,
                seed=seed,
                chunk=chunk,
                on_step=on_step,
            )
            for size in sizes
        ]
    columns = (loaded.task.unit, *(f"{k} m" for k in found[0].multiples), "n", "verdict")
    rows = [
        [str(one.difficulty), *(f"{a:.1%}" for a in one.accuracy.tolist()), str(len(one.right)), one.verdict]
        for one in found
    ]
    about = f"{weights}: m = {loaded.recipe.steps} steps in training"
    document = {"seed": seed, "reports": [one.to_json() for one in found]}
    _give(
        weights,
        loaded,
        document,
        (columns, rows, about),
        as_json,
        out,
        plot,
        lambda: asked.draw_overthinking(found, loaded.task.unit, about),
    )


@app.command("hard-to-easy")
def hard_to_easy(
    weights: Weights,
    difficulty: Difficulties = None,
    steps: Steps = None,
    samples: Samples = 20,
    chunk: Chunk = 20,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Does it solve problems that are easier than those of its training?"""
    loaded = _load(weights, device, out, plot, samples, seed)
    from longthink.inspect import extrapolation as asked

    trained, m = loaded.recipe.difficulty, loaded.recipe.steps
    found = asked.hard_to_easy(
        loaded.model, loaded.task, trained, m, _sizes(difficulty), steps, samples=samples, seed=seed, chunk=chunk
    )
    rows = [
        [str(one.difficulty), f"{one.peak[0]:.1%}", str(one.peak[1]), f"{one.final:.1%}", str(one.samples)]
        for one in found.curves
    ]
    table = (loaded.task.unit, "peak", "at step", "final", "n"), rows, f"{weights}: trained on {_list(trained)}"
    document = {**found.to_json(), "seed": seed}
    _give(
        weights,
        loaded,
        document,
        table,
        as_json,
        out,
        plot,
        lambda: asked.draw_hard_to_easy(found, weights, loaded.task.unit),
    )


@app.command("receptive-field")
def receptive_field(
    weights: Weights,
    difficulty: Difficulty = None,
    steps: Annotated[int, typer.Option(help="How long to think.")] = 8,
    place: Annotated[str | None, typer.Option(help="Where the input changes, as 7 or 4,9; the middle.")] = None,
    threshold: Annotated[float, typer.Option(help="Count only what differs by more.")] = 0.0,
    samples: Samples = 2,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """How far does a change of the input travel in each step?"""
    loaded = _load(weights, device, out, plot, samples, seed)
    from longthink.evaluate import curve
    from longthink.inspect import extrapolation as asked

    size = _size(loaded, difficulty)
    batch = loaded.task.sample(samples, size, seed, "test")
    where = None if place is None else whole_numbers("place", place)
    found = asked.receptive_field(loaded.model, loaded.task, batch, steps, where, threshold=threshold)
    limit = getattr(loaded.model, "max_steps", None)
    found = asked.with_steps_used(found, curve(loaded.model, loaded.task, batch, limit or 3 * loaded.recipe.steps))
    rows = [
        [str(t), *("-" if d < 0 else str(d) for d in distances)]
        for t, distances in enumerate(zip(found.state, found.logits, found.answer, strict=True))
    ]
    about = f"{weights}, {size} {loaded.task.unit}: {found.per_step} places a step"
    document = {**found.to_json(), "difficulty": size, "samples": samples, "seed": seed}
    table = ("step", "state", "logits", "answer"), rows, about
    _give(weights, loaded, document, table, as_json, out, plot, lambda: asked.draw_receptive_field(found, about))


@app.command()
def attention(
    weights: Weights,
    problem: Problem = None,
    difficulty: Difficulty = None,
    steps: Steps = None,
    head: Annotated[int | None, typer.Option(help="Which head; the largest of all if left out.")] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Where do its columns look, and when do their gates open?"""
    loaded = _load(weights, device, out, plot, 1, seed)
    from longthink.inspect import attention as asked

    batch = _posed(loaded, problem, difficulty, seed)
    decoded = getattr(loaded.task, "decoded", None)
    words = decoded(batch, 0) if decoded is not None else ()
    maps = asked.attention_maps(loaded.model, batch.inputs, steps or loaded.recipe.steps, words)
    document = {**maps.to_json(head), "problem": loaded.task.text(batch, 0)}
    rows = [
        [
            str(t + 1),
            "-" if maps.attention is None else _names(maps.labels, maps.seen(head)[t].sum(0)),
            "-" if maps.gate is None else _names(maps.labels, maps.gate[t]),
        ]
        for t in range(maps.steps)
    ]
    table = ("step", "most looked at", "gates most open"), rows, f"{weights}: {document['problem']}"
    _give(
        weights, loaded, document, table, as_json, out, plot, lambda: asked.draw(maps, head, str(document["problem"]))
    )


@app.command()
def experts(
    weights: Weights,
    difficulty: Difficulty = None,
    steps: Steps = None,
    samples: Samples = 10,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Which experts are used at each step, how evenly, and which together?"""
    loaded = _load(weights, device, out, plot, samples, seed)
    from longthink.inspect import experts as asked

    inputs = loaded.task.sample(samples, _size(loaded, difficulty), seed, "test").inputs
    found = asked.expert_use(loaded.model, inputs, loaded.recipe.steps if steps is None else steps)
    rows = [
        [str(i + 1), f"{float(found.evenness[i]):.3f}", str(int(found.unused[i])), _list(_busiest(found.share[i]))]
        for i in range(len(found.share))
    ]
    table = (
        ("step", "evenness", "unused", "busiest"),
        rows,
        f"{weights}: {found.tokens:,} tokens, {found.k} experts each",
    )
    _give(weights, loaded, found.to_json(), table, as_json, out, plot, lambda: asked.draw(found, weights))


@app.command()
def active(
    weights: Weights,
    difficulty: Difficulty = None,
    steps: Steps = None,
    samples: Samples = 10,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """How many hidden units of its feed-forward layers are active for a token?"""
    loaded = _load(weights, device, out, plot, samples, seed)
    from longthink.inspect import active as asked

    inputs = loaded.task.sample(samples, _size(loaded, difficulty), seed, "test").inputs
    found = asked.active_units(loaded.model, inputs, loaded.recipe.steps if steps is None else steps)
    rows = [
        [str(i + 1), f"{float(found.mean[i]):.1f}", f"{float(found.deviation[i]):.1f}"] for i in range(len(found.mean))
    ]
    table = (("step", "active units", "deviation"), rows, f"{weights}: {found.tokens:,} tokens")
    _give(weights, loaded, found.to_json(), table, as_json, out, plot, lambda: asked.draw(found, weights))


@app.command()
def memory(
    weights: Weights,
    problem: Problem = None,
    difficulty: Difficulty = None,
    steps: Annotated[int, typer.Option(help="Steps of thinking after the sequence.")] = 0,
    link_step: Annotated[int | None, typer.Option(help="The time step whose links are shown; the last.")] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """Where does a DNC write and read, and what does it free?"""
    loaded = _load(weights, device, out, plot, 1, seed)
    from longthink.inspect import memory as asked

    batch = _posed(loaded, problem, difficulty, seed)
    trace = asked.memory_trace(loaded.model, batch.inputs, steps, link_step)
    rows = [
        [
            str(t + 1),
            str(int(trace.write_address[t].argmax())),
            _list(trace.read_address[t].argmax(1).tolist()),
            ", ".join(asked.MODES[mode] for mode in trace.read_modes[t].argmax(1).tolist()),
            f"{float(trace.usage[t].sum()):.2f}",
        ]
        for t in range(trace.times)
    ]
    table = ("time", "writes to cell", "reads from cell", "mode", "cells in use"), rows, weights
    document = {**trace.to_json(), "problem": loaded.task.text(batch, 0)}
    _give(weights, loaded, document, table, as_json, out, plot, lambda: asked.draw(trace, weights))


@app.command()
def representations(
    weights: Weights,
    symbol: Annotated[list[str] | None, typer.Option(help="Only this output symbol; repeat it.")] = None,
    steps: Steps = None,
    device: Device = "cpu",
    as_json: Json = False,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """CTL++: do all functions mean the same by a symbol, and who understands whose results?"""
    loaded = _load(weights, device, out, plot, 1, 0)
    from longthink.inspect import representations as asked

    count, chosen = loaded.recipe.steps if steps is None else steps, symbol or ()
    found = asked.similarities(loaded.model, loaded.task, count, chosen)
    pairs = asked.compatibility(loaded.model, loaded.task, count, chosen)
    document = {"similarities": found.to_json(), "compatibility": pairs.to_json(), "clusters": None}
    if len(found.symbols) == 1:
        split = asked.compatibility(loaded.model, loaded.task, count, chosen, found)
        document["clusters"] = split.to_json()
    rows = [
        [row, *("-" if a != a else f"{a:.1%}" for a in values)]
        for row, values in zip(pairs.rows, pairs.accuracy.tolist(), strict=True)
    ]
    table = ("first function", *(f"second from {name}" for name in pairs.columns)), rows, f"{weights}: g(f(s)) is right"
    _give(weights, loaded, document, table, as_json, out, plot, lambda: asked.draw(found, pairs, weights))


def _load(weights: str, device: str, out: Path | None, plot: Path | None, samples: int, seed: int) -> lt.Loaded:
    """Complaints come before the work."""
    from longthink import solving
    from longthink.loading import load

    at_least(1, samples=samples)
    at_least(0, seed=seed)
    for path, kinds in ((out, (".json",)), (plot, (".png", ".pdf", ".svg"))):
        if path is not None:
            solving.check_place(path, kinds)
    return load(weights, solving.usable_device(device))


@contextmanager
def _counted(total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Shows how many of all the samples' steps were taken."""
    from longthink.training.report import Report

    with Report("steps of all samples", total, 0, quiet) as report:
        yield lambda samples: report.update(report.done + samples, "")


def _give(
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
    document = {"weights": weights, "task": loaded.task.name, "unit": loaded.task.unit, "trained": trained, **found}
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


def _size(loaded: lt.Loaded, difficulty: int | None) -> int:
    return max(loaded.recipe.difficulty) if difficulty is None else difficulty


def _posed(loaded: lt.Loaded, problem: str | None, difficulty: int | None, seed: int) -> lt.Batch:
    if problem is not None:
        return loaded.task.parse(problem)
    return loaded.task.sample(1, _size(loaded, difficulty), seed, "test")


def _sizes(text: str | None) -> tuple[int, ...]:
    return () if text is None else whole_numbers("difficulty", text)


def _list(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


def _busiest(share: Any, most: int = 3) -> list[str]:
    top = share.topk(min(most, len(share)))
    return [f"{i} ({part:.0%})" for i, part in zip(top.indices.tolist(), top.values.tolist(), strict=True)]


def _names(labels: Sequence[str], strength: Any, most: int = 3) -> str:
    return " ".join(f"{labels[i]}[{i}]" for i in strength.topk(min(most, len(labels))).indices.tolist())
