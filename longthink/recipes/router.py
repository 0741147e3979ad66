"""The published runs of chapters 5 and 6 by name: every row of Tables 5.1-5.4, D.1, D.2 and 6.1.

Where the text and the public code differ: attention dropout falls on the query as in the text (the code: on the keys);
depths are counted in operations, so tests have depths 7 and 8 (the code counts leaves too: 8 and 9); CTL++'s router has
d_ff 512 as its published parameter count demands (the text says 1024), and its Transformer d_ff 256 and a dropout of
0.1 as in the code (the text: 512; 0.5 for all). Transformers without gates begin with small embeddings, of deviation
sqrt(2 / d), on which the text is silent: in the code those with relative or geometric positions do, and those with
absolute ones begin with deviation 1, from which ours do not learn in time. Geometric attention without a gate divides
its weights by their sum in the code; ours never does (Eq. 5.7). In the code, relative positions have a learned scale,
projections of geometric attention begin with the deviation of each head's own matrix, embeddings with absolute
positions have a dropout of 0.1 whatever the rest has, and arithmetic's relative Transformer has an attention dropout of
0.1; the text has none of these, nor have ours. ListOps is read from the first column, as in the code (D.3.3: from the
last). CTL's training set has as many problems of each depth as the code's,
which draws depths alike and keeps each problem once, so that half have five functions and few one or two (equal parts,
as in the text, leave few different ones of five functions). Ours may repeat, as half of all problems are kept for
tests; and all depths come up equally often. CTL++'s has equal parts where there are enough different problems (E.1.2);
the public code adds all pairs of functions that training allows, ours has half of them, for the others validate. Each
problem is in it once: all single functions with a symbol, all pairs and triples that are for training, and longer ones
in equal parts. Depths come up equally often here too: otherwise eight in a thousand problems have one or two functions,
and learning begins much later. Its answers are read from the first column (the begin token, next to the function that
is applied last), and its router has no weight decay: so in the public code, where the text is silent. Its Transformer
has a rate of 5e-4, with which all seeds learn (published: 1.5e-4, with which half of them did, after up to 300,000
updates). Arithmetic begins at depth 1, of which half of the 200 problems are kept for tests (text: 0 to 5; the code
trains on all 200). Checkpoints are chosen by easy validation accuracy, never by deeper problems (the published runs
used a depth validation set); a run is over when ten validations in a row were without an error (the published ones went
on). What is validated and kept is the average of about the last 1,000 updates' weights, but for the short recipes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from longthink.layers.act import VARIANTS
from longthink.training.recipe import Recipe, add, recipes

_LSTM = {"model": "lstm", "steps": 0, "learning_rate": 1e-3, "weight_decay": 0.0}

# Tables D.3-D.5: model options and training settings by task and row.
_SMALL = {"width": 128, "hidden": 256, "heads": 4, "dropout": 0.1, "embedding_std": 0.125}
_GATED = {"gate": True, "attention_dropout": 0.1, "gate_dropout": 0.1}


S_GRID = tuple((shared, overlapping) for shared in (4, 8, 12, 16) for overlapping in (2, 4, 6))
"""Shared functions and overlapping symbols of the heat maps of CTL++ S (Figures 6.4, E.3, E.4; every other column)."""


def _rows(task: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Row name -> (model options, recipe fields)."""
    listops, arithmetic = task == "listops", task == "arithmetic"
    layers = {"ctl": 1, "arithmetic": 2, "listops": 4}[task]
    lstm_width = 512 if listops else 200
    lstm_dropout = 0.1 if listops else 0.5
    lstm: dict[str, Any] = {**_LSTM, "batch": 512 if listops else 256, "weight_decay": 0.08 if listops else 0.0}
    plain: dict[str, Any] = dict(_SMALL)
    plain_fields: dict[str, Any] = {"steps": 11, "learning_rate": 1.5e-4, "weight_decay": 2.5e-3}
    if arithmetic:
        plain["dropout"] = 0.5
    if listops:
        plain = {"width": 256, "hidden": 1024, "heads": 16, "dropout": 0.015, "attention_dropout": 0.05}
        plain["embedding_std"] = round(math.sqrt(2 / 256), 4)
        plain_fields = {"steps": 6, "learning_rate": 4e-4, "weight_decay": 0.05}
    gated: dict[str, Any] = {
        "ctl": {"width": 256, "hidden": 512, "heads": 1, "dropout": 0.5},
        "arithmetic": {"width": 256, "hidden": 1024, "heads": 4, "dropout": 0.5},
        "listops": {"width": 512, "hidden": 1024, "heads": 16, "dropout": 0.1},
    }[task]
    gated = {**gated, **_GATED, **({"gate_dropout": 0.05} if listops else {})}
    gated_fields: dict[str, Any] = {
        "ctl": {"steps": 14, "learning_rate": 1.5e-4, "weight_decay": 0.01},
        "arithmetic": {"steps": 15, "learning_rate": 1.5e-4, "weight_decay": 0.01},
        "listops": {"steps": 20, "learning_rate": 2e-4, "weight_decay": 0.09},
    }[task]
    if listops:
        plain["read_from"] = gated["read_from"] = "first"
    faster = gated_fields if arithmetic else {**gated_fields, "learning_rate": 2e-4}
    # Without geometric attention the public code of CTL has no gate dropout.
    other = {**gated, "gate_dropout": 0.0} if task == "ctl" else gated
    return {
        "lstm": ({"width": lstm_width, "layers": layers, "dropout": lstm_dropout}, lstm),
        "bilstm": (
            {"width": 2 * lstm_width, "layers": layers, "dropout": lstm_dropout, "bidirectional": True},
            lstm,
        ),
        "transformer": ({**plain, "attention": "absolute"}, plain_fields),
        "relative": ({**plain, "attention": "relative"}, plain_fields),
        "relative_gate": ({**other, "attention": "relative"}, faster),
        "gated_positions": ({**other, "attention": "gated_positions"}, faster),
        "geometric": ({**plain, "attention": "geometric"}, plain_fields),
        "router": ({**gated, "attention": "geometric"}, gated_fields),
    }


CTL_SHARES = (568, 417, 3_783, 20_833, 28_103)
"""What the public code has of each depth: compositions drawn in equal parts and kept once, until there are no more of 2
and 3 functions; and single ones, as many as it repeats."""

_CTL = Recipe(
    name="",
    task="ctl",
    difficulty=(1, 2, 3, 4, 5),
    shares=CTL_SHARES,
    balanced=True,
    valid_difficulty=(2, 3, 4, 5),
    model="transformer",
    note="Table 5.1; settings of Table D.3",
    train_samples=53_704,
    batch=512,
    epochs=288,  # 30,000 updates
    optimizer="adamw",
    clip=5.0,
    warmup_epochs=0,
    validate_every=10,
    enough=10,
    average=0.999,
)
_ARITHMETIC = replace(
    _CTL,
    task="arithmetic",
    difficulty=(1, 2, 3, 4, 5),
    shares=None,
    balanced=False,
    valid_difficulty=None,
    note="Table 5.3; settings of Table D.4",
    train_samples=100_000,
    epochs=513,  # 100,000 updates
    clip=1.0,
)
_LISTOPS = replace(
    _ARITHMETIC,
    task="listops",
    note="Table 5.4; settings of Table D.5",
    train_samples=1_000_000,
    epochs=51,
    validate_every=1,
)


def _published() -> None:
    for base in (_CTL, _ARITHMETIC, _LISTOPS):
        for row, (options, settings) in _rows(base.task).items():
            if base.task != "ctl" and row in ("relative_gate", "geometric"):  # which Tables 5.3 and 5.4 lack
                continue
            recipe = replace(base, model_options=options, **settings)
            recipe = replace(recipe, patient_steps=recipe.steps or None)
            if base.task != "ctl" and row not in ("router", "gated_positions"):
                recipe = replace(recipe, epochs=2 * recipe.epochs)  # 200,000 updates
            if recipe.batch == 256:  # as many updates as the others, on half as many problems
                recipe = replace(recipe, epochs=recipe.epochs // 2)
            for backward in (False, True) if base.task == "ctl" else (False,):
                name = f"{base.task}{'-backward' if backward else ''}-{row}"
                add(replace(recipe, name=name, task_options={"backward": True} if backward else {}))


def _short() -> None:
    """Routers for expressions in a fifth of the published updates, at higher rates and with a cosine: arithmetic with
    ten times the problems and little dropout, ListOps with half the channels."""
    short: dict[str, Any] = {"train_samples": 1_000_000, "epochs": 10, "validate_every": 1}
    short |= {"warmup_updates": 500, "schedule": "cosine", "average": None}
    for name, rate, changes in (
        ("arithmetic-router", 3e-4, {"dropout": 0.1}),
        ("listops-router", 4e-4, {"width": 256, "hidden": 512, "heads": 8}),
    ):
        full = recipes[name]
        options, note = {**full.model_options, **changes}, "the router in 19,530 updates"
        add(replace(full, name=f"{name}-short", model_options=options, learning_rate=rate, note=note, **short))


def _long() -> None:
    """Routers whose answers are to stay: every fourth update the long-horizon loss asks for them after up to 60 steps
    and as many more as in training. That of ListOps goes on where one with more updates of the plain kind ended, which
    are mostly on the deeper problems of the same training depths, for the short one makes no errors on the others."""
    horizon: dict[str, Any] = {"alpha": 0.5, "horizon": 60, "progressive_every": 4, "patient_steps": 100}
    note = "the router of Table 5.1 with the long-horizon loss"
    for name in ("ctl-router", "ctl-backward-router"):
        full = recipes[name]
        add(replace(full, name=f"{name}-long", note=note, first_n=full.steps, **horizon))
    short, note = recipes["listops-router-short"], "15,624 more updates of the short one, 2/3 on depths 4 and 5"
    deeper: dict[str, Any] = {"warmup_updates": 200, "average": 0.999, "shares": (1, 1, 2, 3, 5)}
    more = replace(
        short, name="listops-router-more", note=note, weights=short.name, learning_rate=3e-4, epochs=8, **deeper
    )
    add(more)
    note = "7,812 more updates with the long-horizon loss"
    long = replace(more, name="listops-router-long", note=note, weights=more.name, learning_rate=2e-4, epochs=4)
    add(replace(long, first_n=short.steps, **horizon))


def _shut() -> None:
    """Routers that go on with leaking gates shut: a gate below the threshold is 0 in training too, and gradients pass
    as if it were not. Waiting then costs nothing, so that nothing is lost in more steps than training has."""
    for source, threshold, epochs in (
        ("ctl-router", 0.1, 30),  # 3,120 updates
        ("ctl-backward-router", 0.1, 30),
        ("arithmetic-router-short", 0.06, 2),  # 3,906
        ("listops-router-more", 0.06, 2),
    ):
        before = recipes[source]
        options = {**before.model_options, "gate_threshold": threshold, "shut_in_training": True}
        settings: dict[str, Any] = {
            "learning_rate": 1e-4,
            "warmup_updates": 200,
            "schedule": "cosine",
            "epochs": epochs,
        }
        name = f"{before.task}{'-backward' if 'backward' in source else ''}-router-shut"
        note = f"{source}, gone on with gates below {threshold} shut"
        shut = replace(before, name=name, note=note, weights=source, model_options=options, **settings)
        add(replace(shut, enough=None, average=0.999))


def _with_experts() -> None:
    """The router whose update is a sigma-MoE of twice the units, a quarter of them active."""
    experts = {"experts": 8, "k": 2, "dropout": 0.5}
    for backward in (False, True):
        name = "ctl-backward-router" if backward else "ctl-router"
        dense = recipes[name]
        options = {**dense.model_options, "hidden": 1024, "feedforward": "experts", "feedforward_options": experts}
        note = "the router of Table 5.1 with 8 experts of 128 units, 2 of them active (Eq. 7.11)"
        add(replace(dense, name=f"{name}-sigma_moe", model_options=options, note=note))


def _ablations() -> None:
    """Tables 5.2 (layers), D.1 (read-out column) and D.2 (adaptive computation time), on CTL."""
    rows = _rows("ctl")
    for backward in (False, True):
        base = replace(_CTL, task_options={"backward": True} if backward else {})
        prefix = "ctl-backward" if backward else "ctl"

        def make(row: str, name: str, base: Recipe = base, prefix: str = prefix, **changes: Any) -> None:
            options, settings = rows[row]
            model = {**options, **changes.pop("model_options", {})}
            recipe = replace(base, name=f"{prefix}-{name}", model_options=model, **{**settings, **changes})
            add(replace(recipe, patient_steps=recipe.steps))

        for layers in (12, 10, 8, 6, 4):
            make("router", f"router-{layers}", steps=layers, note="Table 5.2")
        for row in ("transformer", "relative", "relative_gate"):
            make(row, f"{row}-first", model_options={"read_from": "first"}, note="Table D.1")
        for row in ("transformer", "relative", "geometric"):
            for variant in VARIANTS:
                name, options = f"{row}-{variant}", {"act": variant}
                note = "Table D.2, as published after 30,000 updates"
                note += "; probabilities to halt as in the public code" if variant == "graves_before" else ""
                make(row, name, model_options=options, steps=14, note=note)


def _other_sets(recipe: Recipe) -> None:
    """What short problems are for: none with one function; each as often as any other; both, nearly as in the public
    code, which has all pairs and not half of them."""
    without: dict[str, Any] = {"difficulty": recipe.difficulty[1:]}
    rare: dict[str, Any] = {"balanced": False}
    for name, changes in (("no_singles", without), ("short_rare", rare), ("public_set", {**without, **rare})):
        note = "Table 6.1 with another training set"
        add(replace(recipe, name=f"{recipe.name}-{name}", note=note, **changes))


def _ctlpp() -> None:
    rows: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "bilstm": (
            "lstm",
            {"width": 256, "layers": 1, "dropout": 0.5, "bidirectional": True},
            {"steps": 0, "clip": 5.0, "weight_decay": 0.0},
        ),
        "transformer": (
            "transformer",
            {**_SMALL, "attention": "relative", "attention_dropout": 0.1, "read_from": "first"},
            {
                "steps": 8,
                "clip": 5.0,
                "weight_decay": 2.5e-3,
                "epochs": 512,
                "validate_every": 5,
                "learning_rate": 5e-4,
            },
        ),
        "router": (
            "transformer",
            {
                "width": 256,
                "hidden": 512,
                "heads": 4,
                "dropout": 0.5,
                "attention": "geometric",
                "activation": "gelu",
                "residual_update": True,
                "read_from": "first",
                **_GATED,
            },
            {"steps": 8, "clip": 1.0, "weight_decay": 0.0},
        ),
    }
    for variant in ("A", "R", "S"):
        depths = (2, 4, 6) if variant == "S" else (1, 2, 3, 4, 5, 6)
        for row, (model, options, settings) in rows.items():
            recipe = replace(
                _CTL,
                name=f"ctlpp-{variant}-{row}",
                task="ctlpp",
                task_options={"variant": variant},
                difficulty=depths,
                shares=None,
                different=True,  # so that what there is too little of in equal parts, longer problems make up for
                valid_difficulty=tuple(d for d in depths if d > 1),
                model=model,
                model_options=options,
                note="Table 6.1 and Figure 6.4; settings of E.1.2 and of the public code",
                train_samples=300_000,
                warmup_updates=500,
                **{"epochs": 137, "validate_every": 1, "learning_rate": 1.5e-4, **settings},  # 80,000 updates
            )
            recipe = add(replace(recipe, patient_steps=recipe.steps or None))
            if variant != "S":
                _other_sets(recipe)
                if row == "router":
                    last = {**options, "read_from": "last"}
                    note = "the router of Table 6.1, read from the last column"
                    add(replace(recipe, name=f"{recipe.name}-last", model_options=last, note=note))
            else:
                for shared, overlapping in S_GRID:
                    options = {"variant": "S", "shared_functions": shared, "overlapping_symbols": overlapping}
                    name = f"{recipe.name}-{shared}-{overlapping}"
                    add(replace(recipe, name=name, task_options=options))


_published()
_short()
_long()
_shut()
_with_experts()
_ablations()
_ctlpp()
