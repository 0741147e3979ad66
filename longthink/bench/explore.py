"""How long a page waits for a frame: a real server on this machine, a client that asks for steps as a page does.

With one client the time from frame to frame; with many the time until all have finished.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from longthink.bench.timing import surroundings
from longthink.errors import UserError

_LIMIT = 100.0  # milliseconds at 33x33 on two cores: what the page promises


def measure(sides: tuple[int, ...], steps: int, clients: int) -> dict[str, Any]:
    with _served() as port:
        _frames(port, 9, 10)  # loads the weights
        rows = []
        for side in sides:
            times = np.diff(_frames(port, side, steps)) * 1000
            rows.append(_row(side, 1, times, float(times.sum() / 1000)))
        rows.append(_together(port, 9, steps, clients))
    return {
        "benchmark": "explore: a maze's frames over a WebSocket",
        **surroundings(1),
        "statistic": "median and 95th percentile",
        "limit_ms": _LIMIT,
        "rows": rows,
    }


def _together(port: int, side: int, steps: int, clients: int) -> dict[str, Any]:
    every: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: every.append(np.diff(_frames(port, side, steps)))) for _ in range(clients)
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(every) < clients:
        raise UserError(f"Only {len(every)} of {clients} clients finished.")
    return _row(side, clients, np.concatenate(every) * 1000, time.perf_counter() - began)


def _row(side: int, clients: int, times: np.ndarray, seconds: float) -> dict[str, Any]:
    return {
        "maze": f"{side}x{side}",
        "clients": clients,
        "frames": len(times),
        "median ms": round(float(np.median(times)), 1),
        "p95 ms": round(float(np.percentile(times, 95)), 1),
        "seconds": round(seconds, 2),
    }


def _frames(port: int, side: int, steps: int) -> list[float]:
    """When each frame came: the page has room for a few at a time."""
    from websockets.sync.client import connect

    came: list[float] = []
    with connect(f"ws://127.0.0.1:{port}/think", compression=None) as view:
        message = {"type": "think", "id": 1, "weights": "mazes", "problem": {"size": side, "seed": 0}, "until": 8}
        view.send(json.dumps(message))
        view.recv()
        for step in range(steps + 1):
            view.send(json.dumps({"type": "more", "id": 1, "until": step + 8}))
            view.recv()
            came.append(time.perf_counter())
    return came


@contextmanager
def _served() -> Iterator[int]:
    try:
        import uvicorn

        from longthink.explore.command import configured
        from longthink.explore.server import make_app
    except ImportError as error:
        raise UserError(f"The page needs {error.name}; install longthink[explore].") from None
    from longthink.explore.shelf import Shelf

    door = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(configured(make_app(Shelf())))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]}, daemon=True)
    thread.start()
    try:
        yield door.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
