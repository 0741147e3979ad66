"""Tables 7.1-7.4: feed-forward kinds of the same number of parameters in one language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from longthink.loading import Loaded
from longthink.perplexity import measure
from longthink.studies.base import Exam, Row, Study, add, spread
from longthink.tasks.text import Text

ROWS = {
    "dense": "dense",
    "dense-no_dropout": "dense, no dropout of units",
    "top_k": "Top-K, 128",
    "pkm_softmax": "product keys, softmax",
    "pkm_relu": "product keys, ReLU",
    "switch": "Switch",
    "switch-no_dropout": "Switch, no dropout of units",
    "s_base": "S-BASE",
    "s_base-k1-g512": "S-BASE, K = 1, G = 512",
    "s_base-published": "S-BASE with the signs of the public code",
    "sigma_moe": "sigma-MoE",
    "sigma_moe-no_dropout": "sigma-MoE, no dropout of experts",
    "sigma_moe-standard_init-no_dropout": "sigma-MoE, standard initialisation, no dropout of experts",
    "sigma_moe-standard_dropout": "sigma-MoE, dropout of units, not experts",
}


ABLATIONS = {
    "sigma_moe": "sigma-MoE: K = 4, G = 128",
    "sigma_moe-standard_dropout": "dropout of units, not experts",
    "sigma_moe-softmax_after": "softmax after the choice",
    "sigma_moe-softmax_before": "softmax before the choice",
    "sigma_moe-standard_init": "standard initialisation",
    "sigma_moe-no_dropout": "no dropout of experts",
    "sigma_moe-standard_init-no_dropout": "standard initialisation, no dropout of experts",
    "sigma_moe-balanced": "balanced with weight 0.01, no dropout of experts",
    "sigma_moe-no_regularisation": "no regularisation, no dropout of experts",
    "sigma_moe-k8-g64": "K = 8, G = 64",
    "sigma_moe-k2-g256": "K = 2, G = 256",
    "sigma_moe-k1-g512": "K = 1, G = 512",
    "sigma_moe-k4-g64": "K = 4, G = 64",
    "sigma_moe-k1": "K = 1, G = 128",
    "sigma_moe-k2": "K = 2, G = 128",
    "sigma_moe-k8": "K = 8, G = 128",
    "s_base-standard_init": "S-BASE, standard initialisation",
    "s_base-published": "S-BASE with the signs of the public code",
}


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
    blocks: int = 4_000,
) -> Study:
    return Study(
        name=name,
        title=title,
        source=f"{tables}, for other texts and far more updates: nothing in them compares with this",
        rows=tuple(Row(label, f"text-{kind}") for kind, label in rows.items()),
        exams=(
            Bits("test", 512, blocks, 12),
            Bits("test, no distance larger than in training", 512, blocks, 12, farthest=1023),
            Bits("test, with the memory of training", 512, blocks, 12, memory=512),
            Bits("valid", 512, 2_000, 12, split="valid"),
        ),
        measure="Bits per byte of a text that no network was trained on, with four times the memory of training as "
        "published; such distances were never trained on, and how well a network bears them is a matter of luck.",
        remarks=f"{remark}Tokens a second and peak memory: benchmarks/results (`longthink bench language`).",
        learning_curves=True,
        same_data=True,
        settings=settings,
    )


add(_study("language", "Language models of 41M parameters on the sources of Python", "Csordás, Tables 7.1-7.3", ROWS))
add(
    _study(
        "language_sources",
        "Language models of 41M parameters on the sources of Python, PyTorch, SymPy and NetworkX",
        "Csordás, Tables 7.1-7.3",
        ROWS,
        "Nothing is read twice: 3,000 updates read 49 of 64 MB, where those of language.md read 9 MB five times. And "
        "the rate is the best of three for dense layers (language-rates.json), after a short warm-up, where that of "
        "language.md is the published one for 100,000 updates. ",
        ("task.corpus=sources", "learning_rate=0.001", "warmup_updates=100"),
        blocks=2_000,
    )
)
add(
    _study(
        "language_ablations",
        "What makes sigma-MoE work, on the sources of Python",
        "Csordás, Tables 7.4 and F.4",
        ABLATIONS,
        _SHORT,
        ("epochs=2",),
    )
)
