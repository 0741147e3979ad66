"""Whoever makes or calls a layer by hand in a wrong way gets one sentence; and a printed layer says what it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import longthink.layers.product_keys
import longthink.layers.topk  # noqa: F401
from longthink.errors import UserError
from longthink.layers.experts import Experts, mixture
from longthink.layers.feedforward import FeedForward, feedforwards
from longthink.layers.selection import selections
from longthink.layers.switch_head import SwitchHead

KINDS = list(feedforwards)


def complaint(make: Callable[[], Any]) -> str:
    with pytest.raises(UserError, match=r"^[^\n]*[.?]\Z") as error:
        make()
    return str(error.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((64.0, 1024), "width of .* must be a whole number, not 64.0"),
        ((64, 1024.0), "hidden of .* must be a whole number, not 1024.0"),
        (("64", 1024), "width of .* must be a whole number, not '64'"),
        ((64, "1024"), "hidden of .* must be a whole number, not '1024'"),
        ((True, 1024), "width of .* must be a whole number, not True"),
        ((-2, 1024), "width.*1 or more"),
        ((64,), "is not made like this: missing a required argument: 'hidden'"),
    ],
)
def test_sizes_of_every_kind(kind: str, sizes: tuple[Any, ...], words: str) -> None:
    assert re.search(words, complaint(lambda: feedforwards[kind](*sizes)))


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("experts", {"expert_dropout": "0.1"}, "expert_dropout .* must be a number, not '0.1'"),
        ("experts", {"expert_dropout": None}, "expert_dropout .* must be a number, not None"),
        ("experts", {"experts": "16"}, "experts .* must be a whole number, not '16'"),
        ("experts", {"experts": 0}, "needs 1 expert or more, not 0"),
        ("experts", {"selection": 3}, "selection .* must be a word, not 3"),
        ("experts", {"balance": 4}, "balance of .* must be a word, not 4"),
        ("experts", {"bias": "yes"}, "bias of .* must be true or false, not 'yes'"),
        ("experts", {"balance_weight": float("nan")}, "number from 0 on, not nan"),
        ("experts", {"dropuot": 0.1}, "did you mean 'dropout'"),
        ("product_keys", {"k": 3.0}, "k of .* must be a whole number, not 3.0"),
        ("product_keys", {"experts": 32}, "named 'experts'; choose one of: activation, heads, hidden, k, "),
        ("product_keys", {"head": 2}, "did you mean 'heads'"),
        ("top_k", {"k": 2.5}, "k of .* must be a whole number, not 2.5"),
        ("top_k", {"k": "3"}, "k of .* must be a whole number, not '3'"),
        ("top_k", {"output_gian": "relu"}, "did you mean 'output_gain'"),
        ("dense", {"k": 3}, "no option of the feed-forward kind 'dense' named 'k'; choose"),
    ],
)
def test_options_of_each_kind(kind: str, options: dict[str, Any], words: str) -> None:
    assert re.search(words, complaint(lambda: feedforwards[kind](64, 1024, **options)))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("sigmoid", {"k": 2.5}, "k of a selection .* whole number, not 2.5"),
        ("sigmoid", {"capacity": 1.0}, "no option of a selection of experts named 'capacity'"),
        ("switch", {"capactiy": 1.0}, "did you mean 'capacity'"),
        ("sinkhorn", {"rounds": 1.5}, "rounds .* whole number, not 1.5"),
        ("noisy", {"expert_dropout": 1.0}, "expert_dropout must be a probability below 1, such as 0.1, not 1.0"),
    ],
)
def test_options_of_selections(name: str, options: dict[str, Any], words: str) -> None:
    assert re.search(words, complaint(lambda: selections[name](**{"width": 8, "experts": 4, "k": 2, **options})))


def test_parts_that_do_not_fit() -> None:
    assert "such as 1024, not 1000" in complaint(lambda: feedforwards["product_keys"](64, 1000))
    assert "such as 1, not -3" in complaint(lambda: feedforwards["product_keys"](64, -3))
    assert "must be a selection such as selections['sigmoid'](64, 16, 4), not 16" in complaint(
        lambda: Experts(64, 1024, 16, 4)
    )
    assert "a width of 32, and the experts of 64" in complaint(
        lambda: Experts(64, 1024, selections["sigmoid"](32, 16, 4))
    )
    assert "width of MoEUT's attention must be a whole number" in complaint(lambda: SwitchHead(8.0, 2))
    assert "number of layers (0) must be 1 or more" in complaint(lambda: SwitchHead(8, 2, layers=0))
    assert "too many positional arguments" in complaint(lambda: selections["sigmoid"](8, 4, 2, 0.1, 3))


@pytest.mark.parametrize("rate", [1.5, 1, -0.5, float("nan")])
@pytest.mark.parametrize("kind", ["dense", "experts", "top_k"])
def test_dropout_is_a_probability(kind: str, rate: float) -> None:
    sentence = f"dropout must be a probability below 1, such as 0.1, not {rate!r}."
    assert complaint(lambda: feedforwards[kind](64, 1024, dropout=rate)) == sentence
    assert complaint(lambda: SwitchHead(8, 2, dropout=rate)) == sentence


@pytest.mark.parametrize("layer", [mixture(64, 1024), feedforwards["product_keys"](64, 1024, k=3)], ids=["mix", "keys"])
@pytest.mark.parametrize(
    ("x", "found"),
    [
        (torch.randn(64), r"\[64\] torch.float32"),
        (torch.randn(2, 10, 32), r"\[2, 10, 32\] torch.float32"),
        (torch.zeros(2, 10, 64, dtype=torch.long), r"\[2, 10, 64\] torch.int64"),
    ],
)
def test_tokens_of_another_shape(layer: FeedForward, x: torch.Tensor, found: str) -> None:
    words = rf"takes floating-point numbers \[batch, n, 64\], not {found}"
    assert re.search(words, complaint(lambda: layer(x)))
    assert re.search(words, complaint(lambda: layer.forward_with_balance(x)))


@pytest.mark.parametrize("padding", [torch.zeros(2, 10), torch.zeros(2, 9) > 0, torch.zeros(2, 10, 1) > 0])
def test_padding_that_is_none(padding: torch.Tensor) -> None:
    found = complaint(lambda: mixture(64, 1024).forward_with_balance(torch.randn(2, 10, 64), padding=padding))
    assert found == (
        f"padding must be [2, 10] torch.bool, True where there is no token, not {list(padding.shape)} {padding.dtype}."
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", list(selections))
def test_looking_at_shapes_does_not_break_a_graph(name: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = selections[name](8, 4, 2).eval()  # on a CPU the experts themselves are more than one graph

    def choose(x: torch.Tensor, padding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return layer(x, padding)[:2]

    compiled = torch.compile(choose, backend="eager", fullgraph=True, dynamic=dynamic)
    for n in (5, 7):
        x, padding = torch.randn(2, n, 8), torch.arange(n).expand(2, n) > 3
        torch.testing.assert_close(compiled(x, padding), choose(x, padding))


@pytest.mark.parametrize(
    ("layer", "shown"),
    [
        (
            mixture(64, 1024),
            "width=64, experts=16, size=64, bias=False, activation=relu, dropout=0.0, balance=entropy, ",
        ),
        (mixture(64, 1024, balance=None), "balance=None, "),
        (mixture(64, 1024, expert_dropout=0.1), "Sigmoid(width=64, experts=16, k=4, expert_dropout=0.1)"),
        (
            selections["switch"](8, 4, 2, capacity=1.5),
            "Switch(width=8, experts=4, k=2, expert_dropout=0.0, capacity=1.5)",
        ),
        (selections["sinkhorn"](8, 4, 2), "expert_dropout=0.0, rounds=3, published=False)"),
        (
            feedforwards["product_keys"](64, 1024, activation="softmax"),
            "ProductKeys(width=64, values=1024, half_keys=32, k=None, heads=4, activation=softmax)",
        ),
        (feedforwards["dense"](64, 128), "width=64, hidden=128, activation=relu, dropout=0.0"),
        (feedforwards["top_k"](64, 128, 9, activation="gelu"), "activation=gelu, dropout=0.0, k=9"),
        (SwitchHead(8, 2, experts=3), "heads=2, head_size=4, experts=3, k=2, dropout=0.0, expert_dropout=0.0"),
    ],
)
def test_a_printed_layer_says_what_it_is(layer: nn.Module, shown: str) -> None:
    assert shown in " ".join(str(layer).split())
