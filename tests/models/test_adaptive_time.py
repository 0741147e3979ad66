"""Adaptive computation time: both published variants by definition, when it stops, what it costs."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from longthink.errors import UserError
from longthink.halting import ACT
from longthink.layers.act import VARIANTS, AdaptiveTime
from longthink.models import build
from longthink.think import think

pytestmark = pytest.mark.usefixtures("double_by_default")


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
def test_adaptive_time_follows_the_definition(variant: str) -> None:
    """Against Eq. D.1-D.5 (and the published listing of the other variant) written out for one column at a time."""
    torch.manual_seed(0)
    act = AdaptiveTime(4, variant)
    act.halt.weight.mul_(3)
    states = torch.randn(7, 2, 3, 4)  # step 0 is the start
    gathered = act.start(states[0])
    for t in range(1, 7):
        gathered = act.update(gathered, states[t - 1], states[t])
    output = act.output(gathered, states[-1])
    for b in range(2):
        for i in range(3):
            p = [
                float(act.halt(states[t if variant == "graves" else t - 1, b, i]).sigmoid().detach())
                for t in range(1, 7)
            ]
            total, o, remainder, used = 0.0, torch.zeros(4), 0.0, 0
            for t, q in enumerate(p, 1):
                h = states[t, b, i]
                used = t
                last = total + q >= 1 - act.epsilon
                if variant != "universal":
                    weight = 1 - total if last or t == 6 else q
                    o = o + weight * h
                    remainder = 1 - total
                else:
                    weight = 1 - total if last else q
                    o = weight * h + (1 - weight) * o
                    remainder = 1 - total if last else 0.0
                total += q
                if last:
                    break
            torch.testing.assert_close(output[b, i], o)
            assert float(gathered.remainder[b, i]) == pytest.approx(remainder)
            assert int(gathered.steps[b, i]) == used


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
def test_adaptive_time_stops_just_below_one(variant: str) -> None:
    """Epsilon is 0.01: two steps of 0.4975 are enough, so the second gets all that is left."""
    act = AdaptiveTime(1, variant)
    act.halt.weight.zero_()
    act.halt.bias.fill_(math.log(0.4975 / 0.5025))
    states = torch.tensor([7.0, 1.0, 10.0, 100.0])[:, None, None, None]  # step 0 is the start
    gathered = act.start(states[0])
    for before, after in pairwise(states):
        gathered = act.update(gathered, before, after)
    first = 0.4975 if variant != "universal" else 0.4975 * (1 - 0.5025)  # the other blends it with the second
    assert act.output(gathered, states[-1]).item() == pytest.approx(first * 1 + 0.5025 * 10)
    assert gathered.remainder.item() == pytest.approx(0.5025)
    assert gathered.steps.item() == 2


def test_the_penalty_is_the_mean_remainder_of_tokens() -> None:
    """Times 0.03, which worked best (D.1); what padding has left does not count."""
    model = build("transformer", vocabulary=9, classes=4, width=8, hidden=8, heads=1, act="graves")
    context = model.look(torch.tensor([[3, 1, 0], [2, 2, 2]]))
    remainder = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.9], [0.5, 0.5, 0.5, 0.5, 1.0]])
    state = model.start(context)
    state = state._replace(gathered=state.gathered._replace(remainder=remainder))
    assert model.penalty(state, context).tolist() == pytest.approx([0.03 * 0.25, 0.03 * 0.6])


def test_adaptive_time_adds_a_penalty() -> None:
    model = build("transformer", vocabulary=9, classes=4, width=8, hidden=8, heads=1, act="graves")
    tokens = torch.tensor([[3, 1, 0]])
    context = model.look(tokens)
    thought = think(model, tokens, 3)
    penalty = model.penalty(thought.state, context)
    assert 0 < penalty.item() <= 0.03
    plain = build("transformer", vocabulary=9, classes=4, width=8, hidden=8, heads=1)
    assert plain.penalty(think(plain, tokens, 3).state, plain.look(tokens)) is None


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
def test_adaptive_time_stops_when_all_columns_have(variant: str) -> None:
    torch.manual_seed(0)
    sizes = {"vocabulary": 9, "classes": 4, "width": 8, "hidden": 8, "heads": 1}
    model = build("transformer", **sizes, act=variant).double().eval()
    model.act.halt.bias.fill_(-1.0)
    model.act.halt.weight.mul_(4)
    tokens = torch.tensor([[3, 1, 0, 0, 0], [1, 2, 3, 4, 5], [7, 8, 0, 0, 0]])
    whole = think(model, tokens, 40, watch=("act_steps",))
    counted = whole.trace["act_steps"]  # [batch, steps, columns]
    padding = model.look(tokens).padding
    assert (counted[:, 0] == 1).all()
    taken = counted[:, -1].masked_fill(padding, 0).amax(1)
    assert taken.max() < 40
    assert len(set(taken.tolist())) > 1
    stopped = think(model, tokens, 40, halt=ACT())
    assert stopped.steps_used.tolist() == taken.tolist()
    torch.testing.assert_close(stopped.logits, whole.logits)
    with pytest.raises(UserError, match="build it with act="):
        think(build("transformer", **sizes).eval(), tokens, 3, halt=ACT())
