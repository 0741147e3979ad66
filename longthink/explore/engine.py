"""A chess engine's opinion, where Stockfish is installed."""

from __future__ import annotations

import os
import shutil
from typing import Any

from longthink.errors import UserError, lacking

_SECONDS = 0.5
_PATIENCE = 10.0  # seconds for a move, the engine's start included
_USUAL_PLACES = ("/usr/games", "/usr/local/bin", "/opt/homebrew/bin")


def find_engine() -> str | None:
    """Debian puts games where the path of many users does not lead."""
    places = os.pathsep.join((os.environ.get("PATH", ""), *_USUAL_PLACES))
    return shutil.which("stockfish", path=places)


def best_move(fen: str) -> dict[str, Any]:
    """The move that Stockfish finds in half a second, and its squares as the names of chess players."""
    program = find_engine()
    if program is None:
        raise UserError("Stockfish is not installed; install it to see its answer.")
    try:
        import chess
        import chess.engine
    except ImportError:
        raise lacking("Chess needs the rules of the game", "chess") from None
    try:
        board = chess.Board(fen)
    except ValueError as error:
        raise UserError(f"This is not a position ({error}).") from None
    if not board.is_valid() or not any(board.legal_moves):
        raise UserError("The engine has no move in this position.")
    try:
        with chess.engine.SimpleEngine.popen_uci(program, timeout=_PATIENCE) as engine:
            found = engine.play(board, chess.engine.Limit(time=_SECONDS), info=chess.engine.INFO_SCORE)
    except (chess.engine.EngineError, OSError, TimeoutError) as error:
        raise UserError(f"Stockfish gave no answer ({type(error).__name__}); try again.") from None
    if found.move is None:
        raise UserError("Stockfish gave no answer; try again.")
    score = found.info.get("score")
    return {
        "move": board.san(found.move),
        "from": chess.square_name(found.move.from_square),
        "to": chess.square_name(found.move.to_square),
        "score": None if score is None else str(score.pov(board.turn)),
    }
