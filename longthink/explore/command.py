"""``longthink explore``: start the server and open the page."""

from __future__ import annotations

import errno
import ipaddress
import socket
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longthink.errors import UserError, lacking

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

PORT = 8642


def explore(
    port: Annotated[int, typer.Option(help="Where the page is served; 0 takes any free port.")] = PORT,
    host: Annotated[str, typer.Option(help="Who may come: 127.0.0.1 is this machine alone.")] = "127.0.0.1",
    runs: Annotated[
        Path | None, typer.Option(help="A run, or a folder of runs: their weights can be chosen. [default: runs]")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")] = "cpu",
) -> None:
    """Watch networks think, in a browser: move the goal, flip bits, put noise into thoughts, race two networks."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port must be from 0 to 65535, not {port}.")
    try:
        import fastapi  # noqa: F401
        import uvicorn
        import websockets  # noqa: F401
    except ImportError as error:
        raise lacking(f"The page needs {error.name}", "explore") from None
    from longthink.explore.server import make_app
    from longthink.explore.shelf import Shelf
    from longthink.hardware import usable_device

    if runs is not None and not runs.is_dir():  # that of the default may come later
        what = "is not a folder" if runs.exists() else "does not exist"
        raise UserError(f"{runs} {what}; give a run or a folder that holds runs.")
    app = make_app(Shelf(runs or Path("runs"), usable_device(device)), host)
    door = _door(host, port)
    address = f"http://{_shown(host)}:{door.getsockname()[1]}/"
    print(f"longthink explore  {address}  (Ctrl-C stops it)", flush=True)
    if browser:
        timer = threading.Timer(0.5, webbrowser.open, [address])
        timer.daemon = True
        timer.start()
    uvicorn.Server(configured(app)).run(sockets=[door])


def configured(app: FastAPI) -> uvicorn.Config:
    """How the server runs, here and in its tests."""
    import uvicorn

    from longthink.explore.limits import MOST_BYTES_OF_MESSAGE

    return uvicorn.Config(
        app,
        log_level="warning",
        ws="websockets-sansio",
        ws_max_size=4 * MOST_BYTES_OF_MESSAGE,  # characters may take four bytes
        ws_per_message_deflate=False,  # frames stay on this machine
        timeout_graceful_shutdown=1,
    )


def _door(host: str, port: int) -> socket.socket:
    """A socket that is bound already, so that a complaint comes before anything else."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        door = socket.socket(family, kind, protocol)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(place)
        door.listen(128)  # whoever is quicker than the server's start waits for it
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"Port {port} is taken; choose another with --port, or 0 for any free one.") from None
        raise UserError(f"Nothing can be served at {host}:{port} ({error.strerror}); choose another.") from None
    return door


def _shown(host: str) -> str:
    """The address as a browser wants it; one that stands for all addresses is reached as localhost."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "localhost"
    return f"[{host}]" if address.version == 6 else host
