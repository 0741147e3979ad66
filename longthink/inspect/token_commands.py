"""``longthink inspect``: what networks of tokens attend to, choose, remember and mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longthink.errors import UserError, numbers, whole_numbers
from longthink.inspect.command_line import (
    Chunk,
    Difficulty,
    Opened,
    Problem,
    Samples,
    Seed,
    Steps,
    called,
    command,
    counted,
    listed,
)

if TYPE_CHECKING:
    from torch import Tensor

    import longthink as lt
    from longthink.tasks import Split


@command()
def attention(
    opened: Opened,
    problem: Problem = None,
    difficulty: Difficulty = None,
    steps: Steps = None,
    head: Annotated[int | None, typer.Option(help="Which head; the largest of all if left out.")] = None,
    at: Annotated[str | None, typer.Option(help="A,B,..: draw every head at these steps (Figure 5.4).")] = None,
    seed: Seed = 0,
) -> None:
    """Where do its columns look, and when do their gates open?"""
    loaded = opened.loaded
    from longthink.inspect import attention as asked
    from longthink.solving import answer_of, truth_of

    chosen = () if at is None else whole_numbers("at", at)
    if at is not None and opened.plot is None:
        raise UserError("--at says at which steps heads are drawn; say where to with --plot.")
    batch = opened.posed(problem, difficulty, seed)
    count = opened.steps_for(batch, steps)
    if at is not None:
        asked.check_drawn(chosen, count)
    task = loaded.task
    decoded = getattr(task, "decoded", None)
    words = decoded(batch, 0) if decoded is not None else ()
    with counted(count, opened.as_json) as on_step:
        maps = asked.attention_maps(loaded.model, batch.inputs, count, words, on_step)
    answer, truth = answer_of(task, maps.logits, batch), truth_of(task, batch)
    document = {**maps.to_json(head), "problem": task.text(batch, 0), "answer": answer, "truth": truth}
    rows = [
        [
            str(t + 1),
            "-" if maps.attention is None else _names(maps.labels, _mean_seen(maps.seen(head)[t])),
            "-" if maps.gate is None else _names(maps.labels, maps.gate[t]),
        ]
        for t in range(maps.steps)
    ]
    came = f"; answer {answer}, truth {truth or 'not known'}" if batch.targets.dim() == 1 else ""  # not of texts
    table = ("step", "most looked at", "gates most open"), rows, f"{opened.name}: {document['problem']}{came}"
    title = str(document["problem"])
    opened.give(
        document,
        table,
        lambda: asked.draw_heads(maps, chosen, title) if chosen else asked.draw(maps, head, title),
    )


def _mean_seen(seen: Tensor) -> Tensor:
    """How much those columns look at each that may: in a text only later ones may."""
    return seen.sum(0) / (seen > 0).sum(0).clamp_min(1)


@command(answers=True)
def gates(
    opened: Opened,
    thresholds: Annotated[str | None, typer.Option(help="A,B,..: gates below these are shut.")] = None,
    difficulty: Annotated[
        int | None, typer.Option(help="Test problems of this size; the hardest of validation if left out.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="How long to think; 10 times the training if left out.")] = None,
    samples: Samples = 100,
    chunk: Chunk = 20,
    seed: Seed = 0,
) -> None:
    """Which gates are almost shut, and does it keep its answers and go deeper when they are shut?"""
    loaded = opened.loaded
    from longthink.inspect import gates as asked

    chosen = asked.THRESHOLDS if thresholds is None else numbers("thresholds", thresholds)
    recipe, count = loaded.recipe, asked.LONG * opened.steps(None) if steps is None else steps
    size = max(recipe.valid_difficulty or recipe.difficulty) if difficulty is None else difficulty
    split: Split = "valid" if difficulty is None else "test"  # a threshold is not chosen on test problems
    batch = opened.fitting(loaded.task.sample(samples, size, seed, split), chunk)
    about = f"{opened.name}, {size} {loaded.task.unit}, {'validation' if split == 'valid' else 'test'} problems"
    with counted(len(chosen) * samples * count, opened.as_json) as on_step:
        found = asked.shut(loaded, batch, chosen, count, chunk=chunk, on_step=on_step)
    rows = []
    for i, (threshold, one) in enumerate(zip(found.thresholds, found.curves, strict=True)):
        (solved, step), marked = one.peak, "*" if i == found.best else ""
        rows.append([f"{threshold:g}", f"{solved:.1%}", str(step), f"{found.kept(i):.1%}", f"{one.final:.1%}", marked])
    columns = (
        "gates below",
        "solved",
        "at step",
        f"mean from step {min(recipe.steps, count)} on",
        f"at step {count}",
        "keeps most",
    )
    document = {"difficulty": size, "split": split, "seed": seed, **found.to_json()}
    opened.give(document, (columns, rows, about), lambda: asked.draw(found, about))


@command()
def experts(
    opened: Opened,
    difficulty: Difficulty = None,
    steps: Steps = None,
    samples: Samples = 10,
    seed: Seed = 0,
) -> None:
    """Which experts are used at each step, how evenly, and which together?"""
    loaded = opened.loaded
    from longthink.inspect import experts as asked

    inputs = opened.seen(samples, difficulty, seed)
    found = asked.expert_use(loaded.model, inputs, opened.steps(steps))
    pairs = found.k > 1  # one expert a token is alone
    rows = []
    for i, share in enumerate(found.share):
        row = [str(i + 1), f"{float(found.evenness[i]):.3f}", str(int(found.unused[i])), listed(_busiest(share))]
        if pairs:
            one, other, part = found.pair(i)
            row.append(f"{one} and {other} ({part:.0%})")
        rows.append(row)
    columns = (found.entries, "evenness", "unused", "busiest", *(("most together",) if pairs else ()))
    about = (
        f"{opened.name}: {found.tokens:,} tokens, each goes to {found.k} of {len(found.share[0])} experts\n"
        "evenness: 1 if all experts get as many tokens; percentages are of all tokens"
    )
    opened.give(found.to_json(), (columns, rows, about), lambda: asked.draw(found, opened.name))


@command()
def active(
    opened: Opened,
    difficulty: Difficulty = None,
    steps: Steps = None,
    samples: Samples = 10,
    seed: Seed = 0,
) -> None:
    """How many hidden units of its feed-forward layers are active for a token?"""
    loaded = opened.loaded
    from longthink.inspect import active as asked

    inputs = opened.seen(samples, difficulty, seed)
    found = asked.active_units(loaded.model, inputs, opened.steps(steps))
    rows = [
        [str(i + 1), f"{mean:.1f}{found.of_all}", f"{deviation:.1f}"]
        for i, (mean, deviation) in enumerate(zip(found.mean.tolist(), found.deviation.tolist(), strict=True))
    ]
    about = f"{opened.name}: active hidden units of a token, mean and standard deviation of {found.tokens:,} tokens"
    table = ((found.entries, "active units", "deviation"), rows, about)
    opened.give(found.to_json(), table, lambda: asked.draw(found, opened.name))


@command()
def memory(
    opened: Opened,
    problem: Problem = None,
    difficulty: Difficulty = None,
    steps: Annotated[int, typer.Option(help="Steps of thinking after the sequence.")] = 0,
    link_step: Annotated[int | None, typer.Option(help="The time step whose links are shown; the last.")] = None,
    head: Annotated[int | None, typer.Option(help="Which read head is drawn, from 0.")] = None,
    beside: Annotated[
        str | None, typer.Option(help="Another DNC: draw only the links of both, and whether they follow them.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Where does a DNC write and read, and what does it free?"""
    loaded = opened.loaded
    from longthink.inspect import memory as asked

    second = None if beside is None else _reads_the_same(opened, beside)
    batch = opened.posed(problem, difficulty, seed)
    tokens = getattr(loaded.task, "tokens", ())
    trace = asked.memory_trace(loaded.model, batch.inputs, steps, link_step, batch.targets, tokens)
    if head is not None:
        trace.check_head(head)
    rows = [
        [
            str(t + 1),
            str(int(trace.write_address[t].argmax())),
            listed(trace.read_address[t].argmax(1).tolist()),
            ", ".join(asked.MODES[mode] for mode in trace.read_modes[t].argmax(1).tolist()),
            f"{float(trace.usage[t].sum()):.2f}",
        ]
        for t in range(trace.times)
    ]
    table = ("time", "writes to cell", "reads from cell", "mode", "cells in use"), rows, opened.name
    document = {**trace.to_json(), "problem": loaded.task.text(batch, 0)}
    if second is None:
        opened.give(document, table, lambda: asked.draw(trace, opened.name, head))
        return
    name, other = second
    theirs = asked.memory_trace(other.model, batch.inputs, steps, link_step, batch.targets, tokens)
    both = {
        f"{asked.variant(loaded.model)} ({opened.name})": trace,
        f"{asked.variant(other.model)} ({name})": theirs,
    }
    document["beside"] = {"weights": name, **theirs.to_json()}
    opened.give(document, table, lambda: asked.draw_links(both))


@command()
def representations(
    opened: Opened,
    symbol: Annotated[list[str] | None, typer.Option(help="Only this output symbol; several are fine.")] = None,
    steps: Steps = None,
) -> None:
    """CTL++: do all functions mean the same by a symbol, and who understands whose results?"""
    loaded = opened.loaded
    from longthink.inspect import representations as asked

    count, chosen = opened.steps(steps), symbol or ()
    found = asked.similarities(loaded.model, loaded.task, count, chosen)
    pairs = asked.compatibility(loaded.model, loaded.task, count, chosen)
    split = asked.compatibility(loaded.model, loaded.task, count, (found.clearest,), found)
    clusters = {"symbol": found.clearest, **split.to_json()}
    document = {"similarities": found.to_json(), "compatibility": pairs.to_json(), "clusters": clusters}
    rows = [
        [f"{name}{row}", *("-" if a != a else f"{a:.1%}" for a in values)]
        for name, table in (("", pairs), (f"symbol {found.clearest}, ", split))
        for row, values in zip(table.rows, table.accuracy.tolist(), strict=True)
    ]
    table = (
        ("first function", *(f"second from {name}" for name in pairs.columns)),
        rows,
        f"{opened.name}: g(f(s)) is right",
    )
    opened.give(document, table, lambda: asked.draw(found, (pairs, split), opened.name))


def _reads_the_same(opened: Opened, weights: str) -> tuple[str, lt.Loaded]:
    """The name of another network and the network itself; complains where its problems are others."""
    from longthink.loading import load

    name, other = called(weights), load(weights, next(opened.loaded.model.parameters()).device)
    if other.task != opened.loaded.task:
        raise UserError(f"{name} does not read the same problems as {opened.name}; choose a DNC that does.")
    return name, other


def _busiest(share: Any, most: int = 3) -> list[str]:
    top = share.topk(min(most, len(share)))
    return [f"{i} ({part:.0%})" for i, part in zip(top.indices.tolist(), top.values.tolist(), strict=True)]


def _names(labels: Sequence[str], strength: Any, most: int = 3) -> str:
    return " ".join(f"{labels[i]}[{i}]" for i in strength.topk(min(most, len(labels))).indices.tolist())
