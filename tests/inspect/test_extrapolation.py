"""Easier problems than in training, and how far a change travels in a step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import longthink as lt
from longthink.errors import UserError
from longthink.inspect import extrapolation
from longthink.models import build
from tests.inspect.toys import Rule, is_drawn


@pytest.mark.parametrize(("name", "size"), [("prefix_sums", 32), ("mazes", 9)])
def test_a_step_of_the_shipped_networks_reaches_five_places(name: str, size: int) -> None:
    model, task, _ = lt.load(name)
    batch = task.sample(1, size, 0)
    found = extrapolation.receptive_field(model, task, batch, 2)
    # The projection has one convolution, a step has five, and the head has three.
    assert found.state == (1, 6, 11)
    assert found.logits[:2] == (4, 9)
    assert found.per_step == 5
    assert next(model.parameters()).dtype == torch.float32  # the measured copy is in double precision, not the model


def test_without_recall_a_step_has_four_convolutions() -> None:
    torch.manual_seed(0)
    model = build("deepthinking", dims=1, inputs=1, classes=2, width=16, head=[8, 4], recall=False)
    task = lt.task("prefix_sums")
    found = extrapolation.receptive_field(model, task, task.sample(4, 40, 0), 3)
    assert found.state == (1, 5, 9, 13)


class TestSpreadingToy:
    """Each step copies the left neighbour's value where it is larger."""

    model = Rule(lambda t: torch.maximum(t, torch.nn.functional.pad(t, (1, 0), value=-9.0)[..., :-1]))

    def test_one_place_a_step(self) -> None:
        task = lt.task("prefix_sums")
        batch = task.parse("00000000")
        found = extrapolation.receptive_field(self.model, task, batch, 4, (2,))
        assert found.state == (0, 1, 2, 3, 4)
        assert found.answer == (-1,) * 5  # one channel has one class
        assert found.edge == 5
        assert found.per_step == 1
        assert found.solution_radius == 7
        assert found.fewest_steps == 7
        assert is_drawn(extrapolation.draw_receptive_field(found, "toy"))

    def test_the_threshold(self) -> None:
        task = lt.task("prefix_sums")
        found = extrapolation.receptive_field(self.model, task, task.parse("0000"), 1, (0,), threshold=2.0)
        assert found.state == (-1, -1)

    def test_errors(self) -> None:
        task = lt.task("prefix_sums")
        with pytest.raises(UserError, match="is not in an input of 4"):
            extrapolation.receptive_field(self.model, task, task.parse("0000"), 1, (4,))
        tokens = lt.task("ctlpp")
        with pytest.raises(UserError, match="tokens have none"):
            extrapolation.receptive_field(self.model, tokens, tokens.sample(1, 2, 0), 1)

        class Blind(Rule):
            def start(self, context: Tensor) -> Tensor:  # type: ignore[override]
                return context.mean(2)

            def read(self, state: Tensor, context: Tensor) -> Tensor:  # type: ignore[override]
                return context

        with pytest.raises(UserError, match="this has others"):
            extrapolation.receptive_field(Blind(lambda t: t), task, task.parse("0000"), 1)


def test_the_radius_of_a_maze_is_that_of_its_path() -> None:
    task = lt.task("mazes")
    batch = task.parse("S....\n####.\n....G\n.####\n.....")
    # From the start's first pixel to the goal's last one: 5 cells of 2 pixels.
    assert extrapolation.solution_radius(task, batch) == 9
    assert extrapolation.solution_radius(lt.task("ctlpp"), lt.task("ctlpp").sample(1, 2, 0)) is None


def test_hard_to_easy() -> None:
    model, task, card = lt.load("prefix_sums")
    steps = card["recipe"]["steps"]
    found = extrapolation.hard_to_easy(model, task, (32,), steps, samples=3, steps=60)
    assert [curve.difficulty for curve in found.curves] == [16, 24, 32]
    assert [curve.final for curve in found.curves] == [1.0, 1.0, 1.0]
    solved = [curve.steps_to_solution().double().mean() for curve in found.curves]
    assert solved[0] < solved[2]  # easier problems take fewer steps
    assert set(found.to_json()) == {"trained", "curves"}
    assert is_drawn(extrapolation.draw_hard_to_easy(found, "prefix_sums", task.unit))


def test_easier_sizes_are_sizes_of_the_task() -> None:
    assert extrapolation.easier(lt.task("mazes"), 9) == (3, 7)
    assert extrapolation.easier(lt.task("sudoku"), 60) == (80,)
    assert extrapolation.easier(lt.task("sudoku"), 36) == (48, 72)
    with pytest.raises(UserError, match="Nothing in mazes is easier"):
        extrapolation.easier(lt.task("mazes"), 3)
