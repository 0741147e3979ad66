"""Dropout, compiled and not."""

from __future__ import annotations

import pytest
import torch

from longthink.layers.dropout import dropout, hashed, keep_mask, with_seeds


def compiled(x: torch.Tensor, p: float) -> torch.Tensor:
    torch._dynamo.reset()
    return torch.compile(lambda y: dropout(y, p, True), backend="aot_eager")(x)


def murmur(x: int) -> int:
    """The published finaliser, in whole numbers."""
    x ^= x >> 16
    x = x * 0x85EBCA6B % 2**32
    x ^= x >> 13
    x = x * 0xC2B2AE35 % 2**32
    return x ^ (x >> 16)


def test_the_hash_is_the_published_one() -> None:
    numbers = [0, 1, 2, 77, 2**31 - 1, 2**31, 2**32 - 1, 0xDEADBEEF]
    signed = torch.tensor([n - 2**32 if n >= 2**31 else n for n in numbers], dtype=torch.int32)
    assert [h % 2**32 for h in hashed(signed).tolist()] == [murmur(n) for n in numbers]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_compiled_dropout_keeps_the_right_share_in_expectation(p: float) -> None:
    torch.manual_seed(0)
    y = compiled(torch.ones(400, 500), p)
    dropped = (y == 0).float()
    assert abs(float(dropped.mean()) - p) < 5 * (p * (1 - p) / y.numel()) ** 0.5
    assert torch.allclose(y[y != 0], torch.tensor(1 / (1 - p)))
    # neighbours, in both directions, know nothing of each other
    for a, b in ((dropped[:, 1:], dropped[:, :-1]), (dropped[1:], dropped[:-1])):
        both = float((a * b).mean())
        assert abs(both - p * p) < 0.01


def test_every_call_draws_another_mask() -> None:
    torch.manual_seed(0)
    x = torch.ones(100, 100)
    torch._dynamo.reset()
    twice = torch.compile(lambda y: (dropout(y, 0.5, True), dropout(y, 0.5, True)), backend="aot_eager")
    (a, b), (c, _) = twice(x), twice(x)
    for one, other in ((a, b), (a, c), (b, c)):
        assert abs(float(((one == 0) & (other == 0)).float().mean()) - 0.25) < 0.03
    torch.manual_seed(0)
    assert torch.equal(twice(x)[0], a)


def test_the_gradient_passes_where_something_was_kept() -> None:
    x = torch.randn(20, 30, requires_grad=True)
    y = compiled(x, 0.25)
    y.sum().backward()
    assert torch.equal(x.grad, torch.where(y == 0, 0.0, torch.tensor(1 / 0.75)))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_plain_dropout_is_that_of_pytorch(kind: torch.dtype) -> None:
    x = torch.randn(10, 10, dtype=kind)
    torch.manual_seed(3)
    ours = dropout(x, 0.3, True)
    torch.manual_seed(3)
    assert torch.equal(ours, torch.nn.functional.dropout(x, 0.3))
    assert dropout(x, 0.3, False) is x
    assert dropout(x, 0.0, True) is x
    assert not dropout(x, 1.0, True).any()
    assert compiled(x, 0.3).dtype == kind


def test_seeds_from_outside_decide_and_every_call_takes_another() -> None:
    def masks(seeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def two() -> tuple[torch.Tensor, torch.Tensor]:
            return dropout(torch.ones(50, 80), 0.5, True), keep_mask((50, 80), 0.5, torch.device("cpu"))

        return with_seeds(seeds, two)

    torch._dynamo.reset()
    fast = torch.compile(masks, backend="aot_eager")
    seeds = torch.tensor([0.25, 0.75])
    dropped, kept = fast(seeds)
    torch.manual_seed(9)
    for once, again in zip((dropped, kept), fast(seeds), strict=True):
        assert torch.equal(once, again)  # whatever the generator says
    assert abs(float(kept.float().mean()) - 0.5) < 0.05
    assert abs(float(((dropped != 0) & kept).float().mean()) - 0.25) < 0.05
    assert torch.equal(fast(seeds.flip(0))[1], dropped != 0)
    assert not torch.equal(fast(torch.tensor([0.5, 0.75]))[0], dropped)
    assert keep_mask((3, 2), 0.0, torch.device("cpu")).all()  # not compiled: PyTorch's numbers
