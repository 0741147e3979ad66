"""The shipped networks recover from whatever happens to them; a network that cannot, is seen not to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import longthink as lt
from longthink.errors import UserError
from longthink.inspect import disturbances, flips, perturb
from tests.inspect.toys import Forgetful, Rule, is_drawn, pixels

FIELDS = {
    "disturbance",
    "at",
    "samples",
    "steps_after",
    "mean_steps_to_solution",
    "mean_steps_to_stay",
    "best_accuracy",
    "final_accuracy",
    "right_at_once",
    "wrong_at_the_end",
    "accuracy",
}


def test_the_prefix_sum_network_recovers_from_everything() -> None:
    model, task, card = lt.load("prefix_sums")
    batch = task.sample(3, 16, 1)
    chosen = [
        *disturbances.table_5_5(),
        disturbances.zeros(30),
        disturbances.bit_flips(30, 3),
        disturbances.another_problem(30),
    ]
    chosen[3] = disturbances.swapped(30)
    found = perturb.recover(model, task, batch, chosen, 40)
    for one in found.recoveries:
        assert one.final == one.best == 1.0, one.disturbance
        assert one.right.shape == (3, one.at + 40)
        assert 1 < one.steps_to_solution().double().mean() < 40
    for late in ("swapped@30", "zeros@30", "flips@30", "other@30"):
        assert found[late].right[:, 29].all()  # it was solved before
        assert not found[late].right_at_once.any()  # and really disturbed
    document = found.to_json()
    assert {"difficulty", "samples", "seed", "recoveries"} <= set(document)
    assert all(set(one) == FIELDS for one in document["recoveries"])
    assert [row[0] for row in found.table()][:4] == ["clean", "noise", "zeros", "swapped"]
    assert found.table()[0][2].endswith("(100%)")
    figure = perturb.draw(found, card["recipe"]["steps"], "title")
    assert is_drawn(figure)
    with pytest.raises(UserError, match="no disturbance named 'goal'"):
        found["goal"]


def test_the_maze_network_recovers_from_everything() -> None:
    model, task, _ = lt.load("mazes")
    batch = task.sample(3, 7, 0)
    chosen = (disturbances.noise(1), disturbances.zeros(20), disturbances.swapped(20), disturbances.goal_closer(20))
    found = perturb.recover(model, task, batch, (*chosen, disturbances.another_problem(20)), 35)
    assert [one.final for one in found.recoveries] == [1.0] * 5
    assert found["zeros"].right[:, 19].all()
    assert not found["swapped"].right_at_once.any()


def test_the_goal_comes_closer_and_the_labels_follow() -> None:
    task = lt.task("mazes")
    batch = task.sample(30, 9, 0)
    moved = disturbances.move_goals(task, batch, 2)
    assert task.check(moved).all()
    before, after = (b.targets.flatten(1).sum(1) // 4 for b in (batch, moved))
    # Four cells a move of two rooms; at least one room is left before the start.
    assert torch.equal(after, (before - 4).clamp_min(3).where(before > 3, before))
    assert ((moved.targets == 1) <= (batch.targets == 1)).all()
    walls = (batch.inputs == 0).all(1)
    assert torch.equal(walls, (moved.inputs == 0).all(1))
    assert set(moved.info) == set(batch.info)


def test_flipped_bits_change_the_labels() -> None:
    task = lt.task("prefix_sums")
    batch = task.sample(20, 17, 0)
    places = torch.stack([torch.randperm(17)[:3] for _ in range(20)])
    flipped = disturbances.flip_bits(batch, places)
    assert task.check(flipped).all()
    assert ((flipped.inputs != batch.inputs).flatten(1).sum(1) == 3).all()


def test_disturbances_reach_all_thoughts_and_nothing_else() -> None:
    toy = Rule(lambda t: t)
    state = toy.start(torch.ones(3, 4))
    random = [perturb._random(0, i) for i in range(3)]
    noisy = disturbances.noise(std=2.0).state(state, random)["thoughts"]  # type: ignore[misc]
    assert (noisy[0] != 1).all()
    assert torch.equal(noisy[1], state["thoughts"][1])  # a counter is no thought
    wiped = disturbances.zeros().state(state, random)["thoughts"]  # type: ignore[misc]
    assert not wiped[0].any()
    rows = {"a": torch.arange(3.0)[:, None], "b": [torch.arange(3)]}
    swapped = disturbances.swapped().state(rows, random)  # type: ignore[misc]
    assert swapped["a"][:, 0].tolist() == swapped["b"][0].tolist() == [1, 2, 0]


def test_a_sample_is_disturbed_alike_in_any_chunk() -> None:
    model, task, _ = lt.load("prefix_sums")
    batch = task.sample(4, 16, 0)
    found = [perturb.recover(model, task, batch, [disturbances.noise(1)], 12, chunk=chunk)["noise"] for chunk in (4, 2)]
    assert torch.equal(found[0].right, found[1].right)


def test_a_network_that_loses_its_answer_is_not_called_recovered() -> None:
    task = lt.task("prefix_sums")
    batch = task.sample(2, 8, 0)
    one = perturb.recover(Forgetful(3, 6), task, batch, [disturbances.clean()], 10)["clean"]
    assert one.right[0].tolist() == [False, False, True, True, True] + [False] * 5
    document = one.to_json()
    assert (document["mean_steps_to_solution"], document["mean_steps_to_stay"]) == (3.0, None)
    assert (document["best_accuracy"], document["final_accuracy"]) == (1.0, 0.0)
    # Its count is its thought: wiped out after step 4, it needs the 3 steps again, and keeps the answer for 3.
    again = perturb.recover(Forgetful(3, 6), task, batch, [disturbances.zeros(4)], 4)["zeros"]
    assert again.steps_to_solution().tolist() == [3, 3]
    assert again.right[0].tolist() == [False, False, True, True, False, False, True, True]
    never = perturb.recover(Forgetful(99), task, batch, [disturbances.zeros(1)], 4)
    assert never.table()[0][2] == "- (0%)"


def test_recovery_from_a_flip_falls_with_its_place() -> None:
    model, task, _ = lt.load("prefix_sums")
    profile = flips.flip_profile(model, task, task.sample(1, 16, 0), at=40, steps=60)
    assert profile.steps.shape == (1, 16)
    assert (profile.steps > 0).all()
    assert profile.mean[:4].mean() > profile.mean[-4:].mean()
    assert set(profile.to_json()) == {
        "at",
        "budget",
        "samples",
        "places",
        "mean_steps_to_solution",
        "recovered",
    }
    assert is_drawn(flips.draw(profile))
    nobody = flips.draw(replace(profile, steps=torch.full_like(profile.steps, -1)))
    assert "none recovers within" in nobody.axes[0].texts[0].get_text()


def test_the_disturbance_is_marked() -> None:
    task = lt.task("prefix_sums")
    batch = task.sample(2, 8, 0)
    clean = perturb.recover(Forgetful(3), task, batch, [disturbances.clean()], 10)
    disturbed = perturb.recover(Forgetful(3), task, batch, [disturbances.zeros(5)], 5)
    reds = [((p[..., 0] > 180) & (p[..., 1] < 90)).sum() for p in map(pixels, map(perturb.draw, (clean, disturbed)))]
    assert reds[0] == 0
    assert reds[1] > 50


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("nose@1", {}, "did you mean 'noise'"),
        ("noise@x", {}, "Write a disturbance as noise@1"),
        ("noise@1", {"std": 0.0}, "must be above 0"),
        ("goal@1", {"rooms": 0}, "1 room or more"),
    ],
)
def test_parse_explains(text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        disturbances.parse(text, **options)


def test_errors_are_one_sentence() -> None:
    bits, mazes = lt.task("prefix_sums"), lt.task("mazes")
    batch, toy = bits.sample(2, 8, 0), Forgetful(1)
    cases: list[tuple[Any, str]] = [
        (lambda: perturb.recover(toy, bits, batch, [], 5), "no disturbance"),
        (lambda: perturb.recover(toy, bits, batch[:1], [disturbances.swapped(1)], 5), "at least two samples"),
        (lambda: perturb.recover(toy, bits, batch[:1], [disturbances.another_problem(1)], 5), "at least two samples"),
        (lambda: perturb.recover(toy, bits, batch[:0], [disturbances.clean()], 5), "at least one sample"),
        (lambda: perturb.recover(toy, bits, batch, [disturbances.zeros(-1)], 5), "0 steps or more"),
        (lambda: perturb.recover(toy, bits, batch, [disturbances.goal_closer(1)], 5), "in mazes only"),
        (lambda: perturb.recover(toy, bits, batch, [disturbances.bit_flips(1, 9)], 5), "From 1 to 8"),
        (lambda: perturb.recover(Forgetful(1, max_steps=6), bits, batch, [disturbances.clean()], 7), "at most 6 steps"),
        (lambda: flips.flip_profile(toy, mazes, mazes.sample(1, 5, 0)), "in prefix_sums only"),
    ]
    for run, message in cases:
        with pytest.raises(UserError, match=message) as caught:
            run()
        assert "\n" not in str(caught.value)


class Asleep(Forgetful):
    """Complains when it is asked to think."""

    def look(self, x: Tensor) -> Tensor:
        raise AssertionError("It was woken to think.")


@pytest.mark.parametrize(
    ("one", "samples", "message"),
    [
        (disturbances.goal_closer(1), 2, "in mazes only"),
        (disturbances.bit_flips(1, 9), 2, "From 1 to 8"),
        (disturbances.swapped(1), 1, "at least two samples"),
        (disturbances.another_problem(1), 1, "at least two samples"),
    ],
)
def test_complaints_come_before_the_work(one: disturbances.Disturbance, samples: int, message: str) -> None:
    task = lt.task("prefix_sums")
    with pytest.raises(UserError, match=message):
        perturb.recover(Asleep(1), task, task.sample(samples, 8, 0), [disturbances.clean(), one], 5)


def test_nobody_recovers_in_no_steps() -> None:
    task = lt.task("prefix_sums")
    batch = task.sample(2, 8, 0)
    with pytest.raises(UserError, match="steps must be 1 or more, not 0"):
        perturb.recover(Forgetful(1), task, batch, [disturbances.noise(10)], 0)
    with pytest.raises(UserError, match="steps must be 1 or more, not 0"):
        flips.flip_profile(Forgetful(1), task, batch, steps=0)


def test_a_disturbance_that_comes_too_late_is_named() -> None:
    """It may be one of the published ones, which nobody asked for."""
    task = lt.task("prefix_sums")
    batch, short = task.sample(2, 8, 0), Forgetful(1, max_steps=6)
    late = "The disturbance swapped@50 and 5 steps after it need 55 steps.* disturb it after step 1 at the latest"
    with pytest.raises(UserError, match=late):
        perturb.recover(short, task, batch, disturbances.table_5_5(), 5)
    with pytest.raises(UserError, match="The disturbance flips@50 and 5 steps"):
        flips.flip_profile(short, task, batch, steps=5)
    perturb.recover(short, task, batch, [disturbances.swapped(1)], 5)
