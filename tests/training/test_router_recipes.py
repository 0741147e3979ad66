"""The recipes of chapters 5 and 6 have the settings that Tables D.3-D.5 and section E.1.2 print."""

from __future__ import annotations

from typing import Any

import pytest

from longthink.recipes import recipes
from longthink.studies import studies

_SMALL = (128, 256, 4, 11, 512, 1.5e-4, 2.5e-3)
_GATED = (256, 512, 1, 14, 512, 2e-4, 0.01, 0.5)
_DEEP = (256, 1024, 4, 15, 512, 1.5e-4, 0.01, 0.5)
_WIDE = (256, 1024, 16, 6, 512, 4e-4, 0.05, 0.015)
_WIDEST = (512, 1024, 16, 20, 512, 2e-4, 0.09, 0.1)

# d_model, d_ff, heads, layers, batch, rate, weight decay, dropout; thousands of updates
PRINTED: dict[str, tuple[tuple[Any, ...], int]] = {
    "ctl-lstm": ((200, None, None, 1, 256, 1e-3, 0.0, 0.5), 30),
    "ctl-bilstm": ((400, None, None, 1, 256, 1e-3, 0.0, 0.5), 30),
    "ctl-transformer": ((*_SMALL, 0.1), 30),
    "ctl-relative": ((*_SMALL, 0.1), 30),
    "ctl-geometric": ((*_SMALL, 0.1), 30),
    "ctl-relative_gate": (_GATED, 30),
    "ctl-gated_positions": (_GATED, 30),
    "ctl-router": ((256, 512, 1, 14, 512, 1.5e-4, 0.01, 0.5), 30),
    "arithmetic-lstm": ((200, None, None, 2, 256, 1e-3, 0.0, 0.5), 200),
    "arithmetic-bilstm": ((400, None, None, 2, 256, 1e-3, 0.0, 0.5), 200),
    "arithmetic-transformer": ((*_SMALL, 0.5), 200),
    "arithmetic-relative": ((*_SMALL, 0.5), 200),
    "arithmetic-gated_positions": (_DEEP, 100),
    "arithmetic-router": (_DEEP, 100),
    "listops-lstm": ((512, None, None, 4, 512, 1e-3, 0.08, 0.1), 200),
    "listops-bilstm": ((1024, None, None, 4, 512, 1e-3, 0.08, 0.1), 200),
    "listops-transformer": (_WIDE, 200),
    "listops-relative": (_WIDE, 200),
    "listops-gated_positions": (_WIDEST, 100),
    "listops-router": (_WIDEST, 100),
}


@pytest.mark.parametrize("name", PRINTED)
def test_settings_are_the_printed_ones(name: str) -> None:
    recipe = recipes[name]
    model = recipe.model_options
    sizes = (model.get("width"), model.get("hidden"), model.get("heads"), model.get("layers", recipe.steps))
    rates = (recipe.batch, recipe.learning_rate, recipe.weight_decay, model["dropout"])
    printed, thousands = PRINTED[name]
    assert (*sizes, *rates) == printed
    assert recipe.updates == pytest.approx(1000 * thousands, rel=0.005)  # whole epochs


@pytest.mark.parametrize(
    ("name", "clip", "gate", "column"),
    [
        ("ctl-router", 5.0, 0.1, None),
        ("ctl-relative_gate", 5.0, 0.0, None),
        ("arithmetic-router", 1.0, 0.1, None),
        ("listops-router", 1.0, 0.05, "first"),
        ("listops-gated_positions", 1.0, 0.05, "first"),
        ("listops-transformer", 1.0, None, "first"),
        ("listops-relative", 1.0, None, "first"),
        ("ctl-transformer", 5.0, None, None),
        ("ctl-backward-relative-first", 5.0, None, "first"),
        ("ctl-relative_gate-first", 5.0, 0.0, "first"),
        ("ctlpp-A-router", 1.0, None, "first"),
        ("ctlpp-R-transformer", 5.0, None, "first"),
    ],
)
def test_clip_gate_dropout_and_column(name: str, clip: float, gate: float | None, column: str | None) -> None:
    recipe = recipes[name]
    assert (recipe.clip, recipe.model_options.get("read_from")) == (clip, column)
    if gate is not None:
        assert recipe.model_options["gate_dropout"] == gate


@pytest.mark.parametrize("order", ["ctl", "ctl-backward"])
def test_ablations_change_what_they_are_named_after_and_nothing_else(order: str) -> None:
    router = recipes[f"{order}-router"]
    for layers in (12, 10, 8, 6, 4):  # Table 5.2
        fewer = recipes[f"{order}-router-{layers}"]
        assert (fewer.steps, fewer.patient_steps, fewer.model_options) == (layers, layers, router.model_options)
    for row in ("transformer", "relative", "relative_gate"):  # Table D.1
        first, last = recipes[f"{order}-{row}-first"], recipes[f"{order}-{row}"]
        assert first.steps == last.steps
        assert first.model_options == {**last.model_options, "read_from": "first"}
    for row in ("transformer", "relative", "geometric"):  # Table D.2: 14 layers, the baselines have 11
        for variant in ("graves", "universal", "graves_before"):
            adaptive, without = recipes[f"{order}-{row}-{variant}"], recipes[f"{order}-{row}"]
            assert (adaptive.steps, without.steps) == (14, 11)
            assert adaptive.model_options == {**without.model_options, "act": variant}


@pytest.mark.parametrize("name", ["ctlpp-A-router", "ctlpp-R-router", "ctlpp-S-router-16-6"])
def test_routers_of_ctlpp_update_as_in_e_1(name: str) -> None:
    assert recipes[name].model_options["residual_update"] is True
    assert recipes[name].updates == pytest.approx(80_000, rel=0.005)


@pytest.mark.parametrize("name", ["ctlpp-A-transformer", "ctlpp-R-transformer"])
def test_transformers_of_ctlpp_have_the_published_updates(name: str) -> None:
    assert recipes[name].updates == pytest.approx(300_000, rel=0.005)


@pytest.mark.parametrize(
    ("task", "plain", "gated", "deviation"),
    [("ctl", 0.0, 0.1, 0.125), ("arithmetic", 0.0, 0.1, 0.125), ("listops", 0.05, 0.1, 0.0884)],
)
def test_dropout_of_attention_and_first_embeddings(task: str, plain: float, gated: float, deviation: float) -> None:
    """D.3.1 to D.3.3; embeddings of networks without gates begin as the module says, sqrt(2 / width)."""
    for row in ("transformer", "relative", *(("geometric",) if task == "ctl" else ())):
        options = recipes[f"{task}-{row}"].model_options
        assert (options.get("attention_dropout", 0.0), options["embedding_std"]) == (plain, deviation)
        assert deviation == pytest.approx((2 / options["width"]) ** 0.5, abs=1e-4)
    for row in ("gated_positions", "router", *(("relative_gate",) if task == "ctl" else ())):
        options = recipes[f"{task}-{row}"].model_options
        assert (options["attention_dropout"], options.get("embedding_std")) == (gated, None)
        assert options["gate"] is True
        assert recipes[f"{task}-{row}"].warmup_updates == recipes[f"{task}-{row}"].warmup_epochs == 0


def test_settings_of_ctlpp() -> None:
    for variant in "ARS":
        router, transformer, lstm = (recipes[f"ctlpp-{variant}-{kind}"] for kind in ("router", "transformer", "bilstm"))
        assert (router.steps, transformer.steps, lstm.steps) == (8, 8, 0)
        assert (router.weight_decay, transformer.weight_decay, lstm.weight_decay) == (0.0, 2.5e-3, 0.0)
        assert (router.learning_rate, lstm.learning_rate, router.batch) == (1.5e-4, 1.5e-4, 512)
        assert router.updates == pytest.approx(80_000, rel=0.005)
        options = {name: router.model_options[name] for name in ("width", "hidden", "heads", "dropout", "activation")}
        assert options == {"width": 256, "hidden": 512, "heads": 4, "dropout": 0.5, "activation": "gelu"}


def test_routers_are_tested_with_more_layers_where_it_is_printed() -> None:
    steps = {
        name: {row.recipe: row.steps for row in studies[name].rows} for name in ("listops", "ctlpp_A", "ctlpp_R", "ctl")
    }
    assert steps["listops"]["listops-router"] == 24
    assert steps["ctlpp_A"]["ctlpp-A-router"] == steps["ctlpp_R"]["ctlpp-R-router"] == 10
    assert steps["ctl"]["ctl-router"] is None
