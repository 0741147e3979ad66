"""``longthink explore`` from the command line, and what is in its folder."""

from __future__ import annotations

import builtins
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from typing import Any

import pytest

from longthink.cli import main
from longthink.explore.server import STATIC


def test_it_serves_the_page_and_stops(tmp_path: Any) -> None:
    command = [sys.executable, "-m", "longthink", "explore", "--no-browser", "--port", "0", "--runs", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+/", line)
            assert address, line
            with urllib.request.urlopen(address[0], timeout=60) as reply:
                assert b"<title>longthink explore</title>" in reply.read()
                assert "default-src 'self'" in reply.headers["Content-Security-Policy"]
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        finally:
            process.kill()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "fastapi":
            raise ImportError(name="fastapi")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["explore"]) == 2
    assert capsys.readouterr().err.startswith("The page needs fastapi; pip install 'longthink[explore]', or in a clone")


def test_the_rest_needs_no_extra() -> None:
    code = "import sys, longthink.cli; assert not {'fastapi', 'uvicorn', 'websockets', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_complaints(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["explore", "--no-browser", "--port", str(port)]) == 2
        assert f"Port {port} is taken" in capsys.readouterr().err
    assert main(["explore", "--port", "70000"]) == 2
    (tmp_path / "file").write_text("")
    assert main(["explore", "--runs", str(tmp_path / "file")]) == 2
    assert "not a folder" in capsys.readouterr().err
    assert main(["explore", "--runs", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_the_page_names_no_other_host_and_no_missing_file() -> None:
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".html", ".css", ".js", ".svg"}
    for path in files:
        text = path.read_text()
        others = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+", text)) - {"http://www.w3.org"}
        assert not others, (path, others)
        for name in re.findall(r'from "(\./[^"]+|\.\./[^"]+)"', text):
            assert (path.parent / name).is_file(), (path, name)
