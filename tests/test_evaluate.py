"""Curves: the numbers derived from them, and that how they are made does not change them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longthink.errors import UserError
from longthink.evaluate import Curve, accuracy_at, curve, evaluate
from longthink.models.deepthinking import DeepThinking
from longthink.tasks import Batch, task
from longthink.tasks.prefix_sums import PrefixSums
from longthink.think import think

RIGHT = torch.tensor([[0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0]], dtype=torch.bool)
SURE = torch.tensor([[0.5, 0.9, 0.6, 0.7], [0.9, 0.6, 0.8, 0.95], [0.5, 0.6, 0.7, 0.8], [0.9, 0.8, 0.7, 0.6]])
CHANGE = torch.tensor([[0.9, 0.09, 0.5, 0.01], [0.9, 0.8, 0.7, 0.6], [0.05, 0.9, 0.9, 0.9], [0.9, 0.9, 0.1, 0.0]])


def hand_made(read_every: int = 1) -> Curve:
    return Curve(9, RIGHT, SURE, CHANGE, read_every)


def test_accuracy_peak_and_end() -> None:
    made = hand_made()
    assert made.samples == 4
    assert made.accuracy.tolist() == [0.25, 0.25, 0.75, 0.25]
    assert made.steps.tolist() == [1, 2, 3, 4]
    assert made.peak == (0.75, 3)
    assert made.final == 0.25
    assert [made.at(step) for step in (1, 2, 3, 4)] == [0.25, 0.25, 0.75, 0.25]


def test_the_peak_is_the_first_of_equals() -> None:
    right = torch.tensor([[0, 1, 1, 0, 1]], dtype=torch.bool)
    assert Curve(9, right, right.float(), right.float()).peak == (1.0, 2)
    never = torch.zeros(2, 3, dtype=torch.bool)
    assert Curve(9, never, never.float(), never.float()).peak == (0.0, 1)


def test_columns_count_in_the_steps_that_were_read() -> None:
    made = hand_made(read_every=5)
    assert made.steps.tolist() == [5, 10, 15, 20]
    assert made.peak == (0.75, 15)
    assert made.at(15) == 0.75
    assert made.steps_to_solution().tolist() == [10, 15, -1, 5]
    assert made.converged(0.1) == (0.5, (10 + 20 + 5 + 20) / 4)
    for step in (0, 4, 16, 25, -5):
        with pytest.raises(UserError, match=f"no step {step}"):
            made.at(step)


def test_the_most_confident_step_so_far_answers() -> None:
    # sample 0 answers with steps 1 2 2 2, sample 1 with 1 1 1 4, sample 2 with 1 2 3 4, sample 3 with 1 1 1 1
    assert hand_made().most_confident().tolist() == [0.25, 0.5, 0.5, 0.75]


def test_stopping_when_the_state_stands_still() -> None:
    made = hand_made()
    # the first change below 0.1: steps 2, the end, 1, 4
    assert made.converged(0.1) == (2 / 4, (2 + 4 + 1 + 4) / 4)
    assert made.converged(0.0) == (made.final, 4.0)
    assert made.converged(2.0) == (made.at(1), 1.0)
    assert torch.equal(made.change, CHANGE)


def test_steps_to_solution() -> None:
    assert hand_made().steps_to_solution().tolist() == [2, 3, -1, 1]


def test_json_has_the_documented_keys() -> None:
    data = json.loads(json.dumps(hand_made(read_every=2).to_json()))
    assert data == {
        "difficulty": 9,
        "samples": 4,
        "peak_accuracy": 0.75,
        "peak_step": 6,
        "final_accuracy": 0.25,
        "final_step": 8,
        "most_confident_accuracy": 0.75,
        "mean_steps_to_solution": 4.0,
        "steps": [2, 4, 6, 8],
        "accuracy": [0.25, 0.25, 0.75, 0.25],
        "change": [0.6875, 0.6725, 0.55, 0.3775],
    }
    never = torch.zeros(2, 3, dtype=torch.bool)
    assert Curve(9, never, never.float(), never.float()).to_json()["mean_steps_to_solution"] is None


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Toy networks are fastest on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> DeepThinking:
    torch.manual_seed(0)
    return DeepThinking(dims=1, inputs=1, width=6, head=(4, 4))


@pytest.fixture(scope="module")
def batch(model: DeepThinking) -> Batch:
    """Problems of which an untrained network gets half right after two steps: what it says is made the answer."""
    made = task("prefix_sums").sample(50, 8, seed=0)
    made.targets[::2] = think(model, made.inputs, 2).logits.argmax(1)[::2]
    return made


def test_reading_rarely_gives_the_same_columns(model: DeepThinking, batch: Batch) -> None:
    problem = task("prefix_sums")
    every = curve(model, problem, batch, 12)
    assert every.at(2) >= 0.5
    assert every.at(1) != every.at(2) != every.at(12)
    for gap in (2, 3, 4, 12):
        rare = curve(model, problem, batch, 12, read_every=gap)
        assert rare.steps.tolist() == list(range(gap, 13, gap))
        assert torch.equal(rare.right, every.right[:, gap - 1 :: gap])
        assert torch.equal(rare.confidence, every.confidence[:, gap - 1 :: gap])
        assert torch.equal(rare.change, every.change[:, gap - 1 :: gap])


def test_reading_rarely_reads_rarely(model: DeepThinking, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    read = DeepThinking.read

    def counted(self: DeepThinking, state: Any, context: Any) -> Tensor:
        nonlocal reads
        reads += 1
        return read(self, state, context)

    monkeypatch.setattr(DeepThinking, "read", counted)
    curve(model, task("prefix_sums"), batch, 12, read_every=4)
    assert reads == 3


@pytest.mark.parametrize("chunk", [3, 7, 50, 1000])
def test_chunks_do_not_matter(model: DeepThinking, batch: Batch, chunk: int) -> None:
    problem = task("prefix_sums")
    whole = curve(model, problem, batch, 6)
    parts = curve(model, problem, batch, 6, chunk=chunk)
    assert torch.equal(parts.right, whole.right)
    torch.testing.assert_close(parts.confidence, whole.confidence)
    torch.testing.assert_close(parts.change, whole.change, rtol=1e-3, atol=1e-6)
    assert accuracy_at(model, problem, batch, [2, 6], chunk=chunk) == [whole.at(2), whole.at(6)]


@pytest.mark.parametrize("size", [5])
def test_masked_tasks(size: int) -> None:
    """Only the pixels that count decide about confidence and score."""
    torch.manual_seed(0)
    model, problem = DeepThinking(width=4, head=(4, 4)), task("mazes")
    batch = problem.sample(10, size, seed=0)
    result = curve(model, problem, batch, 4, chunk=3)
    context = model.look(batch.inputs)
    state = model.start(context)
    assert batch.mask is not None
    for i in range(4):
        state = model.step(state, context)
        logits = model.read(state, context)
        probable = logits.softmax(1).amax(1)
        expected = torch.stack([p[m].mean() for p, m in zip(probable, batch.mask, strict=True)])
        torch.testing.assert_close(result.confidence[:, i], expected)
        assert torch.equal(result.right[:, i], problem.score(logits, batch))


def test_accuracy_at_equals_the_curve(model: DeepThinking, batch: Batch) -> None:
    problem = task("prefix_sums")
    whole = curve(model, problem, batch, 20)
    steps = [1, 2, 5, 13, 20]
    assert accuracy_at(model, problem, batch, steps) == [whole.at(step) for step in steps]


class Scripted(nn.Module):
    """Right from the step on that its input names, and wrong again two steps later."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def look(self, x: Tensor) -> Tensor:
        return x

    def start(self, context: Tensor) -> Tensor:
        return torch.zeros(len(context), 1)

    def step(self, state: Tensor, context: Tensor) -> Tensor:
        return state + 1

    def read(self, state: Tensor, context: Tensor) -> Tensor:
        first = context[:, 0, :1]
        right = ((state >= first) & (state < first + 2)).float()[:, None]
        return torch.cat([1 - right, right], 1)  # [samples, 2, 1]


def test_a_network_that_overthinks() -> None:
    first = torch.tensor([1.0, 2.0, 2.0, 4.0])
    batch = Batch(first[:, None, None], torch.ones(4, 1, dtype=torch.long), difficulty=3)
    made = curve(Scripted(), PrefixSums(), batch, 6)  # type: ignore[arg-type]
    assert made.steps_to_solution().tolist() == [1, 2, 2, 4]
    assert made.accuracy.tolist() == [0.25, 0.75, 0.5, 0.25, 0.25, 0]
    assert made.peak == (0.75, 2)
    assert made.change[0].tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6])
    assert made.difficulty == 3


def test_the_models_mode_and_gradients_are_left_alone(model: DeepThinking, batch: Batch) -> None:
    problem = task("prefix_sums")
    for mode in (True, False):
        model.train(mode)
        result = curve(model, problem, batch, 2)
        accuracy_at(model, problem, batch, [1])
        assert model.training is mode
        assert not result.confidence.requires_grad


def test_evaluate_uses_test_problems_of_each_difficulty(model: DeepThinking) -> None:
    problem = task("prefix_sums")
    curves = evaluate(model, problem, (4, 5), 4, samples=20, seed=7, read_every=2)
    assert [(c.difficulty, c.samples, c.read_every) for c in curves] == [(4, 20, 2), (5, 20, 2)]
    again = curve(model, problem, problem.sample(20, 5, 7, "test"), 4, read_every=2)
    assert torch.equal(curves[1].confidence, again.confidence)


@pytest.mark.parametrize(("steps", "gap"), [(5, 2), (-1, 1), (2, 3)])
def test_steps_that_cannot_be_read_get_one_sentence(model: DeepThinking, batch: Batch, steps: int, gap: int) -> None:
    with pytest.raises(UserError, match="multiple of read_every"):
        curve(model, task("prefix_sums"), batch, steps, read_every=gap)


def test_no_steps_is_the_answer_of_the_start(model: DeepThinking, batch: Batch) -> None:
    still = curve(model, task("prefix_sums"), batch, 0)
    assert still.steps.tolist() == [0]
    logits = think(model, batch.inputs, 0).logits
    assert still.accuracy.item() == task("prefix_sums").score(logits, batch).double().mean().item()


def test_no_samples_get_one_sentence(model: DeepThinking) -> None:
    with pytest.raises(UserError, match="at least one sample"):
        evaluate(model, task("prefix_sums"), [8], 3, samples=0)
