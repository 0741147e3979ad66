"""A server of the page on a free port, with small untrained networks beside the shipped ones."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("fastapi", reason="the page needs the extra longthink[explore]")
pytest.importorskip("uvicorn", reason="the page needs the extra longthink[explore]")
pytest.importorskip("websockets", reason="the page needs the extra longthink[explore]")

import uvicorn
from fastapi import FastAPI
from websockets.sync.client import ClientConnection, connect

from longthink.explore.command import configured
from longthink.explore.server import Desk, make_app
from longthink.explore.shelf import Shelf
from longthink.loading import Loaded, rebuild, save
from longthink.training.recipe import Recipe

_SMALL = {"width": 8, "head": [4, 4]}
_ROUTER = {"width": 16, "hidden": 16, "heads": 2}
TOYS = {
    "listops-toy": Recipe("listops-toy", "listops", (1,), model="router", model_options=_ROUTER, steps=4),
    "arithmetic-toy": Recipe("arithmetic-toy", "arithmetic", (1,), model="router", model_options=_ROUTER, steps=4),
    "arithmetic-short": Recipe(
        "arithmetic-short",
        "arithmetic",
        (1,),
        task_options={"longest": 9},
        model="router",
        model_options=_ROUTER,
        steps=4,
    ),
    "ctl-toy": Recipe("ctl-toy", "ctl", (2,), model="router", model_options=_ROUTER, steps=4),
    "sudoku-toy": Recipe("sudoku-toy", "sudoku", (40,), model_options=_SMALL, steps=4),
    "chess-toy": Recipe("chess-toy", "chess", (1,), model_options=_SMALL, steps=4),
    "mazes-toy": Recipe("mazes-toy", "mazes", (9,), model_options=_SMALL, steps=4),
    "prefix-ff": Recipe(
        "prefix-ff", "prefix_sums", (8,), model_options={**_SMALL, "recall": False, "distinct_steps": 3}, steps=3
    ),
}


def make_runs(folder: Path) -> Path:
    for name, recipe in TOYS.items():
        problem, model = rebuild(recipe)
        card = {"recipe": recipe.to_json(), "parameters": sum(p.numel() for p in model.parameters())}
        save(Loaded(model.eval().requires_grad_(False), problem, card), folder / "group" / name)
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runs(tmp_path_factory.mktemp("runs"))


@dataclass
class Served:
    port: int
    app: FastAPI

    @property
    def desk(self) -> Desk:
        return self.app.state.desk

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        """Status and body; the path goes out as it is written here."""
        request = urllib.request.Request(self.address + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def connect(self, **options: Any) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{self.port}/think", compression=None, **options)


@pytest.fixture(scope="session")
def served(runs: Path) -> Iterator[Served]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    app = make_app(Shelf(runs))
    door = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(configured(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]}, daemon=True)
    thread.start()
    for _ in range(200):
        if server.started:
            break
        time.sleep(0.05)
    yield Served(door.getsockname()[1], app)
    server.should_exit = True
    thread.join(10)
    torch.set_num_threads(before)


def ask(id: int, weights: str, problem: dict[str, Any], until: int, changes: Any = (), first: int = 0) -> str:
    message = {"type": "think", "id": id, "weights": weights, "problem": problem, "until": until, "from": first}
    return json.dumps({**message, "changes": list(changes)})


@contextmanager
def held_up(served: Served) -> Iterator[None]:
    """Both threads that prepare have something else to do."""
    go_on = threading.Event()
    busy = [served.desk._preparing.submit(go_on.wait, 60) for _ in range(2)]
    try:
        yield
    finally:
        go_on.set()
        for one in busy:
            one.result(60)


@dataclass
class Seen:
    """A frame as a client reads it."""

    id: int
    step: int
    right: int
    at_rest: bool
    change: float
    correct: float
    confidence: float
    body: bytes


def seen(data: bytes | str) -> Seen:
    assert isinstance(data, bytes), data
    version, right, at_rest, id, step, change, correct, confidence, _ = struct.unpack_from("<BBHIIffff", data)
    assert version == 1
    return Seen(id, step, right, bool(at_rest), change, correct, confidence, data[28:])
