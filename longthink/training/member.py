"""One of the runs that are trained: its problems, how good its network is, and what is kept of it."""

from __future__ import annotations

from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from longthink.errors import UserError
from longthink.hardware import hardware
from longthink.loading import keep_learned
from longthink.tasks import Task
from longthink.think import ThinkingModule
from longthink.training.checkpoint import RunFolder, save_best
from longthink.training.data import TrainingData, check_same_data, origin
from longthink.training.files import read_tensors, write_json
from longthink.training.validation import in_words, validation


class Member:
    """``about`` is what was known when the run was left, or the beginning."""

    def __init__(
        self,
        fabric: Fabric,
        folder: RunFolder,
        problem: Task,
        model: ThinkingModule,
        about: dict[str, Any],
        together: int = 1,
    ) -> None:
        self.fabric, self.folder, self.recipe, self.seed = fabric, folder, folder.recipe, folder.seed
        self.problem, self.model, self.together = problem, model, together
        self.best: list[float] | None = about["best"]
        self.flawless: int = about["flawless"]
        self.owes_validation: bool = about["owes_validation"]
        """The one that is due after the update at which this run stands."""
        self.origin = origin(problem)
        check_same_data(self.origin, about["data"], folder.path)
        self.data = TrainingData(self.recipe, problem, self.seed, fabric.device)
        self.validation = validation(self.recipe, problem)
        self.finished = False
        self.failed: UserError | None = None
        self.writer: Any = None

    def open_logs(self, update: int, tensorboard: bool) -> None:
        self.folder.begin()
        keep_learned(self.problem, self.folder.path)
        self.folder.forget_after(update, self.owes_validation)
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.folder.path), purge_step=update + 1)

    def close_logs(self) -> None:
        if self.writer is not None:
            self.writer.close()

    def is_over(self, update: int) -> bool:
        enough = self.recipe.enough is not None and self.flawless >= self.recipe.enough
        return self.finished or enough or update >= self.recipe.updates

    def log(self, update: int, numbers: dict[str, float], beside: dict[str, float] | None = None) -> None:
        self.folder.log({"update": update, **numbers, **(beside or {})})
        if self.writer is not None:
            for name, value in numbers.items():
                self.writer.add_scalar(name, value, update)

    def is_sound(self) -> bool:
        return all(bool(torch.isfinite(weight).all()) for weight in self.model.state_dict().values())

    def explosion(self, update: int) -> UserError:
        whose = f" of {self.folder.path.name}" if self.together > 1 else ""
        kept = "Its last checkpoint is kept" if self.folder.last.exists() else "No checkpoint had been made yet"
        return UserError(
            f"The loss{whose} became NaN or infinite before update {update}. {kept}; "
            "try a smaller learning_rate or set clip=1."
        )

    def validate(self, weights: dict[str, Tensor] | None, update: int, seconds: float) -> str:
        """Keep the weights, those of the network or averaged ones, if they are the best so far.

        Where a run was stopped must not matter in the end: a validation that is not due leaves no trace but weights to
        load, which the first one that is due replaces.
        """
        own = {k: v.clone() for k, v in self.model.state_dict().items()} if weights is not None else None
        if weights is not None:
            self.model.load_state_dict(weights)
        with self.fabric.autocast():
            verdict = self.validation(self.model)
        if own is not None:
            self.model.load_state_dict(own)
        # The first process decides for all: answers may differ from device to device by rounding.
        score, flawless = self.fabric.broadcast((verdict.score, verdict.flawless))
        better = self.best is None or score > self.best
        due, self.owes_validation = self.owes_validation, False
        if due:
            self.flawless = self.flawless + 1 if flawless else 0
            self.best = score if better else self.best
        if self.fabric.is_global_zero:
            if due:
                self.log(update, verdict.metrics)
            if better:
                kept = self.model.state_dict() if weights is None else weights
                save_best(self.folder, kept, self._card(verdict.card, update, seconds))
        return f"update {update}: {in_words(verdict.card)}"

    def about(self) -> dict[str, Any]:
        """For a checkpoint."""
        owes = {"owes_validation": True} if self.owes_validation else {}
        return {"best": self.best, "flawless": self.flawless, "data": self.origin, **owes}

    def finish(self, update: int, seconds: float) -> None:
        """The card says that nothing is left to do."""
        self.finished = True
        if self.fabric.is_global_zero:
            card = read_tensors(self.folder.best)[1]
            card["finished"] = {"updates": update, "minutes": round(seconds / 60, 2)}
            write_json(self.folder.card, card)

    def _card(self, found: dict[str, Any], update: int, seconds: float) -> dict[str, Any]:
        return {
            "recipe": self.recipe.to_json(),
            "seed": self.seed,
            "updates": update,
            "minutes": round(seconds / 60, 2),
            "hardware": hardware(self.fabric.device),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "torch": torch.__version__,
            "validation": found,
            **({} if self.origin is None else {"data": self.origin}),
            **({} if self.together == 1 else {"together": self.together}),
        }
