"""Parity of layers with the public code, the frame of tokens, gates, read-outs, adaptive computation time."""

from __future__ import annotations

import math
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longthink.errors import UserError
from longthink.layers.attention import attentions
from longthink.layers.feedforward import Dense
from longthink.layers.positions import by_distance, relative_sinusoids
from longthink.models import build
from longthink.models.transformer import GatedLayer, PostNormLayer, Transformer
from longthink.think import think
from tests.fixtures import RELATIVE_ATTENTION, fixture
from tests.models.dropped import check_half_is_dropped

ATTENTION = {
    **RELATIVE_ATTENTION,
    "data_to_qp.weight": "direction.weight",
    "data_to_qp.bias": "direction.bias",
    "data_to_absgate.weight": "choice.weight",
    "data_to_absgate.bias": "choice.bias",
    "scale": "scale",
    "scale_pos": "direction_scale",
    "s_bias": "bias",
}
LAYER = {
    "att": "attention",
    "self_attn": "attention",
    "p1": "update.up",
    "p2": "update.down",
    "g1": "gate.up",
    "g2": "gate.down",
    "nmerge": "norm_attention",
    "no": "norm_update",
    "linear1": "feedforward.up",
    "linear2": "feedforward.down",
    "norm1": "norm_attention",
    "norm2": "norm_output",
}


def our_name(public: str) -> str:
    first, rest = public.removeprefix("layer.").split(".", 1)
    return f"{LAYER[first]}.{ATTENTION[rest] if first in ('att', 'self_attn') else rest}"


def gated_layer(attention: str, hidden: int, tanh: bool) -> GatedLayer:
    kind = attentions[attention](32, 2)
    update, gate = Dense(32, hidden), Dense(32, 32)
    return GatedLayer(32, kind, update, 0.0, gate, 0.0, residual_update=False, tanh_update=tanh).double()


def public_layer(case: str) -> nn.Module:
    if case == "relative_transformer_encoder_layer":
        return PostNormLayer(32, attentions["relative"](32, 2), Dense(32, 64), 0.0).double()
    if case == "ndr_abs_rel_layer":
        return gated_layer("gated_positions", 128, True)
    return gated_layer("geometric", 64, False)


def load_public(layer: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Public name -> our parameter, all filled in and none left over."""
    parameters = dict(layer.named_parameters())
    pairs = {name[2:]: parameters[our_name(name[2:])] for name in tensors if name.startswith("w.")}
    assert len(pairs) == len(parameters)
    with torch.no_grad():
        for name, ours in pairs.items():
            ours.copy_(tensors[f"w.{name}"])
    return pairs


class Columns(nn.Module):
    """A layer as a Thinker on given states."""

    def __init__(self, layer: nn.Module, padding: Tensor) -> None:
        super().__init__()
        self.layer, self.padding = layer, padding

    def look(self, x: Tensor) -> Tensor:
        return x

    def start(self, context: Tensor) -> Tensor:
        return context

    def step(self, state: Tensor, context: Tensor) -> Tensor:
        return self.layer(state, self.padding)[0]

    def read(self, state: Tensor, context: Tensor) -> Tensor:
        return state


pytestmark = pytest.mark.usefixtures("double_by_default")


@pytest.mark.parametrize(
    "case", ["ndr_layer", "ndr_encoder_6_steps", "ndr_abs_rel_layer", "relative_transformer_encoder_layer"]
)
def test_matches_the_public_code(case: str) -> None:
    tensors = fixture(case)
    layer = public_layer(case)
    pairs = load_public(layer, tensors)
    x = tensors["in.x"].requires_grad_()
    steps = 6 if "steps" in case else 1
    watch = ("state", "attention", "gate") if "ndr" in case else ("state", "attention")
    trace = think(Columns(layer, tensors["in.padding"]), x, steps, watch=watch).trace
    # Our positions are exact; the public ones were computed in float32 (6.7e-8 away).
    close = {"rtol": 1e-9, "atol": 1e-10} if "ndr_layer" in case or "steps" in case else {"rtol": 1e-5, "atol": 2e-6}
    several = steps > 1
    for name, ours in {"y": "state", "attention": "attention", "gate": "gate"}.items():
        if f"out.{name}" in tensors:
            mine = trace[ours] if several else trace[ours][:, 0]
            torch.testing.assert_close(mine, tensors[f"out.{name}"], **close)
    wanted = [x, *pairs.values()]
    gradients = torch.autograd.grad((trace["state"][:, -1] * tensors["in.cotangent"]).sum(), wanted)
    for name, gradient in zip(["in.x", *(f"w.{n}" for n in pairs)], gradients, strict=True):
        torch.testing.assert_close(gradient, tensors[f"grad.{name}"], **close)
    # Where nobody watches, weights of attention need not exist: another path.
    unwatched = think(Columns(layer, tensors["in.padding"]), x, steps).state
    torch.testing.assert_close(unwatched, trace["state"][:, -1])
    again = torch.autograd.grad((unwatched * tensors["in.cotangent"]).sum(), wanted)
    for one, other in zip(again, gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_relative_shift() -> None:
    scores = torch.randn(2, 3, 5, 9)
    shifted = by_distance(scores)
    for i in range(5):
        for j in range(5):
            torch.testing.assert_close(shifted[..., i, j], scores[..., i, j - i + 4])


def test_relative_encoding_is_the_published_one() -> None:
    tensors = fixture("relative_transformer_encoder_layer")
    ours = relative_sinusoids(7, 32, torch.device("cpu"))
    torch.testing.assert_close(ours, tensors["out.position_encoding"].double(), rtol=0, atol=1e-6)


KINDS: list[dict[str, Any]] = [{"attention": kind, "gate": gate} for kind in attentions for gate in (False, True)]
KINDS += [{"attention": "geometric", "gate": True, "gate_threshold": 0.05, "shut_in_training": True}]


@pytest.mark.parametrize("options", KINDS)
def test_padding_changes_nothing(options: dict) -> None:
    torch.manual_seed(0)
    model = build("transformer", vocabulary=9, classes=4, width=16, hidden=32, heads=2, **options).eval()
    tokens = torch.tensor([[3, 1, 4, 0, 0, 0], [1, 5, 8, 2, 6, 5]])
    together = think(model, tokens, 4).logits
    torch.testing.assert_close(together[:1], think(model, tokens[:1, :3], 4).logits)
    longer = torch.nn.functional.pad(tokens, (0, 3))
    torch.testing.assert_close(together, think(model, longer, 4).logits)


@pytest.mark.parametrize("options", KINDS)
def test_every_choice_learns_from_every_weight(options: dict) -> None:
    model = build("transformer", vocabulary=9, classes=4, width=16, hidden=32, heads=2, **options)
    loss = think(model, torch.randint(1, 9, (4, 6)), 3).logits.square().sum()
    loss.backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all()


def test_frame_of_begin_and_end_tokens() -> None:
    model = build("transformer", vocabulary=9, classes=4, width=8, hidden=8, heads=1)
    assert isinstance(model, Transformer)
    context = model.look(torch.tensor([[3, 1, 0], [2, 2, 2]]))
    assert context.end.tolist() == [3, 4]
    assert context.padding.tolist() == [[False] * 4 + [True], [False] * 5]


@torch.no_grad()
@pytest.mark.parametrize("attention", list(attentions))
def test_absolute_positions_are_part_of_the_states(attention: str) -> None:
    """Of all columns, begin and end among them; other kinds of attention do without."""
    model = build("transformer", vocabulary=9, classes=4, width=6, heads=1, attention=attention).eval()
    columns = model.embedding(torch.tensor([[model.begin, 3, 3, model.end]]))
    if attention == "absolute":
        for position in range(4):
            for channel in range(6):
                angle = position / 10_000 ** (2 * (channel // 2) / 6)
                columns[0, position, channel] += math.cos(angle) if channel % 2 else math.sin(angle)
    torch.testing.assert_close(model.look(torch.tensor([[3, 3]])).x, columns)


@torch.no_grad()
@pytest.mark.parametrize("attention", list(attentions))
def test_embeddings_with_absolute_positions_are_dropped(attention: str) -> None:
    torch.manual_seed(0)
    model = build("transformer", vocabulary=9, classes=4, width=64, heads=1, attention=attention, dropout=0.5)
    tokens = torch.randint(1, 9, (4, 6))
    whole, found = model.eval().look(tokens).x, model.train().look(tokens).x
    if attention == "absolute":
        check_half_is_dropped(found, whole)
    else:
        assert torch.equal(found, whole)


@torch.no_grad()
@pytest.mark.parametrize("kind", list(attentions))
def test_dropout_falls_on_queries(kind: str) -> None:
    """D.3.3: of content and, each for itself, of position; a geometric one's directions are left alone.

    Heads have one channel: a query is zero or doubled, and reads as if all keys were.
    """
    torch.manual_seed(0)
    attend = attentions[kind](8, 8, dropout=0.5)
    for weight in attend.parameters():
        weight.normal_(std=0.2)
    attend.merge.weight.copy_(torch.eye(8))  # an output is what one head has read
    x, padding = torch.randn(8, 6, 8), torch.arange(6) >= torch.tensor([[6], [3]] * 4)
    found = attend.train()(x, padding)
    positional = hasattr(attend, "position")
    possible = []
    for content, position in product((0, 2), (0, 2) if positional else (1,)):
        other = deepcopy(attend).eval()
        other.key_value.weight.view(8, 2, 8)[:, 0] *= content
        if positional:
            other.position.weight.mul_(position)
        possible.append(other(x, padding))
    alike = torch.isclose(found, torch.stack(possible), rtol=1e-9)
    assert (alike.sum(0) == 1).all()
    assert alike.double().mean((1, 2, 3)).tolist() == pytest.approx([1 / len(possible)] * len(possible), abs=0.1)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("kind", list(attentions))
def test_models_hand_dropout_on_to_their_attention(kind: str, gate: bool) -> None:
    torch.manual_seed(0)
    options = {"width": 8, "hidden": 8, "heads": 2, "attention": kind, "gate": gate, "attention_dropout": 0.5}
    attend = build("transformer", vocabulary=9, classes=4, **options).layers[0].attention.train()
    x, padding = torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    assert not torch.equal(attend(x, padding), attend(x, padding))
    assert torch.equal(attend.eval()(x, padding), attend(x, padding))


def test_closed_gates_copy() -> None:
    """The gate's bias starts at -3: a new router hardly changes its state."""
    torch.manual_seed(0)
    model = build("router", vocabulary=9, classes=4, width=32, hidden=32, heads=2).eval()
    trace = think(model, torch.randint(1, 9, (4, 6)), 3, watch=("gate", "change")).trace
    assert trace["gate"].mean().item() == pytest.approx(0.0474, abs=0.03)
    assert trace["change"].max() < 0.3


@pytest.mark.parametrize("attention", list(attentions))
def test_gates_that_are_almost_shut_can_be_shut(attention: str) -> None:
    """Outside training alone; what is open further than the threshold stays as it is."""
    torch.manual_seed(0)
    sizes = {"vocabulary": 9, "classes": 4, "width": 32, "hidden": 32, "heads": 2, "dropout": 0.0, "gate": True}
    leaking = build("transformer", **sizes, attention=attention).eval()
    tight = build("transformer", **sizes, attention=attention, gate_threshold=0.05).eval()
    tight.load_state_dict(leaking.state_dict())
    tokens = torch.randint(1, 9, (8, 6))
    context = leaking.look(tokens)
    watch = ("gate", "state")
    as_trained, with_shut = (think(model, None, 1, context=context, watch=watch).trace for model in (leaking, tight))
    gate, state = with_shut["gate"], with_shut["state"][:, 0]
    shut = as_trained["gate"] < 0.05
    assert 0.2 < shut.double().mean() < 0.9
    assert (gate[shut] == 0).all()
    assert torch.equal(gate[~shut], as_trained["gate"][~shut])
    assert torch.equal(state[shut[:, 0]], context.x[shut[:, 0]])  # keeps exactly what it had
    assert torch.equal(state[~shut[:, 0]], as_trained["state"][:, 0][~shut[:, 0]])
    assert (tight.gate_threshold, leaking.gate_threshold) == (0.05, 0.0)
    tight.train()
    assert think(tight, tokens, 1, watch=("gate",)).trace["gate"].min() > 0  # gradients need them open


def test_gradients_pass_gates_that_are_shut_in_training() -> None:
    """The values are those of shut gates, the gradients of a shut gate those that it would have in its sum if open."""
    torch.manual_seed(0)
    layer = gated_layer("geometric", 64, False)
    torch.nn.init.normal_(layer.gate.down.bias, -3.0)
    x, padding = torch.randn(4, 7, 32).double(), torch.zeros(4, 7, dtype=torch.bool)
    layer.gate_threshold, layer.shut_in_training = 0.06, True
    layer.train()
    found = layer(x, padding)[0]
    weights = torch.randn_like(found)
    (found * weights).sum().backward()
    a = layer.norm_attention(x + layer.attention(x, padding))
    u, g = layer.norm_update(layer.update(a)), layer.gate(a).sigmoid()
    shut = g < 0.06
    assert 0.1 < shut.double().mean() < 0.9
    torch.testing.assert_close(found, torch.where(shut, x, x + g * (u - x)))
    assert torch.equal(found[shut], x[shut])
    slope = weights * (u - x) * g * (1 - g)  # of the loss by what the sigmoid is taken of
    torch.testing.assert_close(layer.gate.down.bias.grad, slope.sum((0, 1)))


def test_gate_dropout_closes_whole_columns() -> None:
    torch.manual_seed(0)
    model = build(
        "router", vocabulary=9, classes=4, width=32, hidden=32, heads=2, gate_dropout=0.5, dropout=0.0
    ).train()
    gate = think(model, torch.randint(1, 9, (64, 6)), 1, watch=("gate",)).trace["gate"]
    closed = (gate == 0).all(-1)
    assert closed.double().mean() == pytest.approx(0.5, abs=0.1)
    assert ((gate == 0).any(-1) == closed).all()


def test_read_out_from_first_or_last_column() -> None:
    torch.manual_seed(0)
    tokens = torch.tensor([[3, 1, 4, 0]])
    for place, column in (("first", 0), ("last", 4)):
        model = build("transformer", vocabulary=9, classes=4, width=8, hidden=8, heads=1, read_from=place).eval()
        thought = think(model, tokens, 2)
        torch.testing.assert_close(thought.logits, model.head(thought.state[:, column]))


def test_distinct_layers_are_a_flag() -> None:
    torch.manual_seed(0)
    model = build("router", vocabulary=9, classes=4, width=8, hidden=8, distinct_steps=3)
    assert len(model.layers) == 3
    with pytest.raises(UserError, match="at most 3 steps"):
        think(model, torch.ones(1, 2, dtype=torch.long), 4)
    tokens = torch.randint(1, 9, (2, 5))
    model.eval()
    before = think(model, tokens, 3).logits
    before.sum().backward()
    assert all(layer.update.up.weight.grad.abs().max() > 0 for layer in model.layers)
    model.layers = torch.nn.ModuleList(reversed(model.layers))  # each has its turn
    assert not torch.allclose(think(model, tokens, 3).logits, before)


def test_modified_router_has_a_residual_update() -> None:
    """Eq. E.2: with the update's last weights at zero, the update is the norm of what attention gave."""
    torch.manual_seed(0)
    model = build("router", vocabulary=9, classes=4, width=8, hidden=8, residual_update=True, activation="gelu").eval()
    layer = model.layers[0]
    with torch.no_grad():
        layer.update.down.weight.zero_()
        layer.gate.down.weight.zero_()
        layer.gate.down.bias.fill_(50.0)  # open
    x = torch.randn(1, 5, 8)
    padding = torch.zeros(1, 5, dtype=torch.bool)
    a = layer.norm_attention(x + layer.attention(x, padding))
    torch.testing.assert_close(layer(x, padding)[0], layer.norm_update(a))


@torch.no_grad()
def test_update_and_gate_of_the_modified_router_have_the_same_activation() -> None:
    """Eq. E.1, in place of Eq. 5.5, which both share."""
    torch.manual_seed(0)
    for activation, function in (("gelu", F.gelu), ("relu", F.relu)):
        layer = build("router", vocabulary=9, classes=4, width=8, hidden=16, activation=activation).eval().layers[0]
        a = torch.randn(1, 5, 8)
        for part in (layer.update, layer.gate):
            inner = function(a @ part.up.weight.T + part.up.bias)
            torch.testing.assert_close(part(a), inner @ part.down.weight.T + part.down.bias)


@torch.no_grad()
@pytest.mark.parametrize("residual", [False, True])
def test_modified_router_drops_nothing_inside_its_feed_forward_parts(residual: bool) -> None:
    """E.1.1: no dropout in Eq. E.1, which update and gate share; what attention has read is dropped all the same."""
    torch.manual_seed(0)
    options = {"residual_update": residual, "dropout": 0.5, "attention_dropout": 0.0, "gate_dropout": 0.0}
    layer = build("router", vocabulary=9, classes=4, width=8, hidden=8, **options).layers[0]
    x, padding = torch.randn(1, 5, 8), torch.zeros(1, 5, dtype=torch.bool)
    for part in (layer.update, layer.gate):
        assert torch.equal(part.train()(x), part.eval()(x)) == residual
    layer.train()
    layer.update.eval()
    layer.gate.eval()
    assert not torch.allclose(layer(x, padding)[0], layer.eval()(x, padding)[0])


@pytest.mark.parametrize("silent", ["attention", "feedforward"])
@pytest.mark.parametrize("attention", ["absolute", "relative", "geometric"])
def test_layers_without_a_gate_drop_what_both_parts_add(silent: str, attention: str) -> None:
    torch.manual_seed(0)
    options = {"dropout": 0.5, "attention_dropout": 0.0, "attention": attention}
    layer = build("transformer", vocabulary=9, classes=4, width=8, hidden=8, heads=2, **options).layers[0]
    x, padding = torch.randn(1, 5, 8), torch.zeros(1, 5, dtype=torch.bool)
    whole = layer.eval()(x, padding)[0]
    layer.training = True  # its parts stay in evaluation
    with torch.no_grad():
        for weight in getattr(layer, silent).parameters():
            weight.zero_()  # it adds nothing, so that nothing of it can be dropped
        plain = layer.eval()(x, padding)[0]
        layer.training = True
        outcomes = {tuple(layer(x, padding)[0].flatten().tolist()) for _ in range(5)}
    assert not torch.allclose(whole, plain)
    assert len(outcomes) == 5


def test_tokens_of_other_vocabularies_are_refused() -> None:
    """The next two numbers are the model's own begin and end."""
    model = build("router", vocabulary=9, classes=4, width=8, hidden=8)
    model.look(torch.tensor([[8, 1, 0]]))
    for token in (-1, 9, 10, 11):
        with pytest.raises(UserError, match=r"Tokens are numbers from 0 \(padding\) to 8, not"):
            model.look(torch.tensor([[1, token]]))


@pytest.mark.parametrize(
    "options",
    [
        {"width": 10, "heads": 4},
        {"attention": "geometrc"},
        {"read_from": "middle"},
        {"act": "x"},
        {"activation": "x"},
        {"dropout": 2},
        {"gate_dropout": "much"},
        {"hidden": 0},
        {"embedding_std": 0},
        {"embedding_std": "small"},
        {"feedforward_options": {"nonsense": 3}},
        {"feedforward": "experts", "feedforward_options": {"dropout": -1}},
        {"feedforward": "experts", "feedforward_options": {"experts": 8, "k": 2.5}},
        {"feedforward": "experts", "feedforward_options": {"experts": 8, "k": True}},
        {"feedforward": "experts", "feedforward_options": {"balance_weight": "x"}},
        {"feedforward": "top_k", "feedforward_options": {"k": 4}, "activation": "swish"},
    ],
)
def test_bad_options_get_one_sentence(options: dict) -> None:
    with pytest.raises(UserError) as error:
        build("transformer", vocabulary=9, classes=4, **options)
    assert str(error.value).endswith((".", "?"))


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        ("router", {"attention": "relative"}, "has attention='geometric'; build a transformer"),
        ("router", {"gate": False}, "has gate=True; build a transformer"),
        ("router", {"heads": 0}, "must be 1 or more"),
        ("router", {"heads": -1}, "must be 1 or more"),
        ("transformer", {"width": 0}, "must be 1 or more"),
        ("transformer", {"width": 10, "heads": 4}, "multiple of the number of heads"),
        ("transformer", {"gate_dropout": 0.1}, "need a gate"),
        ("transformer", {"residual_update": True}, "need a gate"),
        ("transformer", {"gate_threshold": 0.1}, "needs a gate"),
        ("router", {"gate_threshold": 1.0}, "0 or more and below 1, not 1.0"),
        ("router", {"gate_threshold": -0.1}, "0 or more and below 1, not -0.1"),
        ("router", {"gate_threshold": "x"}, "gate_threshold of the model router must be a number, not 'x'"),
        ("router", {"gate_threshold": True}, "gate_threshold of the model router must be a number, not True"),
        ("router", {"widht": 3}, "did you mean 'width'"),
        ("moeut", {"grup": 3}, "did you mean 'group'"),
        ("router", {"shut_in_training": True}, "needs a gate_threshold above 0"),
        ("transformer", {"act": "graves", "act_weight": -1.0}, "0 or more, not -1"),
    ],
)
def test_options_that_make_no_sense_get_a_sentence(model: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build(model, vocabulary=5, classes=3, **options)


@pytest.mark.parametrize(
    ("x", "found"),
    [
        (torch.ones(4, dtype=torch.long), r"\[4\] int64; x\[None\] makes a batch of one"),
        (torch.ones(2, 4), r"\[2, 4\] float32\."),
        (torch.ones(2, 4, dtype=torch.bool), r"\[2, 4\] bool\."),
        (torch.ones(2, 4, 1, dtype=torch.long), r"\[2, 4, 1\] int64\."),
    ],
)
@pytest.mark.parametrize("model", ["transformer", "router", "lstm", "language", "dnc"])
def test_what_is_no_batch_of_rows_gets_a_sentence(model: str, x: torch.Tensor, found: str) -> None:
    built = build(model, vocabulary=5, classes=5)
    with pytest.raises(UserError, match=rf"reads whole numbers \[batch, length\], not {found}"):
        built.look(x)


@pytest.mark.parametrize("name", ["transformer", "router", "deepthinking", "lstm"])
def test_a_model_without_its_tasks_shape_says_where_it_is(name: str) -> None:
    if name == "deepthinking":  # which has usual ones
        assert build(name).look(torch.zeros(1, 3, 9, 9)).x.shape == (1, 3, 9, 9)
        return
    with pytest.raises(UserError, match=rf"needs vocabulary and classes, .*: build\('{name}', \*\*task\.shape\)\."):
        build(name)
