"""The published Deep Thinking runs by name (Tables 4.1-4.3 and 5.2-5.4), and ours.

Where the text and the public code differ, decided as follows:

- decay factor of prefix sums and chess: 0.1 as in every public configuration (Table 5.7 prints 0.01);
- chess: 130 epochs, milestones 100 and 115, warm-up 10 as in the public configuration (Table 5.7: 120; 100, 110; 3);
- mazes: the learning rate of the recurrent weights is divided by m, as the public code does and the text does not say;
- the maze loss is averaged over non-wall pixels, as in the public code (the text: all pixels);
- DT without recall on prefix sums with alpha = 1 has learning rate 1e-4, as its public launch line says;
- chapter 4 pads mazes to 32 x 32; ours keep their 24 x 24 pixels, since the networks are fully convolutional;
- chapter 4's prefix head is 60, 30, 2 as in the text (the public code: 120, 60, 2); dilation is 2 (no source says it);
- weights without gradient in an update (the projection when n > 0 and alpha = 1) are left alone; the public code's
  zero gradients let weight decay shrink them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from longthink.training.recipe import Recipe, add, recipes

_KINDS: dict[str, dict[str, Any]] = {
    "dt": {"recall": False},
    "dt_recall": {"recall": True},
    "ff": {"recall": False, "distinct_steps": 30},
}

_PREFIX = Recipe(
    name="",
    task="prefix_sums",
    difficulty=(32,),
    model_options={"width": 400, "head": [400, 200]},
    note="Table 5.2; settings of Table 5.7",
    train_samples=8_000,
    valid_samples=2_000,
    batch=100,
    epochs=150,
    optimizer="adam",
    learning_rate=1e-3,
    decay_epochs=(60, 100),
    clip=1.0,
)
_MAZES = Recipe(
    name="",
    task="mazes",
    difficulty=(9,),
    model_options={"width": 128, "head": [32, 8]},
    note="Table 5.3; settings of Table 5.7, recurrent weights throttled as in the public code",
    train_samples=40_000,
    valid_samples=2_000,
    batch=50,
    epochs=50,
    optimizer="adam",
    learning_rate=1e-3,
    recurrent_scale=1 / 30,
)
_CHESS = Recipe(
    name="",
    task="chess",
    difficulty=tuple(range(1, 9)),
    model_options={"width": 512, "head": [32, 8]},
    note="Table 5.4; settings of the public configuration, on the easier 80% of the puzzle file",
    train_samples=480_000,
    valid_samples=2_000,
    batch=300,
    epochs=130,
    optimizer="sgd",
    learning_rate=1e-2,
    decay_epochs=(100, 115),
)


def _with_model(recipe: Recipe, **options: Any) -> Recipe:
    return replace(recipe, model_options={**recipe.model_options, **options})


def _chapter_5() -> None:
    for base, alpha in ((_PREFIX, 1.0), (_MAZES, 0.01), (_CHESS, 0.5)):
        for kind, options in _KINDS.items():
            for weight in (0.0, alpha) if kind != "ff" else (0.0,):
                recipe = _with_model(replace(base, alpha=weight), **options)
                if kind == "ff":
                    recipe = replace(recipe, recurrent_scale=1.0)
                if kind == "ff" and base is _MAZES:  # the "Mazes (FF)" row of Table 5.7
                    recipe = replace(recipe, learning_rate=1e-4, epochs=200, decay_epochs=(175,))
                if kind == "dt" and base is _PREFIX and weight == 1:
                    recipe = replace(recipe, learning_rate=1e-4)
                add(replace(recipe, name=f"{base.task}-{kind}-alpha{weight:g}"))
    ablation = _with_model(replace(_PREFIX, alpha=1.0, zero_n=True), recall=True)
    add(replace(ablation, name="prefix_sums-dt_recall-zero_n", note="Section 5.4: n is always 0"))


def _chapter_4() -> None:
    prefix = replace(
        _with_model(_PREFIX, width=120, head=[60, 30], recall=False),
        note="Table 4.1; settings of section 4.2",
        batch=150,
        epochs=500,
        decay_epochs=(100, 200, 300),
        decay_factor=0.5,
    )
    mazes = replace(
        _with_model(_MAZES, recall=False),
        note="Tables 4.2 and 4.3; settings of section 4.2",
        optimizer="sgd",
        epochs=200,
        warmup_epochs=5,
        decay_epochs=(175,),
        recurrent_scale=1.0,
    )
    rows = [
        ("4.1", prefix, {}, (40, 44, 48)),
        ("4.2", mazes, {}, (20, 24, 28, 36, 44)),
        ("4.3", mazes, {"dilation": 2}, (20, 24, 28, 32, 36)),
    ]
    for table, base, options, depths in rows:
        for depth in depths:
            steps = (depth - 4) // 4  # effective depth = 1 + 4 steps + 3
            shared = _with_model(replace(base, steps=steps), **options)
            add(replace(shared, name=f"table{table}-recurrent-{depth}"))
            add(replace(_with_model(shared, distinct_steps=steps), name=f"table{table}-feedforward-{depth}"))


def _ours() -> None:
    """Long-horizon training: every fourth update also thinks on, far past m, and must still be right there."""
    patience: dict[str, Any] = {
        "alpha": 0.5,
        "progressive_every": 4,
        "first_n": 30,
        "fresh": True,
        "clip": 1.0,
        "schedule": "cosine",
        "warmup_epochs": 2,
        "decay_epochs": (),
        "average": 0.999,
        "valid_samples": 1_000,
    }
    mazes = replace(
        _with_model(_MAZES, recall=True),
        **patience,
        name="mazes-long",
        note="long-horizon progressive loss, averaged weights",
        horizon=200,
        batch=200,
        train_samples=20_000,
        epochs=52,
        learning_rate=2e-3,
        recurrent_scale=0.05,
        validate_every=4,
    )
    prefix = replace(
        _with_model(_PREFIX, recall=True),
        **patience,
        name="prefix_sums-long",
        note="long-horizon progressive loss, averaged weights",
        horizon=300,
        epochs=20,
        validate_every=5,
    )
    sudoku = replace(
        _with_model(_MAZES, recall=True, width=192, head=[64, 32], norm="pixel"),
        **{key: value for key, value in patience.items() if key not in ("fresh", "first_n")},
        name="sudoku-long",
        task="sudoku",
        note="section 6.1 gives no settings; ours: long-horizon progressive loss, averaged weights",
        difficulty=(36, 40, 45, 50, 60),
        steps=16,
        first_n=16,
        horizon=160,
        ramp_epochs=6,
        batch=500,
        train_samples=400_000,
        epochs=15,
        learning_rate=2e-3,
        recurrent_scale=0.5,
        validate_every=1,
    )
    chess = replace(
        _with_model(_CHESS, recall=True, width=256, norm="pixel"),
        **{key: value for key, value in patience.items() if key not in ("fresh", "first_n")},
        name="chess-long",
        note="long-horizon progressive loss, averaged weights, half the published width",
        steps=20,
        first_n=20,
        horizon=200,
        ramp_epochs=6,
        train_samples=59_000,
        batch=500,
        epochs=18,
        optimizer="adamw",
        learning_rate=1e-3,
        recurrent_scale=0.5,
        weight_decay=1e-2,
        validate_every=2,
    )
    add(sudoku)
    add(chess)
    add(mazes)
    add(prefix)
    # Figure 5.17, as published and with the long-horizon loss.
    for base in (recipes["prefix_sums-dt_recall-alpha1"], prefix):
        for width in (50, 100, 200):
            add(replace(_with_model(base, width=width, head=[width, width // 2]), name=f"{base.name}-width{width}"))
        for steps in (10, 20):
            add(replace(base, name=f"{base.name}-m{steps}", steps=steps, first_n=min(base.first_n, steps)))
    # The same training without recall: what the architecture alone is worth.
    add(replace(_with_model(prefix, recall=False), name="prefix_sums-long-no_recall"))
    # The published comparisons of mazes in a twentieth of their updates: batch and schedule of mazes-long, m steps and
    # nothing after them.
    short = replace(mazes, alpha=0.0, horizon=None, first_n=0, progressive_every=1, epochs=20)
    add(
        replace(
            _with_model(short, recall=False), name="mazes-short-dt", note="no recall, m steps; schedule of mazes-long"
        )
    )
    add(
        replace(
            _with_model(short, recall=False, distinct_steps=30),
            name="mazes-short-ff",
            note="feed-forward; schedule of mazes-long, learning rate of Table 5.7 for batch 200",
            learning_rate=4e-4,
            recurrent_scale=1.0,
            epochs=15,
        )
    )


_chapter_5()
_chapter_4()
_ours()
