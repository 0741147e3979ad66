"""Parity with the public DNC, and what must hold of any memory: address distributions, links, erased cells."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from longthink.bench.dnc import NaiveDNC
from longthink.errors import UserError
from longthink.layers.memory import (
    Controls,
    access,
    allocate,
    controls_size,
    empty_memory,
    look_up,
    sharpen,
    take_apart,
)
from longthink.models import build
from longthink.models.dnc import DNC
from longthink.recipes import recipes
from longthink.tasks import task
from longthink.think import think
from tests.fixtures import fixture

CASES = {
    "dnc_all_on": {"masks": True, "deallocate": True, "sharpness": True},
    "dnc_all_off": {"masks": False, "deallocate": False, "sharpness": False},
    "dnc_all_on_mask_min": {"masks": True, "deallocate": True, "sharpness": True, "mask_floor": 0.1},
}
NAMES = {
    "controller.in_to_all_0": "controller.from_input",
    "controller.out_to_all_0": "controller.from_hidden",
    "controller_to_controls": "interface",
    "controller_to_out": "from_controller",
    "read_to_out": "from_reads",
}


def public_model(case: str, tensors: dict[str, Tensor]) -> tuple[DNC, dict[str, Tensor]]:
    options = CASES[case]
    model = build("dnc", classes=4, inputs=5, size=10, cells=8, width=6, heads=2, **options).double()
    assert isinstance(model, DNC)
    parameters = dict(model.named_parameters())
    pairs = {}
    for name in tensors:
        if name.startswith("w."):
            part, _, kind = name[2:].rpartition(".")
            pairs[name[2:]] = parameters[f"{NAMES[part]}.{kind}"]
    assert len(pairs) == len(parameters)
    with torch.no_grad():
        for name, ours in pairs.items():
            ours.copy_(tensors[f"w.{name}"])
    return model, pairs


@pytest.mark.parametrize("case", CASES)
def test_matches_the_public_code(case: str) -> None:
    tensors = fixture(case)
    model, pairs = public_model(case, tensors)
    watch = ("write_address", "read_address", "usage", "link")
    x = tensors["in.x"].requires_grad_()
    thought = think(model, x, 0, watch=watch)
    y = thought.logits.transpose(1, 2)
    torch.testing.assert_close(y, tensors["out.y"], rtol=1e-9, atol=1e-9)
    for ours, public in {
        "write_address": "write_weighting",
        "read_address": "read_weighting",
        "usage": "usage",
        "link": "link",
    }.items():
        torch.testing.assert_close(thought.trace[ours], tensors[f"out.{public}"], rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(thought.state.memory.cells, tensors["out.memory"][:, -1], rtol=1e-8, atol=1e-9)
    gradients = torch.autograd.grad((y * tensors["in.cotangent"]).sum(), [x, *pairs.values()])
    for name, gradient in zip(["in.x", *(f"w.{n}" for n in pairs)], gradients, strict=True):
        torch.testing.assert_close(gradient, tensors[f"grad.{name}"], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("controller", ["lstm", "feedforward"])
@pytest.mark.parametrize("switches", [(m, d, s) for m in (0, 1) for d in (0, 1) for s in (0, 1)])
def test_all_heads_at_once_equal_the_equations_one_by_one(switches: tuple[int, int, int], controller: str) -> None:
    """Outputs and gradients, in float64, of every combination of the three repairs."""
    torch.manual_seed(0)
    masks, deallocate, sharpness = map(bool, switches)
    options = {"classes": 3, "inputs": 4, "size": 6, "cells": 5, "width": 4, "heads": 3, "mask_floor": 0.1}
    repairs = {"masks": masks, "deallocate": deallocate, "sharpness": sharpness, "controller": controller}
    fast, naive = DNC(**options, **repairs).double(), NaiveDNC(**options, **repairs).double()
    naive.load_state_dict(fast.state_dict())
    assert "advance" in vars(NaiveDNC)  # or the two would be one
    x = torch.randn(2, 9, 4, dtype=torch.double)
    ours, theirs = think(fast, x, 2).logits, think(naive, x, 2).logits
    torch.testing.assert_close(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    for mine, plain in zip(fast.parameters(), naive.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, plain.grad, rtol=1e-6, atol=1e-9)


def random_controls(batch: int, width: int, heads: int, masks: bool, sharpness: bool):  # type: ignore[no-untyped-def]
    from longthink.layers.memory import controls_size

    interface = 4 * torch.randn(batch, controls_size(width, heads, masks, sharpness), dtype=torch.double)
    return take_apart(interface, width, heads, masks, sharpness)


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("deallocate", [False, True])
@pytest.mark.parametrize("sharpness", [False, True])
def test_what_must_hold_of_any_memory(masks: bool, deallocate: bool, sharpness: bool) -> None:
    torch.manual_seed(0)
    memory = empty_memory(3, 7, 5, 2, torch.zeros((), dtype=torch.double))
    for _ in range(30):
        controls = random_controls(3, 5, 2, masks, sharpness)
        memory, reads = access(memory, controls, deallocate)
        for address in (memory.written, memory.read):
            assert (address >= 0).all()
            assert (address.sum(-1) <= 1 + 1e-9).all()
        if sharpness:  # links that were never written are made even
            torch.testing.assert_close(memory.read.sum(-1), torch.ones(3, 2, dtype=torch.double))
        assert ((memory.usage >= -1e-12) & (memory.usage <= 1 + 1e-12)).all()
        assert (memory.link.diagonal(dim1=-2, dim2=-1) == 0).all()
        assert (memory.link >= -1e-12).all()
        assert (memory.link.sum(-1) <= 1 + 1e-9).all()
        assert (memory.link.sum(-2) <= 1 + 1e-9).all()
        assert (memory.precedence.sum(-1) <= 1 + 1e-9).all()
        torch.testing.assert_close(controls.modes.sum(-1), torch.ones(3, 2, dtype=torch.double))
        torch.testing.assert_close(reads, torch.einsum("brn,bnw->brw", memory.read, memory.cells))


def test_content_weightings_sum_to_one_and_find_the_cell() -> None:
    torch.manual_seed(0)
    cells = torch.randn(1, 6, 4, dtype=torch.double)
    keys = cells[:, 2:3]
    weights = look_up(cells, keys, torch.full((1, 1), 50.0, dtype=torch.double), None)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, dtype=torch.double))
    assert weights[0, 0].argmax() == 2


def test_masked_look_up_is_the_definition() -> None:
    """Eq. A.3 and A.4 cell by cell: the mask multiplies key and cells before they are compared."""
    torch.manual_seed(0)
    cells, keys = torch.randn(2, 6, 4, dtype=torch.double), torch.randn(2, 3, 4, dtype=torch.double)
    masks, strengths = torch.rand(2, 3, 4, dtype=torch.double), 1 + torch.rand(2, 3, dtype=torch.double)
    ours = look_up(cells, keys, strengths, masks)
    for b in range(2):
        for h in range(3):
            scores = []
            for n in range(6):
                k, m = keys[b, h] * masks[b, h], cells[b, n] * masks[b, h]
                scores.append(strengths[b, h] * (k @ m) / (k.norm() * m.norm() + 1e-6))
            torch.testing.assert_close(ours[b, h], torch.stack(scores).softmax(0))


def test_a_mask_hides_what_is_not_known() -> None:
    """The right cell wins although the key is wrong where the mask is closed; without the mask it does not."""
    cells = torch.tensor([[[1.0, 1, 9, 9], [1, -1, -9, 9], [-1, 1, 9, -9]]])
    key = torch.tensor([[[1.0, -1, 9, -9]]])
    strength = torch.full((1, 1), 20.0)
    mask = torch.tensor([[[1.0, 1, 0, 0]]])
    assert look_up(cells, key, strength, mask)[0, 0].argmax() == 1
    assert look_up(cells, key, strength, None)[0, 0].argmax() != 1


@pytest.mark.parametrize("deallocate", [True, False])
def test_freed_cells_are_erased_and_score_low(deallocate: bool) -> None:
    """Cell 0 was read and is freed. Without de-allocation it stays what a key like it finds."""
    kind = {"dtype": torch.double}
    memory = empty_memory(1, 3, 2, 1, torch.zeros(1, **kind))
    kept = torch.tensor([0.5, -0.5], **kind)
    cells = torch.stack([torch.ones(2, **kind), kept, torch.zeros(2, **kind)])[None]
    read = torch.tensor([[[1.0, 0.0, 0.0]]], **kind)
    memory = memory._replace(cells=cells, usage=torch.tensor([[1.0, 1.0, 0.0]], **kind), read=read)
    one, zero = torch.ones(1, 1, **kind), torch.zeros(1, 1, **kind)
    key = torch.ones(1, 1, 2, **kind)
    controls = Controls(
        write_mask=None,
        write_key=key,
        erase=torch.zeros(1, 2, **kind),
        vector=torch.zeros(1, 2, **kind),
        free=one,
        write_strength=one,
        allocation_gate=one,
        write_gate=zero,
        read_masks=None,
        read_keys=key,
        read_strengths=10 * one,
        modes=torch.tensor([[[0.0, 1.0, 0.0]]], **kind),  # by content alone
        forward_sharpness=None,
        backward_sharpness=None,
    )
    after, _ = access(memory, controls, deallocate)
    assert after.usage[0].tolist() == [0, 1, 0]  # Eq. A.6, with and without
    torch.testing.assert_close(after.cells[0, 1], kept)
    if deallocate:
        assert (after.cells[0, 0] == 0).all()
        torch.testing.assert_close(after.read[0, 0], torch.full((3,), 1 / 3, **kind), rtol=0, atol=1e-5)
    else:
        torch.testing.assert_close(after.cells[0, 0], torch.ones(2, **kind))
        assert after.read[0, 0, 0] > 0.999


def test_what_is_nearly_erased_does_not_match_as_what_is_whole() -> None:
    """Cosines know no lengths; Eq. A.4 divides by a little more."""
    cells = torch.tensor([[[1e-7, 1e-7], [0.5, -0.5]]], dtype=torch.double)
    key, strength = torch.ones(1, 1, 2, dtype=torch.double), torch.full((1, 1), 10.0, dtype=torch.double)
    length = 2**0.5
    score = 2e-7 / (1e-7 * length * length + 1e-6)  # the other cell is at right angles to the key
    expected = 1 / (1 + math.exp(-10 * score))
    assert look_up(cells, key, strength, None)[0, 0, 0].item() == pytest.approx(expected, rel=1e-9)
    assert look_up(1e7 * cells, key, strength, None)[0, 0, 0] > 0.999


def test_allocation_takes_the_least_used_cell_first() -> None:
    usage = torch.tensor([[0.9, 0.0, 0.5]])
    torch.testing.assert_close(allocate(usage), torch.tensor([[0.0, 1.0, 0.0]]), rtol=0, atol=1e-5)
    full = allocate(torch.ones(1, 4))
    assert full.sum() < 1e-4


def test_a_vector_of_zeros_in_between_is_part_of_the_sequence() -> None:
    model = build("dnc", inputs=3, classes=4, answer="last")
    x = torch.tensor([[[1.0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]], [[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]])
    assert model.look(x).lengths.tolist() == [3, 2]


def test_sharpness_keeps_the_peak_and_thins_the_rest() -> None:
    weights = torch.tensor([[[0.5, 0.3, 0.2]]])
    sharp = sharpen(weights, torch.full((1, 1), 4.0))
    torch.testing.assert_close(sharp.sum(-1), torch.ones(1, 1))
    assert sharp[0, 0, 0] > 0.85
    assert sharpen(weights, None) is weights


@pytest.mark.parametrize("controller", ["lstm", "feedforward"])
@pytest.mark.parametrize("answer", ["every", "last"])
def test_tokens_and_thinking_steps(controller: str, answer: str) -> None:
    torch.manual_seed(0)
    model = build("dnc", classes=5, vocabulary=9, embedding=6, controller=controller, answer=answer, heads=2)
    tokens = torch.tensor([[3, 1, 4, 0], [1, 5, 2, 6]])
    thought = think(model, tokens, 3, watch=("read_address", "link"))
    assert thought.logits.shape == ((2, 5, 4) if answer == "every" else (2, 5))
    assert thought.trace["read_address"].shape == (2, 4 + 3, 2, 16)  # the sequence, then the thinking
    assert thought.trace["link"].shape == (2, 7, 16, 16)


def test_the_last_answer_does_not_see_padding() -> None:
    torch.manual_seed(0)
    model = build("dnc", classes=5, vocabulary=9, embedding=6, answer="last")
    tokens = torch.tensor([[3, 1, 4, 0, 0], [1, 5, 2, 6, 7]])
    together = think(model, tokens, 2).logits
    torch.testing.assert_close(together[:1], think(model, tokens[:1, :3], 2).logits)


@pytest.mark.parametrize("sharpness", [True, False])
def test_masks_begin_where_they_are_asked_to(sharpness: bool) -> None:
    model = build("dnc", classes=2, inputs=3, width=5, heads=2, mask_bias=1.0, sharpness=sharpness)
    with torch.no_grad():
        model.interface.weight.zero_()
    trace = think(model, torch.randn(1, 2, 3), 0, watch=("read_mask", "write_mask", "read_modes")).trace
    for name in ("read_mask", "write_mask"):
        torch.testing.assert_close(trace[name], torch.full_like(trace[name], 1 / (1 + math.exp(-1))))
    torch.testing.assert_close(trace["read_modes"], torch.full_like(trace["read_modes"], 1 / 3))  # nothing else moved
    assert float(model.interface.bias.detach().sum()) == 5 + 2 * 5


def test_several_outputs_a_time_step() -> None:
    model = build("dnc", classes=2, inputs=9, outputs=8)
    assert think(model, torch.randn(3, 5, 9), 0).logits.shape == (3, 2, 5, 8)


def test_a_full_memory_takes_nothing_by_allocation_until_something_is_freed() -> None:
    """Four cells, one vector a time step, all gates open: what comes after the fourth is lost."""
    torch.manual_seed(0)
    big, width = 20.0, 4
    memory = empty_memory(1, 4, width, 1, torch.zeros(1, dtype=torch.double))
    interface = torch.zeros(1, controls_size(width, 1, False, False), dtype=torch.double)
    controls = take_apart(interface, width, 1, masks=False, sharpness=False)
    open_gate = torch.tensor([[big]]).double().sigmoid()
    controls = controls._replace(
        allocation_gate=open_gate, write_gate=open_gate, erase=torch.ones(1, width).double(), free=torch.zeros(1, 1)
    )
    for t in range(7):
        before = memory
        vector = torch.randn(1, width).double()
        memory, _ = access(memory, controls._replace(vector=vector), deallocate=True)
        if t < 4:
            assert float(memory.written.amax()) > 0.99
            torch.testing.assert_close(memory.cells[0, memory.written[0].argmax()], vector[0], rtol=0, atol=0.01)
        else:
            assert float(memory.written.sum()) < 1e-3
            torch.testing.assert_close(memory.cells, before.cells, rtol=0, atol=1e-3)
    freed = torch.nn.functional.one_hot(torch.tensor([[2]]), 4).double()
    vector = torch.randn(1, width).double()
    memory, _ = access(
        memory._replace(read=freed), controls._replace(vector=vector, free=torch.ones(1, 1).double()), deallocate=True
    )
    assert int(memory.written[0].argmax()) == 2
    torch.testing.assert_close(memory.cells[0, 2], vector[0], rtol=0, atol=0.01)


def test_a_sequence_longer_than_the_memory_leaves_everything_in_its_range() -> None:
    torch.manual_seed(0)
    model = build("dnc", classes=2, inputs=3, cells=4).double()
    thought = think(model, torch.randn(2, 40, 3).double(), 0, watch=("usage", "write_address"))
    usage, written = thought.trace["usage"], thought.trace["write_address"]
    assert torch.isfinite(thought.logits).all()
    assert ((usage >= 0) & (usage <= 1)).all()
    assert (written.sum(-1) <= 1 + 1e-9).all()


@pytest.mark.parametrize("answer", ["every", "last"])
def test_thinking_steps_change_the_answer_at_the_end_alone(answer: str) -> None:
    torch.manual_seed(0)
    model = build("dnc", classes=5, vocabulary=9, embedding=6, answer=answer).eval()
    tokens = torch.tensor([[3, 1, 4], [1, 5, 2]])
    now, later = think(model, tokens, 0).logits, think(model, tokens, 3).logits
    assert torch.equal(now, later) == (answer == "every")


def test_an_empty_sequence_has_no_answers() -> None:
    model = build("dnc", classes=2, inputs=3, outputs=4)
    assert think(model, torch.zeros(2, 0, 3), 0).logits.shape == (2, 2, 0, 4)
    last = build("dnc", classes=2, vocabulary=5, answer="last").eval()
    with_nothing = torch.tensor([[3, 1], [0, 0]])
    found = think(last, with_nothing, 0)
    torch.testing.assert_close(found.logits[1], think(last, with_nothing[1:, :0], 0).logits[0])
    assert (found.state.memory.cells[1] == 0).all()


def test_vectors_of_another_width_are_one_sentence() -> None:
    with pytest.raises(UserError, match=r"vectors \[batch, length, 3\], not \[1, 2, 5\] float32"):
        think(build("dnc", classes=2, inputs=3), torch.randn(1, 2, 5), 0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"inputs": 3, "vocabulary": 4},
        {"inputs": 3, "cells": 0},
        {"inputs": 3, "size": 0},
        {"inputs": 3, "mask_floor": 1.5},
        {"inputs": 3, "controller": "gru"},
        {"inputs": 3, "answer": "x"},
    ],
)
def test_bad_options_get_one_sentence(options: dict) -> None:
    with pytest.raises(UserError) as error:
        build("dnc", classes=2, **options)
    assert str(error.value).endswith(".")


def test_watching_masks_of_a_dnc_without_them_is_one_sentence() -> None:
    model = build("dnc", classes=2, inputs=3, masks=False)
    with pytest.raises(UserError, match="without masks"):
        think(model, torch.randn(1, 2, 3), 0, watch=("read_mask",))


@pytest.mark.parametrize("name", ["repeat_copy-dnc_ds", "associative_recall-dnc_m", "key_value-dnc_mds"])
def test_bits_are_seen_as_minus_and_plus_one(name: str) -> None:
    recipe = recipes[name]
    problems = task(recipe.task, **recipe.task_options)
    model = build(recipe.model, **problems.shape, **recipe.model_options)
    batch = problems.sample(8, max(recipe.difficulty), 0)
    seen, lengths = model.look(batch.inputs)
    for row, length in zip(seen, lengths.tolist(), strict=True):
        assert sorted(row[:length].unique().tolist()) == [-1, 1]
        assert (row[length:] == 0).all()


def test_a_thinking_step_is_a_step_without_a_bit() -> None:
    torch.manual_seed(0)
    model = DNC(classes=2, inputs=3)
    bits = 2.0 * torch.randint(0, 2, (2, 5, 3)) - 1
    thought = think(model, bits, 1).state
    heard = think(model, torch.cat([bits, -torch.ones(2, 1, 3)], 1), 0).state
    assert torch.equal(thought.hidden, heard.hidden)
    assert torch.equal(thought.memory.cells, heard.memory.cells)


def test_dropout_falls_on_tokens_in_training_alone() -> None:
    torch.manual_seed(0)
    model = DNC(classes=3, vocabulary=7, dropout=0.5)
    tokens = torch.randint(1, 7, (4, 6))
    x = model.train().look(tokens).x
    assert 0.3 < float((x == 0).float().mean()) < 0.7
    assert torch.equal(model.eval().look(tokens).x, model.embedding(tokens))
