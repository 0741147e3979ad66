"""The web application: static files, a catalogue of weights, a chess engine's answer, and a WebSocket for each view.

It answers this machine's own pages only: requests that name another host (as a rebound domain does) or that come from
another site's page are refused.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import socket as sockets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import Headers

from longthink import __version__
from longthink.errors import UserError
from longthink.explore.engine import best_move, find_engine
from longthink.explore.frames import Frame
from longthink.explore.limits import LARGEST, MOST_STEPS, MOST_TOKENS, MOST_VIEWS
from longthink.explore.messages import More, Script, Think, read_message
from longthink.explore.problems import SHOWN, USUAL_DEPTH, warm_up
from longthink.explore.shelf import Shelf
from longthink.explore.thoughts import Plan, Thoughts
from longthink.tasks import tasks
from longthink.tasks.maze_carving import STYLES

STATIC = Path(__file__).parent / "static"
HOW_TO_TRAIN = {
    "mazes": "mazes-long",
    "prefix_sums": "prefix_sums-long",
    "sudoku": "sudoku-long",
    "chess": "chess-long",
    "listops": "listops-router",
    "arithmetic": "arithmetic-router",
    "ctl": "ctl-router",
}
"""The recipe for a task without weights."""
_LONGEST_FEN = 200
_SECONDS_BEFORE_WARMING = 5.0  # the first page has its first frame by then
_PATIENCE = 1.0  # seconds; whoever drags something quickly still sees what happens in between
_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_log = logging.getLogger("longthink.explore")


class Desk:
    """What the views share: the weights, one thread that thinks, two that prepare, and those that answer the page.

    One thread thinks for all: a step uses every core already. Its queue is first come, first served, and a piece of
    work is a step at most, so that views take turns. Preparing comes in pieces too, and a problem that is slow to check
    holds up neither the list of weights nor the engine, which have threads of their own.
    """

    def __init__(self, shelf: Shelf, most_views: int = MOST_VIEWS) -> None:
        self.shelf, self.most_views = shelf, most_views
        self.views = 0
        self.pieces = 0
        """Pieces of work done so far, by which one can see that somebody prepares or thinks."""
        self._thinking = ThreadPoolExecutor(1, "think")
        self._preparing = ThreadPoolExecutor(2, "prepare")
        self._looking = ThreadPoolExecutor(1, "look")
        self._playing = ThreadPoolExecutor(1, "play")

    async def prepare(self, work: Callable[..., Any], *args: Any) -> Any:
        self.pieces += 1
        return await asyncio.get_running_loop().run_in_executor(self._preparing, work, *args)

    async def catalogue(self) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._looking, _catalogue, self.shelf)

    async def best_move(self, fen: str) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._playing, best_move, fen)

    async def think(self, work: Callable[..., Any], *args: Any) -> Any:
        self.pieces += 1
        return await asyncio.get_running_loop().run_in_executor(self._thinking, work, *args)

    def close(self) -> None:
        for pool in (self._thinking, self._preparing, self._looking, self._playing):
            pool.shutdown(wait=False, cancel_futures=True)


class EndOfThought:
    """There are no more steps."""


END = EndOfThought()


class View:
    """One WebSocket. Listening and thinking go on side by side; only the newest script counts."""

    def __init__(self, desk: Desk, socket: WebSocket) -> None:
        self.desk, self.socket = desk, socket
        self.thoughts = Thoughts(desk.shelf)
        self.wish: Think | None = None
        self.id = -1
        self.until = -1
        self.awake = asyncio.Event()

    async def listen(self) -> None:
        while True:
            message = await self.socket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1000))
            text = message.get("text")
            try:
                if text is None:
                    raise UserError("Messages are JSON texts, not bytes.")
                self._hear(read_message(text))
            except UserError as error:
                await self.complain(None, str(error))

    def _hear(self, message: Think | More) -> None:
        if isinstance(message, Think):
            self.wish = message
        elif self.wish is not None and message.id == self.wish.id:  # its thought has not begun yet
            self.wish = Think(message.id, self.wish.script, self.wish.first, message.until)
        elif message.id == self.id:
            self.until = message.until
        self.awake.set()

    async def think(self) -> None:
        frames: Iterator[Frame | None] = iter(())
        step = 0  # of the next frame
        while True:
            await self.awake.wait()
            self.awake.clear()
            if self.wish is not None:
                wish, self.wish = self.wish, None
                begun = await self._begin(wish)
                if begun is not None:
                    frames, step = begun, wish.first
                    self.id, self.until = wish.id, max(wish.until, wish.first)
            while step <= self.until and self.wish is None:
                try:
                    frame = await self.desk.think(next, frames, END)
                except Exception as error:
                    frames = iter(())
                    await self.complain(self.id, _sentence(error))
                    break
                if isinstance(frame, EndOfThought):
                    break
                if frame is not None:
                    step = frame.step + 1
                    await self.socket.send_bytes(frame.to_bytes(self.id))
            if self.wish is not None:
                self.awake.set()

    async def _begin(self, wish: Think) -> Iterator[Frame | None] | None:
        """Tell the page what it is about to see; None where the script was refused or given up and the old one goes
        on."""
        try:
            plan = await self._plan(wish.script)
            if plan is None:
                return None
            about = await self.desk.think(self.thoughts.follow, plan)
        except Exception as error:
            await self.complain(wish.id, _sentence(error))
            return None
        await self.socket.send_text(json.dumps({"type": "ready", "id": wish.id, "from": wish.first, **about}))
        return self.thoughts.frames(wish.first)

    async def _plan(self, script: Script) -> Plan | None:
        """Piece by piece, so that a closed tab stops; None where it took long and a newer wish has come meanwhile."""
        began, work = time.monotonic(), self.thoughts.planning(script)
        while self.wish is None or time.monotonic() - began < _PATIENCE:
            plan: Plan | None = await self.desk.prepare(next, work)
            if plan is not None:
                return plan
        return None

    async def complain(self, id: int | None, sentence: str) -> None:
        await self.socket.send_text(json.dumps({"type": "error", "id": id, "message": sentence}))


def _sentence(error: Exception) -> str:
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    _log.error("A view failed.", exc_info=error)
    if isinstance(error, MemoryError) or "memory" in str(error).lower():
        return "There is not enough memory for this; choose a smaller size."
    return f"Something went wrong inside longthink ({type(error).__name__}); the terminal shows where."


def make_app(shelf: Shelf, host: str = "127.0.0.1", most_views: int = MOST_VIEWS) -> FastAPI:
    desk = Desk(shelf, most_views)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        warming = threading.Timer(_SECONDS_BEFORE_WARMING, warm_up)
        warming.daemon = True
        warming.start()
        yield
        warming.cancel()
        desk.close()

    app = FastAPI(title="longthink explore", docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    app.state.desk = desk

    @app.middleware("http")
    async def only_our_own(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        if not _is_ours(request.headers, host):
            return JSONResponse({"error": "This server answers its own page only."}, 403)
        answer = await call(request)
        answer.headers.update(_HEADERS)
        return answer

    @app.get("/api/catalogue")
    async def catalogue() -> Any:
        return await desk.catalogue()

    @app.get("/api/engine")
    async def engine(fen: str = "") -> Any:
        if len(fen) > _LONGEST_FEN:
            return JSONResponse({"error": f"A FEN has at most {_LONGEST_FEN} characters."}, 400)
        try:
            return await desk.best_move(fen)
        except UserError as error:
            return JSONResponse({"error": str(error)}, 400)

    @app.websocket("/think")
    async def think(socket: WebSocket) -> None:
        if not _is_ours(socket.headers, host):
            await socket.close(1008)
            return
        await socket.accept()
        view = View(desk, socket)
        if desk.views >= desk.most_views:
            await view.complain(None, f"{desk.most_views} views are open already; close a tab, then reload this one.")
            await socket.close(1013)
            return
        desk.views += 1
        thinking = asyncio.create_task(view.think())
        try:
            await view.listen()
        except (WebSocketDisconnect, RuntimeError):
            pass  # the page was closed; RuntimeError is how a send to it fails
        finally:
            desk.views -= 1
            thinking.cancel()
            with suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
                await thinking

    app.mount("/", StaticFiles(directory=STATIC, html=True))
    return app


def _catalogue(shelf: Shelf) -> dict[str, Any]:
    return {
        "version": __version__,
        "weights": [one.to_json() for one in shelf.found().values() if one.recipe.task in SHOWN],
        "train": HOW_TO_TRAIN,
        "runs": None if shelf.runs is None else str(shelf.runs),
        "styles": [*STYLES, "loops"],
        "units": {name: tasks[name].unit for name in SHOWN},  # type: ignore[attr-defined]
        "depths": USUAL_DEPTH,
        "engine": find_engine() is not None,
        "limits": {**LARGEST, "tokens": MOST_TOKENS, "steps": MOST_STEPS},
    }


def _is_ours(headers: Headers, host: str) -> bool:
    """Does a request name this machine, and does it come from our own page or from no page at all?"""
    named = headers.get("host", "")
    if not _is_this_machine(named, host):
        return False
    from_elsewhere = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
    if from_elsewhere and headers.get("sec-fetch-mode") != "navigate":  # a link that somebody shared may lead to us
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == named


def _is_this_machine(named: str, host: str) -> bool:
    """A name that somebody else's domain server may point at us is not ours; addresses and our own names are."""
    try:
        name = urlsplit(f"//{named}").hostname or ""
    except ValueError:
        return False
    if name in ("localhost", host, sockets.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
