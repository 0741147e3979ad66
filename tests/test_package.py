"""The names that people use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import longthink as lt


def test_every_public_name_is_there() -> None:
    for name in lt.__all__:
        assert getattr(lt, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'thnik'"):
        lt.thnik  # noqa: B018


@pytest.mark.parametrize("first", ["lt.load", "lt.task", "import longthink.think, longthink.evaluate"])
def test_functions_win_over_the_modules_of_their_name(first: str) -> None:
    """Whatever is imported first, lt.think and lt.evaluate are the functions, and packages stay packages."""
    program = f"""
import longthink as lt
{first}
import longthink.tasks.mazes, longthink.models, longthink.recipes
assert callable(lt.think) and callable(lt.evaluate)
assert lt.inspect.attention.draw_heads
assert lt.tasks.mazes.Mazes and lt.recipes.recipes and lt.models.build
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_lists() -> None:
    assert {"mazes", "listops"} <= set(lt.list("tasks"))
    assert {"deepthinking", "router"} <= set(lt.list("models"))
    assert {"mazes", "prefix_sums"} <= set(lt.list("weights"))
    assert "mazes" in lt.list("studies")
    assert lt.recipe("mazes-long").task == "mazes"
    with pytest.raises(lt.UserError, match="did you mean 'tasks'"):
        lt.list("taks")
