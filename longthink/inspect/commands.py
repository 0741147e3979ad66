"""``longthink inspect ...``: the questions of this folder. Torch is imported inside the commands, for quick help."""

from __future__ import annotations

from longthink.inspect import thought_commands, token_commands  # noqa: F401 (their commands are added to the app)
from longthink.inspect.command_line import app

__all__ = ["app"]
