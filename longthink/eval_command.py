"""What ``longthink eval`` does with a network: curves of accuracy over steps, or the bits of a text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from longthink import limits, pictures
from longthink.errors import UserError, at_least, whole_numbers
from longthink.evaluate import Curve, curve
from longthink.loading import Loaded
from longthink.models.language import Language
from longthink.perplexity import Measured, measure_weights
from longthink.solving import HABITS
from longthink.tasks import Batch
from longthink.tasks.base import CountsParts, check_difficulty, without_repeats
from longthink.tasks.text import Text
from longthink.terminal import print_table, tell_training
from longthink.training.checkpoint import unfinished
from longthink.training.files import write_json
from longthink.training.report import Report


@dataclass(frozen=True)
class How:
    """What both kinds of measuring are told. ``name``: of the weights; ``samples``: problems a difficulty, or blocks of
    a text."""

    name: str
    samples: int
    settings: Sequence[str]
    precision: str
    as_json: bool
    out: Path | None


def accuracy(
    loaded: Loaded,
    how: How,
    difficulty: str | None,
    file: Path | None,
    seed: int,
    steps: int | None,
    read_every: int,
    chunk: int | None,
    plot: Path | None,
) -> None:
    """A table of what is solved at which step, by difficulty or of a file's problems."""
    recipe, device = loaded.recipe, next(loaded.model.parameters()).device
    read = getattr(loaded.task, "read", None)
    if file is not None and (read is None or difficulty is not None):
        raise UserError("--file is for ListOps, whose original files have problems of all depths; leave it out.")
    trained = recipe.valid_difficulty or recipe.difficulty  # some depths are all for training
    chosen = trained if difficulty is None else whole_numbers("difficulty", difficulty)
    if steps is None:
        steps = min(5 * recipe.steps, getattr(loaded.model, "max_steps", None) or 5 * recipe.steps)
        steps -= steps % read_every
    at_least(min(1, recipe.steps), steps=steps)  # some models have the answer when they have read the problem
    if chunk is None:
        chunk = 100 if device.type == "cuda" else 20
    chunk = min(chunk, how.samples)
    batches: Iterable[Batch]
    left_out: dict[str, int] = {}
    if read is not None and file is not None:
        batch, left_out = read(file, how.samples)
        batches, expected = [batch], len(batch)
    else:
        batches = sampled(loaded, chosen, how.samples, seed, chunk, steps // read_every)
        expected = how.samples * len(chosen)
    found = curves(loaded, batches, expected, steps, chunk, read_every, how)
    document: dict[str, Any] = {
        "weights": how.name,
        "task": loaded.task.name,
        "unit": loaded.task.unit,
        "trained": {"difficulty": list(recipe.difficulty), "steps": recipe.steps},
        "seed": seed,
        **({} if file is None else {"file": file.name, "left_out": left_out}),
        **loaded.changes(how.settings),
        "device": str(device),
        "precision": how.precision,
        "curves": [curve.to_json() for curve in found],
    }
    if how.out is not None:
        write_json(how.out, document)
    if plot is not None:
        from longthink.plots import accuracy_plot

        pictures.save_figure(accuracy_plot(document), plot)
    if how.as_json:
        print(json.dumps(document))
        return
    _print_accuracy(loaded, document["curves"], how.name, steps, file)
    tell_training(loaded, how.settings)
    if unfinished(how.name):
        print(f"unfinished  weights of update {loaded.card.get('updates')} of {recipe.updates}; its training can go on")
    if sum(left_out.values()):
        print(f"left out  {omitted(left_out, expected)}")
    if isinstance(loaded.task, CountsParts):
        limit = loaded.task.failed_above
        errors = [curve["error"][-1] for curve in document["curves"]]
        failed = sum(error > limit for error in errors)
        print(f"wrong {loaded.task.parts}  {sum(errors) / len(errors):.1%} on average, {failed} above {limit:.0%}")
    for path in (how.out, plot):
        if path is not None:
            print(f"written  {path}")


def sampled(
    loaded: Loaded, difficulties: Sequence[int], samples: int, seed: int, chunk: int, kept_steps: int
) -> Iterator[Batch]:
    """Problems of the test split, a batch a difficulty; complaints about any of them come before the work."""
    task = loaded.task
    habits = HABITS.get(task.name)
    for difficulty in difficulties:
        check_difficulty(task, difficulty, seed)
        if habits is not None:
            outputs = habits.outputs(difficulty)
            # A problem has its input, a target and a mask at each place; a curve three numbers at each step.
            kept = samples * (outputs * (4 * task.shape.get("inputs", 2) + 9) + kept_steps * 12)
            limits.check_memory(loaded, outputs, chunk, kept)
    found = (task.sample(without_repeats(task, samples, d, "test"), d, seed, "test") for d in difficulties)
    if habits is not None:  # images are made when it is their turn
        return found
    batches = list(found)
    for batch in batches:
        limits.check_memory(loaded, limits.places_of(batch), min(chunk, len(batch)))
    return iter(batches)


def curves(
    loaded: Loaded,
    batches: Iterable[Batch],
    expected: int,
    steps: int,
    chunk: int,
    read_every: int,
    how: How,
) -> list[Curve]:
    """A curve a batch, and people see how far it is; ``expected``: about how many problems there are."""
    device = next(loaded.model.parameters()).device
    bf16 = torch.autocast(device.type, torch.bfloat16) if how.precision == "bf16" else nullcontext()
    found: list[Curve] = []
    with Report("steps of all samples", expected * max(1, steps), 0, how.as_json) as progress, bf16:
        for batch in batches:
            news = f"{loaded.task.unit}: {batch.difficulty}" if batch.difficulty else ""
            report = partial(_tell, progress, news)
            options: dict[str, Any] = {"chunk": chunk, "read_every": read_every, "on_step": report}
            found.append(curve(loaded.model, loaded.task, batch, steps, **options))
            if not steps:  # it has read them
                report(len(batch))
    return found


def _tell(progress: Report, news: str, samples: int) -> None:
    progress.update(progress.done + samples, news)


def _print_accuracy(loaded: Loaded, found: Sequence[dict[str, Any]], name: str, steps: int, file: Path | None) -> None:
    columns = ["peak", "at step", "final", "most confident", "steps to solve", "n"] if steps else ["solved", "n"]
    rows = [summary(curve) if steps else told(curve) for curve in found]
    if isinstance(loaded.task, CountsParts):
        columns.append(f"wrong {loaded.task.parts}")
        rows = [[*row, f"{curve['error'][-1]:.1%}"] for row, curve in zip(rows, found, strict=True)]
    first = loaded.task.unit
    if file is not None:
        first, rows = "file", [[file.name, *row[1:]] for row in rows]
    print_table((first, *columns), rows, f"{name}: solved within {steps} steps" if steps else name)


def summary(curve: dict[str, Any]) -> list[str]:
    """A row of the table."""
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


def told(curve: dict[str, Any]) -> list[str]:
    """Of a network that takes no steps."""
    return [str(curve["difficulty"]), f"{curve['final_accuracy']:.1%}", str(curve["samples"])]


def omitted(left_out: dict[str, int], kept: int) -> str:
    """How many problems of a file were not tested, and why."""
    reasons = {"other_operators": "with operators that the task lacks", "too_long": "too long"}
    counts = ", ".join(f"{count:,} {reasons[reason]}" for reason, count in left_out.items() if count)
    return f"{sum(left_out.values()):,} of {kept + sum(left_out.values()):,} problems: {counts}"


def bits(loaded: Loaded, how: How, memory: str | None, farthest: int | None) -> None:
    """What a language model is measured in, over the first blocks of a test text, by how far it looks back."""
    blocks = how.samples
    options: dict[str, Any] = {"blocks": blocks, "half": how.precision == "bf16", "farthest": farthest}
    wanted = () if memory is None else whole_numbers("memory", memory)
    at_least(0, memory=min(wanted, default=0))
    assert isinstance(loaded.model, Language)
    assert isinstance(loaded.task, Text)
    about = loaded.task.tokens("test")[1]
    lengths = sorted({*wanted, loaded.model.evaluation_memory})
    there = loaded.task.stream("test", 1, max(loaded.recipe.difficulty), whole=True).blocks
    found: dict[int, Measured] = {}
    each = min(blocks, there)
    with Report("blocks", len(lengths) * each, 0, how.as_json) as progress:
        for length in lengths:
            before = len(found) * each

            def tell(number: int, so_far: Measured, before: int = before, length: int = length) -> None:
                progress.update(before + number, f"memory {length}: {so_far.bits_per_byte:.4f} bits per byte")

            found[length] = measure_weights(loaded, memory=length, on_block=tell, **options)
    document = {
        "weights": how.name,
        "task": loaded.task.name,
        "corpus": loaded.task.corpus,
        **loaded.changes(how.settings),
        "device": str(next(loaded.model.parameters()).device),
        "precision": how.precision,
        "trained": {"memory": loaded.model.memory},
        "blocks": each,
        "bytes without tokens": about.lost,  # of the whole test text
        "farthest": farthest,
        "memories": [{"memory": length, **one.to_json()} for length, one in found.items()],
    }
    if how.out is not None:
        write_json(how.out, document)
    if how.as_json:
        print(json.dumps(document))
        return
    columns = ("memory", "bits per byte", "bits per token", "perplexity", "tokens")
    rows = [
        [
            str(length),
            f"{one.bits_per_byte:.4f}",
            f"{one.bits_per_token:.4f}",
            f"{one.perplexity:.2f}",
            f"{one.tokens:,}",
        ]
        for length, one in found.items()
    ]
    which = f"all {there}" if blocks >= there else f"the first {blocks}"
    title = f"{how.name}: {which} blocks of the test text of {loaded.task.corpus}, by how far it looks back"
    usual = f"training: {loaded.model.memory}, by itself: {loaded.model.evaluation_memory}"
    print_table(columns, rows, f"{title} ({usual})")
    if about.lost:
        whole = about.bytes + about.lost
        print(f"unknown  {about.lost:,} of {whole:,} bytes are in no token: bits are per byte of the others")
    if how.out is not None:
        print(f"written  {how.out}")
