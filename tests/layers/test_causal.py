"""Transformer-XL's attention: against the public code, a loop, and itself without memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from longthink.errors import UserError
from longthink.layers import causal
from longthink.layers.causal import CausalRelativeAttention, at_most, past_encoding
from longthink.layers.positions import sinusoids
from longthink.layers.switch_head import SwitchHead, rotated
from longthink.ops.relative import by_past_distance, may_see
from longthink.think import think
from tests.fixtures import RELATIVE_ATTENTION, fixture

pytestmark = pytest.mark.usefixtures("double_by_default")


def dense_read(x: Tensor, memory: Tensor, padding: Tensor, w: dict[str, Tensor]) -> Tensor:
    """The fixture's attention on an encoder, which is no part of a language model: 2 heads, no positions."""
    q = F.linear(x, w["multihead_attn.data_to_q.weight"]).unflatten(-1, (2, 16)).transpose(1, 2)
    k, v = F.linear(memory, w["multihead_attn.data_to_kv.weight"]).unflatten(-1, (2, 2, 16)).permute(3, 0, 2, 1, 4)
    weights = (q @ k.mT / 4).masked_fill(padding[:, None, None], -torch.inf).softmax(-1)
    return F.linear((weights @ v).transpose(1, 2).flatten(2), w["multihead_attn.multi_head_merge.weight"])


def test_matches_the_public_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = fixture("relative_transformer_decoder_layer")
    stored = tensors["out.position_encoding"][:6]  # distances -5 to 0, computed in float32
    assert (stored - sinusoids(torch.arange(-5, 1), 32)).abs().max() < 1e-6
    monkeypatch.setattr(causal, "past_encoding", lambda *_: stored)
    w = {name[2:]: value.requires_grad_() for name, value in tensors.items() if name.startswith("w.")}
    ours = CausalRelativeAttention(32, 2)
    own = dict(ours.named_parameters())
    pairs = {f"self_attn.{theirs}": own[mine] for theirs, mine in RELATIVE_ATTENTION.items()}
    with torch.no_grad():
        for name, parameter in pairs.items():
            parameter.copy_(w[name])

    x, memory = tensors["in.x"].requires_grad_(), tensors["in.memory"].requires_grad_()
    norms = [(w[f"norm{i}.weight"], w[f"norm{i}.bias"]) for i in (1, 2, 3)]
    h = F.layer_norm(x + ours(x, x), (32,), *norms[0])
    h = F.layer_norm(h + dense_read(h, memory, tensors["in.memory_padding"], w), (32,), *norms[1])
    up = F.linear(h, w["linear1.weight"], w["linear1.bias"]).relu()
    y = F.layer_norm(h + F.linear(up, w["linear2.weight"], w["linear2.bias"]), (32,), *norms[2])
    torch.testing.assert_close(y, tensors["out.y"], rtol=0, atol=1e-10)
    (y * tensors["in.cotangent"]).sum().backward()
    torch.testing.assert_close(x.grad, tensors["grad.in.x"], rtol=0, atol=1e-10)
    for name, parameter in pairs.items():
        torch.testing.assert_close(parameter.grad, tensors[f"grad.w.{name}"], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("n", "total"), [(1, 1), (1, 7), (4, 4), (3, 8)])
def test_distances_are_those_to_the_past(n: int, total: int) -> None:
    scores = torch.randn(2, n, total)
    found = by_past_distance(scores)
    for i in range(n):
        for j in range(total - n + i + 1):
            distance = j - i - (total - n)
            assert torch.equal(found[:, i, j], scores[:, i, distance + total - 1])
    assert may_see(n, total, torch.device("cpu")).sum(1).tolist() == [total - n + i + 1 for i in range(n)]


def by_hand(attention: CausalRelativeAttention, x: Tensor, seen: Tensor) -> Tensor:
    """One query and one key at a time."""
    (batch, n, width), total, c = x.shape, seen.shape[1], attention.channels
    w = attention.key_value.weight.view(attention.heads, 2, c, width)
    out = torch.zeros(batch, n, attention.heads, c)
    for b in range(batch):
        for head in range(attention.heads):
            rows = slice(head * c, (head + 1) * c)
            for i in range(n):
                q = attention.query.weight[rows] @ x[b, i]
                last = total - n + i
                logits = torch.empty(last + 1)
                for j in range(last + 1):
                    place = attention.position.weight[rows] @ sinusoids(torch.tensor([j - last]), width)[0]
                    content = (q + attention.content_bias[head]) @ (w[head, 0] @ seen[b, j])
                    logits[j] = attention.scale * (content + (q + attention.position_bias[head]) @ place)
                out[b, i, head] = logits.softmax(0) @ (seen[b, : last + 1] @ w[head, 1].T)
    return attention.merge(out.flatten(2))


@pytest.mark.parametrize(("n", "remembered"), [(5, 0), (4, 3), (1, 6)])
def test_matches_a_loop_with_a_memory(n: int, remembered: int) -> None:
    torch.manual_seed(0)
    attention = CausalRelativeAttention(12, 2, head_size=10)  # heads need not fill the width
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(std=0.5)
    seen = torch.randn(2, remembered + n, 12)
    x = seen[:, remembered:]
    true = by_hand(attention, x, seen)
    torch.testing.assert_close(attention(x, seen), true)
    with torch.no_grad():  # few queries take another way
        torch.testing.assert_close(attention(x, seen), true)


def test_long_tables_of_positions_have_the_short_ones_at_their_end() -> None:
    exact = sinusoids(torch.arange(-4, 1), 8)
    torch.testing.assert_close(past_encoding(5, 8, torch.device("cpu")), exact)
    assert len(past_encoding(1, 8, torch.device("cpu"))) == 1


def test_far_distances_can_count_as_the_farthest_of_training() -> None:
    whole = past_encoding(9, 8, torch.device("cpu"))
    for farthest in (0, 3, 8, 20):
        torch.testing.assert_close(at_most(whole, farthest), sinusoids(-torch.arange(9).clamp(max=farthest).flip(0), 8))
    assert at_most(whole, None) is whole
    torch.manual_seed(0)
    layer, seen = CausalRelativeAttention(8, 2).eval(), torch.randn(2, 9, 8)
    plain = layer(seen[:, -3:], seen)
    layer.farthest = 8
    torch.testing.assert_close(layer(seen[:, -3:], seen), plain)
    layer.farthest = 2
    few = layer(seen[:, -3:], seen)
    assert not torch.allclose(few, plain)
    with torch.no_grad():  # the path for few queries
        torch.testing.assert_close(layer(seen[:, -1:], seen), few[:, -1:])


def test_rotary_products_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(1, 6), torch.randn(1, 6)
    here = rotated(q, 9) @ rotated(k, 4).T
    torch.testing.assert_close(rotated(q, 105) @ rotated(k, 100).T, here)
    assert not torch.allclose(rotated(q, 105) @ rotated(k, 99).T, here)
    angle = 3 * 10_000 ** (-1 / 3)  # the second of three pairs
    turned = rotated(torch.eye(6)[1:2], 3)[0]
    torch.testing.assert_close(turned[[1, 4]], torch.tensor([math.cos(angle), math.sin(angle)]))


def heads_by_hand(a: SwitchHead, normal: Tensor, raw: Tensor, n: int) -> Tensor:
    """Every head, expert and column on its own, without memory of any other."""
    batch, total, width = raw.shape
    c, y = a.channels, torch.zeros(batch, n, width)
    for b in range(batch):
        for head in range(a.heads):
            rows = slice(head * c, (head + 1) * c)
            own = slice(head * a.experts, (head + 1) * a.experts)
            keys, values = [], []
            for j in range(total):
                keys.append(a.key.weight[rows] @ normal[b, j])
                gates = (a.value_selector[own] @ normal[b, j]).sigmoid()
                best = gates.topk(a.k).indices
                values.append(sum(gates[e] * (raw[b, j] @ a.value[own][e]) for e in best))
            turned = [torch.cat([rotated(k[None, : a.turned], j)[0], k[a.turned :]]) for j, k in enumerate(keys)]
            for i in range(n):
                place = total - n + i
                q = a.query.weight[rows] @ normal[b, place]
                q = torch.cat([rotated(q[None, : a.turned], place)[0], q[a.turned :]])
                logits = torch.stack([q @ turned[j] for j in range(place + 1)]) / math.sqrt(c)
                read = sum(w * v for w, v in zip(logits.softmax(0), values, strict=False))
                gates = (a.merge_selector[own] @ normal[b, place]).sigmoid()
                for e in gates.topk(a.k).indices:
                    y[b, i] += gates[e] * (read @ a.merge[own][e])
    return y


@pytest.mark.parametrize(("n", "total"), [(4, 4), (2, 5)])
def test_attention_experts_match_a_loop(n: int, total: int) -> None:
    torch.manual_seed(0)
    attention = SwitchHead(6, 2, head_size=8, experts=3, k=2)
    normal, raw = torch.randn(2, total, 6), torch.randn(2, total, 6)
    found, chances = attention(normal, raw, n)
    true = heads_by_hand(attention, normal, raw, n)
    torch.testing.assert_close(found, true, rtol=0, atol=1e-10)
    weights = list(attention.parameters())
    mine = torch.autograd.grad(found.square().sum(), weights, retain_graph=True)
    theirs = torch.autograd.grad(true.square().sum(), weights)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    assert [chance.shape for chance in chances] == [(2, 2, 3)] * 2
    torch.testing.assert_close(chances[1].sum(-1), torch.full((2, 2), float(n)))


def test_dropped_attention_experts_are_not_used() -> None:
    torch.manual_seed(0)
    attention = SwitchHead(6, 1, head_size=4, experts=2, k=1, expert_dropout=0.5).train()
    x = torch.randn(1, 20, 6)
    seen = {
        tuple(sorted(set(attention._choose(x, attention.merge_selector).experts.flatten().tolist()))) for _ in range(40)
    }
    assert seen == {(0, 1), (0,), (1,)}
    two = SwitchHead(6, 2, head_size=4, experts=2, k=1, expert_dropout=0.5).train()
    chosen = [two._choose(x, two.merge_selector).experts.T.tolist() for _ in range(80)]
    pairs = {tuple(tuple(sorted(set(head))) for head in heads) for heads in chosen}
    assert ((0,), (3,)) in pairs  # each head loses experts of its own


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: CausalRelativeAttention(10, 4), "multiple of the number of heads"),
        (lambda: CausalRelativeAttention(8, 0), "1 head or more"),
        (lambda: CausalRelativeAttention(8, 2, head_size=0), "1 channel or more"),
        (lambda: SwitchHead(8, 2, experts=2, k=3), "between 1 and all 2"),
        (lambda: SwitchHead(8, 2, experts=0), "1 expert or more"),
        (lambda: SwitchHead(8, 2, experts=2, expert_dropout=1.0), "probability below 1"),
    ],
)
def test_bad_options_get_a_sentence(make, sentence: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=sentence):
        make()


def test_attention_can_be_watched() -> None:
    from longthink.models import build

    torch.manual_seed(0)
    model = build("language", vocabulary=5, classes=5, width=8, hidden=8, heads=2, distinct_steps=2).eval()
    tokens = torch.randint(5, (3, 4))
    thought = think(model, tokens, 2, watch=("attention",))
    weights = thought.trace["attention"]
    assert weights.shape == (3, 2, 2, 4, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 2, 4))
    assert (weights.triu(1) == 0).all()
    torch.testing.assert_close(thought.logits, think(model, tokens, 2).logits)
