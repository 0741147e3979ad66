"""One JSON document of a command, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from longthink.cli import main


def json_of(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    """What a command prints with --json; it must not complain."""
    assert main([*args, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return json.loads(shown.out)
