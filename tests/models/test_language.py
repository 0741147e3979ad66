"""Language models: parity with MoEUT, the memory, what sparse layers ask for, bad options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from longthink.errors import UserError
from longthink.layers.feedforward import feedforwards
from longthink.models import build
from longthink.models.language import Language, Memory
from longthink.recipes import recipes
from longthink.recipes.language import _SIZES, ablations, rows
from longthink.think import tensors, think
from tests.fixtures import fixture

MOEUT = {
    "attention.q.weight": "attention.query.weight",
    "attention.k.weight": "attention.key.weight",
    "attention.v": "attention.value",
    "attention.o": "attention.merge",
    "attention.sel_v": "attention.value_selector",
    "attention.sel_o": "attention.merge_selector",
    "ffn.expert_sel": "feedforward.selection.weight",
    "ffn.keys": "feedforward.up",
    "ffn.values": "feedforward.down",
    "ln1": "norm_attention",
    "ln2": "norm_feedforward",
    "lm_head": "head",
    "out_norm": "norm_output",
    "transformer.": "",
}
EXPERTS = {"feedforward": "experts", "feedforward_options": {"experts": 4, "k": 2}}
KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "top_k": {"feedforward_options": {"k": 3}},
    "product_keys": {"feedforward_options": {"heads": 2}},
    "experts": {"feedforward_options": {"experts": 4, "k": 2}},
}
SHARED: dict[str, Any] = {"planned_steps": 2, "group": 2}
CASES: list[dict[str, Any]] = [
    {"distinct_steps": 3},
    {"distinct_steps": 3, "head_size": 5, **EXPERTS},
    {**SHARED, **EXPERTS},
    {**SHARED, **EXPERTS, "norm": "peri", "attention_options": {"experts": 3}},
    {"distinct_steps": 2, **EXPERTS, "norm": "peri", "attention_options": {"experts": 3}},
]


def make(**options: Any) -> Language:
    torch.manual_seed(0)
    defaults = {"vocabulary": 7, "classes": 7, "width": 8, "hidden": 16, "heads": 2, "dropout": 0.0}
    model = build("language", **{**defaults, **options})
    assert isinstance(model, Language)
    return model.double()


def steps_of(model: Language) -> int:
    return model.depth // model.group


def public(name: str) -> str:
    for theirs, ours in MOEUT.items():
        name = name.replace(theirs, ours)
    return name


@pytest.mark.parametrize("case", ["moeut_tiny", "moeut_tiny_dense_attention"])
def test_matches_moeut(case: str) -> None:
    data = fixture(case)
    model = build(
        "moeut",
        vocabulary=11,
        classes=11,
        width=16,
        hidden=40,
        heads=2,
        planned_steps=2,
        attention_options={"experts": 1 if "dense" in case else 3},
        feedforward="experts",
        feedforward_options={"experts": 5, "k": 2, "balance_weight": 0.01},
    ).double()
    model.load_state_dict({public(name[2:]): value.double() for name, value in data.items() if name.startswith("w.")})
    weights = dict(model.named_parameters())
    close = {"rtol": 1e-4, "atol": 1e-4}  # theirs was computed in float32
    context = model.look(data["in.tokens"])
    thought = think(model, None, 2, context=context, watch=("state",))
    torch.testing.assert_close(thought.logits.transpose(1, 2), data["out.logits"].double(), **close)
    torch.testing.assert_close(thought.trace["state"], data["out.states"][:, 1::2].double(), **close)
    first = model.layers[0](context.x).h  # inside the group
    torch.testing.assert_close(first, data["out.states"][:, 0].double(), **close)
    asked = model.penalty(thought.state, context)
    torch.testing.assert_close(asked[None].float(), data["out.reg_loss"], rtol=1e-5, atol=1e-6)
    asked.backward(retain_graph=True)
    for name in data:
        if name.startswith("grad_reg."):
            torch.testing.assert_close(weights[public(name[11:])].grad, data[name].double(), **close)
    model.zero_grad()
    (thought.logits.transpose(1, 2) * data["in.cotangent"]).sum().backward()
    for name in data:
        if name.startswith("grad.w."):
            torch.testing.assert_close(weights[public(name[7:])].grad, data[name].double(), **close)


def in_blocks(model: Language, tokens: Tensor, length: int) -> tuple[Tensor, Memory]:
    memory: Memory | None = None
    parts = []
    for block in tokens.split(length, 1):
        context = model.look((block, memory))
        thought = think(model, None, steps_of(model), context=context)
        memory = model.remember(thought.state, context)
        parts.append(thought.logits)
    assert memory is not None
    return torch.cat(parts, 2), memory


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("length", [1, 3, 4])
def test_blocks_with_a_long_memory_are_one_long_pass(options: dict[str, Any], length: int) -> None:
    model = make(**options, memory=3).eval()
    assert model.evaluation_memory == (3 if model.peri else 12)
    model.evaluation_memory = 12
    tokens = torch.randint(7, (2, 10))
    whole = think(model, tokens, steps_of(model)).logits
    assert whole.shape == (2, 7, 10)
    with torch.no_grad():
        found, memory = in_blocks(model, tokens, length)
    torch.testing.assert_close(found, whole)
    assert [part.shape for part in memory] == [(2, 10, 8)] * model.depth
    assert not any(part.requires_grad for part in memory)
    model.evaluation_memory = 1  # and a short one is not
    assert not torch.allclose(in_blocks(model, tokens, length)[0], whole)


@pytest.mark.parametrize("options", CASES)
def test_nothing_looks_ahead(options: dict[str, Any]) -> None:
    model = make(**options).eval()
    tokens = torch.randint(7, (1, 6))
    other = tokens.clone()
    other[0, 4] = (other[0, 4] + 1) % 7
    a, b = (think(model, t, steps_of(model)).logits for t in (tokens, other))
    torch.testing.assert_close(a[..., :4], b[..., :4])
    assert not torch.allclose(a[..., 4:], b[..., 4:])


def test_the_memory_of_a_layer_is_its_last_inputs() -> None:
    model = make(distinct_steps=2, memory=3).train()
    tokens = torch.randint(7, (2, 5))
    context = model.look((tokens, None))
    first = model.step(model.start(context), context)
    second = model.step(first, context)
    kept = model.remember(second, context)
    torch.testing.assert_close(kept[0], context.x[:, 2:].detach())
    torch.testing.assert_close(kept[1], first.h[:, 2:].detach())
    assert all(len(part) == 2 for part in tensors(second))
    # It takes part in the next block, but no gradient reaches the block before.
    after = model.look((tokens, kept))
    loss = think(model, None, 2, context=after).logits.square().sum()
    gradients = torch.autograd.grad(loss, [context.x], allow_unused=True)
    assert gradients == (None,)
    model.memory = 0
    assert [part.shape[1] for part in model.remember(second, context)] == [0, 0]


@pytest.mark.parametrize("kind", feedforwards)
def test_takes_every_feedforward_kind(kind: str) -> None:
    model = make(distinct_steps=2, feedforward=kind, **KINDS[kind]).train()
    tokens = torch.randint(7, (2, 5))
    context = model.look(tokens)
    thought = think(model, None, 2, context=context)
    loss = F.cross_entropy(thought.logits, tokens)
    asked = model.penalty(thought.state, context)
    assert (asked is None) == (kind == "dense")
    (loss if asked is None else loss + asked).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    model.eval()
    assert model.penalty(think(model, tokens, 2).state, context) is None


def test_what_layers_ask_for_adds_up() -> None:
    model = make(distinct_steps=3, **EXPERTS).train()
    context = model.look(torch.randint(7, (2, 5)))
    h, total = context.x, torch.zeros(())
    for layer in model.layers:
        h, balance, _ = layer(h)
        total = total + balance
    asked = model.penalty(think(model, None, 3, context=context).state, context)
    torch.testing.assert_close(asked.float(), total.float())
    assert float(asked.detach()) < 0  # a negative entropy


def test_distinct_layers_of_moeut_are_balanced_one_by_one() -> None:
    options = {**EXPERTS, "norm": "peri", "attention_options": {"experts": 3}}
    apart, group = make(**options, distinct_steps=2).train(), make(**options, group=2).train()
    apart.load_state_dict(group.state_dict())  # the same two layers, in two steps or in one
    tokens = torch.randint(7, (3, 5))
    asked = []
    for model, steps in ((apart, 2), (group, 1)):
        context = model.look(tokens)
        asked.append(model.penalty(think(model, None, steps, context=context).state, context))
    torch.testing.assert_close(asked[0], asked[1])
    context = apart.look(tokens)
    half = apart.penalty(think(apart, None, 1, context=context).state, context)
    assert asked[0] < half < 0
    assert apart.penalty(apart.start(context), context) == 0


def test_expert_usage_can_be_watched() -> None:
    model = make(distinct_steps=3, **EXPERTS).eval()
    trace = think(model, torch.randint(7, (2, 5)), 3, watch=("usage", "experts")).trace
    assert trace["usage"].shape == (2, 3, 4)
    torch.testing.assert_close(trace["usage"].sum(-1), torch.full((2, 3), 2.0, dtype=torch.double))
    assert trace["experts"].shape == (2, 3, 5, 2)
    with pytest.raises(UserError, match=r"notes nothing named 'layer1\.usage'"):
        think(model, torch.randint(7, (2, 5)), 3, watch=("layer1.usage",))


@pytest.mark.parametrize("norm", ["pre", "peri"])
def test_all_layers_of_a_group_can_be_watched(norm: str) -> None:
    model = make(group=2, planned_steps=2, norm=norm, **EXPERTS).eval()
    seen: list[Tensor] = []
    for layer in model.layers:
        layer.feedforward.selection.register_forward_hook(lambda _, __, chosen: seen.append(chosen.experts))
    names = ("layer1.experts", "experts", "layer1.usage", "usage")
    trace = think(model, torch.randint(7, (2, 5)), 2, watch=names).trace
    noted = torch.stack([trace["layer1.experts"], trace["experts"]], 2).flatten(1, 2)  # layers as they are applied
    assert torch.equal(noted, torch.stack(seen, 1))
    assert not torch.equal(trace["usage"], trace["layer1.usage"])


def test_first_weights_do_not_depend_on_anything_but_the_seed() -> None:
    a, b = make(distinct_steps=2), make(distinct_steps=2)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    big = make(distinct_steps=8, width=64, hidden=256)
    for weight, fan_in in ((big.layers[3].feedforward.down.weight, 256), (big.layers[7].attention.query.weight, 64)):
        torch.testing.assert_close(weight.std(), torch.tensor((2 / (8 * fan_in)) ** 0.5).double(), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"distinct_steps": 0}, "distinct_steps must be 1 or more"),
        ({"distinct_steps": 2, "group": 2}, "neither grouped nor repeated"),
        ({"group": 0}, "must be 1 or more"),
        ({"memory": -1}, "0 positions or more"),
        ({"norm": "post"}, "pre or peri"),
        ({"norm": "peri"}, "needs feedforward='experts'"),
        ({"norm": "peri", "feedforward_options": {"experts": 4}}, "needs feedforward='experts'"),
        ({"attention_options": {"experts": 2}}, "Only norm='peri'"),
        ({"norm": "peri", **EXPERTS, "attention_options": {"expert": 2}}, "named 'expert'; did you mean 'experts'"),
        ({"feedforward": "experts", "feedforward_options": {"experts": 4, "k": 5}}, "between 1 and all 4"),
        ({"feedforward": "experts", "feedforward_options": {"experts": 3, "k": 1}}, "3 experts of the same size"),
        ({"feedforward": "top_k", "feedforward_options": {"q": 5}}, "named 'q'; choose one of"),
        ({"feedforward_options": 3}, "'dense' are given by name, not as 3"),
        ({"feedforward_options": {"width": 5}}, "named 'width'; choose one of: activation"),
        ({**EXPERTS, "feedforward_options": {"expert_droput": 0.1}}, "did you mean 'expert_dropout'"),
        ({**EXPERTS, "feedforward_options": {"expert": 4}}, "did you mean 'experts'"),
        (
            {**EXPERTS, "feedforward_options": {"hidden": 4}},
            "choose one of: expert_dropout, experts, k, ",
        ),
        ({**EXPERTS, "feedforward_options": {"selection_options": {"k": 2}}}, "named 'k'; it has none"),
        ({**EXPERTS, "feedforward_options": {"selection_options": 3}}, "'sigmoid' are given by name, not as 3"),
        ({**EXPERTS, "feedforward_options": {"balance_weight": -1}}, "number from 0 on, not -1"),
        ({**EXPERTS, "norm": "peri", "attention_options": {"width": 2}}, "choose one of: expert_dropout, experts, k"),
        ({**EXPERTS, "norm": "peri", "attention_options": 3}, "attention are given by name, not as 3"),
        ({"feedforward": "dens"}, "did you mean 'dense'"),
        ({"heads": 3}, "multiple of the number of heads"),
        ({"width": 0}, "width must be 1"),
    ],
)
def test_bad_options_get_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make(**options)


def test_bad_use_gets_a_sentence() -> None:
    model = make(planned_steps=2, memory=4)
    tokens = torch.randint(7, (2, 5))
    context = model.look((tokens, None))
    with pytest.raises(
        UserError, match="holds 2 layers, which take 2 steps, no more and no fewer; planned_steps sets how many"
    ):
        think(model, None, 3, context=context)
    assert think(model, tokens, 3).logits.shape == (2, 7, 5)  # without a memory one may think on
    with pytest.raises(UserError, match="Only 1 of 2 layers were applied; take 2 steps, no more and no fewer"):
        model.remember(think(model, None, 1, context=context).state, context)
    plain = model.look(tokens)
    with pytest.raises(UserError, match="look at \\(tokens, memory\\)"):
        model.remember(think(model, None, 2, context=plain).state, plain)
    memory = model.remember(think(model, None, 2, context=context).state, context)
    with pytest.raises(UserError, match="start again with None"):
        model.look((tokens[:1], memory))
    with pytest.raises(UserError, match="1 token or more"):
        model.look(tokens[:, :0])


def count(options: dict[str, Any], name: str) -> int:
    with torch.device("meta"):
        shape = {"vocabulary": 8000, "classes": 8000} if "wikitext" in name else {"vocabulary": 256, "classes": 256}
        return sum(p.numel() for p in build("language", **shape, **options).parameters())


@pytest.mark.parametrize(
    ("corpus", "millions"),
    [("text", 41), ("enwik8", 41), ("wikitext103-small", 47), ("wikitext103-wide", 237), ("wikitext103-big", 262)],
)
def test_recipes_have_the_published_parameters_and_match_each_other(corpus: str, millions: int) -> None:
    names = [f"{corpus}-{row}" for row in (*rows(_SIZES[corpus]), *ablations(_SIZES[corpus]))]
    counts = {name: count(recipes[name].model_options, name) for name in names}
    dense = counts[f"{corpus}-dense"]
    assert abs(dense - millions * 1e6) < 1e6
    for name, parameters in counts.items():
        assert abs(parameters / dense - 1) < 0.01, name


def test_recipes_for_a_cpu_drop_nothing_and_match_each_other() -> None:
    names = [name for name in recipes if name.startswith("text-mini-")]
    large = [row for row in (*rows(_SIZES["text"]), *ablations(_SIZES["text"])) if "dropout" not in row]
    assert len(names) == len(large)
    dense = count(recipes["text-mini-dense"].model_options, "text-mini")
    for name in names:
        options = recipes[name].model_options
        inner = options.get("feedforward_options", {})
        assert options["dropout"] == inner.get("dropout", 0) == inner.get("expert_dropout", 0) == 0, name
        assert abs(count(options, name) / dense - 1) < 0.015, name  # 32 selectors are 1% of so small a network
        assert recipes[name].updates == 1000


def test_recipes_follow_the_tables() -> None:
    sigma = recipes["enwik8-sigma_moe"]
    assert (sigma.batch, sigma.difficulty, sigma.steps, sigma.updates) == (32, (512,), 12, 100_000)
    assert (sigma.learning_rate, sigma.clip, sigma.schedule, sigma.weight_decay) == (2.5e-4, 0.25, "cosine", 0.0)
    experts = sigma.model_options["feedforward_options"]
    assert (experts["experts"], experts["k"], sigma.model_options["hidden"]) == (16, 4, 16 * 128)
    assert (experts["expert_dropout"], experts["balance_weight"]) == (0.05, 1e-4)
    switch = recipes["wikitext103-big-switch"]
    assert switch.model_options["feedforward_options"]["experts"] * 512 == switch.model_options["hidden"] == 4096
    assert switch.warmup_updates == 4000
    for kind in ("switch", "s_base"):  # neither has it (section 7.5.3)
        assert "expert_dropout" not in recipes[f"enwik8-{kind}"].model_options["feedforward_options"]
    differences = {
        "softmax_after": {"selection": "softmax_after"},
        "softmax_before": {"selection": "softmax"},
        "standard_init": {"initialisation": "standard"},
        "no_regularisation": {"balance": None, "expert_dropout": 0.0},  # "gamma = 0, delta = 0"
        "no_dropout": {"expert_dropout": 0.0},
        "standard_dropout": {"expert_dropout": 0.0, "dropout": 0.1},
    }
    for name, changed in differences.items():
        options = {"expert_dropout": 0.0, **recipes[f"enwik8-sigma_moe-{name}"].model_options["feedforward_options"]}
        assert options == {**experts, **changed}, name
    assert recipes["enwik8-pkm_relu"].model_options["hidden"] == 62**2
    hashes = [recipes[name].hash() for name in recipes if recipes[name].task == "text"]
    assert len(set(hashes)) == len(hashes)
    with torch.device("meta"):
        moeut = build("moeut", vocabulary=8000, classes=8000, **recipes["wikitext103-moeut"].model_options)
    assert round(sum(p.numel() for p in moeut.parameters()) / 1e6) == 44
