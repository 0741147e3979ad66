"""Language models by name: the rows of Tables 7.1-7.4 and F.4 on enwik8 and WikiText-103, and the same on Python. (Of
F.1 those with as many parameters; product keys start like the dense layer that they approximate, its "PKM + init".)

Names are corpus, size where there are several, feed-forward kind: ``enwik8-sigma_moe``, ``wikitext103-big-dense``;
``text-...`` are enwik8's networks on the sources of Python, which need no download, and ``text-mini-...`` such that are
a quarter as wide, for a CPU. What a text needs beside the usual: the difficulty is the length of a block, ``batch`` the
number of streams, an epoch 1,000 updates whatever the corpus.
On Python's sources 41M parameters are trained for 3,000 updates (minutes on a GPU), in epochs of 500: that is 9 MB five
times, and of ``task.corpus=sources`` 49 of 64 MB once.

Where the text and the public code differ we follow the text: gradients are clipped at 0.25 (the code: the dense 47M
model at 0.1), WT-B drops experts with 0.2 (the code: 0.1), Switch has the loss of Eq. 7.16 (the code: a mean over
experts in place of N_E times the sum). S-BASE balances its assignment, which the public code meant to do but did not,
and drops no experts (the code: as sigma-MoE); it has sigma-MoE's entropy term too, as F.2 says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from longthink.training.recipe import Recipe, add, recipes

_EPOCH = 1000  # updates
_PYTHON: dict[str, Any] = {"epochs": 6, "train_samples": 500 * 32}


class _Size(NamedTuple):
    """A column of Tables F.2 and F.3."""

    width: int
    layers: int
    heads: int
    head_size: int
    block: int
    batch: int
    dropout: float
    dense: int
    """d_ff of the dense row."""
    experts: int
    """N_E of sigma-MoE, with G = 128."""
    gamma: float
    delta: float
    values: int | None
    """Of the product-key memory with as many parameters."""
    warmup: int = 0
    unit: int = 128
    """G, the hidden units of an expert."""
    task: dict[str, Any] = {}  # noqa: RUF012 (a tuple's default)


_SUBWORDS = {"corpus": "wikitext103", "tokeniser": "sentencepiece", "pieces": 8000}
_SIZES = {
    "enwik8": _Size(512, 12, 8, 64, 512, 32, 0.1, 2053, 16, 1e-4, 0.05, 62**2, task={"corpus": "enwik8"}),
    "wikitext103-small": _Size(412, 16, 10, 41, 256, 64, 0.1, 2053, 16, 1e-3, 0.0, 62**2, task=_SUBWORDS),
    "wikitext103-wide": _Size(412, 16, 10, 41, 256, 64, 0.1, 16480, 128, 1e-3, 0.05, None, task=_SUBWORDS),
    "wikitext103-big": _Size(1024, 18, 16, 64, 512, 64, 0.2, 4110, 32, 1e-3, 0.2, 89**2, 4, task=_SUBWORDS),
}
_SIZES["text"] = _SIZES["enwik8"]._replace(task={}, dense=2056)  # 2053 columns keep a GPU's fast products away


def _mixture(size: _Size, experts: int, k: int, **options: Any) -> dict[str, Any]:
    """Experts of G units, or other ``units``."""
    units = options.pop("units", size.unit)
    chosen = {"experts": experts, "k": k, "balance_weight": size.gamma, **options}
    return {"hidden": experts * units, "feedforward": "experts", "feedforward_options": chosen}


def _top_k(size: _Size, k: int) -> dict[str, Any]:
    return {"hidden": size.dense, "feedforward": "top_k", "feedforward_options": {"k": k, "dropout": size.dropout}}


def rows(size: _Size) -> dict[str, dict[str, Any]]:
    """Model options of each feed-forward kind; all have the same number of parameters, to 1%."""
    n, g, drop = size.experts, size.unit, size.dropout
    switch = {"selection": "switch", "balance": "switch", "initialisation": "switch", "balance_weight": 0.01}
    pkm = {"hidden": size.values, "feedforward": "product_keys"}
    found: dict[str, dict[str, Any]] = {
        "dense": {"hidden": size.dense},
        "top_k": _top_k(size, g),
        "switch": _mixture(size, n // 4, 1, units=4 * g, dropout=drop, **switch),
        "s_base": _mixture(size, n, 4, selection="sinkhorn"),
        "sigma_moe": _mixture(size, n, 4, expert_dropout=size.delta),
    }
    if size.values is not None:
        found["pkm_softmax"] = {**pkm, "feedforward_options": {"activation": "softmax"}}
        found["pkm_relu"] = {**pkm, "feedforward_options": {"activation": "relu"}}
    return found


def ablations(size: _Size) -> dict[str, dict[str, Any]]:
    """The other rows of Tables 7.1, 7.4 and F.4, and some of ours; k is the number of active experts, g their size."""
    n, g, delta = size.experts, size.unit, {"expert_dropout": size.delta}
    switch = {"selection": "switch", "balance": "switch", "initialisation": "switch", "balance_weight": 0.01}
    return {
        "dense-no_dropout": {"hidden": size.dense, "feedforward_options": {"dropout": 0.0}},
        "sigma_moe-standard_dropout": _mixture(size, n, 4, dropout=size.dropout),
        "sigma_moe-softmax_after": _mixture(size, n, 4, selection="softmax_after", **delta),
        "sigma_moe-softmax_before": _mixture(size, n, 4, selection="softmax", **delta),
        "sigma_moe-standard_init": _mixture(size, n, 4, initialisation="standard", **delta),
        "sigma_moe-no_dropout": _mixture(size, n, 4),
        "sigma_moe-standard_init-no_dropout": _mixture(size, n, 4, initialisation="standard"),
        "sigma_moe-balanced": _mixture(size, n, 4, balance_weight=0.01),
        "sigma_moe-no_regularisation": _mixture(size, n, 4, balance=None),
        f"sigma_moe-k8-g{g // 2}": _mixture(size, 2 * n, 8, units=g // 2, **delta),
        f"sigma_moe-k2-g{2 * g}": _mixture(size, n // 2, 2, units=2 * g, **delta),
        f"sigma_moe-k1-g{4 * g}": _mixture(size, n // 4, 1, units=4 * g, **delta),
        f"sigma_moe-k4-g{g // 2}": _mixture(size, 2 * n, 4, units=g // 2, **delta),
        "sigma_moe-k1": _mixture(size, n, 1, **delta),
        "sigma_moe-k2": _mixture(size, n, 2, **delta),
        "sigma_moe-k8": _mixture(size, n, 8, **delta),
        f"top_k-{g // 2}": _top_k(size, g // 2),
        f"top_k-{2 * g}": _top_k(size, 2 * g),
        f"top_k-{4 * g}": _top_k(size, 4 * g),
        "switch-no_dropout": _mixture(size, n // 4, 1, units=4 * g, **switch),
        f"switch-k4-g{g}": _mixture(size, n, 4, dropout=size.dropout, **switch),
        f"switch-k1-g{g}": _mixture(size, n, 1, dropout=size.dropout, **switch),
        f"switch-k1-g{g}-no_dropout": _mixture(size, n, 1, **switch),
        f"s_base-k1-g{4 * g}": _mixture(size, n // 4, 1, units=4 * g, selection="sinkhorn"),
        "s_base-standard_init": _mixture(size, n, 4, selection="sinkhorn", initialisation="standard"),
        "s_base-published": _mixture(size, n, 4, selection="sinkhorn", selection_options={"published": True}),
    }


def _recipe(name: str, size: _Size, options: dict[str, Any], note: str) -> Recipe:
    model = {
        "width": size.width,
        "heads": size.heads,
        "head_size": size.head_size,
        "distinct_steps": size.layers,
        "memory": size.block,  # and four times that in evaluation
        "dropout": size.dropout,
    }
    return Recipe(
        name=name,
        task="text",
        difficulty=(size.block,),
        task_options=dict(size.task),
        model="language",
        model_options={**model, **options},
        note=note,
        steps=size.layers,
        train_samples=_EPOCH * size.batch,
        fresh=True,
        valid_samples=400,
        batch=size.batch,
        epochs=100,
        optimizer="adam",
        learning_rate=2.5e-4,
        weight_decay=0.0,
        clip=0.25,
        warmup_epochs=0,
        warmup_updates=_EPOCH * size.warmup,
        schedule="cosine",
    )


def _moeut(name: str, task: dict[str, Any]) -> Recipe:
    """The smallest published profile; block, batch and rates are those of chapter 7, of which it says nothing."""
    experts = {"experts": 155, "k": 12, "balance_weight": 0.01}
    options = {
        "width": 412,
        "hidden": 155 * 128,
        "heads": 4,
        "head_size": 82,
        "group": 2,
        "planned_steps": 8,
        "evaluation_memory": 0,
        "attention_options": {"experts": 8, "k": 2},
        "feedforward": "experts",
        "feedforward_options": experts,
    }
    base = _recipe(name, _SIZES["wikitext103-small"]._replace(task=task, block=512, batch=32), {}, "")
    note = "the 44M profile of MoEUT's public code; 16 layers, 2 of them distinct"
    return replace(base, model="moeut", model_options=options, steps=8, patient_steps=8, note=note)


_NOT_PRINTED = {
    "dense-no_dropout",
    "sigma_moe-no_dropout",
    "sigma_moe-standard_init-no_dropout",
    "sigma_moe-balanced",
    "s_base-standard_init",
    "s_base-published",
}
"""Networks of ours, to tell apart what a row's settings do."""


def _published() -> None:
    for corpus, size in _SIZES.items():
        ours = corpus == "text"
        where = "enwik8's networks on Python, 3,000 updates" if ours else "settings of Tables F.2 and F.3"
        for row, options in {**rows(size), **ablations(size)}.items():
            from_where = "in no table" if row in _NOT_PRINTED else "Tables 7.1-7.4 and F.4"
            recipe = _recipe(f"{corpus}-{row}", size, options, f"{from_where}; {where}")
            add(replace(recipe, **_PYTHON) if ours else recipe)
    add(replace(_moeut("text-moeut", {}), **_PYTHON))
    add(_moeut("wikitext103-moeut", _SUBWORDS))


def _small() -> None:
    """What a laptop can train in minutes."""
    size = _Size(128, 4, 4, 32, 128, 16, 0.0, 514, 8, 1e-3, 0.0, None, unit=64)
    for row, hidden in (("dense", {"hidden": 514}), ("sigma_moe", _mixture(size, 8, 2))):
        recipe = _recipe(f"text-small-{row}", size, hidden, "a small one for a CPU")
        add(replace(recipe, epochs=5, learning_rate=1e-3, valid_samples=100))
    shared = {
        "width": 128,
        "heads": 2,
        "head_size": 32,
        "memory": 128,
        "group": 2,  # of 4 layers 2 are distinct
        "planned_steps": 2,
        "attention_options": {"experts": 4, "k": 2},
        **_mixture(size, 21, 6, balance_weight=0.01),
    }
    moeut = replace(recipes["text-small-dense"], name="text-small-moeut", model="moeut", model_options=shared)
    add(replace(moeut, steps=2, patient_steps=2, note="MoEUT, as large as the other small ones, for a CPU"))


def _mini() -> None:
    """The rows of the large ones with a quarter of their width and of their experts' units: minutes on a CPU, which
    reads 2 MB once. Nothing is read twice, so there is no dropout, and rows that differ in it alone are left out."""
    size = _Size(128, 4, 4, 32, 128, 16, 0.0, 514, 16, 1e-4, 0.0, 30**2, unit=32)
    for row, options in {**rows(size), **ablations(size)}.items():
        if "dropout" in row:
            continue
        recipe = _recipe(f"text-mini-{row}", size, options, "a quarter of text's width, 1,000 updates, for a CPU")
        settings: dict[str, Any] = {"learning_rate": 3e-3, "warmup_updates": 100, "valid_samples": 100}
        add(replace(recipe, epochs=1, **settings))


_published()
_small()
_mini()
