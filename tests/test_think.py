"""The loop: what it keeps, when it stops, and that nothing is computed that nobody asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import longthink as lt
from longthink.errors import UserError
from longthink.halting import ACT, Budget, Converged, MaximumConfidence, Ponder
from longthink.think import Moment, confidence, note, think, unfold


class Pair(NamedTuple):
    value: Tensor
    steps: Tensor


class Halver(nn.Module):
    """Moves half of the way from 0 to x at each step; the logits say how near it is."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def look(self, x: Tensor) -> dict[str, Tensor]:
        return {"goal": x}

    def start(self, context: dict[str, Tensor]) -> Pair:
        goal = context["goal"]
        return Pair(torch.zeros_like(goal), torch.zeros(len(goal)))

    def step(self, state: Pair, context: dict[str, Tensor]) -> Pair:
        note("distance", (context["goal"] - state.value).abs())
        return Pair((state.value + context["goal"]) / 2, state.steps + 1)

    def read(self, state: Pair, context: dict[str, Tensor]) -> Tensor:
        self.reads += 1
        return torch.stack([state.value, -state.value], 1)

    def halting(self, state: Pair, context: dict[str, Tensor]) -> Tensor:
        return torch.full((len(state.value),), 0.3)


X = torch.tensor([1.0, 2.0, -4.0])


def test_takes_as_many_steps_as_asked_and_reads_once() -> None:
    model = Halver()
    thought = think(model, X, 3)
    torch.testing.assert_close(thought.state.value, X * 7 / 8)
    assert thought.steps_used.tolist() == [3, 3, 3]
    assert model.reads == 1
    assert thought.trace == {}


def test_nobody_reads_when_nobody_asks() -> None:
    model = Halver()
    assert think(model, X, 3, read=False).logits is None
    assert model.reads == 0


def test_no_steps_is_the_start() -> None:
    torch.testing.assert_close(think(Halver(), X, 0).logits, torch.zeros(3, 2))
    torch.testing.assert_close(think(Halver(), X, 0, halt=Converged()).logits, torch.zeros(3, 2))


def test_watch_keeps_by_name_by_note_and_by_function() -> None:
    thought = think(Halver(), X, 4, watch=("logits", "change", "confidence", "distance"))
    assert thought.trace["logits"].shape == (3, 4, 2)
    assert thought.trace["change"].shape == thought.trace["confidence"].shape == (3, 4)
    torch.testing.assert_close(thought.trace["distance"][0], torch.tensor([1.0, 0.5, 0.25, 0.125]))
    own = think(Halver(), X, 4, watch={"squared": lambda moment: moment.state.value.square()})
    torch.testing.assert_close(own.trace["squared"][:, 1], (X * 3 / 4).square())


def test_unknown_note_is_one_sentence() -> None:
    with pytest.raises(UserError, match="notes nothing named 'attention'"):
        think(Halver(), X, 2, watch=("attention",))
    with pytest.raises(UserError, match="notes nothing named 'attention'"):
        think(Halver(), X, 2, watch="attention")  # a word is one name, not its letters
    with pytest.raises(UserError, match=r"notes nothing named 'distanse'; did you mean 'distance'\?"):
        think(Halver(), X, 2, watch="distanse")
    with pytest.raises(UserError, match=r"what it has is: distance, logits, change, confidence, state\."):
        think(Halver(), X, 2, watch="x")


def test_a_batch_is_not_its_inputs() -> None:
    batch = lt.task("prefix_sums").sample(2, 8, 0)
    with pytest.raises(UserError, match=r"give batch\.inputs, not the batch"):
        think(Halver(), batch, 2)
    with pytest.raises(UserError, match=r"give batch\.inputs, not the batch"):
        next(lt.unfold(Halver(), batch, 2))


def test_change_is_the_relative_move() -> None:
    moment = next(iter(unfold(Halver(), X, 1)))
    # value moves by x/2 and ends at x/2, the step counter moves by 1 and ends at 1
    torch.testing.assert_close(moment.change, torch.ones(3))


def test_continuing_equals_thinking_on() -> None:
    model = Halver()
    whole = think(model, X, 5, watch=("logits",))
    first = think(model, X, 2, watch=("logits",))
    rest = think(model, X, 3, state=first.state, watch=("logits",))
    torch.testing.assert_close(torch.cat([first.trace["logits"], rest.trace["logits"]], 1), whole.trace["logits"])


def test_the_problem_can_change_while_it_thinks() -> None:
    model = Halver()
    for moment in unfold(model, X, 40):
        if moment.count == 20:
            moment.context = model.look(-X)
    torch.testing.assert_close(moment.state.value, -X)


def test_the_state_can_be_disturbed_while_it_thinks() -> None:
    for moment in unfold(Halver(), X, 40):
        if moment.count == 10:
            moment.state = Pair(torch.full_like(X, 99.0), moment.state.steps)
    torch.testing.assert_close(moment.state.value, X)


def test_budget_stops_each_sample_at_its_own_step() -> None:
    thought = think(Halver(), X, 10, halt=Budget(torch.tensor([1, 3, 20])), watch=("distance",))
    assert thought.steps_used.tolist() == [1, 3, 10]
    for row, steps in enumerate([1, 3, 10]):
        alone = think(Halver(), X[row : row + 1], steps)
        torch.testing.assert_close(thought.logits[row], alone.logits[0])
        torch.testing.assert_close(thought.state.value[row], alone.state.value[0])
    # those that stopped repeat their last entry
    assert thought.trace["distance"].shape == (3, 10)
    assert (thought.trace["distance"][0] == thought.trace["distance"][0, 0]).all()


def test_a_budget_may_be_a_list_or_one_number() -> None:
    assert think(Halver(), X, 10, halt=Budget([1, 3, 20])).steps_used.tolist() == [1, 3, 10]
    assert think(Halver(), X, 10, halt=Budget(4)).steps_used.tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"steps": 1.5}, "whole number, not 1.5"),
        ({"halt": "converged"}, r"an object such as lt\.Converged\(1e-3\), not 'converged'"),
        ({"watch": lambda moment: moment.change}, "under a name of yours"),
        ({"watch": {"mine": lambda moment: 3}}, "watched as 'mine' must be a tensor with the batch first, not 3"),
        ({"watch": {"mine": lambda moment: moment.change.mean()}}, r"batch first, not tensor\("),
    ],
)
def test_wishes_that_cannot_be_met_get_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        think(Halver(), X, **{"steps": 2, **wrong})


@pytest.mark.parametrize(
    "rule", [{"tolerance": -1.0}, {"tolerance": 0.0}, {"tolerance": float("nan")}, {"patience": 0}]
)
def test_rules_of_rest_make_sense(rule: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="must be"):
        Converged(**rule)


@pytest.mark.parametrize(("steps", "complaint"), [([1, 3], r"\[3\], not \[2\]"), ([1, 0, 3], "1 step or more, not 0")])
def test_a_budget_is_a_step_or_more_for_each_sample(steps: list[int], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        think(Halver(), X, 10, halt=Budget(torch.tensor(steps)))


def test_a_rule_of_ones_own() -> None:
    class Near:
        def begin(self, batch: int, device: torch.device) -> lt.Halting:
            class IsNear(lt.Halting):
                def after(self, moment: Moment) -> Tensor:
                    return moment.notes["distance"] < 0.3 * (1 + moment.alive)  # those that come later wait less

            return IsNear()

    # Noted before each step, distances are 1, 1/2, 1/4; 2, 1, 1/2; and 4, 2, 1, 1/2.
    thought = think(Halver(), X, 20, halt=Near(), watch=("distance",))
    assert thought.steps_used.tolist() == [3, 3, 4]
    torch.testing.assert_close(thought.state.value, X * torch.tensor([7, 7, 15]) / torch.tensor([8, 8, 16]))


class Settles(Halver):
    """As Halver, without the counter, so that it converges."""

    def start(self, context: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return torch.zeros_like(context["goal"])

    def step(self, state: Tensor, context: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        rate = torch.tensor([0.5, 0.9, 0.01])[: len(state)] if len(state) == 3 else 0.5
        return state + rate * (context["goal"] - state)

    def read(self, state: Tensor, context: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return torch.stack([state, -state], 1)


def test_converged_stops_when_the_state_rests() -> None:
    thought = think(Settles(), X[:1], 100, halt=Converged(1e-2))
    # after t steps of 1/2 the state has moved 2^-t of the way: below 1e-2 at t = 7
    assert thought.steps_used.tolist() == [7]
    patient = think(Settles(), X[:1], 100, halt=Converged(1e-2, patience=3))
    assert patient.steps_used.tolist() == [9]


def test_maximum_confidence_answers_with_the_surest_step() -> None:
    class Wavers(Halver):
        def read(self, state: Pair, context: dict[str, Tensor]) -> Tensor:
            height = 5 - (state.steps - torch.tensor([2.0, 4.0, 7.0])).abs()
            return torch.stack([height, -height], 1)

    thought = think(Wavers(), X, 6, halt=MaximumConfidence())
    assert thought.logits[:, 0].tolist() == [5.0, 5.0, 4.0]
    assert thought.steps_used.tolist() == [6, 6, 6]


def test_act_weights_sum_to_one() -> None:
    # p = 0.3: weights .3 .3 .3 and the remainder .1; values x/2, 3x/4, 7x/8, 15x/16
    expected = X * (0.3 * 0.5 + 0.3 * 0.75 + 0.3 * 0.875 + 0.1 * 0.9375)
    thought = think(Halver(), X, 20, halt=ACT())
    torch.testing.assert_close(thought.logits[:, 0], expected)
    assert thought.steps_used.tolist() == [4, 4, 4]
    # out of steps early: what is left goes to the last answer
    short = think(Halver(), X, 2, halt=ACT())
    torch.testing.assert_close(short.logits[:, 0], X * (0.3 * 0.5 + 0.7 * 0.75))


def test_ponder_stops_at_the_median() -> None:
    # 1 - 0.7^t passes 1/2 at t = 2
    assert think(Halver(), X, 20, halt=Ponder()).steps_used.tolist() == [2, 2, 2]


def test_learned_halting_needs_a_model_that_decides() -> None:
    class Plain(Settles):
        halting = None  # type: ignore[assignment]

    with pytest.raises(UserError, match="halting"):
        think(Plain(), X, 3, halt=ACT())


def test_gradients_flow_through_the_loop() -> None:
    x = X.clone().requires_grad_()
    think(Halver(), x, 3).logits[:, 0].sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 7 / 8))


def test_confidence_counts_only_what_counts() -> None:
    logits = torch.tensor([[[0.0, 9.0], [0.0, -9.0]]])  # unsure at place 0, sure at place 1
    everywhere = confidence(logits)
    there = confidence(logits, torch.tensor([[False, True]]))
    assert everywhere.item() == pytest.approx(0.75, abs=1e-3)
    assert there.item() == pytest.approx(1.0, abs=1e-3)


def test_negative_steps_are_refused() -> None:
    with pytest.raises(UserError, match="0 or more"):
        think(Halver(), X, -1)


def test_moments_compute_logits_once() -> None:
    model = Halver()
    for moment in unfold(model, X, 2):
        assert isinstance(moment, Moment)
        assert moment.logits is moment.logits
    assert model.reads == 2
