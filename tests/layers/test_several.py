"""Several networks in one answer, and learn, as each of them would alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from longthink.errors import UserError
from longthink.layers.several import together
from longthink.models import build
from longthink.think import think

KINDS: dict[str, dict[str, Any]] = {
    "absolute": {"attention": "absolute", "read_from": "first"},
    "relative": {"attention": "relative"},
    "relative with a gate": {"attention": "relative", "gate": True},
    "gated positions": {"attention": "gated_positions", "gate": True},
    "geometric": {"attention": "geometric"},
    "router": {"attention": "geometric", "gate": True},
    "modified router": {"attention": "geometric", "gate": True, "activation": "gelu", "residual_update": True},
    "Graves": {"attention": "geometric", "act": "graves"},
    "Universal Transformers": {"attention": "relative", "act": "universal"},
    "Top-K": {"attention": "relative", "feedforward": "top_k", "feedforward_options": {"k": 3}},
    "distinct layers": {"attention": "absolute", "distinct_steps": 3},
}


def make(kind: str, seed: int) -> Any:
    torch.manual_seed(seed)
    model = build("transformer", vocabulary=7, classes=5, width=8, hidden=12, heads=2, dropout=0.0, **KINDS[kind])
    for weight in model.parameters():  # none of them zero or one, all of them different
        weight.data += 0.3 * torch.randn_like(weight)
    return model.double()


@pytest.mark.parametrize("kind", KINDS)
def test_answers_and_gradients_are_those_of_each_alone(kind: str) -> None:
    alone, members = ([make(kind, seed) for seed in range(3)] for _ in range(2))
    tokens = torch.randint(1, 7, (12, 5))
    tokens[::3, 3:] = 0
    whole = together(members)
    logits = think(whole, tokens, 3).logits
    logits.square().sum().backward()
    weights = dict(whole.named_parameters())
    for i, (one, member) in enumerate(zip(alone, members, strict=True)):
        mine = slice(4 * i, 4 * i + 4)
        expected = think(one, tokens[mine], 3).logits
        expected.square().sum().backward()
        torch.testing.assert_close(logits[mine], expected)
        for name, weight in one.named_parameters():
            found = weights[name].grad
            assert (found is None) == (weight.grad is None), name
            if weight.grad is not None:
                torch.testing.assert_close(found[i], weight.grad)
        torch.testing.assert_close(think(member, tokens[mine], 3).logits, expected)


def test_members_see_what_happens_to_the_whole() -> None:
    members = [make("router", seed) for seed in range(2)]
    whole = together(members)
    with torch.no_grad():
        for weight in whole.parameters():
            weight[1] += 1
    before = make("router", 0).state_dict(), make("router", 1).state_dict()
    for name, weight in members[0].state_dict().items():
        torch.testing.assert_close(weight, before[0][name])
        torch.testing.assert_close(members[1].state_dict()[name], before[1][name] + 1)
    members[0].load_state_dict(before[1])
    torch.testing.assert_close(dict(whole.named_parameters())["head.weight"][0], before[1]["head.weight"])


def test_networks_that_cannot_be_one_get_a_sentence() -> None:
    experts = {"experts": 4, "k": 2}
    options: dict[str, Any] = {"feedforward": "experts", "feedforward_options": experts}
    model = build("transformer", vocabulary=7, classes=5, width=8, hidden=8, heads=2, **options)
    with pytest.raises(UserError, match="cannot be one"):
        together([model, model])
