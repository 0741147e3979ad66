"""``longthink inspect``: what any network does when it is disturbed, thinks on, or is asked easier things."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from longthink.errors import UserError, check_precision, whole_numbers
from longthink.inspect.command_line import (
    Chunk,
    Difficulties,
    Difficulty,
    Opened,
    Samples,
    Seed,
    Steps,
    called,
    command,
    counted,
    listed,
    whole_sizes,
)


@command(answers=True)
def perturb(
    opened: Opened,
    disturb: Annotated[
        list[str] | None,
        typer.Option(
            help="noise@1, zeros@50, swapped@50, flips@50, goal@50, other@50, clean; several are fine. "
            "Those of Table 5.5 if left out."
        ),
    ] = None,
    difficulty: Difficulty = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps after the disturbance; 100 if left out, or all that distinct layers leave."),
    ] = None,
    std: Annotated[float, typer.Option(help="Of the noise.")] = 1.0,
    flips: Annotated[int, typer.Option(help="How many bits are flipped.")] = 1,
    rooms: Annotated[int, typer.Option(help="How far the goal moves.")] = 2,
    each_bit: Annotated[bool, typer.Option("--each-bit", help="Flip each bit in turn instead (Figure 5.8).")] = False,
    samples: Samples = 10,
    chunk: Chunk = 20,
    seed: Seed = 0,
) -> None:
    """Disturb its thoughts or its problem, and see whether it recovers."""
    loaded = opened.loaded
    from longthink.inspect import disturbances
    from longthink.inspect import flips as each_flip
    from longthink.inspect import perturb as asked

    if each_bit and disturb:
        raise UserError("--each-bit flips each bit in turn; leave out --disturb.")
    options: dict[str, dict[str, Any]] = {"noise": {"std": std}, "flips": {"count": flips}, "goal": {"rooms": rooms}}
    texts = [] if each_bit else disturb or [one.label for one in disturbances.table_5_5()]
    chosen = [disturbances.parse(text, **options.get(text.partition("@")[0], {})) for text in texts]
    if steps is None:
        latest = max((one.at for one in chosen), default=disturbances.LATE)
        limit = getattr(loaded.model, "max_steps", None)
        steps = 100 if limit is None else min(100, max(1, limit - latest))
    size = opened.size(difficulty)
    batch = opened.sample(samples, size, seed)
    about = f"{opened.name}, {size} {loaded.task.unit}"
    if each_bit:
        profile = each_flip.flip_profile(loaded.model, loaded.task, batch, steps=steps, chunk=chunk)
        means = profile.mean.tolist()
        rows = [[str(i + 1), f"{mean:.1f}"] for i, mean in enumerate(means)]
        table = ("flipped bit", "steps to recover"), rows, f"{about}: a bit flipped after {profile.at} steps"
        opened.give(profile.to_json(), table, lambda: each_flip.draw(profile, about))
        return
    disturbed = sum(one.name != disturbances.CLEAN for one in chosen)
    total = samples * (asked.longest_beginning(chosen, steps) + disturbed * steps)
    with counted(total, opened.as_json) as on_step:
        found = asked.recover(loaded.model, loaded.task, batch, chosen, steps, seed=seed, chunk=chunk, on_step=on_step)
    columns = ("disturbance", "after step", "steps to solution (best)", f"after {steps} steps", "n")
    opened.give(
        found.to_json(),
        (columns, found.table(), about),
        lambda: asked.draw(found, loaded.recipe.steps, about),
    )


@command(repeats=True)
def convergence(
    opened: Opened,
    difficulty: Difficulty = None,
    steps: Steps = None,
    tolerance: Annotated[float, typer.Option(help="Relative change below which a state is at rest.")] = 1e-5,
    longest_period: Annotated[int, typer.Option(help="Of the limit cycles that are looked for.")] = 16,
    precision: Annotated[str, typer.Option(help="32 or bf16, whose rounding makes cycles of its own.")] = "32",
    samples: Samples = 5,
    chunk: Chunk = 20,
    seed: Seed = 0,
) -> None:
    """Does it come to rest, circle, drift or explode, on problems and on noise?"""
    loaded = opened.loaded
    import torch

    from longthink.inspect import convergence as asked

    if not tolerance > 0:
        raise UserError(f"--tolerance must be above 0, not {tolerance:g}.")
    check_precision(precision)
    size = opened.size(difficulty)
    real = opened.sample(samples, size, seed).inputs
    nonsense = asked.noise_like(real, loaded.task.shape.get("vocabulary"), seed)
    if steps is None:
        steps = max(asked.FEWEST_STEPS, 5 * loaded.recipe.steps)
    half = torch.autocast(asked.device_of(loaded.model).type, torch.bfloat16, enabled=precision == "bf16")
    with counted(2 * samples * steps, opened.as_json) as on_step, half:
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
            listed([f"{period} ({count})" for period, count in one["periods"].items()]) or "-",
            "-" if one["mean_steps_to_rest"] is None else f"{one['mean_steps_to_rest']:.1f}",
            "-" if one["final_change"] is None else f"{one['final_change']:.1e}",
        ]
        for one in documents
    ]
    about = f"{opened.name}, {size} {loaded.task.unit}, {found[0].steps} steps"
    columns = ("inputs", *asked.VERDICTS, "periods (how many)", "steps to rest", "last change")
    document = {"difficulty": size, "seed": seed, "precision": precision, "settlings": documents}
    opened.give(
        document,
        (columns, rows, about),
        lambda: asked.draw(found, loaded.recipe.steps, about),
    )


@command(answers=True, repeats=True)
def overthinking(
    opened: Opened,
    difficulty: Difficulties = None,
    multiples: Annotated[str, typer.Option(help="A,B,..: multiples of the steps of training.")] = "1,3,10,100",
    samples: Samples = 5,
    chunk: Chunk = 20,
    seed: Seed = 0,
) -> None:
    """Does it lose its answers when it thinks on for 100 times as long as in training?"""
    loaded = opened.loaded
    from longthink.inspect import convergence as asked

    sizes = whole_sizes(difficulty) or (opened.size(None),)
    times = whole_numbers("multiples", multiples)
    with counted(len(sizes) * samples * loaded.recipe.steps * max(times), opened.as_json) as on_step:
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
    about = f"{opened.name}: m = {loaded.recipe.steps} steps in training"
    document = {"seed": seed, "reports": [one.to_json() for one in found]}
    opened.give(
        document,
        (columns, rows, about),
        lambda: asked.draw_overthinking(found, loaded.task.unit, about),
    )


@command("hard-to-easy", answers=True)
def hard_to_easy(
    opened: Opened,
    difficulty: Difficulties = None,
    steps: Steps = None,
    samples: Samples = 20,
    chunk: Chunk = 20,
    seed: Seed = 0,
) -> None:
    """Does it solve problems that are easier than those of its training?"""
    loaded = opened.loaded
    from longthink.inspect import extrapolation as asked

    trained, m = loaded.recipe.difficulty, loaded.recipe.steps
    found = asked.hard_to_easy(
        loaded.model,
        loaded.task,
        trained,
        m,
        whole_sizes(difficulty),
        steps,
        samples=samples,
        seed=seed,
        chunk=chunk,
    )
    rows = [[str(one.difficulty), *_peak(one)] for one in found.curves]
    table = (
        (loaded.task.unit, "peak", "at step", "final", "n"),
        rows,
        f"{opened.name}: trained on {listed(trained)}",
    )
    document = {**found.to_json(), "seed": seed}
    opened.give(
        document,
        table,
        lambda: asked.draw_hard_to_easy(found, opened.name, loaded.task.unit),
    )


@command(answers=True)
def sizes(
    opened: Opened,
    beside: Annotated[list[str] | None, typer.Option(help="Other weights for the same task; several are fine.")] = None,
    difficulty: Difficulty = None,
    steps: Steps = None,
    samples: Samples = 20,
    chunk: Chunk = 20,
    seed: Seed = 0,
) -> None:
    """How wide must a network be, and trained for how many steps? Compare several (Figure 5.17)."""
    from longthink.inspect import sizes as asked
    from longthink.loading import load

    loaded = opened.loaded
    device = next(loaded.model.parameters()).device
    networks = {opened.name: loaded, **{called(name): load(name, device) for name in beside or []}}
    if len(networks) < 2:
        raise UserError("There is nothing to compare with; name other networks with --beside.")
    size, count = opened.size(difficulty), 3 * opened.steps(None) if steps is None else steps
    with counted(len(networks) * samples * count, opened.as_json) as on_step:
        found = asked.sizes(networks, size, count, samples=samples, seed=seed, chunk=chunk, on_step=on_step)
    rows = [
        [one.name, str(one.width or "-"), str(one.steps), f"{one.parameters:,}", *_peak(one.curve)]
        for one in found.networks
    ]
    columns = ("network", "width", "m", "parameters", "peak", "at step", "final", "n")
    about = f"{size} {loaded.task.unit}, {count} steps"
    opened.give({**found.to_json(), "seed": seed}, (columns, rows, about), lambda: asked.draw(found, about))


def _peak(curve: Any) -> list[str]:
    return [f"{curve.peak[0]:.1%}", str(curve.peak[1]), f"{curve.final:.1%}", str(curve.samples)]


@command("receptive-field")
def receptive_field(
    opened: Opened,
    difficulty: Difficulty = None,
    steps: Annotated[
        int | None, typer.Option(help="How long to think; 8 steps if left out, or all of fewer distinct layers.")
    ] = None,
    place: Annotated[str | None, typer.Option(help="Where the input changes, as 7 or 4,9; the middle.")] = None,
    threshold: Annotated[float, typer.Option(help="Count only what differs by more.")] = 0.0,
    samples: Samples = 2,
    seed: Seed = 0,
) -> None:
    """How far does a change of the input travel in each step?"""
    loaded = opened.loaded
    from longthink.evaluate import curve
    from longthink.inspect import extrapolation as asked

    size = opened.size(difficulty)
    batch = opened.sample(samples, size, seed)
    where = None if place is None else whole_numbers("place", place)
    limit = getattr(loaded.model, "max_steps", None)
    count = min(8, limit or 8) if steps is None else steps
    found = asked.receptive_field(loaded.model, loaded.task, batch, count, where, threshold=threshold)
    found = asked.with_steps_used(found, curve(loaded.model, loaded.task, batch, limit or 3 * loaded.recipe.steps))
    rows = [
        [str(t), *("-" if d < 0 else str(d) for d in distances)]
        for t, distances in enumerate(zip(found.state, found.logits, found.answer, strict=True))
    ]
    reach = "all is in reach at once" if found.per_step is None else f"{found.per_step} places a step"
    about = f"{opened.name}, {size} {loaded.task.unit}: {reach}"
    document = {**found.to_json(), "difficulty": size, "samples": samples, "seed": seed}
    table = ("step", "state", "logits", "answer"), rows, about
    opened.give(document, table, lambda: asked.draw_receptive_field(found, about))
