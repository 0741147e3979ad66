"""How good the weights of a run are, on easy problems alone: this decides which of them are kept."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from longthink.evaluate import accuracy_at, curve
from longthink.tasks import Task
from longthink.tasks.base import CountsParts
from longthink.think import ThinkingModule, think
from longthink.training.data import mixed_problems
from longthink.training.losses import cross_entropy
from longthink.training.recipe import Recipe

VALID_SEED = 0


class Verdict(NamedTuple):
    score: list[float]
    """Compared from the first number on; larger is better."""
    metrics: dict[str, float]
    card: dict[str, Any]
    flawless: bool = False


class Validation(Protocol):
    def __call__(self, model: ThinkingModule) -> Verdict: ...


def validation(recipe: Recipe, task: Task) -> Validation:
    """What fits the task."""
    return Bits(recipe, task) if hasattr(task, "stream") else Solved(recipe, task)


class Solved:
    """Accuracy at m and at 10 m steps. The smaller counts first: a network must find its answer and keep it.

    Where parts of answers are counted, their errors at m come before.
    """

    def __init__(self, recipe: Recipe, task: Task) -> None:
        self.task, self.steps = task, recipe.valid_steps
        difficulties = recipe.valid_difficulty or recipe.difficulty
        self.problems = mixed_problems(task, recipe.valid_samples, difficulties, VALID_SEED, "valid")

    def __call__(self, model: ThinkingModule) -> Verdict:
        m, patient = self.steps
        later = sorted({m, patient})
        right: list[float] = []
        wrong: dict[str, Any] = {}
        if isinstance(self.task, CountsParts):
            first = curve(model, self.task, self.problems, m, chunk=1000, read_every=max(1, m))
            assert first.error is not None
            right, later = [first.final], later[1:]
            wrong = {"error": float(first.error[-1]), "parts": self.task.parts}
        if later:
            right += accuracy_at(model, self.task, self.problems, later)
        loss = self.loss_at(patient if right[-1] else m, model)  # where nothing is right, how wrong it is says nothing
        score = [min(right), sum(right), -loss]
        metrics = {f"valid_{m}": right[0], f"valid_{patient}": right[-1], "valid_loss": loss}
        card = {"samples": len(self.problems), "steps": [m, patient], "accuracy": [right[0], right[-1]]}
        if wrong:
            score.insert(0, -wrong["error"])
            metrics["valid_error"] = wrong["error"]
        return Verdict(score, metrics, {**card, **wrong}, flawless=min(right) == 1)

    @torch.no_grad()
    def loss_at(self, steps: int, model: ThinkingModule) -> float:
        """Breaks ties: the loss on a few problems."""
        some = slice(None, None, max(1, len(self.problems) // 200))  # of all difficulties
        few = self.problems[some].to(next(model.parameters()).device)
        was_training = model.training
        model.eval()
        loss = float(cross_entropy(think(model, few.inputs, steps).logits, few))
        model.train(was_training)
        return loss if loss == loss else float("inf")


class Bits:
    """Bits per byte of a text, read on from block to block; these may be longer or shorter than those of training."""

    def __init__(self, recipe: Recipe, task: Any) -> None:
        streams = min(recipe.batch, 16)
        self.steps = recipe.steps
        self.stream = task.stream("valid", streams, max(recipe.valid_difficulty or recipe.difficulty))
        self.blocks = max(1, recipe.valid_samples // streams)

    def __call__(self, model: ThinkingModule) -> Verdict:
        from longthink.perplexity import measure

        found = measure(model, self.stream, self.steps, blocks=self.blocks)  # type: ignore[arg-type]
        bits = found.bits_per_byte if found.bits_per_byte == found.bits_per_byte else float("inf")
        card = {"samples": found.tokens, "steps": [self.steps], "bits_per_byte": bits}
        return Verdict([-bits], {"valid_bits_per_byte": bits}, card)


def in_words(found: dict[str, Any]) -> str:
    """The validation of a card."""
    if "bits_per_byte" in found:
        return f"{found['bits_per_byte']:.4f} bits per byte"
    if "error" in found:
        return f"{found['error']:.2%} of the {found['parts']} wrong, {found['accuracy'][0]:.2%} of the problems solved"
    pairs = dict(zip(found["steps"], found["accuracy"], strict=True)).items()  # few and many steps may be as many
    return ", ".join(f"{right:.2%} {f'after {steps} steps' if steps else 'when it has read'}" for steps, right in pairs)
