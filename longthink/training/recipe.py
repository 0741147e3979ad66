"""A recipe: all that is needed to train, as one flat dataclass that prints, hashes and takes overrides."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import math
import re
import shlex
import types
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from longthink.errors import UserError, unknown
from longthink.models import models
from longthink.registry import Registry
from longthink.tasks import tasks


@dataclass(frozen=True)
class Recipe:
    """Defaults are those of the published maze runs where nothing else is said."""

    name: str
    task: str
    difficulty: tuple[int, ...]
    """Trained and validated at these, in equal parts; nothing harder is ever used to choose a checkpoint."""
    shares: tuple[int, ...] | None = None
    """Trained at them in these proportions instead."""
    balanced: bool = False
    """Problems of each difficulty come up as often as those of another, however few there are of them."""
    different: bool = False
    """Each problem of the training set is in it once (with fresh: of each epoch's set); what there is too little of at
    one difficulty, harder ones make up for. For tasks of tokens."""
    valid_difficulty: tuple[int, ...] | None = None
    """Validated at these instead, where the training difficulties have no validation problems of their own."""
    task_options: dict[str, Any] = field(default_factory=dict)
    model: str = "deepthinking"
    model_options: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    """What to start from: a recipe, whose run with the same seed must have ended, shipped weights or a run's folder;
    None for random weights. A recipe's own settings stand behind its name: ``listops-router-short model.width=32``."""
    note: str = ""
    """Where the numbers come from, and what was decided where sources differ."""

    steps: int = 30
    """m, the steps of the full pass; 0 for models whose start reads the whole answer."""
    alpha: float = 0.0
    """Weight of the progressive term (Algorithm 1)."""
    horizon: int | None = None
    """Long-horizon progressive loss: n, the steps without gradient, is drawn below this instead of below m."""
    ramp_epochs: int = 0
    """The horizon grows to its length over so many epochs: a young network's states explode over many steps."""
    first_n: int = 0
    """The smallest n; with first_n = m and a horizon, the progressive term only teaches to keep an answer."""
    zero_n: bool = False
    """The ablation of section 5.4: n is always 0."""
    progressive_every: int = 1
    """The progressive term is part of every so many updates; the others have the full term alone."""

    train_samples: int = 40_000
    """Problems an epoch."""
    fresh: bool = False
    """New problems every epoch instead of the same ones again."""
    forget_every: int | None = None
    """A text is read as if nothing had come before in every so many updates, as what people type has nothing before it;
    None: at its beginning alone."""
    valid_samples: int = 1_000
    batch: int = 50
    pool: int = 32
    """Sequences are sorted by length among so many batches, which saves padding; 1 leaves them mixed in every batch."""
    epochs: int = 50

    optimizer: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    learning_rate: float = 1e-3
    recurrent_scale: float = 1.0
    """The learning rate of the weights that recur is multiplied by this (published for mazes: 1 / m)."""
    weight_decay: float = 2e-4
    momentum: float = 0.9
    clip: float | None = None
    warmup_epochs: int = 10
    """Of the exponential warm-up of the Deep Thinking networks."""
    warmup_updates: int = 0
    """Of a linear one."""
    schedule: Literal["steps", "cosine"] = "steps"
    decay_epochs: tuple[int, ...] = ()
    decay_factor: float = 0.1
    average: float | None = None
    """Decay of the running average of the weights that is validated and kept; None for the weights themselves."""

    validate_every: int = 1
    """Epochs between two validations (and checkpoints)."""
    patient_steps: int | None = None
    """The many steps of validation; 10 m unless said otherwise."""
    enough: int | None = None
    """Training is over after so many validations in a row without an error, however many epochs are left."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(Recipe).items():  # 1 and 1.0, lists and tuples must be the same recipe
            object.__setattr__(self, name, _fit(name, getattr(self, name), kind))
        _check(self)

    @property
    def updates_an_epoch(self) -> int:
        return self.train_samples // self.batch  # the last, smaller batch is dropped, as published

    @property
    def updates(self) -> int:
        return self.epochs * self.updates_an_epoch

    @property
    def valid_steps(self) -> tuple[int, int]:
        """Validation looks at m and at 10 m steps (a feed-forward twin has no more than m)."""
        if self.model_options.get("distinct_steps") is not None:
            return (self.steps, self.steps)
        return (self.steps, self.patient_steps or 10 * self.steps)

    def hash(self) -> str:
        """Eight letters that change when anything that decides the weights changes.

        Only what differs from the defaults counts, so that a new field leaves the hashes of old recipes alone.
        """
        plain = Recipe(name="", task=self.task, difficulty=self.difficulty)
        ours, theirs = asdict(self), asdict(plain)
        decisive = {
            k: v
            for k, v in ours.items()
            if k not in ("name", "note") and (k in ("task", "difficulty") or v != theirs[k])
        }
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:8]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Recipe:
        if not isinstance(data, dict):
            raise UserError(f"A recipe is a JSON object, not {data!r}.")
        known = {f.name for f in fields(Recipe)}
        for key in data:
            if key not in known:
                raise unknown("recipe field", key, known)
        for key in ("name", "task", "difficulty"):
            if key not in data:
                raise UserError(f"The recipe does not say its {key}.")
        return Recipe(**data)


recipes: Registry[Recipe] = Registry("recipe")


def add(recipe: Recipe) -> Recipe:
    """Publish a recipe under its name."""
    return recipes.add(recipe.name)(recipe)


def override(recipe: Recipe, settings: list[str] | str) -> Recipe:
    """Apply ``key=value`` settings; ``model.width=64``, ``task.loops=0.1`` and ``model.feedforward_options.k=2`` reach
    into the options. Another kind of part, as in ``model.feedforward=dense``, leaves the options of the one before.
    """
    changes: dict[str, Any] = {}
    types = get_type_hints(Recipe)
    pairs = [_pair(setting) for setting in ([settings] if isinstance(settings, str) else settings)]
    for key, text in sorted(pairs, key=lambda pair: pair[0].count(".")):  # a part comes before its options
        head, dot, rest = key.partition(".")
        if dot and head in ("model", "task"):
            before: dict[str, Any] = getattr(recipe, f"{head}_options")
            options, value = changes.get(f"{head}_options", before), _literal(key, text)
            own = f"{rest}_options"
            if value != options.get(rest) and options.get(own) is before.get(own):
                options = {name: kept for name, kept in options.items() if name != own}
            changes[f"{head}_options"] = _with(options, rest, value, key)
        elif key not in types or key.endswith("_options"):
            raise _no_setting(recipe, key)
        else:
            changes[key] = _parse(key, text, types[key])
    if changes.get("name") == "":
        raise UserError("A recipe's name is part of a folder's name; give it one, or leave name= out.")
    return replace(recipe, **changes)  # all at once: only the result must make sense


def _pair(setting: str) -> tuple[str, str]:
    key, equals, text = (part.strip() for part in setting.partition("="))
    if not equals:
        raise UserError(f"Write settings as key=value; {setting!r} has no '='.")
    return key, text


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """All that ``override`` can change, with what it is now; what else an option may be stands in the model's file."""
    of_recipe = {one.name: getattr(recipe, one.name) for one in fields(recipe) if not one.name.endswith("_options")}
    found = {key: value for key, value in of_recipe.items() if key not in ("name", "note")}
    registries: dict[str, tuple[Registry[Any], str]] = {"task": (tasks, recipe.task), "model": (models, recipe.model)}
    for head, (registry, name) in registries.items():
        parameters = inspect.signature(registry[name]).parameters.values() if name in registry else ()
        usual = {one.name: one.default for one in parameters if one.default is not one.empty}
        found |= _flat(head, usual | getattr(recipe, f"{head}_options"))
    return found


_ELSEWHERE = {"seed": "--seed sets it.", "updates": "set epochs, or train_samples and batch, from which they follow."}


def _no_setting(recipe: Recipe, key: str) -> UserError:
    known = settings_of(recipe)
    inside = [one for one in known if one.rpartition(".")[2] == key]
    near = inside or difflib.get_close_matches(key, known, n=1)
    hint = _ELSEWHERE.get(key) or (
        f"did you mean {near[0]!r}?" if near else f"longthink list recipes {recipe.name} shows all."
    )
    return UserError(f"There is no recipe field named {key!r}; {hint}")


def throughout(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Apply settings to a recipe and to all that it goes on from, whose networks must have its shape; where they say
    the weights, these are what they are."""
    changed = override(recipe, list(settings))
    pairs = [_pair(setting) for setting in settings]
    passed = [f"{key}={text}" for key, text in pairs if key not in ("name", "note")]
    if not passed or any(key == "weights" for key, _ in pairs) or source_of(changed) is None:
        return changed
    return replace(changed, weights=f"{changed.weights} {shlex.join(passed)}")


def source_of(recipe: Recipe) -> Recipe | None:
    """The recipe that this one goes on from, with the settings that stand behind its name; None for other weights."""
    name, *_ = (recipe.weights or "").split(" ")  # of a folder, which may have any name, nothing else is read
    if name not in recipes:
        return None
    try:
        _, *settings = shlex.split(recipe.weights or "")
    except ValueError:
        raise UserError(f"A quotation mark is missing in the weights {recipe.weights}; add it.") from None
    return throughout(recipes[name], settings)


def _with(options: dict[str, Any], path: str, value: Any, key: str) -> dict[str, Any]:
    """A copy of the options with another value at ``path``, whose dots lead into options of options."""
    name, dot, rest = path.partition(".")
    if not dot:
        return {**options, name: value}
    inner = options.get(name)
    if inner is not None and not isinstance(inner, dict):
        raise UserError(f"{key} cannot be set: {key.removesuffix('.' + rest)} is {inner!r}, which has no options.")
    return {**options, name: _with(inner or {}, rest, value, key)}


def differences(recipe: Recipe, other: Recipe) -> list[str]:
    """The settings, as ``override`` takes them, that make ``recipe`` of ``other``; name and note are none."""

    def settings(one: Recipe) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for part in fields(one):
            value = getattr(one, part.name)
            if part.name.endswith("_options"):
                head = part.name.removesuffix("_options")
                found |= _flat(head, value)
            elif part.name not in ("name", "note"):
                found[part.name] = ",".join(map(str, value)) if isinstance(value, tuple) else value
        return found

    ours, theirs = settings(recipe), settings(other)
    missing = [f"without {key}" for key in theirs if key not in ours]
    return [f"{key}={value}" for key, value in ours.items() if key not in theirs or theirs[key] != value] + missing


def _flat(head: str, options: dict[str, Any]) -> dict[str, Any]:
    """Each option by all names that lead to it."""
    found: dict[str, Any] = {}
    for key, option in options.items():
        found |= _flat(f"{head}.{key}", option) if isinstance(option, dict) else {f"{head}.{key}": option}
    return found


_DATA = (
    "name",
    "note",
    "task_options",
    "difficulty",
    "valid_difficulty",
    "shares",
    "balanced",
    "different",
    "weights",
)


def alike(one: Recipe, other: Recipe) -> bool:
    """Do they differ in the options of their task alone, which problems are drawn, and the weights they start from?"""
    mine, theirs = one.to_json(), other.to_json()
    return all(mine[key] == theirs[key] for key in mine if key not in _DATA)


def _parse(key: str, text: str, kind: Any) -> Any:
    origin, choices = get_origin(kind), get_args(kind)
    if origin is Literal:
        if text not in choices:
            raise UserError(f"{key} must be one of {', '.join(choices)}, not {text!r}.")
        return text
    if origin in (types.UnionType, Union):  # X | None
        if text.lower() in ("none", "null"):
            return None
        return _parse(key, text, next(c for c in choices if c is not type(None)))
    if origin is tuple:
        parts = text.removeprefix("[").removesuffix("]").split(",")  # as a list in JSON too
        return tuple(_parse(key, part.strip(), int) for part in parts if part.strip())
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise UserError(f"{key} must be true or false, not {text!r}.")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        raise UserError(f"{key} must be a {'whole ' if kind is int else ''}number, not {text!r}.") from None


def _fit(name: str, value: Any, kind: Any) -> Any:
    """The value as the type that its field has, if it can be."""
    origin, choices = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, Union):  # X | None
        return None if value is None else _fit(name, value, next(c for c in choices if c is not type(None)))
    if origin is tuple and isinstance(value, int) and not isinstance(value, bool):
        value = (value,)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_fit(name, part, choices[0]) for part in value)
    if origin is Literal:
        fits = value in choices
    elif kind in (int, float):  # a boolean is an int to Python
        fits = isinstance(value, int | kind) and not isinstance(value, bool) and math.isfinite(value)
    else:
        fits = isinstance(value, origin or kind)
    if not fits:
        raise UserError(f"{name} cannot be {value!r}.")
    return float(value) if kind is float else value


def _literal(key: str, text: str) -> Any:
    """A model's or task's option: JSON where it parses, numbers as people write them (.1), else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE | re.ASCII):
            return float(text)
        if text.startswith(("{", "[")):
            raise UserError(f"{key} must be JSON, with double quotes, not {text}.") from None
        return None if text.lower() == "none" else text


def _check(r: Recipe) -> None:
    if "/" in r.name or "\\" in r.name or r.name.startswith("."):
        raise UserError(f"A recipe's name is part of a folder's name; leave slashes out of {r.name!r}.")
    if r.name.startswith("-"):
        raise UserError(f"A recipe's name begins a folder's name, so it must not begin with -, as {r.name!r} does.")
    if not r.difficulty or min(r.difficulty) < 1:
        raise UserError(f"difficulty must be 1 or more, or several such with commas, not {r.difficulty}.")
    if r.shares is not None and (len(r.shares) != len(r.difficulty) or min(r.shares) < 1):
        raise UserError(
            f"shares must be none, or 1 or more for each of {len(r.difficulty)} difficulties, not {r.shares}."
        )
    if r.different and len(set(r.difficulty)) < len(r.difficulty):
        raise UserError(f"With different=true, name each difficulty once, not {r.difficulty}.")
    if r.steps < (1 if r.alpha > 0 else 0):
        raise UserError(f"steps must be 1 or more, or 0 without a progressive term, not {r.steps}.")
    positive = ("train_samples", "valid_samples", "batch", "pool", "epochs", "validate_every", "progressive_every")
    for name in positive:
        if getattr(r, name) < 1:
            raise UserError(f"{name} must be 1 or more, not {getattr(r, name)}.")
    if not 0 <= r.alpha <= 1:
        raise UserError(f"alpha must lie between 0 and 1, not {r.alpha}.")
    if r.alpha == 1 and r.progressive_every > 1:
        raise UserError("With alpha=1 there is no other term: leave progressive_every at 1.")
    if r.horizon is not None and r.horizon < 1:
        raise UserError(f"horizon must be 1 or more, or none, not {r.horizon}.")
    if not 0 <= r.first_n < max(1, r.horizon or r.steps):
        raise UserError(f"first_n ({r.first_n}) must lie below the horizon ({r.horizon or r.steps}).")
    if r.train_samples < r.batch:
        raise UserError(f"One batch of {r.batch} needs more than the {r.train_samples} training samples.")
    if r.learning_rate <= 0:
        raise UserError(f"learning_rate must be above 0, not {r.learning_rate}.")
    for name in (
        "recurrent_scale",
        "weight_decay",
        "momentum",
        "warmup_epochs",
        "warmup_updates",
        "decay_factor",
        "ramp_epochs",
    ):
        if getattr(r, name) < 0:
            raise UserError(f"{name} must be 0 or more, not {getattr(r, name)}.")
    if r.clip is not None and r.clip <= 0:
        raise UserError(f"clip must be above 0, or none, not {r.clip}.")
    if r.forget_every is not None and r.forget_every < 1:
        raise UserError(f"forget_every must be 1 update or more, or none, not {r.forget_every}.")
    if r.enough is not None and r.enough < 1:
        raise UserError(f"enough must be 1 or more validations, or none, not {r.enough}.")
    if r.patient_steps is not None and r.patient_steps < r.steps:
        raise UserError(f"patient_steps ({r.patient_steps}) must not be fewer than steps ({r.steps}).")
    blocks = r.model_options.get("distinct_steps")
    if isinstance(blocks, int) and max(r.steps, r.horizon or 0) > blocks >= 1:  # of fewer the model complains
        raise UserError(
            f"With distinct_steps={blocks} there are weights for {blocks} steps and no more; set steps={blocks} (and "
            "horizon and patient_steps, where they are larger)."
        )
    if r.average is not None and not 0 < r.average < 1:
        raise UserError(f"average must lie between 0 and 1, not {r.average}.")
