"""Weights with their cards: shipped ones by name, your own by folder. Nothing is ever unpickled.

A folder may be a training run (``best.safetensors``) or follow the Hugging Face convention (``model.safetensors``
beside ``config.json``), which is what ``save`` writes and ``push_to_hub`` uploads.
"""

from __future__ import annotations

import copy
import inspect
import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from longthink.errors import UserError, unknown
from longthink.hardware import host_memory, usable_device
from longthink.models import build, models
from longthink.tasks import Task, task, tasks
from longthink.think import ThinkingModule
from longthink.training.files import read_json, read_tensors, replace_file, write_json, write_tensors
from longthink.training.recipe import Recipe, override

WEIGHTS = Path(__file__).parent / "weights"


class Loaded(NamedTuple):
    """A trained network, the task it was trained for, and what is known about it."""

    model: ThinkingModule
    task: Task
    card: dict[str, Any]

    @property
    def recipe(self) -> Recipe:
        return Recipe.from_json(self.card["recipe"])

    def with_settings(self, settings: Sequence[str]) -> Loaded:
        """The same weights for a task with other options, ``task.longest=none``, or thinking in another way,
        ``model.gate_threshold=0.05``, which the card then says too."""
        adjustable = [f"model.{option}" for option in getattr(self.model, "adjustable", ())]
        keys = [setting.partition("=")[0].strip() for setting in settings]
        for setting, key in zip(settings, keys, strict=True):
            if not key.startswith("task.") and key not in adjustable:
                may = " and ".join(["its task (task.key=value)", *adjustable])
                raise UserError(f"Of this trained network only {may} may change, not {setting!r}.")
        changed, found = override(self.recipe, list(settings)), self
        if any(key.startswith("task.") for key in keys):
            found = found._replace(task=self._posed(changed, keys))
        thinking = [setting for setting, key in zip(settings, keys, strict=True) if key in adjustable]
        if not thinking:
            return found
        model = copy.deepcopy(self.model)  # others may be thinking with this one
        for key in adjustable:
            if key in keys:
                option = key.removeprefix("model.")
                setattr(model, option, changed.model_options[option])
        return found._replace(model=model, card={**self.card, "settings": [*self.card.get("settings", ()), *thinking]})

    def changes(self, settings: Sequence[str] = ()) -> dict[str, list[str]]:
        """For documents: all that is not as it was trained, with these settings of the task."""
        known = self.card.get("settings", [])
        every = [*known, *(one for one in settings if one not in known)]
        return {"settings": every} if every else {}

    def unlike_training(self, settings: Sequence[str]) -> list[str]:
        """Of these settings the options that were others in training, as they were then: the network never saw such
        problems."""
        names = {setting.partition("=")[0].strip().removeprefix("task.") for setting in settings}
        before, now = vars(task(self.recipe.task, **self.recipe.task_options)), vars(self.task)
        return [f"task.{name}={before[name]}" for name in sorted(names & {*before}) if before[name] != now[name]]

    def _posed(self, changed: Recipe, keys: Sequence[str]) -> Task:
        learned = getattr(self.task, "learned", None)  # the same numbers must stay the same subwords
        kept = {} if learned is None else {option: str(path) for option, path in learned().items()}
        for option in kept:
            if f"task.{option}" in keys:
                raise UserError(
                    f"These weights belong to the {option} they were trained with; leave task.{option} out."
                )
        problem = task(changed.task, **{**changed.task_options, **kept})
        if problem.shape != self.task.shape:
            raise UserError(f"With these options the task has another shape ({problem.shape}) than these weights.")
        return problem


def load(name_or_folder: str | Path, device: str | torch.device = "cpu") -> Loaded:
    """``load("mazes")`` for shipped weights, ``load("runs/...")`` for a run or a saved folder.

    The network comes ready for use: in evaluation mode and without gradients (``model.requires_grad_()`` to train on).
    """
    if not isinstance(name_or_folder, str | Path):
        raise UserError(f"Weights are loaded by name, as in load('mazes'), or by folder, not by {name_or_folder!r}.")
    place = usable_device(device)
    weights, card = _find(name_or_folder)
    tensors, about = read_tensors(weights)
    card = card or about
    if not isinstance(card, dict) or "recipe" not in card:
        raise UserError(f"{weights} has no recipe in its card, so nobody knows how to rebuild its network.")
    recipe = Recipe.from_json(card["recipe"])
    for kind, name, known in (("task", recipe.task, tasks), ("model", recipe.model, models)):
        if name not in known:
            raise UserError(
                f"The weights in {weights} need the {kind} {name!r}, which is not part of longthink; import the file "
                "that adds it first (on the command line: --with FILE)."
            )
    problem, model = rebuild(recipe, beside=weights.parent)
    reason = misfit(model, {key: value.float() for key, value in tensors.items()})
    if reason:
        raise UserError(f"The weights in {weights} do not fit their recipe ({reason}); train them again.")
    settings = card.get("settings", [])
    if not (isinstance(settings, list) and all(isinstance(one, str) for one in settings)):
        raise UserError(f"The settings in the card of {weights} must be a list like ['model.gate_threshold=0.05'].")
    plain = {key: value for key, value in card.items() if key != "settings"}
    return Loaded(model.to(place).eval().requires_grad_(False), problem, plain).with_settings(settings)


def misfit(model: ThinkingModule, tensors: dict[str, torch.Tensor]) -> str | None:
    """Put weights into a network; why they do not fit where they do not."""
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        return str(error).splitlines()[-1].strip()
    return None


def rebuild(recipe: Recipe, seed: int = 0, beside: Path | None = None) -> tuple[Task, ThinkingModule]:
    """The recipe's task, and its network as it is before training with this seed.

    What the task learned from its data and weights depend on is kept beside them, as ``task.<option>``.
    """
    if "name" in recipe.task_options:
        raise UserError("A task has no option 'name'; set task itself.")
    kept = [] if beside is None else sorted(beside.glob("task.*"))
    options = {**recipe.task_options, **{path.name.removeprefix("task."): str(path) for path in kept}}
    problem = task(recipe.task, **options)
    for key in ("name", *problem.shape):
        if key in recipe.model_options:
            raise UserError(f"The model's {key!r} follows from the recipe's task and model; leave it out.")
    _check_fit(recipe, problem)
    _check_parameters(recipe, problem)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return problem, build(recipe.model, **problem.shape, **recipe.model_options)
        except (ValueError, ArithmeticError, RuntimeError) as error:  # sizes that no tensor can have
            reason = str(error).splitlines()[0]
            raise UserError(f"The model {recipe.model!r} cannot be built with these options: {reason}.") from None


def _check_fit(recipe: Recipe, problem: Task) -> None:
    """Does the model take what the task tells it, and nothing that the task does not have?"""
    taken = inspect.signature(models[recipe.model]).parameters
    more = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
    needs = {name for name, one in taken.items() if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD}
    if needs - {*problem.shape, *recipe.model_options} or not (more or {*problem.shape} <= {*taken}):
        raise UserError(
            f"The model {recipe.model!r} does not fit the task "
            f"{problem.name!r}, which has {', '.join(sorted(problem.shape))}; choose another model."
        )


def _outline(recipe: Recipe, problem: Task) -> ThinkingModule | None:
    """The network without its numbers; None where it cannot be made without."""
    try:
        with torch.device("meta"):
            return build(recipe.model, **problem.shape, **recipe.model_options)
    except UserError:
        raise
    except Exception:  # people's own may need numbers, and whatever else it is will be said when it is built
        return None


def _check_parameters(recipe: Recipe, problem: Task) -> None:
    """Refuse a network that is larger than the memory, before it fills it."""
    outline = _outline(recipe, problem)
    number = 0 if outline is None else sum(weight.numel() for weight in outline.parameters())
    if 4.0 * number > host_memory():
        raise UserError(
            f"With these options the model {recipe.model!r} has {number:,} parameters, more than fit into memory here; "
            "make it smaller."
        )


def save(loaded: Loaded, folder: str | Path, half: bool = False) -> Path:
    """Write ``model.safetensors`` and ``config.json``; ``half`` stores bfloat16, half the size.

    The card holds the recipe, from which ``load`` rebuilds the network; for one that was trained in a loop of your own
    ``{"recipe": lt.Recipe("mine", "prefix_sums", (16,), model_options={"width": 64}).to_json()}`` will do.
    """
    if not isinstance(loaded, tuple) or len(loaded) != 3:
        raise UserError("Save what lt.load gave, or lt.Loaded(model, task, card).")
    loaded = Loaded(*loaded)
    _check_rebuilt(loaded)
    path = Path(folder)
    kind = torch.bfloat16 if half else torch.float32
    tensors = {name: value.to(kind) for name, value in loaded.model.state_dict().items()}
    write_tensors(path / "model.safetensors", tensors, loaded.card)
    write_json(path / "config.json", loaded.card)
    keep_learned(loaded.task, path)
    return path


def _check_rebuilt(loaded: Loaded) -> None:
    """Nobody could load weights that do not fit their own card."""
    if not isinstance(loaded.card, dict) or "recipe" not in loaded.card:
        raise UserError(
            "The card has no recipe, from which the network could be rebuilt; add one: "
            "{'recipe': lt.Recipe('mine', task, difficulty, model=name, model_options=options).to_json()}."
        )
    outline = _outline(loaded.recipe, loaded.task)
    if outline is None:
        return
    mine = {name: value.shape for name, value in loaded.model.state_dict().items()}
    theirs = {name: value.shape for name, value in outline.state_dict().items()}
    other = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
    if other:
        raise UserError(
            f"The network is not the one that the recipe in its card describes: {other[0]} is "
            f"{_size(mine.get(other[0]))} here and {_size(theirs.get(other[0]))} there; mend its model_options."
        )


def _size(shape: torch.Size | None) -> str:
    return "not there" if shape is None else str([*shape])


def keep_learned(problem: Task, folder: Path) -> None:
    """Copy what the task learned from its data to where its weights are."""
    learned = getattr(problem, "learned", None)
    for option, file in {} if learned is None else learned().items():
        place = folder / f"task.{option}"
        if file.resolve() != place.resolve():  # what lies there may be another network's
            replace_file(place, partial(shutil.copyfile, file))


def push_to_hub(loaded: Loaded, repository: str, folder: str | Path) -> str:
    """Save to a folder and upload it; needs the extra longthink[hub] and a login."""
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise UserError("Uploading needs huggingface_hub; install longthink[hub].") from None
    api = HfApi()
    api.create_repo(repository, exist_ok=True)
    return str(api.upload_folder(repo_id=repository, folder_path=str(save(loaded, folder))))


def shipped() -> dict[str, dict[str, Any]]:
    """The cards of the weights that come with the package, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(WEIGHTS.glob("*.json"), key=_stem)}


def _stem(path: Path) -> str:
    return path.stem  # "mazes" comes before "mazes-no_recall", though "mazes.json" does not


def _find(name_or_folder: str | Path) -> tuple[Path, dict[str, Any]]:
    """The weights' file and its card (empty where the file's own header holds it)."""
    name, path = str(name_or_folder), Path(name_or_folder)
    cards = shipped()
    if name in cards:
        return WEIGHTS / f"{name}.safetensors", cards[name]
    if path.is_dir():
        if (path / "model.safetensors").exists():
            return path / "model.safetensors", read_json(path / "config.json")
        if (path / "best.safetensors").exists():
            return path / "best.safetensors", {}
        raise UserError(f"{path} holds no weights (best.safetensors or model.safetensors); train it first.")
    if path.suffix == ".safetensors" and path.exists():
        return path, {}
    if "/" in name or path.suffix == ".safetensors":
        raise UserError(f"There is no folder or file {name}; check the path or train it first.")
    raise unknown("network or folder", name, cards)
