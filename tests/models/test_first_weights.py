"""How Transformers and routers begin: every parameter against what is documented."""

from __future__ import annotations

import math

import pytest
import torch

from longthink.layers.attention import attentions
from longthink.models import build


def test_embeddings_begin_with_the_deviation_asked_for() -> None:
    torch.manual_seed(0)
    small = build("transformer", vocabulary=198, classes=4, width=64, embedding_std=0.125)
    assert small.embedding.weight.std().item() == pytest.approx(0.125, rel=0.05)
    assert build("transformer", vocabulary=198, classes=4, width=64).embedding.weight.std() > 0.9


def test_embeddings_of_language_models() -> None:
    """Xavier's uniform numbers, which the model multiplies by the root of the width; MoEUT: a normal distribution."""
    torch.manual_seed(0)
    ours = build("language", vocabulary=200, classes=200, width=64, hidden=64, heads=2).embedding.weight
    assert ours.std().item() == pytest.approx(math.sqrt(2 / 264), rel=0.03)
    assert math.sqrt(6 / 264) * 0.99 < ours.abs().max() <= math.sqrt(6 / 264)
    moeut = build("moeut", vocabulary=200, classes=200, width=64, hidden=64, heads=2).embedding.weight
    assert moeut.std().item() == pytest.approx(1 / 8, rel=0.03)
    assert moeut.abs().max() > 0.375


def first_weights(attention: str, gate: bool, width: int, hidden: int, heads: int) -> dict[str, tuple[str, float]]:
    """How each parameter of a layer begins: "uniform" with this deviation, or "all" of them this number."""

    def xavier(fan_in: int, fan_out: int, gain: float = 1.0) -> tuple[str, float]:
        return "uniform", gain * math.sqrt(2 / (fan_in + fan_out))

    plain = "uniform", 1 / math.sqrt(3 * width)  # a linear layer's own, of weights and bias alike
    none, one, scale = ("all", 0.0), ("all", 1.0), ("all", math.sqrt(heads / width))
    positions = {"attention.position.weight": xavier(width, width), "attention.position_bias": none}
    choice = {f"attention.choice.{part}": plain for part in ("weight", "bias")}
    side = {f"attention.direction.{part}": plain for part in ("weight", "bias")}
    norms = {"norm_attention", "norm_output"} if not gate else {"norm_attention", "norm_update"}
    if gate and attention != "geometric":
        norms.remove("norm_update")  # the update ends in tanh
    update = "update" if gate else "feedforward"
    relu = math.sqrt(2)
    return {
        "attention.query.weight": xavier(width, width),
        "attention.key_value.weight": xavier(width, 2 * width),
        "attention.merge.weight": xavier(width, width) if attention == "geometric" else plain,
        **({} if attention == "absolute" else {"attention.content_bias": none}),
        **(positions if attention in ("relative", "gated_positions") else {}),
        **({"attention.scale": scale} if attention in ("geometric", "gated_positions") else {}),
        **(choice if attention == "gated_positions" else {}),
        **(side if attention == "geometric" else {}),
        **({"attention.direction_scale": one, "attention.bias": none} if attention == "geometric" else {}),
        **{f"{norm}.weight": one for norm in norms},
        **{f"{norm}.bias": none for norm in norms},
        f"{update}.up.weight": xavier(width, hidden, relu),
        f"{update}.up.bias": none,
        f"{update}.down.weight": xavier(hidden, width, 5 / 3 if gate else 1.0),
        f"{update}.down.bias": none,
        **({"gate.up.weight": xavier(width, width, relu), "gate.up.bias": none} if gate else {}),
        **({"gate.down.weight": xavier(width, width), "gate.down.bias": ("all", -3.0)} if gate else {}),
    }


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("attention", list(attentions))
def test_first_weights_are_the_documented_ones(attention: str, gate: bool) -> None:
    """All of them: a parameter that is new must be added here."""
    torch.manual_seed(0)
    width, hidden, heads = 128, 384, 16
    model = build(
        "transformer",
        vocabulary=48,
        classes=64,
        width=width,
        hidden=hidden,
        heads=heads,
        attention=attention,
        gate=gate,
    )
    expected = {f"layers.0.{name}": how for name, how in first_weights(attention, gate, width, hidden, heads).items()}
    linear = "uniform", 1 / math.sqrt(3 * width)
    expected |= {"head.weight": linear, "head.bias": linear, "embedding.weight": ("normal", 1.0)}
    assert {name for name, _ in model.named_parameters()} == set(expected)
    for name, weight in model.named_parameters():
        kind, value = expected[name]
        if kind == "all":
            torch.testing.assert_close(weight.detach(), torch.full_like(weight, value), msg=name)
            continue
        assert weight.std().item() == pytest.approx(value, rel=2 / math.sqrt(weight.numel())), name
        assert abs(weight.mean().item()) < 4 * value / math.sqrt(weight.numel()), name
        assert (weight.abs().max().item() <= math.sqrt(3) * value * (1 + 1e-6)) == (kind == "uniform"), name


def test_a_router_begins_as_a_transformer_with_its_options() -> None:
    """Geometric attention, a gate that is closed, and embeddings of deviation 1; each layer has weights of its own."""
    sizes = {"vocabulary": 48, "classes": 64, "width": 128, "hidden": 384, "heads": 16, "distinct_steps": 2}
    torch.manual_seed(0)
    made = build("router", **sizes)
    torch.manual_seed(0)
    spelled = build("transformer", attention="geometric", gate=True, **sizes)
    assert made.state_dict().keys() == spelled.state_dict().keys()
    for name, weight in made.state_dict().items():
        torch.testing.assert_close(weight, spelled.state_dict()[name], rtol=0, atol=0)
    assert (made.layers[1].gate.down.bias == -3).all()
    assert not torch.equal(made.layers[0].gate.down.weight, made.layers[1].gate.down.weight)
