"""Parity with what the public code computes, the published parameter counts, and a naive rewrite of the equations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from longthink.bench.deepthinking import NaiveDeepThinking, naive_loss
from longthink.errors import UserError
from longthink.models import build
from longthink.models.deepthinking import DeepThinking
from longthink.tasks import Batch, task
from longthink.think import think
from longthink.training.losses import Objective, Plan
from tests.fixtures import fixture

CASES = {
    "dt_recall_2d": {"dims": 2, "recall": True},
    "dt_2d": {"dims": 2, "recall": False},
    "dt_recall_1d": {"dims": 1, "recall": True},
    "dt_1d": {"dims": 1, "recall": False},
    "ff_recall_2d": {"dims": 2, "recall": True, "distinct_steps": 4},
    "ff_recall_1d": {"dims": 1, "recall": True, "distinct_steps": 4},
}
PROGRESSIVE = {
    "progressive_mazes": "dt_recall_2d",
    "progressive_prefix_sums": "dt_recall_1d",
    "progressive_ff_mazes": "ff_recall_2d",
}


def public_model(case: str) -> DeepThinking:
    options = CASES[case]
    inputs = 1 if options["dims"] == 1 else 3
    head = (16, 8) if options["dims"] == 1 else (32, 8)
    model = build("deepthinking", inputs=inputs, width=16, head=head, **options).double()
    assert isinstance(model, DeepThinking)
    return model


def public_names(model: DeepThinking, names: list[str]) -> dict[str, tuple[Tensor, ...]]:
    """Public weight name -> our parameters (two where we split the recall convolution)."""
    pairs: dict[str, tuple[Tensor, ...]] = {}
    for name in names:
        parts = name.removesuffix(".weight").split(".")
        if parts[0] == "projection":
            pairs[name] = (model.projection.weight,)
        elif parts[0] == "head":
            pairs[name] = (model.head[int(parts[1]) // 2].weight,)
        elif parts[0] == "recall_layer" or parts == ["recur_block", "0"]:
            pairs[name] = (model.recall_state.weight, model.recall_input.weight)
        else:  # recur_block.R.b.conv1 or feedforward_layers.S.0.b.conv1
            block = int(parts[1]) if parts[0] == "feedforward_layers" else 0
            conv = 2 * int(parts[-2]) + int(parts[-1] == "conv2")
            pairs[name] = (model.blocks[block].convs[conv].weight,)
    return pairs


def load_public(model: DeepThinking, tensors: dict[str, Tensor]) -> dict[str, tuple[Tensor, ...]]:
    weights = {name[2:]: value for name, value in tensors.items() if name.startswith("w.")}
    pairs = public_names(model, list(weights))
    with torch.no_grad():
        for name, ours in pairs.items():
            for part, value in zip(ours, weights[name].split([p.shape[1] for p in ours], 1), strict=True):
                part.copy_(value)
    return pairs


def assert_gradients(pairs: dict[str, tuple[Tensor, ...]], tensors: dict[str, Tensor]) -> int:
    compared = 0
    for name, ours in pairs.items():
        if f"grad.w.{name}" in tensors:
            gradient = torch.cat([part.grad for part in ours], 1)
            torch.testing.assert_close(gradient, tensors[f"grad.w.{name}"], rtol=1e-9, atol=1e-10)
            compared += 1
    return compared


@pytest.mark.parametrize("case", CASES)
def test_matches_the_public_code(case: str) -> None:
    tensors = fixture(case)
    model = public_model(case)
    pairs = load_public(model, tensors)
    steps = tensors["in.steps"].tolist()
    thought = think(model, tensors["in.x"], max(steps), watch=("logits", "state"))
    logits = thought.trace["logits"][:, [s - 1 for s in steps]]
    torch.testing.assert_close(logits, tensors["out.logits"], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(thought.trace["state"][:, 0], tensors["out.state_1"], rtol=1e-9, atol=1e-10)
    (logits * tensors["in.cotangent"]).sum().backward()
    assert assert_gradients(pairs, tensors) >= 7


@pytest.mark.parametrize("case", PROGRESSIVE)
@pytest.mark.parametrize("reuse", [True, False])
def test_progressive_loss_matches_the_public_code(case: str, reuse: bool) -> None:
    tensors = fixture(case)
    model = public_model(PROGRESSIVE[case])
    pairs = load_public(model, tensors)
    n, k, m = tensors["in.n_k_m"].tolist()
    x = tensors["in.x"]
    mask = (x.amax(1) > 0) if x.dim() == 4 else None
    batch = Batch(x, tensors["in.targets"].long(), mask)
    alpha = float(tensors["in.alpha"])
    if reuse:
        losses = Objective(model)(batch, Plan(n, k, m, alpha))
    else:  # the two terms on their own, each with its own forward pass
        full = Objective(model)(batch, Plan(n, k, m, 0.0))["full"]
        progressive = Objective(model)(batch, Plan(n, k, m, 1.0))["progressive"]
        losses = {"full": full, "progressive": progressive, "loss": (1 - alpha) * full + alpha * progressive}
    for name, public in {"loss": "out.loss", "full": "out.loss_full", "progressive": "out.loss_progressive"}.items():
        torch.testing.assert_close(losses[name].double(), tensors[public].double().squeeze(), rtol=1e-9, atol=1e-10)
    losses["loss"].backward()
    assert assert_gradients(pairs, tensors) >= 7


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"dims": 1, "inputs": 1, "width": 400, "head": (400, 200), "recall": True}, 3.124e6),
        ({"dims": 1, "inputs": 1, "width": 400, "head": (400, 200), "recall": False}, 2.642e6),
        ({"dims": 2, "inputs": 3, "width": 128, "recall": True}, 0.784e6),
        ({"dims": 2, "inputs": 3, "width": 128, "recall": False}, 0.633e6),
        ({"dims": 2, "inputs": 12, "width": 512, "recall": True}, 12.06e6),
        ({"dims": 2, "inputs": 12, "width": 512, "recall": False}, 9.64e6),
        ({"dims": 2, "inputs": 3, "width": 128, "recall": False, "distinct_steps": 30}, 17.737e6),
    ],
)
def test_published_parameter_counts(options: dict, count: float) -> None:
    with torch.device("meta"):
        model = DeepThinking(**options)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(count, rel=2e-3)


def test_effective_depth_as_published() -> None:
    with torch.device("meta"):
        assert DeepThinking(dims=1, inputs=1, width=120, recall=False).effective_depth(10) == 44  # section 4.2
        assert DeepThinking(recall=True).effective_depth(2_000) == 10_004  # section 5.4
        assert DeepThinking(recall=True).effective_depth(20_000) == 100_004


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
def test_split_recall_equals_the_equation(dims: int, dilation: int) -> None:
    """Outputs and gradients of the fast path equal those of one convolution over [state, x]."""
    torch.manual_seed(0)
    fast = DeepThinking(dims=dims, width=8, dilation=dilation).double()
    naive = NaiveDeepThinking(dims=dims, width=8, dilation=dilation).double()
    naive.load_state_dict(fast.state_dict())
    x = torch.rand(2, 3, *(12,) * dims, dtype=torch.double, requires_grad=True)
    ours, theirs = think(fast, x, 5).logits, think(naive, x, 5).logits
    torch.testing.assert_close(ours, theirs)
    probe = torch.rand_like(ours)
    for mine, plain in zip(
        torch.autograd.grad((ours * probe).sum(), [x, *fast.parameters()]),
        torch.autograd.grad((theirs * probe).sum(), [x, *naive.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(mine, plain)


@pytest.mark.parametrize("n", [0, 3, 6, 11])
def test_one_pass_loss_equals_the_algorithm(n: int) -> None:
    """Algorithm 1 with two forward passes and the head after every step: the same loss and gradients."""
    torch.manual_seed(0)
    fast, naive = DeepThinking(width=8).double(), NaiveDeepThinking(width=8).double()
    naive.load_state_dict(fast.state_dict())
    batch = task("mazes").sample(3, 5, 0, "train")
    batch.inputs = batch.inputs.double()
    plan = Plan(n, 4, 6, 0.3)
    ours, theirs = Objective(fast)(batch, plan)["loss"], naive_loss(naive, batch, plan)
    torch.testing.assert_close(ours, theirs)
    ours.backward()
    theirs.backward()
    for mine, plain in zip(fast.parameters(), naive.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, plain.grad)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="half precision is fast on a GPU only")
@pytest.mark.parametrize("compiled", [False, True])
def test_fast_path_on_a_gpu_stays_near_float64(compiled: bool) -> None:
    torch.manual_seed(0)
    exact = NaiveDeepThinking(width=32).double().cuda()
    fast = DeepThinking(width=32).cuda()
    fast.load_state_dict(exact.state_dict())
    if compiled:
        fast.step = torch.compile(fast.step, dynamic=False)
    batch = task("mazes").sample(8, 9, 0, "train").to("cuda")
    plan = Plan(5, 4, 10, 0.3)
    with torch.autocast("cuda", torch.bfloat16):
        loss = Objective(fast)(batch, plan)["loss"]
    loss.backward()
    batch.inputs = batch.inputs.double()
    truth = naive_loss(exact, batch, plan)
    truth.backward()
    assert abs(loss.item() - truth.item()) < 1e-2
    whole = torch.cat([p.grad.flatten() for p in exact.parameters()]).norm()
    for mine, plain in zip(fast.parameters(), exact.parameters(), strict=True):
        # The projection's gradient is a millionth of the whole here: less than the rounding of what it is made of.
        assert (mine.grad - plain.grad).norm() < 5e-2 * plain.grad.norm() + 1e-4 * whole


def test_default_start_has_pytorchs_scale() -> None:
    torch.manual_seed(0)
    model = DeepThinking(width=64)
    whole = torch.nn.Conv2d(67, 64, 3, padding=1, bias=False)
    assert model.recall_state.weight.std().item() == pytest.approx(whole.weight.std().item(), rel=0.02)
    assert model.recall_input.weight.std().item() == pytest.approx(whole.weight.std().item(), rel=0.1)


def test_pixel_norm_bounds_the_state() -> None:
    torch.manual_seed(0)
    model = DeepThinking(width=8, norm="pixel")
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)
    thought = think(model, torch.rand(2, 3, 8, 8), 200)
    length = thought.state.square().mean(1)
    assert ((length - 1).abs() < 1e-3).logical_or(length == 0).all()


def test_group_norm_stands_before_each_relu_of_the_block() -> None:
    torch.manual_seed(0)
    model = DeepThinking(width=8, norm="group", recall=False)
    x = torch.rand(2, 3, 8, 8)
    h = model.start(model.look(x))
    c = model.blocks[0].convs
    for a, b in ((0, 1), (2, 3)):
        inner = F.group_norm(c[a](h), 4).relu()
        h_next = F.group_norm(c[b](inner), 4) + h
        h = h_next.relu()
    torch.testing.assert_close(think(model, x, 1, watch=("state",)).state, h)


@pytest.mark.parametrize(
    "options",
    [{"dims": 3}, {"width": 0}, {"width": 6, "norm": "group"}, {"distinct_steps": 0}, {"norm": "batch"}, {"widht": 3}],
)
def test_bad_options_get_one_sentence(options: dict) -> None:
    with pytest.raises(UserError) as error:
        build("deepthinking", **options)
    assert str(error.value).endswith((".", "?"))


def test_feed_forward_twin_knows_its_depth() -> None:
    model = DeepThinking(width=8, distinct_steps=3)
    with pytest.raises(UserError, match="at most 3 steps"):
        think(model, torch.rand(1, 3, 8, 8), 4)


@pytest.mark.parametrize(
    ("dims", "x", "found"),
    [
        (1, torch.zeros(1, 16), r"\[batch, 1, length\], not at \[1, 16\] float32; x\[None\] makes a batch of one"),
        (1, torch.zeros(2, 3, 16), r"\[batch, 1, length\], not at \[2, 3, 16\] float32\."),
        (1, torch.zeros(2, 1, 16, dtype=torch.long), r"not at \[2, 1, 16\] int64\."),
        (2, torch.zeros(1, 9, 9), r"\[batch, 1, height, width\], not at \[1, 9, 9\] float32; x\[None\] makes"),
    ],
)
def test_what_is_no_batch_gets_a_sentence(dims: int, x: torch.Tensor, found: str) -> None:
    model = DeepThinking(dims=dims, inputs=1, width=8)
    with pytest.raises(UserError, match=f"looks at floating-point numbers .*{found}"):
        think(model, x, 2)
