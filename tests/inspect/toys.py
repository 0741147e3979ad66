"""Thinkers whose behaviour is known, and what a picture must have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longthink.tasks.ctlpp import CTLPP


class Rule:
    """Starts from its input and follows a rule; no module, no weights, and a state that is a nested tree."""

    def __init__(self, rule: Callable[[Tensor], Tensor]) -> None:
        self.rule = rule

    def look(self, x: Tensor) -> Tensor:
        return x

    def start(self, context: Tensor) -> dict[str, Any]:
        return {"thoughts": (context, torch.zeros(len(context), dtype=torch.long))}

    def step(self, state: dict[str, Any], context: Tensor) -> dict[str, Any]:
        thoughts, count = state["thoughts"]
        return {"thoughts": (self.rule(thoughts), count + 1)}

    def read(self, state: dict[str, Any], context: Tensor) -> Tensor:
        return state["thoughts"][0]


class Forgetful:
    """Knows prefix sums from step ``since`` on, and from step ``until`` on says the opposite."""

    def __init__(self, since: int, until: float = float("inf"), max_steps: int | None = None) -> None:
        self.since, self.until, self.max_steps = since, until, max_steps

    def look(self, x: Tensor) -> Tensor:
        return (x[:, 0] > 0).long().cumsum(1) % 2

    def start(self, context: Tensor) -> Tensor:
        return torch.zeros(len(context))

    def step(self, state: Tensor, context: Tensor) -> Tensor:
        return state + 1

    def read(self, state: Tensor, context: Tensor) -> Tensor:
        knows = ((state >= self.since) & (state < self.until))[:, None]
        return nn.functional.one_hot(torch.where(knows, context, 1 - context), 2).movedim(-1, 1).float()


class Oracle(nn.Module):
    """Knows all functions of CTL++, marks a symbol by the group that made it, and group a misreads what b makes."""

    def __init__(self, task: CTLPP) -> None:
        super().__init__()
        self.task = task
        self.head = nn.Linear(10, 8, bias=False)
        self.head.weight.data = torch.eye(8, 10)

    def look(self, tokens: Tensor) -> Tensor:
        rows = []
        for row in tokens.tolist():
            words = [self.task.tokens[number] for number in row if number]
            answer, _ = self.task.evaluate(words)
            in_b = [word in self.task.groups["b"] for word in words[:-1]]
            if len(in_b) > 1 and in_b[1] and not in_b[0]:
                answer = (answer + 1) % 8
            vector = torch.zeros(10)
            vector[answer] = 1.0
            vector[8 + in_b[0]] = 1.0
            rows.append(vector)
        return torch.stack(rows)

    def start(self, context: Tensor) -> Tensor:
        return context

    def step(self, state: Tensor, context: Tensor) -> Tensor:
        return state

    def read(self, state: Tensor, context: Tensor) -> Tensor:
        return self.head(state)


def pixels(figure: Any) -> np.ndarray:
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())


def is_drawn(figure: Any) -> bool:
    """There is more in it than paper."""
    picture = pixels(figure)[..., :3]
    return bool((picture != picture[0, 0]).any(-1).mean() > 0.02)
