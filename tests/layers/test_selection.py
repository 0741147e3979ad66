"""How experts are chosen: dropped ones, noise, limits, balanced assignments."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from longthink.layers import selection
from longthink.layers.balance import usage
from longthink.layers.experts import mixture
from longthink.layers.selection import balanced_assignment, queue_places, selections


def test_expert_dropout_takes_whole_experts_and_rescales_nothing() -> None:
    torch.manual_seed(0)
    for kind in selections:
        chooser = selections[kind](8, 10, 3, expert_dropout=0.5).double()
        x = torch.randn(4, 50, 8, dtype=torch.double)
        dropped = 0
        for _ in range(10):
            chosen = chooser.train()(x)
            used = usage(chosen).sum(0) > 0
            dropped += int((~used).sum())
            assert torch.isfinite(chosen.gates).all()
            if kind == "sigmoid":
                torch.testing.assert_close(
                    chosen.gates[chosen.gates > 0], chosen.scores.gather(-1, chosen.experts)[chosen.gates > 0]
                )
        assert 20 < dropped < 80
        assert (usage(chooser.eval()(x)).sum(0) > 0).all()


@pytest.mark.parametrize("kind", list(selections))
def test_dropped_experts_stand_in_only_where_none_is_left(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    chooser = selections[kind](8, 6, 3, expert_dropout=0.5).double().train()
    x = torch.randn(4, 50, 8, dtype=torch.double)
    for left in ([0, 2, 3, 5], [4]):
        kept = torch.isin(torch.arange(6), torch.tensor(left))
        monkeypatch.setattr(selection, "keep_mask", lambda *_, kept=kept: kept)
        chosen = chooser(x)
        assert torch.equal(chosen.gates > 0, kept[chosen.experts])
        assert (kept[chosen.experts].sum(-1) == min(3, len(left))).all()
        if kind in ("softmax_after", "softmax_renormalised", "noisy"):  # what is left shares all
            torch.testing.assert_close(chosen.gates.sum(-1), torch.ones(4, 50, dtype=torch.double))


@pytest.mark.parametrize("kind", list(selections))
def test_losing_every_expert_gives_zero(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = mixture(8, 16, 4, 2, kind, expert_dropout=0.5).train()
    monkeypatch.setattr(torch, "rand", lambda *size, **options: torch.zeros(*size))
    x = torch.randn(1, 3, 8, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert (y == 0).all()
    assert torch.isfinite(x.grad).all()


def test_renormalising_is_choosing_before_the_softmax() -> None:
    """Footnote 4 of section 7.2.3."""
    torch.manual_seed(0)
    after = selections["softmax_after"](8, 6, 3).double()
    renormalised = selections["softmax_renormalised"](8, 6, 3).double()
    renormalised.load_state_dict(after.state_dict())
    x = torch.randn(2, 4, 8, dtype=torch.double)
    torch.testing.assert_close(after(x).gates, renormalised(x).gates)
    torch.testing.assert_close(after(x).gates.sum(-1), torch.ones(2, 4, dtype=torch.double))


def test_noise_is_learned_and_falls_only_while_training() -> None:
    torch.manual_seed(0)
    chooser = selections["noisy"](8, 6, 2).double()
    x = torch.randn(1, 2000, 8, dtype=torch.double)
    a, b = chooser.train()(x), chooser(x)
    assert not torch.equal(a.experts, b.experts)
    assert torch.equal(chooser.eval()(x).experts, chooser(x).experts)
    product = x @ chooser.weight.T
    torch.testing.assert_close(a.logits, product)  # what balances: without the noise
    chances = a.scores.gather(-1, a.experts)  # what chose: with it
    torch.testing.assert_close(chances / chances.sum(-1, keepdim=True), a.gates)
    noise = chooser.train().noisy(x, torch.zeros(1, 2000, 6, dtype=torch.double))
    assert noise.std().item() == pytest.approx(math.log(2), rel=0.03)  # softplus(0): W4 starts at zero


def test_capacity_is_a_hard_limit() -> None:
    torch.manual_seed(0)
    chooser = selections["switch"](8, 4, 2, capacity=1.25).double()
    x = torch.randn(3, 40, 8, dtype=torch.double) + 1
    free = selections["switch"](8, 4, 2).double()
    free.load_state_dict(chooser.state_dict())
    limited, unlimited = chooser(x), free(x)
    assert torch.equal(limited.experts, unlimited.experts)
    taken = [0] * 4
    expected = torch.zeros_like(limited.gates).flatten(0, 1)
    for k in range(2):  # first choices before second, in the order of the batch
        for t, e in enumerate(limited.experts.flatten(0, 1)[:, k].tolist()):
            if taken[e] < int(1.25 * 2 * 120 / 4):
                expected[t, k] = unlimited.gates.flatten(0, 1)[t, k]
                taken[e] += 1
    assert (expected == 0).any()
    torch.testing.assert_close(limited.gates.flatten(0, 1), expected)
    assert torch.equal(chooser.eval()(x).gates, unlimited.gates)  # a token may not depend on those after it
    exact = selections["switch"](8, 2, 1, capacity=1.3)  # 1.3 x 180 / 2 is 117, in single precision a little less
    assert (exact(torch.randn(8).expand(1, 180, 8)).gates > 0).sum() == 117
    few = selections["switch"](8, 4, 1, capacity=0.1).double()(x[:1, :3])
    assert ((few.gates > 0).sum() == few.experts.unique().numel()).all()  # less than one token each is one
    assert queue_places(torch.tensor([2, 0, 2, 2, 0]), 3).tolist() == [0, 0, 1, 2, 1]


def test_sinkhorn_balances() -> None:
    torch.manual_seed(0)
    logits = torch.randn(60, 6, dtype=torch.double) + 3 * torch.arange(6)
    plan = balanced_assignment(logits, 3).exp()
    torch.testing.assert_close(plan.sum(0), torch.full((6,), 10.0, dtype=torch.double))
    there = torch.arange(60) % 3 > 0  # columns are balanced over these; the others take nothing from them
    part, alone = (balanced_assignment(*some).exp() for some in ((logits, 3, there), (logits[there], 3)))
    torch.testing.assert_close(part[there], alone)
    exact = balanced_assignment(logits, 200).exp()
    torch.testing.assert_close(exact.sum(1), torch.ones(60, dtype=torch.double), rtol=1e-5, atol=1e-5)
    # The balanced matrix is exp(logits) with scaled rows and columns, so its log differs by a sum of two vectors.
    rest = exact.log() - logits
    torch.testing.assert_close(rest - rest[:1], (rest - rest[:1])[:, :1].expand(-1, 6))
    counts = [F.one_hot(scores.argmax(1), 6).sum(0) for scores in (logits, exact)]
    assert counts[0].max() > 40
    assert counts[1].max() < 20
