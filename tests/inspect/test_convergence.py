"""Toys with a known fate get the right verdict; the shipped networks come to rest and keep their answers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import longthink as lt
from longthink.errors import UserError
from longthink.inspect import convergence
from longthink.inspect.convergence import CYCLE, DRIFT, EXPLOSION, FIXED, settle
from tests.inspect.toys import Forgetful, Rule, is_drawn

X = torch.tensor([[1.0, 2.0, 4.0], [-3.0, 0.5, 1.0]])


def rotate(t: Tensor) -> Tensor:
    """By an angle that no whole number of turns makes up."""
    c, s = math.cos(1.0), math.sin(1.0)
    return torch.stack([c * t[:, 0] - s * t[:, 1], s * t[:, 0] + c * t[:, 1], t[:, 2]], 1)


@pytest.mark.parametrize(
    ("rule", "verdict", "period"),
    [
        (lambda t: 0.5 * t + 1, FIXED, 0),
        (lambda t: torch.zeros_like(t), FIXED, 0),
        (lambda t: t.roll(1, 1), CYCLE, 3),
        (lambda t: -t, CYCLE, 2),
        (lambda t: t + 1, DRIFT, 0),
        (rotate, DRIFT, 0),
        (lambda t: 1.02 * t, EXPLOSION, 0),
        (lambda t: 1e6 * t, EXPLOSION, 0),
        (lambda t: t / 0 - t / 0, EXPLOSION, 0),
    ],
)
def test_verdicts(rule: object, verdict: str, period: int) -> None:
    found = settle(Rule(rule), X, 200)  # type: ignore[arg-type]
    assert found.verdicts == (verdict, verdict)
    assert found.periods == (period, period)


def test_each_sample_has_its_own_verdict_and_its_change_is_measured() -> None:
    def rule(t: Tensor) -> Tensor:
        halved, rolled = 0.5 * t, t.roll(1, 1)
        return torch.where(t[:, :1].isfinite() & (t.amin(1, keepdim=True) >= 0), rolled, halved)

    found = settle(Rule(rule), torch.tensor([[1.0, 2.0, 4.0], [-8.0, 0.0, 0.0]]), 20, chunk=1)
    assert found.verdicts == (CYCLE, DRIFT)  # halving is at rest nowhere but at zero
    assert found.distance[1, :3].tolist() == [4.0, 2.0, 1.0]
    assert torch.allclose(found.distance[0], torch.full((20,), math.sqrt(1 + 4 + 9), dtype=torch.double))
    assert torch.allclose(found.change[1], torch.ones(20, dtype=torch.double))


def test_a_longer_cycle_than_looked_for_is_a_drift() -> None:
    assert settle(Rule(lambda t: t.roll(1, 1)), X, 50, longest_period=2).verdicts == (DRIFT, DRIFT)


def test_steps_to_rest() -> None:
    found = settle(Rule(lambda t: 0.5 * t + 1), torch.tensor([[2.0], [4.0]]), 40, tolerance=1e-3)
    assert found.rest_steps()[0] == 1
    # The distance from 2 is 2 ** (1 - n) after n steps, and so is the step that led there.
    assert found.rest_steps()[1] == next(n for n in range(40) if 2.0 ** (1 - n) / (2 + 2.0 ** (1 - n)) < 1e-3)
    assert settle(Rule(lambda t: t + 1), X, 40).rest_steps().tolist() == [-1, -1]


@pytest.mark.parametrize(("name", "size", "steps"), [("prefix_sums", 16, 150), ("mazes", 5, 120)])
def test_the_shipped_networks_come_to_rest(name: str, size: int, steps: int) -> None:
    model, task, card = lt.load(name)
    inputs = task.sample(2, size, 0).inputs
    real = settle(model, inputs, steps)
    assert real.verdicts == (FIXED, FIXED)
    document = real.to_json()
    assert set(document) == {
        "inputs",
        "samples",
        "steps",
        "tolerance",
        "verdicts",
        "periods",
        "mean_steps_to_rest",
        "final_change",
        "distance",
        "change",
    }
    assert document["verdicts"] == {FIXED: 2, CYCLE: 0, DRIFT: 0, EXPLOSION: 0}
    noise = settle(model, convergence.noise_like(inputs), 30, name="noise")
    assert noise.inputs == "noise"
    assert is_drawn(convergence.draw([real, noise], card["recipe"]["steps"]))


def test_explosions_can_be_drawn() -> None:
    assert is_drawn(convergence.draw([settle(Rule(lambda t: 1e30 * t), X, 30)]))


def test_noise_for_tokens_is_tokens() -> None:
    tokens = torch.ones(4, 6, dtype=torch.long)
    noise = convergence.noise_like(tokens, 5)
    assert noise.shape == tokens.shape
    assert 1 <= noise.min() <= noise.max() <= 4
    with pytest.raises(UserError, match="how many tokens"):
        convergence.noise_like(tokens)


def test_overthinking_is_found_and_put_into_words() -> None:
    task = lt.task("prefix_sums")

    def report(since: int, until: float = math.inf, max_steps: int | None = None) -> convergence.Overthinking:
        return convergence.overthinking(Forgetful(since, until, max_steps), task, 4, 8, samples=3)

    keeps = report(2)
    assert keeps.verdict == "Keeps its answers up to 100 m."
    assert keeps.to_json()["steps"] == [4, 12, 40, 400]
    assert keeps.to_json()["accuracy"] == [1.0, 1.0, 1.0, 1.0]
    loses = report(2, 30)
    assert loses.verdict == "Loses 100.0 points by 10 m."
    assert loses.lost == 1.0
    assert report(10).verdict == "Keeps its answers up to 100 m, and finds 100.0 points more than at 1 m."
    assert report(1000).verdict == "Has no answers to lose: it solves nothing up to 100 m."
    assert report(2, max_steps=12).multiples == (1, 3)
    assert is_drawn(convergence.draw_overthinking([keeps, loses], "bits", "title"))
    assert set(keeps.to_json()) == {
        "difficulty",
        "split",
        "samples",
        "train_steps",
        "multiples",
        "steps",
        "accuracy",
        "lost",
        "verdict",
    }


def test_a_loss_that_is_made_good_is_told() -> None:
    right = torch.tensor([[True, False, True], [True, False, False]])
    found = convergence.Overthinking(8, 4, (1, 3, 10), right, "test")
    assert found.verdict == "Loses 100.0 points by 3 m, and has 50.0% at 10 m."


def test_the_shipped_prefix_sum_network_keeps_its_answers() -> None:
    model, task, card = lt.load("prefix_sums")
    found = convergence.overthinking(model, task, card["recipe"]["steps"], 32, multiples=(1, 3, 10), samples=2)
    assert found.accuracy.tolist() == [1.0, 1.0, 1.0]


def test_errors_are_one_sentence() -> None:
    task = lt.task("prefix_sums")
    with pytest.raises(UserError, match="at least 8 steps"):
        settle(Rule(lambda t: t), X, 4)
    with pytest.raises(UserError, match="1 or more, not 0"):
        settle(Rule(lambda t: t), X, 0)
    with pytest.raises(UserError, match="cannot overthink"):
        convergence.overthinking(Forgetful(1), task, 0, 8)
    with pytest.raises(UserError, match="multiples"):
        convergence.overthinking(Forgetful(1), task, 4, 8, multiples=(0, 1))
