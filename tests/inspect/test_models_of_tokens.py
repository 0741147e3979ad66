"""Attention and gates, the memory of a DNC, and what functions mean by a symbol."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import longthink as lt
from longthink.errors import UserError
from longthink.evaluate import Curve
from longthink.inspect import active, attention, experts, gates, memory, representations
from longthink.inspect.gates import Gates
from longthink.loading import rebuild
from longthink.models import build
from longthink.tasks.ctlpp import CTLPP
from longthink.training.recipe import Recipe
from tests.inspect.toys import Oracle, is_drawn

TASK = CTLPP(variant="R")
SIZES = {"vocabulary": len(TASK.tokens), "classes": 8}


def test_attention_and_gates_of_a_router() -> None:
    model = build("router", **SIZES, width=16, hidden=16, heads=2)
    batch = TASK.parse("c b a 3")
    maps = attention.attention_maps(model, batch.inputs, 5, TASK.decoded(batch))
    assert maps.labels == ("⊢", "c", "b", "a", "3", "⊣")
    assert maps.attention is not None
    assert maps.gate is not None
    assert maps.attention.shape == (5, 2, 6, 6)
    assert maps.gate.shape == (5, 6)
    assert 0 < maps.gate.min() <= maps.gate.max() < 1
    assert torch.equal(maps.seen(), maps.attention.amax(1))
    assert torch.equal(maps.seen(1), maps.attention[:, 1])
    assert model.training  # as it was
    document = maps.to_json(head=1)
    assert set(document) == {"labels", "steps", "heads", "head", "answer_column", "attention", "gate"}
    assert document["answer_column"] == 5
    assert (document["steps"], document["heads"], document["head"]) == (5, 2, 1)
    assert is_drawn(attention.draw(maps, title="c b a 3"))
    with pytest.raises(UserError, match="heads 0 to 1, not 2"):
        maps.seen(2)
    assert is_drawn(attention.draw_heads(maps, (1, 5), "c b a 3"))
    with pytest.raises(UserError, match="steps 1 to 5, not at 1, 6"):
        attention.draw_heads(maps, (1, 6))
    first = build("router", **SIZES, width=16, hidden=16, heads=2, read_from="first")
    assert attention.attention_maps(first, batch.inputs, 5, TASK.decoded(batch)).answer_column == 0


def test_gates_are_counted_and_shut() -> None:
    recipe = Recipe(name="toy", task="ctlpp", difficulty=(2,), model="router", model_options={"width": 16}, steps=3)
    problem, model = rebuild(recipe)
    for layer in model.layers:
        torch.nn.init.normal_(layer.gate.down.bias, std=3.0)  # some are open, some shut
    loaded = lt.Loaded(model.eval(), problem, {"recipe": recipe.to_json()})
    batch = problem.sample(7, 2, seed=0)
    asked = []
    found = gates.shut(loaded, batch, (0.0, 0.1, 0.4), 6, chunk=3, on_step=asked.append)
    assert sum(asked) == 3 * 7 * 6
    for threshold, one in zip(found.thresholds, found.curves, strict=True):
        variant = loaded.with_settings([f"model.gate_threshold={threshold}"])
        right = [problem.score(lt.think(variant.model, batch.inputs, n).logits, batch) for n in range(1, 7)]
        assert torch.equal(one.right, torch.stack(right, 1))
    as_trained = lt.think(model, batch.inputs, 3, watch=("gate",)).trace["gate"]  # all columns are real ones
    counts = torch.histogram(as_trained.flatten(), torch.tensor(gates.EDGES)).hist
    torch.testing.assert_close(found.shares, (counts / counts.sum()).double())
    assert model.gate_threshold == 0
    with pytest.raises(UserError, match="at least one threshold"):
        gates.shut(loaded, batch, ())
    with pytest.raises(UserError, match=r"below 1, not 1\.5"):
        gates.shut(loaded, batch, (0.0, 1.5), on_step=lambda _: pytest.fail("work had begun"))


def test_the_threshold_is_the_middle_one_of_the_best() -> None:
    """Those that find as many answers come first, and of these those that keep as many."""

    def solved(*accuracies: float) -> Curve:
        right = torch.stack([torch.arange(1000) < 1000 * accuracy for accuracy in accuracies], 1)
        return Curve(5, right, right.float(), right.float())

    losing, keeping, failing = solved(0, 1, 0.2), solved(0, 1, 0.99), solved(0, 0.97, 0.97)
    almost = solved(0, 0.996, 0.992)
    found = Gates((0.0, 0.2, 0.4, 0.6, 0.8), (losing, keeping, almost, keeping, failing), 2, torch.ones(1))
    assert found.kept(0) == pytest.approx(0.6)
    assert found.thresholds[found.best] == 0.4
    assert Gates((0.0, 0.5), (losing, failing), 2, torch.ones(1)).best == 0
    assert found.to_json()["best_threshold"] == 0.4


def test_a_transformer_without_gates_and_many_steps() -> None:
    model = build("transformer", **SIZES, width=16, hidden=16, heads=2)
    maps = attention.attention_maps(model, TASK.sample(2, 3, 0).inputs, 40)
    assert maps.gate is None
    assert maps.attention is not None
    assert torch.allclose(maps.attention.sum(-1), torch.ones(40, 2, 6), atol=1e-5)
    assert maps.labels == tuple("012345")
    assert maps.to_json()["gate"] is None
    assert is_drawn(attention.draw(maps))


def test_distinct_layers_are_steps_too() -> None:
    model = build("transformer", **SIZES, width=16, hidden=16, distinct_steps=3)
    assert attention.attention_maps(model, TASK.sample(1, 3, 0).inputs, 3).steps == 3
    with pytest.raises(UserError, match="at most 3 steps"):
        attention.attention_maps(model, TASK.sample(1, 3, 0).inputs, 4)


def test_a_model_without_attention_says_so() -> None:
    model, task, _ = lt.load("prefix_sums")
    with pytest.raises(UserError, match="notes neither attention nor gates") as caught:
        attention.attention_maps(model, task.sample(1, 8, 0).inputs, 2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("masks", [True, False])
def test_the_memory_of_a_dnc(masks: bool) -> None:
    model = build("dnc", classes=2, inputs=5, outputs=3, size=8, cells=6, width=4, heads=2, masks=masks)
    inputs = torch.randn(3, 7, 5)
    trace = memory.memory_trace(model, inputs, steps=2, link_step=4)
    assert trace.times == 9  # two thinking steps after the sequence
    assert trace.write_address.shape == (9, 6)
    assert trace.read_address.shape == (9, 2, 6)
    assert torch.allclose(trace.read_modes.sum(-1), torch.ones(9, 2), atol=1e-5)
    assert trace.link.shape == (6, 6)
    for links in (trace.forward_links, trace.backward_links):
        assert links.shape == (9, 2, 6)
        assert torch.allclose(links.sum(-1), torch.ones(9, 2), atol=1e-5)  # sharp ones are normalised
    assert trace.heard is not None
    assert torch.equal(trace.heard, inputs[0])
    assert trace.said is not None
    assert torch.equal(trace.said, lt.think(model, inputs[:1], 2).logits.softmax(1)[0, 1])
    assert trace.truth is None
    bits = torch.randint(0, 2, trace.said.shape)[None]
    with_truth = memory.memory_trace(model, inputs, 2, targets=bits)
    assert with_truth.to_json()["truth"] == bits[0].tolist()
    assert len(memory.draw(with_truth).axes) == len(memory.draw(trace).axes) + 1
    assert (trace.read_mask is not None) == (trace.write_mask is not None) == masks
    if trace.write_mask is not None:
        assert trace.write_mask.shape == (9, 4)
    document = trace.to_json()
    assert (document["link_step"], document["cells"], document["heads"]) == (4, 6, 2)
    assert document["modes"] == ["backward", "content", "forward"]
    assert {"write_address", "read_address", "read_modes", "usage", "link", "read_mask"} <= set(document)
    assert is_drawn(memory.draw(trace, "title"))
    with pytest.raises(UserError, match="time steps 1 to 7"):
        memory.memory_trace(model, torch.randn(1, 7, 5), link_step=8)


def test_the_memory_of_a_dnc_that_reads_words() -> None:
    torch.manual_seed(0)
    model = build("dnc", classes=9, vocabulary=9, size=8, cells=40, width=4, heads=3)
    trace = memory.memory_trace(model, torch.tensor([[3, 1, 4]]), tokens=tuple("abcdefghi"))
    assert trace.words == ("d", "b", "e")
    assert trace.to_json()["words"] == ["d", "b", "e"]
    one_head = memory.draw(replace(trace, read_address=trace.read_address[:, :1]))
    several = memory.draw(trace)
    assert len(several.axes) == len(one_head.axes)  # one head is drawn
    assert [label.get_text() for label in several.axes[0].get_xticklabels()] == ["d", "b", "e"]
    written = torch.zeros(3, 40)
    written[0, 7] = written[1, 9] = 1
    read = torch.zeros(3, 3, 40)
    read[:, 2, 7] = 1
    cropped = memory.draw(replace(trace, write_address=written, read_address=read))
    assert cropped.axes[0].get_ylabel() == "2 used cells"
    assert "of head 2" in cropped.axes[1].get_title(loc="left")  # the one that looks most firmly
    for head, ok in ((0, True), (2, True), (3, False), (-1, False)):
        with nullcontext() if ok else pytest.raises(UserError, match=f"heads 0 to 2; there is no head {head}"):
            memory.draw(trace, head=head)
    with pytest.raises(UserError, match="answers while it reads"):
        memory.memory_trace(model, torch.tensor([[3, 1, 4]]), steps=1)


def test_links_of_two_networks_beside_each_other() -> None:
    torch.manual_seed(0)
    inputs, bits = torch.randn(1, 6, 5), torch.tensor([[[0, 0]] * 4 + [[1, 0]] * 2])
    traces = {}
    for name, switches in (("DNC", (False, False, False)), ("DNC-MS", (True, False, True))):
        options = dict(zip(("masks", "deallocate", "sharpness"), switches, strict=True))
        model = build("dnc", classes=2, inputs=5, outputs=2, size=8, cells=6, width=4, **options)
        assert memory.variant(model) == name
        traces[name] = memory.memory_trace(model, inputs, targets=bits)
    drawn = memory.draw_links(traces, "title")
    assert is_drawn(drawn)
    titles = [axes.get_title(loc="left") for axes in drawn.axes]
    assert sorted(titles) == ["DNC-MS: forward links", "DNC-MS: read modes", "DNC: forward links", "DNC: read modes"]
    (due,) = drawn.axes[0].collections
    assert [tuple(line[:, 0]) for line in due.get_segments()] == [(4.5, 5.5), (5.5, 6.5)]  # where an answer is due


def test_a_model_without_memory_says_so() -> None:
    model = build("lstm", **SIZES, width=8)
    for steps in (0, 1):
        with pytest.raises(UserError, match="notes no"):
            memory.memory_trace(model, TASK.sample(1, 2, 0).inputs, steps)


def test_similarities_show_the_groups() -> None:
    found = representations.similarities(Oracle(TASK), TASK, 0)
    assert found.cosines.shape == (8, 32, 32)
    same = torch.tensor([[a == b for b in found.groups] for a in found.groups])
    assert torch.allclose(found.cosines, torch.where(same, 1.0, 0.5).double().expand(8, 32, 32), atol=1e-6)
    assert torch.allclose(found.gap(), torch.full((8,), 0.5, dtype=torch.double), atol=1e-6)
    for camps in found.clusters.tolist():
        assert camps == [int(group == "b") for group in found.groups]
    assert set(found.to_json()) == {"symbols", "functions", "groups", "cosines", "clusters", "clearest", "group_gap"}
    assert found.clearest == found.symbols[0]  # all alike


def test_compatibility_shows_who_misreads_whom() -> None:
    model = Oracle(TASK)
    by_group = representations.compatibility(model, TASK, 0, ["6", "3"])
    assert by_group.rows == by_group.columns == ("a", "b")
    assert by_group.accuracy.tolist() == [[1.0, 1.0], [0.0, 1.0]]
    assert by_group.pairs.tolist() == [[512, 512], [512, 512]]
    found = representations.similarities(model, TASK, 0, ["6"])
    by_cluster = representations.compatibility(model, TASK, 0, ["6"], found)
    assert by_cluster.rows == ("C1", "C2")
    assert by_cluster.accuracy.tolist() == by_group.accuracy.tolist()
    assert set(by_cluster.to_json()) == {"rows", "columns", "accuracy", "pairs"}
    assert is_drawn(representations.draw(found, (by_group,), "title"))
    with pytest.raises(UserError, match="belong to one symbol"):
        representations.compatibility(model, TASK, 0, ["6", "3"], found)


@pytest.mark.parametrize(("name", "steps"), [("router", 3), ("lstm", 0)])
def test_any_model_with_a_linear_head_can_be_compared(name: str, steps: int) -> None:
    task = CTLPP(variant="S")
    found = representations.similarities(build(name, **SIZES, width=16), task, steps, ["0"])
    assert torch.allclose(found.cosines.diagonal(dim1=1, dim2=2), torch.ones(1, 32).double(), atol=1e-5)
    assert set(found.groups) == {"a1", "a2", "b1", "b2", "o"}
    assert is_drawn(representations.draw(found))


def test_what_cannot_be_compared_says_so() -> None:
    with pytest.raises(UserError, match="compared on ctlpp"):
        representations.similarities(Oracle(TASK), lt.task("ctl"), 0)
    with pytest.raises(UserError, match="no symbol '9'"):
        representations.similarities(Oracle(TASK), TASK, 0, ["9"])
    with pytest.raises(UserError, match="not read by one linear layer"):
        representations.similarities(build("dnc", **SIZES, answer="last", cells=4, width=4), TASK, 0, ["0"])


@pytest.mark.parametrize("name", ["transformer", "language"])
def test_which_experts_are_used_together(name: str) -> None:
    torch.manual_seed(0)
    mixture = {"feedforward": "experts", "feedforward_options": {"experts": 4, "k": 2}}
    depth = {"distinct_steps": 3} if name == "language" else {}
    model = build(name, **SIZES, width=16, hidden=32, heads=2, **mixture, **depth)
    inputs = TASK.sample(6, 3, 0).inputs
    found = experts.expert_use(model, inputs, 3, chunk=4)
    columns = inputs.shape[1] + (2 if name == "transformer" else 0)
    assert found.tokens == 6 * columns
    assert found.k == 2
    torch.testing.assert_close(found.share.sum(1), torch.full((3,), 2.0, dtype=torch.double))
    # counted one by one
    model.eval()
    trace = lt.think(model, inputs, 3, watch=("experts", "gates")).trace
    chosen, gates = trace["experts"], trace["gates"]
    for step in range(3):
        rows = [set(row) for row in chosen[:, step].flatten(0, 1).tolist()]
        added = torch.stack([gates[:, step][chosen[:, step] == a].double().sum() for a in range(4)])
        torch.testing.assert_close(found.weight[step], added / added.sum(), rtol=1e-5, atol=1e-7)  # Figure 7.3
        p = found.share[step] / 2
        entropy = -(p * p.clamp_min(1e-30).log()).sum() / torch.tensor(4.0).log()
        torch.testing.assert_close(found.evenness[step], entropy, rtol=1e-5, atol=1e-7, check_dtype=False)
        for a in range(4):
            of_a = [row for row in rows if a in row]
            assert found.share[step, a] == len(of_a) / len(rows)
            for b in range(4):
                both = sum(b in row for row in of_a)
                assert abs(float(found.together[step, a, b]) - both / max(1, len(of_a))) < 1e-9
        assert int(found.unused[step]) == sum(all(a not in row for row in rows) for a in range(4))
    assert ((found.evenness >= 0) & (found.evenness <= 1 + 1e-9)).all()
    assert is_drawn(experts.draw(found, "toy"))
    with pytest.raises(UserError, match="has no experts"):
        experts.expert_use(build("router", **SIZES, width=16, hidden=16), inputs, 2)


def test_blocks_of_a_text_are_seen_with_what_came_before() -> None:
    torch.manual_seed(0)
    mixture = {"feedforward": "experts", "feedforward_options": {"experts": 4, "k": 1}}
    model = build("language", **SIZES, width=16, hidden=32, heads=2, **mixture, distinct_steps=2, memory=6).eval()
    text = torch.randint(1, SIZES["vocabulary"], (5, 18))
    blocks = text.split(6, 1)
    found = experts.expert_use(model, blocks, 2, chunk=2)
    past = None
    for block in blocks:
        context = model.look((block, past))
        thought = lt.think(model, None, 2, context=context, watch=("experts",))
        past = model.remember(thought.state, context)
    counted = torch.nn.functional.one_hot(thought.trace["experts"][..., 0], 4).double().mean((0, 2))
    torch.testing.assert_close(found.share, counted)
    assert found.tokens == 30
    assert not torch.equal(found.share, experts.expert_use(model, blocks[-1], 2).share)
    assert active.active_units(model, blocks, 2).tokens == 30
    assert is_drawn(experts.draw(found, "one expert a token: no pairs"))


def test_layers_of_a_group_are_seen_one_by_one() -> None:
    torch.manual_seed(0)
    mixture = {"feedforward": "experts", "feedforward_options": {"experts": 4, "k": 2}}
    model = build("language", **SIZES, width=16, hidden=32, heads=2, **mixture, group=2, planned_steps=2).eval()
    inputs = TASK.sample(6, 3, 0).inputs
    names = ("layer1.experts", "experts", "layer1.active", "active")
    trace = lt.think(model, inputs, 2, watch=names).trace
    found, units = experts.expert_use(model, inputs, 2, chunk=4), active.active_units(model, inputs, 2)
    assert found.entries == units.entries == found.to_json()["entries"] == "layer"
    assert found.share.shape == (4, 4)
    for place, (step, prefix) in enumerate([(0, "layer1."), (0, ""), (1, "layer1."), (1, "")]):
        chosen = trace[prefix + "experts"][:, step]
        shares = torch.nn.functional.one_hot(chosen, 4).sum(2).double().mean((0, 1))
        torch.testing.assert_close(found.share[place], shares)
        assert units.mean[place] == pytest.approx(float(trace[prefix + "active"][:, step].double().mean()))
    assert is_drawn(experts.draw(found))
    assert is_drawn(active.draw(units))


def test_one_expert_is_used_evenly() -> None:
    mixture = {"feedforward": "experts", "feedforward_options": {"experts": 1, "k": 1}}
    model = build("transformer", **SIZES, width=16, hidden=32, heads=2, **mixture)
    assert experts.expert_use(model, TASK.sample(2, 3, 0).inputs, 2).to_json()["evenness"] == [1.0, 1.0]


@pytest.mark.parametrize("feedforward", ["dense", "top_k", "product_keys", "experts"])
def test_how_many_units_are_active(feedforward: str) -> None:
    torch.manual_seed(0)
    given = {"top_k": {"k": 5}, "product_keys": {"k": 3, "heads": 1}, "experts": {"experts": 4, "k": 1}}
    options = {"feedforward_options": given[feedforward]} if feedforward in given else {}
    model = build("transformer", **SIZES, width=16, hidden=36, heads=2, feedforward=feedforward, **options)
    inputs = TASK.sample(6, 3, 0).inputs
    found = active.active_units(model, inputs, 3, chunk=4)
    model.eval()
    noted = lt.think(model, inputs, 3, watch=("active",)).trace["active"].double()
    assert found.tokens == noted[:, 0].numel()
    assert found.units == 36
    for step in range(3):
        assert found.mean[step] == pytest.approx(float(noted[:, step].mean()))
        assert found.deviation[step] == pytest.approx(float(noted[:, step].std(correction=0)))
    assert (found.mean <= {"dense": 36, "top_k": 5, "product_keys": 3, "experts": 9}[feedforward]).all()
    assert (found.mean > 0).all()
    assert is_drawn(active.draw(found, "toy"))


def test_whose_units_are_counted() -> None:
    """Those of the update and not of the gate; padding does not count."""
    torch.manual_seed(0)
    model = build("router", **SIZES, width=8, hidden=128, heads=2).eval()
    short, long = (TASK.sample(3, depth, 0).inputs for depth in (2, 5))
    mixed = torch.cat([torch.nn.functional.pad(short, (0, long.shape[1] - short.shape[1])), long])
    together = active.active_units(model, mixed, 2)
    apart = [active.active_units(model, part, 2) for part in (short, long)]
    assert together.tokens == sum(one.tokens for one in apart)
    mean = sum(one.tokens * one.mean for one in apart) / together.tokens
    torch.testing.assert_close(together.mean, mean)
    assert (together.mean > 16).all()  # a gate has 8 units
    mixture = {"feedforward": "experts", "feedforward_options": {"experts": 4, "k": 2}}
    for name in ("transformer", "router"):
        sparse = build(name, **SIZES, width=16, hidden=32, heads=2, **mixture)
        counted = active.active_units(sparse, short, 2)  # 2 of 4 experts of 8 units
        assert (counted.mean > 0).all()
        assert (counted.mean <= 16).all()
        use = experts.expert_use(sparse, mixed, 2)
        assert use.tokens == together.tokens
        torch.testing.assert_close(use.share.sum(1), torch.full((2,), 2.0, dtype=torch.double))
        torch.testing.assert_close(use.weight.sum(1), torch.ones(2, dtype=torch.double))
