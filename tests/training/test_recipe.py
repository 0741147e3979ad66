"""Recipes: the published ones are all there with the published numbers, and overrides mean what they say."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longthink import catalogue
from longthink.errors import UserError
from longthink.loading import rebuild
from longthink.models.deepthinking import DeepThinking
from longthink.recipes import recipes
from longthink.training.losses import draw_plan
from longthink.training.recipe import Recipe, differences, override
from tests.fixtures import published

TOY = Recipe(name="toy", task="mazes", difficulty=(9,), model_options={"width": 8, "head": [4, 4]})
DEPTHS = {"4.1": (40, 44, 48), "4.2": (20, 24, 28, 36, 44), "4.3": (20, 24, 28, 32, 36)}
ALPHAS = {"prefix_sums": 1.0, "mazes": 0.01, "chess": 0.5}
KINDS = {"DT": "dt", "DT-Recall": "dt_recall", "FF": "ff"}


def build(recipe: Recipe) -> DeepThinking:
    with torch.device("meta"):
        model = rebuild(recipe)[1]
    assert isinstance(model, DeepThinking)
    return model


@pytest.mark.parametrize("name", recipes)
def test_every_recipe_builds_its_task_and_its_model(name: str) -> None:
    recipe = recipes[name]
    assert recipe.name == name
    with torch.device("meta"):
        problem, model = rebuild(recipe)
    assert problem.name == recipe.task
    assert sum(weight.numel() for weight in model.parameters()) > 1000
    limit = getattr(model, "max_steps", None)
    assert limit is None or limit == recipe.steps
    assert recipe.updates > 100


def test_every_published_row_has_its_recipe() -> None:
    for table, depths in DEPTHS.items():
        for depth in depths:
            assert f"table{table}-recurrent-{depth}" in recipes
            assert f"table{table}-feedforward-{depth}" in recipes
    for task, alpha in ALPHAS.items():
        for kind in ("dt", "dt_recall"):
            assert f"{task}-{kind}-alpha0" in recipes
            assert f"{task}-{kind}-alpha{alpha:g}" in recipes
        assert f"{task}-ff-alpha0" in recipes


@pytest.mark.parametrize("table", DEPTHS)
def test_chapter_4_against_the_published_rows(table: str) -> None:
    rows = published("deep-thinking", f"table_{table}")
    assert {row["effective_depth_layers"] for row in rows} == set(DEPTHS[table])
    task = "prefix sums" if table == "4.1" else "mazes"
    training = next(row for row in published("deep-thinking", "section_4.2_training") if row["task"] == task)
    shape = next(row for row in published("deep-thinking", "section_4.2_architectures") if row["task"] == task)
    for row in rows:
        depth = row["effective_depth_layers"]
        recipe = recipes[f"table{table}-{row['model'].replace('-', '')}-{depth}"]
        model = build(recipe)
        assert recipe.steps == row["iterations_steps"]
        assert model.effective_depth(recipe.steps) == depth
        assert (model.max_steps is None) == (row["model"] == "recurrent")
        assert (model.projection.dilation == 2) == (table == "4.3")
        assert model.width == shape["width_channels"]
        assert model.projection.weight.shape[1] == shape["input_channels"]
        assert [conv.weight.shape[0] for conv in model.head] == [shape[f"head_{i}_channels"] for i in (1, 2, 3)]
        check_training(recipe, training)
        assert recipe.batch == training["batch_size"]
        assert recipe.decay_factor == training["decay_factor"]
        assert recipe.alpha == 0
        assert recipe.recurrent_scale == 1


def check_training(recipe: Recipe, row: dict[str, Any]) -> None:
    assert recipe.optimizer == row["optimizer"].lower()
    assert recipe.learning_rate == row["learning_rate"]
    assert recipe.epochs == row["training_epochs"]
    assert list(recipe.decay_epochs) == row["decay_epochs"]
    assert recipe.warmup_epochs == row["warmup_epochs"]
    assert recipe.clip == row["gradient_clip_bound"]
    assert recipe.weight_decay == row["weight_decay"]
    assert row["momentum"] in (None, recipe.momentum)


@pytest.mark.parametrize(
    ("table", "task", "samples", "batch"),
    [("5.2", "prefix_sums", 8_000, 100), ("5.3", "mazes", 40_000, 50), ("5.4", "chess", 480_000, 300)],
)
def test_chapter_5_against_the_published_rows(table: str, task: str, samples: int, batch: int) -> None:
    rows = published("deep-thinking", f"table_{table}")
    assert {row["alpha"] for row in rows} == {0, ALPHAS[task]}
    for row in rows:
        recipe = recipes[f"{task}-{KINDS[row['model']]}-alpha{row['alpha']:g}"]
        model = build(recipe)
        assert recipe.alpha == row["alpha"]
        assert recipe.steps == 30
        assert (model.recall_state is not None) == (row["model"] == "DT-Recall")
        assert model.max_steps == (30 if row["model"] == "FF" else None)
        assert (recipe.train_samples, recipe.batch) == (samples, batch)
        assert recipe.horizon is None
        assert recipe.progressive_every == 1
        assert not recipe.fresh


@pytest.mark.parametrize("task", ["prefix sums", "mazes"])
def test_table_5_7(task: str) -> None:
    """Chess and the decay factor follow the public code where it contradicts the table (see the recipes' file)."""
    for row in published("deep-thinking", "table_5.7"):
        if row["task"] != task:
            continue
        names = [name for name in recipes if name.startswith(f"{task.replace(' ', '_')}-") and "-alpha" in name]
        if row["models"] == "FF":
            names = [name for name in names if "-ff-" in name]
        elif row["models"] == "all but FF":
            names = [name for name in names if "-ff-" not in name]
        assert names
        for name in names:
            # the public launch line of this one has a learning rate of its own
            own = {"learning_rate": 1e-4} if name == "prefix_sums-dt-alpha1" else {}
            check_training(recipes[name], {**row, **own})


def test_the_public_chess_configuration() -> None:
    for name in ("dt-alpha0", "dt-alpha0.5", "dt_recall-alpha0", "dt_recall-alpha0.5", "ff-alpha0"):
        r = recipes[f"chess-{name}"]
        assert (r.optimizer, r.learning_rate, r.epochs) == ("sgd", 1e-2, 130)
        assert (r.decay_epochs, r.decay_factor, r.warmup_epochs) == ((100, 115), 0.1, 10)


def test_only_recurrent_mazes_are_throttled() -> None:
    scales = {name: recipes[name].recurrent_scale for name in recipes if "-alpha" in name}
    assert {name for name, scale in scales.items() if scale != 1} == {
        f"mazes-{kind}-alpha{alpha}" for kind in ("dt", "dt_recall") for alpha in ("0", "0.01")
    }
    assert scales["mazes-dt-alpha0"] == pytest.approx(1 / 30)


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("alpha=1", "alpha", 1.0),
        ("learning_rate=1e-4", "learning_rate", 1e-4),
        (" epochs = 7 ", "epochs", 7),
        ("difficulty=11", "difficulty", (11,)),
        ("difficulty=[11, 13]", "difficulty", (11, 13)),
        ("decay_epochs=60,100", "decay_epochs", (60, 100)),
        ("decay_epochs=", "decay_epochs", ()),
        ("fresh=true", "fresh", True),
        ("fresh=False", "fresh", False),
        ("clip=0.5", "clip", 0.5),
        ("clip=none", "clip", None),
        ("horizon=None", "horizon", None),
        ("horizon=200", "horizon", 200),
        ("optimizer=sgd", "optimizer", "sgd"),
        ("task=prefix_sums", "task", "prefix_sums"),
        ("note=a=b", "note", "a=b"),
        ("model.width=16", "model_options", {"width": 16, "head": [4, 4]}),
        ("model.head=[8,2]", "model_options", {"width": 8, "head": [8, 2]}),
        ("model.norm=group", "model_options", {"width": 8, "head": [4, 4], "norm": "group"}),
        ("model.recall=false", "model_options", {"width": 8, "head": [4, 4], "recall": False}),
        ("model.distinct_steps=None", "model_options", {"width": 8, "head": [4, 4], "distinct_steps": None}),
        ("task.loops=0.1", "task_options", {"loops": 0.1}),
        ("model.parts.k=2", "model_options", {"width": 8, "head": [4, 4], "parts": {"k": 2}}),
        ('model.parts={"k": 2}', "model_options", {"width": 8, "head": [4, 4], "parts": {"k": 2}}),
    ],
)
def test_overrides_have_the_type_of_their_field(setting: str, field: str, value: Any) -> None:
    new = override(TOY, [setting])
    assert getattr(new, field) == value
    assert type(getattr(new, field)) is type(value)
    assert replace(new, **{field: getattr(TOY, field)}) == TOY  # and nothing else has changed
    assert TOY.model_options == {"width": 8, "head": [4, 4]}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("learning_rat=1", "did you mean 'learning_rate'"),
        ("epoch=3", "did you mean 'epochs'"),
        ("modle.width=3", "modle.width"),
        ("model_options={}", "model_options"),
        ("epochs", "key=value"),
        ("epochs=many", "epochs must be a whole number"),
        ("epochs=1.5", "epochs must be a whole number"),
        ("alpha=much", "alpha must be a number"),
        ("fresh=1", "true or false"),
        ("optimizer=lion", "adam, adamw, sgd"),
        ("difficulty=9,x", "whole number"),
        ("difficulty=", "difficulty"),
        ("difficulty=0", "difficulty"),
        ("difficulty=[]", "difficulty"),
        ("name=-3", "must not begin with -"),
        ("name=", "name"),
        ("alpha=1.5", "alpha"),
        ("alpha=nan", "alpha"),
        ("learning_rate=inf", "learning_rate"),
        ("learning_rate=0", "learning_rate"),
        ("weight_decay=-1", "weight_decay"),
        ("clip=0", "clip"),
        ("steps=-1", "steps"),
        ("batch=50000", "batch"),
        ("first_n=30", "first_n"),
        ("horizon=0", "horizon"),
        ("patient_steps=3", "patient_steps"),
        ("average=1", "average"),
        ("name=../elsewhere", "slashes"),
        ("warmup_updates=-1", "warmup_updates"),
        ("model.distinct_steps=10", "10 steps"),
        ("model.width.k=10", "model.width is 8, which has no options"),
        ("width=3", "did you mean 'model.width'?"),
        ("seed=3", "named 'seed'; --seed sets it."),
        ("updates=3", "set epochs, or train_samples and batch, from which they follow."),
        ("nonsense=3", "longthink list recipes toy shows all."),
        ("model.parts={'k': 2}", "model.parts must be JSON, with double quotes"),
    ],
)
def test_mistakes_get_one_sentence(setting: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        override(TOY, [setting])
    assert words in str(error.value)
    assert str(error.value)[-1] in ".?"
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "setting", ["model.dims=1", "model.name=lstm", "task.name=mazes", "model.widht=3", "task.lops=1"]
)
def test_options_that_do_not_exist_get_one_sentence(setting: str) -> None:
    with pytest.raises(UserError):
        rebuild(override(TOY, [setting]))


@given(st.permutations(["steps=4", "first_n=5", "horizon=9", "model.width=16", "model.distinct_steps=9", "alpha=0.5"]))
@settings(max_examples=20, deadline=None)
def test_the_order_of_settings_does_not_matter(order: list[str]) -> None:
    """Even where a part of them would make no sense alone: first_n = 5 lies beyond steps = 4."""
    assert override(TOY, order) == override(TOY, sorted(order))
    assert override(TOY, order).horizon == 9


def change(recipe: Recipe, name: str, draw: st.DataObject) -> Recipe:
    """The recipe with another value in this field."""
    old = getattr(recipe, name)
    values: dict[str, st.SearchStrategy[Any]] = {
        "difficulty": st.lists(st.integers(1, 99), min_size=1, max_size=3).map(tuple),
        "decay_epochs": st.lists(st.integers(1, 99), max_size=3).map(tuple),
        "valid_difficulty": st.lists(st.integers(1, 99), min_size=1, max_size=3).map(tuple),
        "task_options": st.dictionaries(st.sampled_from(["loops", "style"]), st.floats(0, 1), min_size=1),
        "model_options": st.dictionaries(st.sampled_from(["width", "dilation"]), st.integers(1, 99)),
        "optimizer": st.sampled_from(["adamw", "sgd"]),
        "schedule": st.just("cosine"),
        "horizon": st.integers(1, 999),
        "clip": st.floats(0.1, 9),
        "average": st.floats(0.1, 0.9),
        "weights": st.text(min_size=1, max_size=9),
        "patient_steps": st.integers(30, 999),
        "enough": st.integers(1, 99),
        "forget_every": st.integers(1, 99),
        "shares": st.tuples(st.integers(1, 99)),
        "batch": st.integers(1, 999),
        "first_n": st.integers(1, 29),
        "alpha": st.floats(0, 1),
        "name": st.text("abc_-.09", min_size=1).filter(lambda text: text[0] not in ".-"),
    }
    if name not in values:
        kinds: dict[type, st.SearchStrategy[Any]] = {
            bool: st.just(not old),
            int: st.integers(1, 10**6),
            float: st.floats(1e-6, 1e3),
            str: st.text(max_size=9),
        }
        values[name] = kinds[type(old)]
    new = draw.draw(values[name].filter(lambda value: value != old), label=name)
    if name == "train_samples":
        new = max(new, recipe.batch)
    return replace(recipe, **{name: new})


@given(st.data(), st.sampled_from([f.name for f in fields(Recipe)]))
@settings(max_examples=200, deadline=None)
def test_the_hash_sees_everything_but_name_and_note(data: st.DataObject, name: str) -> None:
    changed = change(TOY, name, data)
    assert (changed.hash() == TOY.hash()) == (name in ("name", "note") or changed == TOY)
    again = Recipe.from_json(json.loads(json.dumps(changed.to_json())))
    assert again == changed
    assert again.hash() == changed.hash()


@pytest.mark.parametrize("name", [name for name in recipes if name.startswith("ctlpp-")])
def test_training_sets_of_ctlpp(name: str) -> None:
    recipe = recipes[name]
    assert (recipe.shares, recipe.different, recipe.train_samples) == (None, True, 300_000)
    variant = recipe.task_options["variant"]
    assert set(recipe.difficulty) | {1} == ({1, 2, 4, 6} if variant == "S" else {1, 2, 3, 4, 5, 6})
    singles = not name.endswith(("no_singles", "public_set")) and variant != "S"
    assert (1 in recipe.difficulty) == singles
    assert recipe.balanced == (not name.endswith(("short_rare", "public_set")))
    if recipe.model == "transformer":
        assert recipe.model_options["read_from"] == ("last" if name.endswith("-last") else "first")


@pytest.mark.parametrize("name", [name for name in recipes if recipes[name].model == "transformer"])
def test_transformers_without_gates_begin_with_small_embeddings(name: str) -> None:
    options = recipes[name].model_options
    if not options.get("gate"):
        assert options["embedding_std"] == pytest.approx((2 / options["width"]) ** 0.5, abs=1e-3)


@pytest.mark.parametrize("name", recipes)
def test_registered_recipes_survive_json(name: str) -> None:
    assert Recipe.from_json(json.loads(json.dumps(recipes[name].to_json()))) == recipes[name]


def test_published_rows_differ_in_their_hashes() -> None:
    hashes = [recipes[name].hash() for name in recipes if name.startswith("table4")]
    assert len(set(hashes)) == len(hashes)


def test_equal_numbers_are_equal_recipes() -> None:
    """A whole number where a fraction is meant, or a list for a tuple, must not start another run."""
    loose = Recipe(name="a", task="mazes", difficulty=[9], alpha=1, clip=1)  # type: ignore[arg-type]
    exact = Recipe(name="a", task="mazes", difficulty=(9,), alpha=1.0, clip=1.0)
    assert loose == exact
    assert loose.hash() == exact.hash()


@pytest.mark.parametrize(
    "damage",
    [
        {"epochs": "3"},
        {"epochs": 3.5},
        {"epochs": True},
        {"alpha": None},
        {"alpha": float("nan")},
        {"difficulty": True},
        {"difficulty": "9"},
        {"difficulty": ["9"]},
        {"model_options": []},
        {"optimizer": "lion"},
        {"fresh": 1},
        {"task": 3},
        {"surprise": 1},
    ],
)
def test_a_damaged_recipe_gets_one_sentence(damage: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        Recipe.from_json({**TOY.to_json(), **damage})


@pytest.mark.parametrize("data", [{}, {"name": "a"}, [], "recipe", None])
def test_what_is_no_recipe_gets_one_sentence(data: Any) -> None:
    with pytest.raises(UserError):
        Recipe.from_json(data)


def test_one_difficulty_and_one_setting_need_no_list() -> None:
    assert Recipe("toy", "mazes", 9) == Recipe("toy", "mazes", (9,))  # type: ignore[arg-type]
    assert override(TOY, "epochs=7") == override(TOY, ["epochs=7"])


def test_an_unknown_recipe_offers_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'mazes-long'"):
        recipes["maze-long"]


def test_validation_steps() -> None:
    assert TOY.valid_steps == (30, 300)
    assert replace(TOY, patient_steps=77).valid_steps == (30, 77)
    assert recipes["mazes-ff-alpha0"].valid_steps == (30, 30)


def test_an_option_that_a_model_or_task_does_not_have() -> None:
    for setting, words in (
        ("model.widht=3", "option of the model deepthinking named 'widht'; did you mean 'width'"),
        ("task.lops=1", "option of the task mazes named 'lops'; did you mean 'loops'"),
        ("model.head=5", r"must be a list such as \[32,8\], not 5"),
        ("model.width=abc", "must be a whole number, not 'abc'"),
        ("model.width=true", "must be a whole number, not True"),
        ("model.recall=3", "must be true or false, not 3"),
        ("task.loops=x", "must be a number, not 'x'"),
    ):
        with pytest.raises(UserError, match=words):
            rebuild(override(TOY, [setting]))
    with pytest.raises(UserError, match="it has none"):
        rebuild(replace(TOY, task="prefix_sums", difficulty=(8,), task_options={"loops": 1}))


@pytest.mark.parametrize("name", ["ctl-router-long", "ctl-backward-router-long", "listops-router-long"])
def test_routers_that_are_to_keep_their_answers(name: str) -> None:
    recipe = recipes[name]
    m = recipe.steps
    assert recipe.valid_steps == (m, 100)
    plans = [draw_plan(recipe, 0, update) for update in range(2_000)]
    assert all((plan.alpha > 0) == (update % 4 == 0) for update, plan in enumerate(plans))
    later = [plan for plan in plans if plan.alpha > 0]
    assert {plan.n for plan in later} == set(range(m, 60))  # and so their updates can be captured as graphs
    assert {plan.k for plan in later} == set(range(1, m + 1))


def test_differences_are_the_settings_that_were_overridden() -> None:
    base = recipes["ctl-router"]
    assert differences(base, base) == []
    settings = ["batch=7", "decay_epochs=2,3", "model.width=64", "task.backward=True"]
    changed = override(base, settings)
    found = differences(changed, base)
    assert set(found) == set(settings)
    assert override(base, found) == changed
    assert set(differences(base, changed)) == {
        f"batch={base.batch}",
        "decay_epochs=",
        f"model.width={base.model_options['width']}",
        "without task.backward",
    }
    assert differences(replace(base, name="x", note="y"), base) == []


def test_settings_reach_into_the_options_of_a_part() -> None:
    base = recipes["text-sigma_moe"]
    settings = ["model.feedforward_options.k=2", "model.feedforward_options.selection=softmax"]
    changed = override(base, settings)
    before = base.model_options["feedforward_options"]
    assert changed.model_options["feedforward_options"] == {**before, "k": 2, "selection": "softmax"}
    assert before["k"] == 4
    assert differences(changed, base) == settings
    back = differences(base, changed)
    assert back == ["model.feedforward_options.k=4", "without model.feedforward_options.selection"]


@given(st.permutations(["model.feedforward=experts", "model.feedforward_options.k=2", "model.width=32"]))
@settings(max_examples=6, deadline=None)
def test_another_kind_leaves_the_options_of_the_one_before(order: list[str]) -> None:
    base = recipes["text-pkm_relu"]
    assert base.model_options["feedforward_options"]["activation"] == "relu"
    changed = override(base, order).model_options
    assert (changed["feedforward"], changed["feedforward_options"]) == ("experts", {"k": 2})
    assert "feedforward_options" not in override(base, ["model.feedforward=dense"]).model_options
    same = override(base, ["model.feedforward=product_keys"])
    assert same == base


@pytest.mark.parametrize("name", list(recipes))
def test_all_settings_that_are_listed_can_be_typed(name: str) -> None:
    recipe = recipes[name]
    listed = catalogue.settings(name)
    assert set(listed) >= {"epochs", "learning_rate", "model"}
    again = override(recipe, [f"{key}={text}" for key, text in listed.items() if not key.startswith("model.")])
    assert replace(again, task_options=recipe.task_options) == recipe
    typed = override(recipe, [f"{key}={text}" for key, text in listed.items()])
    assert catalogue.settings_of(typed) == catalogue.settings_of(recipe)
    assert typed.model_options | recipe.model_options == typed.model_options
