"""Every example of the README runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", [b for b in blocks("python") if "import longthink" in b])
def test_python_examples(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out.strip()
    promised = re.search(r"print\(.*\)  # (.*)$", code, re.MULTILINE)
    if promised:
        assert printed == promised.group(1)
    else:
        assert "tensor([True])" in printed


@pytest.mark.parametrize("line", [line for block in blocks("console") for line in block.splitlines() if line])
def test_commands(line: str, tmp_path: Path) -> None:
    words = shlex.split(line.replace("/tmp/longthink-runs", str(tmp_path)))
    assert words[0] == "longthink"
    done = subprocess.run([sys.executable, "-m", "longthink", *words[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
