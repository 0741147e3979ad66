"""Every example of the README and of the guide runs (those of an extension: tests/test_extensions.py)."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
GUIDE = README.parent / "docs" / "guide.md"
PAGES = [README, *sorted((README.parent / "docs").glob("*.md")), README.parent / "CONTRIBUTING.md"]


def blocks(language: str, page: Path = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", [b for page in (README, GUIDE) for b in blocks("python", page) if "longthink" in b])
def test_python_examples(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "example", "exec"), {})
    printed = capsys.readouterr().out.strip()
    promised = re.search(r"print\(.*\)  # (.*)$", code, re.MULTILINE)
    if promised:
        assert printed == promised.group(1)
    else:
        assert printed


@pytest.mark.parametrize("line", [line for block in blocks("console") for line in block.splitlines() if line])
def test_commands(line: str, tmp_path: Path) -> None:
    words = shlex.split(line.replace("/tmp/longthink-runs", str(tmp_path)))
    assert words[0] == "longthink"
    done = subprocess.run([sys.executable, "-m", "longthink", *words[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target
