"""Writing and measuring text: with the memory as without, by the seed alone, and better than counting bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import longthink as lt
from longthink import sampling
from longthink.cli import main
from longthink.errors import UserError
from longthink.loading import Loaded, rebuild, save
from longthink.models import build
from longthink.models.language import Language, Memory
from longthink.perplexity import Measured, measure, measure_weights, remembering
from longthink.sampling import LONGEST, Style, _read_on, choose, printable, sample, write
from longthink.tasks.text import Stream, Text
from longthink.tasks.tokenisers import BOUNDARY
from longthink.think import think
from longthink.training.losses import cross_entropy
from longthink.training.recipe import Recipe

MODELS: list[dict[str, Any]] = [
    {"distinct_steps": 2, "memory": 20},  # 80 in evaluation
    {
        "planned_steps": 2,
        "group": 2,
        "memory": 80,
        "norm": "peri",
        "attention_options": {"experts": 3},
        "feedforward": "experts",
        "feedforward_options": {"experts": 4, "k": 2},
    },
]


def make(vocabulary: int = 12, **options: Any) -> Language:
    torch.manual_seed(1)
    model = build("language", vocabulary=vocabulary, classes=vocabulary, width=16, hidden=16, heads=2, **options)
    assert isinstance(model, Language)
    return model


@pytest.mark.parametrize("options", MODELS)
@pytest.mark.parametrize("style", [Style(1.0, None, 3), Style(0.7, 4, 0), Style(0, None)])
def test_the_memory_changes_nothing(options: dict[str, Any], style: Style) -> None:
    model = make(**options).double()
    with_memory = list(sample(model, [3, 1, 4], 40, 2, style))
    without = list(sample(model, [3, 1, 4], 40, 2, style, cache=False))
    assert with_memory == without
    assert list(sample(model, [3, 1, 4], 40, 2, style)) == with_memory
    assert model.training  # it is as it was
    assert model.evaluation_memory == 80


def test_other_seeds_write_other_texts() -> None:
    model = make(**MODELS[0])
    texts = {tuple(sample(model, [3], 30, 2, Style(1.0, None, seed))) for seed in range(8)}
    assert len(texts) >= 6


def test_a_document_ends_at_its_boundary() -> None:
    model = make(**MODELS[0])
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.arange(12.0).flip(0) * 50)
    assert list(sample(model, [3], 30, 2)) == [BOUNDARY]
    with torch.no_grad():
        model.head.bias.copy_(torch.arange(12.0) * 50)
    assert list(sample(model, [], 30, 2)) == [11] * 30  # an empty prompt is a new document


def test_a_prompt_longer_than_the_memory_is_read_in_blocks() -> None:
    model = make(**MODELS[0]).double()
    prompt = [int(token) for token in np.random.default_rng(0).integers(1, 12, 1300)]
    found = list(sample(model, prompt, 3, 2, Style(0), memory=2000))
    assert found == list(sample(model, prompt, 3, 2, Style(0), memory=2000, cache=False))
    assert len(list(sample(model, prompt, 3, 2, memory=5))) >= 1


def test_what_cannot_reach_the_end_of_a_prompt_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(**MODELS[0]).double().eval()
    prompt = [int(token) for token in np.random.default_rng(0).integers(1, 12, 5000)]
    read: list[int] = []
    look = model.look
    monkeypatch.setattr(model, "look", lambda x: read.append(x[0].shape[1]) or look(x))
    with torch.no_grad(), remembering(model, 40):
        found = _read_on(model, prompt, None, 2, 512)[0]
        assert sum(read) < 2000
        past: Memory | None = None
        for start in range(0, len(prompt), 512):  # all of it
            context = look((torch.tensor([prompt[start : start + 512]]), past))
            thought = think(model, None, 2, context=context)
            past = model.remember(thought.state, context)
    assert torch.equal(found, thought.logits[0, :, -1])


@pytest.mark.parametrize(("memory", "blocks"), [(None, [128, 128, 45]), (0, [128])])
def test_prompts_are_read_in_the_blocks_of_training(
    monkeypatch: pytest.MonkeyPatch, memory: int | None, blocks: list[int]
) -> None:
    """A network without a memory never saw more than one."""
    loaded = lt.load("text")
    assert max(loaded.recipe.difficulty) == 128
    model, read = loaded.model, list[int]()
    look = model.look
    monkeypatch.setattr(model, "look", lambda x: read.append(x[0].shape[1]) or look(x))
    if memory is not None:
        monkeypatch.setattr(model, "evaluation_memory", memory)
    write(loaded, "x" * 300, length=3)
    assert read == [*blocks, 1, 1]


@given(
    st.lists(st.floats(-20, 20), min_size=1, max_size=9),
    st.floats(0.05, 3),
    st.integers(1, 12),
    st.floats(0, 1, exclude_max=True),
)
def test_choices_follow_the_distribution(logits: list[float], temperature: float, top_k: int, chance: float) -> None:
    found = choose(torch.tensor(logits), Style(temperature, top_k), chance)
    ranks = sorted(logits, reverse=True)
    assert logits[found] >= ranks[min(top_k, len(logits)) - 1] - 1e-5  # among the k likeliest
    assert logits[choose(torch.tensor(logits), Style(0), chance)] >= ranks[0] - 1e-5


def test_chances_are_kept() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5])
    grid = (torch.arange(4000) + 0.5) / 4000
    for style, kept in ((Style(1.0, None), [0, 1, 2, 3]), (Style(0.5, 2), [1, 3])):
        counts = torch.bincount(torch.tensor([choose(logits, style, float(u)) for u in grid]), minlength=4) / 4000
        expected = torch.zeros(4)
        expected[kept] = (logits[kept] / style.temperature).softmax(0)
        torch.testing.assert_close(counts, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda m: Style(-1), "temperature must be 0 or more"),
        (lambda m: Style(math.nan), "temperature must be 0 or more"),
        (lambda m: Style(1, 0), "top-k must keep 1"),
        (lambda m: Style(seed=-1), "seed must be 0"),
        (lambda m: list(sample(m, [1], 0, 2)), "between 1 and"),
        (lambda m: list(sample(m, [1], LONGEST + 1, 2)), "between 1 and"),
        (lambda m: list(sample(m, [12], 5, 2)), "not among the model's 12"),
        (lambda m: list(sample(m, [1], 5, 3)), "at most 2 steps, not 3"),
        (lambda m: choose(torch.tensor([0.0, math.nan]), Style(), 0.5), "not a number"),
    ],
)
def test_bad_wishes_get_a_sentence(call, sentence: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=sentence):
        call(make(**MODELS[0]))


@pytest.mark.parametrize("options", MODELS)
@pytest.mark.parametrize("length", [1, 7, 100])
def test_measuring_in_blocks_is_one_long_pass(options: dict[str, Any], length: int) -> None:
    model = make(**options).double()
    tokens = np.random.default_rng(0).integers(0, 12, 61).astype(np.uint8)
    whole = torch.from_numpy(tokens.astype(np.int64))[None]
    with torch.no_grad():
        logits = think(model.eval(), whole[:, :-1], 2).logits
    model.train()
    bits = float(F.cross_entropy(logits, whole[:, 1:], reduction="sum")) / math.log(2)
    seen: list[int] = []
    stream = Stream(tokens, 1, length, whole=True)
    found = measure(model, stream, 2, on_block=lambda number, so_far: seen.append(number))
    assert found.bits == pytest.approx(bits, rel=1e-6)
    assert (found.tokens, seen[-1]) == (60, stream.blocks)
    assert found.perplexity == pytest.approx(2 ** (bits / 60))
    assert model.training
    short = measure(model, stream, 2, memory=0)
    assert (short.bits != pytest.approx(bits, rel=1e-6)) == (length < 60)
    assert model.evaluation_memory == 80  # as it was


def test_distances_beyond_the_farthest_are_measured_as_it() -> None:
    model = make(**MODELS[0]).double()
    stream = Stream(np.random.default_rng(0).integers(1, 12, 200).astype(np.uint8), 1, 20)
    plain, same, other = (measure(model, stream, 2, farthest=far).bits for far in (None, 99, 5))
    assert plain == pytest.approx(same)
    assert abs(plain - other) > 1e-6
    assert measure(model, stream, 2).bits == pytest.approx(plain)  # nothing is left behind
    with pytest.raises(UserError, match="rotary positions know no largest distance; leave it out"):
        measure(make(**MODELS[1]), stream, 2, farthest=5)
    with pytest.raises(UserError, match="must be 0 or more, not -1"):
        measure(model, stream, 2, farthest=-1)


def test_streams_share_a_text_without_a_token_twice() -> None:
    model = make(**MODELS[0])
    tokens = np.random.default_rng(0).integers(0, 12, 62).astype(np.uint8)
    for streams in (2, 3, 7):
        found = measure(model, Stream(tokens, streams, 4, 0.5, whole=True), 2)
        assert (found.tokens, found.bytes) == (61, 30.5)
        assert found.bits_per_byte == pytest.approx(2 * found.bits_per_token)
    first = measure(model, Stream(tokens, 2, 4, whole=True), 2, blocks=3)
    assert first.tokens == 24
    assert Measured(1e6, 1, 1).perplexity == math.inf
    assert set(found.to_json()) == {"bits_per_byte", "bits_per_token", "perplexity", "tokens", "bytes"}


PROMPT = "10 is ten, even.\n7 is "
RECIPE = Recipe(
    name="toy",
    task="text",
    difficulty=(32,),
    model="language",
    model_options={"width": 32, "hidden": 64, "heads": 2, "distinct_steps": 2, "memory": 32, "dropout": 0.0},
    steps=2,
)


def learn(model: Language, stream: Stream, first: int, last: int, memory: Memory | None, optimiser: Any) -> Any:
    """The training loop in small: what a block leaves behind goes into the next."""
    model.train()
    for update in range(first, last):
        batch = stream.block(update)
        if bool(batch.info["fresh"].any()):
            memory = None
        context = model.look((batch.inputs, memory))
        thought = think(model, None, 2, context=context)
        memory = model.remember(thought.state, context)
        optimiser.zero_grad()
        cross_entropy(thought.logits, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimiser.step()
    return memory


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """A few seconds on a text of our own: the numbers and their names, over and over."""
    folder = tmp_path_factory.mktemp("text")
    ones = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    draw = np.random.default_rng(0).integers(0, 10, 8000)
    (folder / "numbers.txt").write_text("".join(f"{n + 1} is {ones[n]}, {'even' if n % 2 else 'odd'}.\n" for n in draw))
    options = {"corpus": str(folder / "numbers.txt"), "folder": str(folder)}
    recipe = Recipe.from_json({**RECIPE.to_json(), "task_options": options})
    problem, model = rebuild(recipe)
    assert isinstance(problem, Text)
    assert isinstance(model, Language)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    learn(model, problem.stream("train", 16, 32), 0, 250, None, optimiser)
    return Loaded(model.eval().requires_grad_(False), problem, {"recipe": recipe.to_json(), "parameters": 0})


def test_it_learns_more_than_counting_bytes(trained: Loaded) -> None:
    problem, model = trained.task, trained.model
    assert isinstance(problem, Text)
    assert isinstance(model, Language)
    counts = np.bincount(problem.tokens("train")[0], minlength=256) + 1
    chances = counts / counts.sum()
    unigram = float(-np.log2(chances[problem.tokens("test")[0][1:]]).mean())
    found = measure(model, problem.stream("test", 4, 64, whole=True), 2)
    assert unigram > 3.5
    assert found.bits_per_byte < 0.5 * unigram  # a random number a line is all that must cost something
    assert found.bytes == pytest.approx(problem.tokens("test")[1].bytes)
    alone = measure_weights(trained)
    assert alone.tokens == found.tokens
    assert alone.bits_per_byte == pytest.approx(found.bits_per_byte, rel=0.05)
    with pytest.raises(UserError, match="weights are for prefix_sums"):
        measure_weights(lt.load("prefix_sums"))


def test_training_that_stops_and_goes_on_is_the_same(trained: Loaded) -> None:
    problem = trained.task
    assert isinstance(problem, Text)
    stream, weights = problem.stream("train", 4, 8), []
    for stops in ((0, 6), (0, 2, 6)):
        _, model = rebuild(trained.recipe)
        assert isinstance(model, Language)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        memory = None
        for first, last in pairwise(stops):
            memory = learn(model, stream, first, last, memory, optimiser)
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_writes_what_it_has_learned(trained: Loaded, capsys: pytest.CaptureFixture[str]) -> None:
    found = write(trained, PROMPT, 13, Style(0), weights="toy", show=True)
    assert found.answer.startswith("seven, odd.\n")
    assert capsys.readouterr().out == f"{PROMPT}{found.answer}\n"
    assert (found.tokens, found.ended, found.steps) == (13, False, 2)
    assert write(trained, "", 20).prompt == ""
    assert write(trained, "ten, even.\n" * 300, 5).tokens == 5  # far beyond its memory
    with pytest.raises(UserError, match="holds the byte NUL"):
        write(trained, "a\0", 5)
    with pytest.raises(UserError, match="not of a language model"):
        write(lt.load("prefix_sums"), "a", 5)
    with pytest.raises(UserError, match="steps must be 1 or more"):
        write(trained, "a", 5, steps=0)
    assert printable("a\x1b[31m\tb\n") == "a\u00b7[31m\tb\n"


def test_a_prompt_begins_a_line(trained: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models know hardly any text that has nothing before it."""
    read: list[list[int]] = []

    def spied(model: Language, prompt: list[int], *rest: Any, **options: Any) -> Iterator[int]:
        read.append(list(prompt))
        return sample(model, prompt, *rest, **options)

    monkeypatch.setattr(sampling, "sample", spied)
    assert write(trained, "7 is", 5).prompt == "7 is"
    write(trained, "", 5)
    assert read == [list(b"\n7 is"), list(b"\n\0")]


def test_the_command_line_writes(trained: Loaded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(save(trained, tmp_path / "weights"))
    request = ["solve", "text", "--prompt", PROMPT, "--weights", folder, "--length", "12", "--temperature", "0"]
    assert main(request) == 0
    assert capsys.readouterr().out == f"{PROMPT}seven, odd.\n\n"
    assert main([*request, "--json", "--top-k", "5", "--seed", "3"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["answer"] == "seven, odd.\n"
    assert {"answer", "truth", "solved", "steps"} <= set(document)
    assert (document["seed"], document["top_k"], document["tokens"]) == (3, 5, 12)
    for more, sentence in (
        (["--size", "3"], "Text takes one prompt"),
        (["--temperature", "-2"], "temperature must be 0"),
        (["--prompt", "\udc00"], "half characters"),
        (["--prompt", "a\0"], "holds the byte NUL"),
        (["--length", "0"], "between 1 and"),
        (["--steps", "9"], "at most 2 steps"),
    ):
        assert main([*request, *more]) == 2
        shown = capsys.readouterr()
        assert sentence in shown.err
        assert shown.out == ""
    assert main([*request, "--prompt", "\udce4", "--json"]) == 0
    json.loads(capsys.readouterr().out)["prompt"].encode()  # no half characters
    assert main([*request, "--prompt", "\udce4"]) == 0  # a byte that is no text by itself is still a byte
    assert capsys.readouterr().out.startswith("\ufffd")
    assert main(["solve", "text", "--prompt", "def ", "--length", "20"]) == 0  # with the shipped weights
    assert capsys.readouterr().out.startswith("def ")
    assert main(["solve", "prefix_sums", "01", "--prompt", "a"]) == 2
    assert "are for text alone" in capsys.readouterr().err
