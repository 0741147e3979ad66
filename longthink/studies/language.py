"""Tables 7.1-7.4 and F.4: feed-forward kinds of the same number of parameters in one language model, on the published
texts with the published figures beside ours, and on texts that need no download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from longthink.loading import Loaded
from longthink.perplexity import measure
from longthink.recipes import recipes
from longthink.studies.base import Exam, Row, Study, add, spread
from longthink.tasks.text import Text


def kinds(g: int) -> dict[str, str]:
    """Recipes and rows of a table of feed-forward kinds, with experts of g units."""
    return {
        "dense": "dense",
        "dense-no_dropout": "dense, no dropout of units",
        "top_k": f"Top-K, {g}",
        "pkm_softmax": "product keys, softmax",
        "pkm_relu": "product keys, ReLU",
        "switch": "Switch",
        "switch-no_dropout": "Switch, no dropout of units",
        "s_base": "S-BASE",
        f"s_base-k1-g{4 * g}": f"S-BASE, K = 1, G = {4 * g}",
        "s_base-published": "S-BASE with the signs of the public code",
        "sigma_moe": "sigma-MoE",
        "sigma_moe-no_dropout": "sigma-MoE, no dropout of experts",
        "sigma_moe-standard_init-no_dropout": "sigma-MoE, standard initialisation, no dropout of experts",
        "sigma_moe-standard_dropout": "sigma-MoE, dropout of units, not experts",
    }


def ablations(g: int) -> dict[str, str]:
    """What sigma-MoE is with one thing changed."""
    return {
        "sigma_moe": f"sigma-MoE: K = 4, G = {g}",
        "sigma_moe-standard_dropout": "dropout of units, not experts",
        "sigma_moe-softmax_after": "softmax after the choice",
        "sigma_moe-softmax_before": "softmax before the choice",
        "sigma_moe-standard_init": "standard initialisation",
        "sigma_moe-no_dropout": "no dropout of experts",
        "sigma_moe-standard_init-no_dropout": "standard initialisation, no dropout of experts",
        "sigma_moe-balanced": "balanced with weight 0.01, no dropout of experts",
        "sigma_moe-no_regularisation": "no regularisation, no dropout of experts",
        f"sigma_moe-k8-g{g // 2}": f"K = 8, G = {g // 2}",
        f"sigma_moe-k2-g{2 * g}": f"K = 2, G = {2 * g}",
        f"sigma_moe-k1-g{4 * g}": f"K = 1, G = {4 * g}",
        f"sigma_moe-k4-g{g // 2}": f"K = 4, G = {g // 2}",
        "sigma_moe-k1": f"K = 1, G = {g}",
        "sigma_moe-k2": f"K = 2, G = {g}",
        "sigma_moe-k8": f"K = 8, G = {g}",
        "s_base-standard_init": "S-BASE, standard initialisation",
        "s_base-published": "S-BASE with the signs of the public code",
    }


def _kinds_and_ablations(g: int) -> dict[str, str]:
    """Both in one table, where a label says by itself what is changed."""
    of_kinds = kinds(g)
    changed = {kind: label for kind, label in ablations(g).items() if kind not in of_kinds}
    return of_kinds | {k: f"sigma-MoE, {label}" if k.startswith("sigma_moe") else label for k, label in changed.items()}


@dataclass(frozen=True)
class Bits(Exam):
    """Bits per byte of a text that is read in order; ``samples`` blocks, ``difficulty`` tokens each."""

    columns: ClassVar[tuple[str, ...]] = ("ours: bits per byte",)
    streams: int = 16
    memory: int | None = None
    """Positions that are looked back at; None for as many as the model says, four times those of training."""
    farthest: int | None = None
    """Distances beyond this count as this one."""

    def measure(self, loaded: Loaded, half: bool) -> dict[str, Any]:
        model, task = loaded.model, loaded.task
        assert isinstance(task, Text)
        assert isinstance(self.difficulty, int)
        stream = task.stream(self.split, self.streams, self.difficulty)
        blocks = min(stream.blocks, self.samples // self.streams)
        found = measure(model, stream, self.steps, memory=self.memory, farthest=self.farthest, blocks=blocks, half=half)  # type: ignore[arg-type]
        return {"samples": found.tokens, **found.to_json()}

    def value(self, measured: dict[str, Any]) -> float:
        return float(measured["bits_per_byte"])

    def cells(self, measured: list[dict[str, Any]], trained: int) -> list[str]:
        return [spread([self.value(m) for m in measured], digits=4)]


@dataclass(frozen=True)
class Perplexity(Bits):
    """The same text by its perplexity for each token, as subwords are published."""

    columns: ClassVar[tuple[str, ...]] = ("ours: perplexity",)

    def value(self, measured: dict[str, Any]) -> float:
        return float(measured["perplexity"])


_SHORT = (
    "1,000 updates, where a seed is worth up to 0.05 for networks with experts: when they begin to copy from their "
    "memory differs by some hundred updates. Some rows are also in language.md, after 3,000. "
)


def _study(
    name: str,
    title: str,
    tables: str,
    rows: dict[str, str],
    remark: str = "",
    settings: tuple[str, ...] = (),
    texts: str = "text",
    block: int = 512,
    layers: int = 12,
    bytes_of_test: int = 2_048_000,
) -> Study:
    blocks = bytes_of_test // block
    return Study(
        name=name,
        title=title,
        source=f"{tables}, for other texts and far more updates: nothing in them compares with this",
        rows=tuple(Row(label, f"{texts}-{kind}") for kind, label in rows.items()),
        exams=(
            Bits("test", block, blocks, layers),
            Bits("test, no distance larger than in training", block, blocks, layers, farthest=2 * block - 1),
            Bits("test, with the memory of training", block, blocks, layers, memory=block),
            Bits("valid", block, min(blocks, 2_000), layers, split="valid"),
        ),
        measure="Bits per byte of a text that no network was trained on, with four times the memory of training as "
        "published; such distances were never trained on, and how well a network bears them is a matter of luck.",
        remarks=remark,
        learning_curves=True,
        same_data=True,
        settings=settings,
    )


_TIMES = "Tokens a second and peak memory: benchmarks/results (`longthink bench language`)."
add(
    _study(
        "language",
        "Language models of 41M parameters on the sources of Python",
        "Csordás, Tables 7.1-7.3",
        kinds(128),
        _TIMES,
    )
)
add(
    _study(
        "language_sources",
        "Language models of 41M parameters on the sources of Python, PyTorch, SymPy and NetworkX",
        "Csordás, Tables 7.1-7.3",
        kinds(128),
        "Nothing is read twice: 3,000 updates read 49 of 64 MB, where those of language.md read 9 MB five times. And "
        "the rate is the best of three for dense layers (language-rates.json), after a short warm-up, where that of "
        f"language.md is the published one for 100,000 updates. {_TIMES}",
        ("task.corpus=sources", "learning_rate=0.001", "warmup_updates=100"),
        bytes_of_test=1_024_000,
    )
)
add(
    _study(
        "language_ablations",
        "What makes sigma-MoE work, on the sources of Python",
        "Csordás, Tables 7.4 and F.4",
        ablations(128),
        _SHORT + _TIMES,
        ("epochs=2",),
    )
)
add(
    _study(
        "language_mini",
        "Language models of 0.9M parameters on the sources of Python, for a CPU",
        "Csordás, Tables 7.1-7.4",
        {kind: label for kind, label in _kinds_and_ablations(32).items() if f"text-mini-{kind}" in recipes},
        "All kinds with a quarter of the width and of the experts' units, 1,000 updates of 2,048 bytes that are read "
        "once, and no dropout: five to thirteen minutes a run on one core.",
        texts="text-mini",
        block=128,
        layers=4,
        bytes_of_test=102_400,
    )
)


PUBLISHED: dict[str, tuple[float | None, float | None, float | None, float | None]] = {
    # enwik8 with 41M parameters in bits per byte; WikiText-103 with 47M, 238M and 262M in perplexity
    "dense": (1.08, 11.81, None, 9.46),
    "top_k-64": (None, 11.86, None, None),
    "top_k": (1.07, 11.74, None, 9.26),
    "top_k-256": (1.08, 11.74, None, 9.34),
    "top_k-512": (1.08, 11.68, None, 9.36),
    "pkm_softmax": (1.16, 13.96, None, 11.1),
    "pkm_relu": (1.11, 12.77, None, 9.98),
    "switch": (1.08, 12.27, 11.24, 9.68),
    "switch-no_dropout": (1.1, 11.88, 11.1, 9.77),
    "switch-k4-g128": (1.1, 12.05, 11.37, None),
    "switch-k1-g128": (1.11, 12.61, 11.89, None),
    "switch-k1-g128-no_dropout": (1.1, 12.35, 11.78, None),
    "s_base": (1.17, 13.01, 10.96, 10.5),
    "s_base-k1-g512": (1.32, 12.32, 11.31, 9.77),
    "sigma_moe": (1.08, 11.59, 10.37, 9.44),
    "sigma_moe-standard_dropout": (1.08, 12.01, 10.27, 9.53),
    "sigma_moe-softmax_after": (1.09, 11.89, 11.27, 9.58),
    "sigma_moe-softmax_before": (1.09, 12.05, 10.54, 9.62),
    "sigma_moe-standard_init": (1.08, 11.8, 10.59, 9.67),
    "sigma_moe-no_regularisation": (1.08, 11.83, 10.41, 9.51),
    "sigma_moe-k8-g64": (1.08, 11.63, 10.3, 9.58),
    "sigma_moe-k2-g256": (1.09, 11.84, 10.44, 9.56),
    "sigma_moe-k1-g512": (1.09, 11.9, 10.83, 9.58),
    "sigma_moe-k4-g64": (1.08, 11.81, 10.53, None),
    "sigma_moe-k1": (1.09, 12.26, 11.3, None),
    "sigma_moe-k2": (1.09, 11.9, 10.66, None),
    "sigma_moe-k8": (1.08, 11.58, 10.22, None),
}
_LABELS = {
    **kinds(128),
    **ablations(128),
    "top_k-64": "Top-K, 64",
    "top_k-256": "Top-K, 256",
    "top_k-512": "Top-K, 512",
    "switch-k4-g128": "Switch, K = 4, G = 128",
    "switch-k1-g128": "Switch, K = 1, G = 128",
    "switch-k1-g128-no_dropout": "Switch, K = 1, G = 128, no dropout of units",
    "s_base-published": "S-BASE with the signs of the public code",
}
_WHOLE = 10**9  # blocks: all that there are


def _published(column: int, corpus: str, title: str, exam: Bits) -> Study:
    found = {kind: values[column] for kind, values in PUBLISHED.items()}
    found |= {"s_base-published": None, "sigma_moe-no_dropout": None}
    rows = tuple(
        Row(_LABELS[kind], f"{corpus}-{kind}", {} if value is None else {exam.name: (value, None, None)})
        for kind, value in found.items()
        if value is not None or kind in ("dense", "s_base-published", "sigma_moe-no_dropout")
    )
    return Study(
        name=corpus.replace("-", "_"),
        title=title,
        source="Csordás, Tables 7.1-7.4 and F.4",
        rows=rows,
        exams=(exam,),
        measure="The whole test text, with four times the memory of training.",
        remarks="Table 7.3 has 11.71 for the smallest sigma-MoE on WikiText-103, Table F.4 11.59.",
        learning_curves=True,
        same_data=True,
    )


for _column, (_corpus, _title, _exam) in enumerate(
    (
        ("enwik8", "enwik8, 41M parameters", Bits("test", 512, _WHOLE, 12, streams=1)),
        ("wikitext103-small", "WikiText-103, 47M parameters", Perplexity("test", 256, _WHOLE, 16, streams=1)),
        ("wikitext103-wide", "WikiText-103, 238M parameters", Perplexity("test", 256, _WHOLE, 16, streams=1)),
        ("wikitext103-big", "WikiText-103, 262M parameters", Perplexity("test", 512, _WHOLE, 18, streams=1)),
    )
):
    add(_published(_column, _corpus, _title, _exam))
