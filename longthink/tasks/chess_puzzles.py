"""Chess puzzles (Schwarzschild, section 2.2.3): mark the square that the best move starts from and the one it ends on.

The puzzles come from Lichess: https://database.lichess.org, lichess_db_puzzle.csv.zst.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numba import njit
from torch import Tensor

from longthink.errors import UserError, lacking
from longthink.tasks.base import Batch, Split, check_request, mixed_seed, tasks
from longthink.tasks.reading import find_data, read_lines
from longthink.tasks.rng import SPLIT_CODES, absorb, shuffled_rounds

if TYPE_CHECKING:
    import chess

COLUMNS = ("FEN", "Moves", "Rating")
LEVELS = 10
_ADDRESS = "https://database.lichess.org/lichess_db_puzzle.csv.zst"


@tasks.add("chess")
@dataclass(frozen=True)
class Chess:
    """Difficulty d, 1 to 10, is the d-th tenth of the puzzles by rating; ``ranks`` gives any range.

    Channels 0 to 5 hold the mover's king, queen, bishops, knights, rooks and pawns, 6 to 11 the opponent's.
    Row 0 is the mover's back rank (rank 1 for White, rank 8 for Black), so the mover always plays towards
    row 7; column 0 is always file a: for Black the board is flipped on rank, not turned. Inputs and targets
    have the same orientation, whereas the published loader flips the targets alone.
    Castling rights, en passant and the piece that a pawn turns into are left out, as in the text.

    ``info`` has each puzzle's ``rank`` in the sorted file and ``rating``, whether the mover is ``black``, and
    ``truth_known``: the best move of a position that a person typed is not, so its targets are all 0.
    """

    puzzles: str = "lichess_db_puzzle.csv.zst"
    """The puzzle file: CSV with the columns FEN, Moves and Rating, plain or .zst."""

    name: ClassVar[str] = "chess"
    unit: ClassVar[str] = "tenth by rating"
    shape: ClassVar[dict[str, int]] = {"dims": 2, "inputs": 12, "classes": 2}

    @property
    def total(self) -> int:
        """The number of puzzles in the file."""
        return len(_book(self.puzzles))

    def sample(self, n: int, difficulty: int, seed: int, split: Split = "test") -> Batch:
        """All puzzles of the tenth and split in random order, and again in another when ``n`` is larger."""
        check_request(n, difficulty, seed, split)
        if difficulty > LEVELS:
            raise UserError(f"Chess puzzles have difficulties 1 to {LEVELS}, not {difficulty}.")
        book = _book(self.puzzles)
        pool = np.arange(len(book) * (difficulty - 1) // LEVELS, len(book) * difficulty // LEVELS)
        pool = pool[_split_codes(book.planes(pool)) == SPLIT_CODES[split]]
        if not len(pool):
            raise UserError(f"No {split} puzzle of difficulty {difficulty} is in {self.puzzles}; use a larger file.")
        picks = np.empty(n, np.int64)
        shuffled_rounds(mixed_seed(self.name, difficulty, seed), len(pool), picks)
        return book.batch(pool[picks], difficulty)

    def ranks(self, start: int, stop: int) -> Batch:
        """The puzzles from rank ``start`` (0 is the easiest) up to but without ``stop``."""
        book = _book(self.puzzles)
        if not 0 <= start < stop <= len(book):
            raise UserError(
                f"Ranks must lie between 0 and {len(book)}, the first below the second; not {start}, {stop}."
            )
        return book.batch(np.arange(start, stop), 0)

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """The two squares with the highest class-1 logits, as classes [n, 8, 8]; class 0 plays no part."""
        top = logits[:, 1].flatten(1).topk(2).indices
        return torch.zeros_like(logits[:, 1], dtype=torch.long).flatten(1).scatter(1, top, 1).view(-1, 8, 8)

    def score(self, logits: Tensor, batch: Batch) -> Tensor:
        """Do the two highest class-1 logits mark the move (section 4.3.3)? A tie with a third is wrong."""
        squares, marked = logits[:, 1].flatten(1), batch.targets.flatten(1) == 1
        lowest = squares.masked_fill(~marked, torch.inf).amin(1)
        rival = squares.masked_fill(marked, -torch.inf).amax(1)
        return (lowest > rival) & (marked.sum(1) == 2)

    def check(self, batch: Batch) -> Tensor:
        """Plays each puzzle of the file again; positions without a known answer fail."""
        right = torch.zeros(len(batch), dtype=torch.bool)
        for i, rank in enumerate(batch.info["rank"].tolist()):
            if rank >= 0:
                fen, moves = _book(self.puzzles).text(rank)
                right[i] = _agrees(fen, moves, batch.inputs[i].cpu(), batch.targets[i].cpu())
        return right.to(batch.targets.device)

    def parse(self, text: str) -> Batch:
        """A position in Forsyth-Edwards notation; the side to move is the mover."""
        example = "type a FEN such as 6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"
        try:
            board = _rules().Board(text.strip())
        except ValueError as error:
            raise UserError(f"This is not a position ({error}); {example}.") from error
        if not board.is_valid():
            problems = ", ".join(str(flag.name).lower().replace("_", " ") for flag in board.status())
            raise UserError(f"This position cannot occur in a game ({problems}); {example}.")
        if not any(board.legal_moves):
            raise UserError("The side to move has no legal move in this position; type one that is not over.")
        black = np.array([not board.turn])
        planes = _seen(np.array([_bitboards(board)], np.uint64), black)
        return Batch(
            inputs=_unpack(planes).float(),
            targets=torch.zeros(1, 8, 8, dtype=torch.long),
            info={
                "rank": torch.tensor([-1]),
                "rating": torch.tensor([0]),
                "black": torch.from_numpy(black),
                "truth_known": torch.tensor([False]),
            },
        )

    def text(self, batch: Batch, index: int = 0) -> str:
        """The position that the network sees; it knows nothing of castling, en passant and the number of moves."""
        black = bool(batch.info["black"][index])
        letters = "kqbnrpKQBNRP" if black else "KQBNRPkqbnrp"
        board = batch.inputs[index].permute(1, 2, 0)  # row 0 is the mover's back rank; a FEN begins with rank 8
        ranks = []
        for row in board if black else board.flip(0):
            rank = "".join(letters[int(place.argmax())] if bool(place.any()) else "." for place in row)
            ranks.append(re.sub(r"\.+", lambda blanks: str(len(blanks[0])), rank))
        return f"{'/'.join(ranks)} {'b' if black else 'w'} - - 0 1"

    def position(self, batch: Batch, index: int = 0) -> str:
        """A puzzle's position as an engine needs it: with castling, en passant and the number of moves."""
        fen, moves = _book(self.puzzles).text(int(batch.info["rank"][index]))
        board = _rules().Board(fen)
        board.push(_legal(board, moves.split()[0]))
        return str(board.fen())

    def show(self, classes: Tensor, batch: Batch, index: int = 0) -> str:
        """The move on the real board, as e2e4; the square with a piece of the mover comes first."""
        squares = [tuple(square) for square in classes.nonzero().tolist()]
        own = batch.inputs[index, :6].sum(0)
        squares.sort(key=lambda square: -float(own[square]))
        black = bool(batch.info["black"][index])
        names = ["abcdefgh"[file] + str(8 - row if black else row + 1) for row, file in squares]
        if len(squares) == 2 and own[squares[0]] and not own[squares[1]]:
            move = "".join(names)
            return move if _can_be_played(self.text(batch, index), move) else f"{move} (not a legal move)"
        return f"no move ({' '.join(names) or 'no square'} marked)"

    def draw(self, batch: Batch, index: int = 0, logits: Tensor | None = None) -> np.ndarray:
        """The board from the mover's side with the move.

        With logits: the probability of class 1 as heat and the move it means, framed green when right, red
        when wrong (the right one is dashed then), blue when the truth is not known.
        """
        inputs, truth = batch.inputs[index].cpu(), batch.targets[index].cpu()
        black = bool(batch.info["black"][index])
        if logits is None:
            return _picture(inputs, black, truth, None, truth)
        one = logits[index : index + 1].float().cpu()
        return _picture(inputs, black, truth, one.softmax(1)[0, 1], self.predict(one, batch)[0])


class _Book:
    """The puzzles of one file by rising rating. A position is worked out when it is first asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        fens: list[str] = []
        moves: list[str] = []
        ratings: list[float] = []
        lines: list[int] = []
        for line, fen, played, rating in _rows(path):
            fens.append(fen)
            moves.append(played)
            ratings.append(rating)
            lines.append(line)
        if not fens:
            raise UserError(f"There are no puzzles in {path.name}; get it again from {_ADDRESS}.")
        order = np.argsort(np.array(ratings), kind="stable")  # as published: ties stay in the order of the file
        self._fens = [fens[i] for i in order]
        self._moves = [moves[i] for i in order]
        self._lines = np.array(lines)[order]
        self._ratings = np.array(ratings)[order]
        self._planes = np.zeros((len(order), 12), np.uint64)  # bit 8 * row + column of each channel
        self._marks = np.zeros(len(order), np.uint64)  # the two squares of the move
        self._black = np.zeros(len(order), bool)
        self._ready = np.zeros(len(order), bool)

    def __len__(self) -> int:
        return len(self._fens)

    def text(self, rank: int) -> tuple[str, str]:
        return self._fens[rank], self._moves[rank]

    def planes(self, ranks: np.ndarray) -> np.ndarray:
        self._work_out(ranks[~self._ready[ranks]])
        return self._planes[ranks]

    def batch(self, ranks: np.ndarray, difficulty: int) -> Batch:
        planes = self.planes(ranks)
        return Batch(
            inputs=_unpack(planes).float(),
            targets=_unpack(self._marks[ranks, None])[:, 0].long(),
            difficulty=difficulty,
            info={
                "rank": torch.from_numpy(ranks),
                "rating": torch.from_numpy(self._ratings[ranks].astype(np.int64)),
                "black": torch.from_numpy(self._black[ranks]),
                "truth_known": torch.ones(len(ranks), dtype=torch.bool),
            },
        )

    def _work_out(self, ranks: np.ndarray) -> None:
        rules = _rules()
        ranks = np.unique(ranks)
        for rank in ranks.tolist():
            try:
                # The file has the position before the opponent's move; the answer is the reply to it.
                board = rules.Board(self._fens[rank])
                first, reply = self._moves[rank].split()
                board.push(_legal(board, first))
                move = _legal(board, reply)
            except ValueError as error:
                where = f"Line {self._lines[rank]} of {self.path.name}"
                raise UserError(f"{where} is not a puzzle ({error}); get the file again.") from error
            self._planes[rank] = _bitboards(board)
            self._marks[rank] = 1 << move.from_square | 1 << move.to_square
            self._black[rank] = not board.turn
        black = self._black[ranks]
        self._planes[ranks] = _seen(self._planes[ranks], black)
        self._marks[ranks] = _seen(self._marks[ranks], black)
        self._ready[ranks] = True


def _can_be_played(fen: str, move: str) -> bool:
    """With the benefit of the doubt: the position does not say who may castle or take en passant."""
    rules = _rules()
    board = rules.Board(fen)
    board.set_castling_fen("KQkq")
    if any(str(one)[:4] == move for one in board.legal_moves):
        return True
    pawn, beside = (board.piece_at(rules.parse_square(square)) for square in (move[:2], move[2] + move[1]))
    next_file = abs(ord(move[0]) - ord(move[2])) == 1
    en_passant = next_file and move[1] + move[3] == ("56" if board.turn else "43")
    return en_passant and str(pawn).lower() == str(beside).lower() == "p" and pawn.color != beside.color


def _book(path: str) -> _Book:
    given = Path(path).expanduser()
    file = given if given.is_file() else find_data(path.removesuffix(".zst"))
    if file is None:
        raise UserError(
            f"There is no puzzle file {path}; get {_ADDRESS} and put it into ./data, "
            "or set LONGTHINK_DATA to its folder."
        )
    stamp = file.stat()
    return _cached_book(file.resolve(), stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=4)
def _cached_book(path: Path, changed: int, size: int) -> _Book:
    return _Book(path)


def _rows(path: Path) -> list[tuple[int, str, str, float]]:
    """(line, FEN, first two moves, rating) of every puzzle of a file."""
    table, rows = csv.reader(read_lines(path)), []
    try:
        header = next(table, [])
        missing = [name for name in COLUMNS if name not in header]
        if missing:
            raise UserError(f"Line 1 of {path.name} names no column {missing[0]}; get {_ADDRESS}.")
        fen, moves, rating = (header.index(name) for name in COLUMNS)
        for fields in table:
            if not fields:
                continue
            if len(fields) != len(header):
                where, widths = f"Line {table.line_num} of {path.name}", f"{len(fields)}, not {len(header)}"
                raise UserError(f"{where} has {widths} columns; the file may be cut short: get it again.")
            try:
                number = float(fields[rating])
            except ValueError:
                number = np.nan
            if not np.isfinite(number):
                raise UserError(f"Line {table.line_num} of {path.name} has the rating {fields[rating]!r}, no number.")
            first_two = " ".join(fields[moves].split(maxsplit=2)[:2])
            rows.append((table.line_num, fields[fen], first_two, number))
    except csv.Error as error:
        raise UserError(f"Line {table.line_num} of {path.name} is not CSV ({error}); get it again.") from error
    return rows


def whole_position(text: str) -> str:
    """A position that ``parse`` takes, written out in full: with castling, en passant and the number of moves."""
    return str(_rules().Board(text.strip()).fen())


def _rules() -> ModuleType:
    try:
        import chess
    except ImportError as error:
        raise lacking("Chess needs the rules of the game", "chess") from error
    return chess


def _legal(board: chess.Board, uci: str) -> chess.Move:
    move = board.parse_uci(uci)
    if not move:
        raise ValueError("a null move")
    return move


def _bitboards(board: chess.Board) -> list[int]:
    """Twelve sets of squares, bit 8 * rank + file of 64: the mover's pieces, then the opponent's."""
    kinds = (board.kings, board.queens, board.bishops, board.knights, board.rooks, board.pawns)
    sides = (board.occupied_co[board.turn], board.occupied_co[not board.turn])
    return [kind & side for side in sides for kind in kinds]


def _seen(bitboards: np.ndarray, black: np.ndarray) -> np.ndarray:
    """The same from the mover's side: a rank is a byte, so for Black the bytes change places."""
    seen = bitboards.copy()
    seen[black] = bitboards[black].byteswap()
    return seen


def _unpack(bitboards: np.ndarray) -> Tensor:
    """uint8 [n, channels, 8, 8] from uint64 [n, channels]."""
    ranks = np.ascontiguousarray(bitboards, "<u8")[..., None].view(np.uint8)
    return torch.from_numpy(np.unpackbits(ranks, axis=-1, bitorder="little").reshape(*bitboards.shape, 8, 8))


def _agrees(fen: str, moves: str, inputs: Tensor, targets: Tensor) -> bool:
    """Is this the position after the first move, and do the marks show the second? Square by square."""
    rules = _rules()
    board = rules.Board(fen)
    first, reply = map(rules.Move.from_uci, moves.split())
    if first not in list(board.legal_moves):
        return False
    board.push(first)
    planes = torch.zeros(12, 8, 8)
    for square, piece in board.piece_map().items():
        rank = rules.square_rank(square)
        channel = "kqbnrp".index(piece.symbol().lower()) + (0 if piece.color == board.turn else 6)
        planes[channel, rank if board.turn == rules.WHITE else 7 - rank, rules.square_file(square)] = 1
    rows, columns = targets.nonzero(as_tuple=True)
    real = rows if board.turn == rules.WHITE else 7 - rows
    marked = {rules.square(column, rank) for column, rank in zip(columns.tolist(), real.tolist(), strict=True)}
    legal = [move for move in board.legal_moves if {move.from_square, move.to_square} == marked]
    binary = bool(((targets == 0) | (targets == 1)).all())
    return binary and reply in legal and torch.equal(planes, inputs)


@njit(cache=True)
def _split_codes(planes: np.ndarray) -> np.ndarray:
    """The split of each position: what the network sees decides, so equal inputs are never in two splits."""
    codes = np.empty(len(planes), np.int64)
    for i in range(len(planes)):
        digest = np.uint64(64)
        for plane in planes[i]:
            digest = absorb(digest, plane)
        # Real puzzles are scarce, and the harder ranks are the test: 80% train, 10% valid, 10% test.
        tenth = np.int64(digest % np.uint64(10))
        codes[i] = 0 if tenth < 8 else tenth - 7
    return codes


def _picture(inputs: Tensor, black: bool, truth: Tensor, heat: Tensor | None, answer: Tensor) -> np.ndarray:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    figure = Figure(figsize=(6, 6), dpi=100)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0.05, 0.05, 0.94, 0.94), xlim=(0, 8), ylim=(0, 8))
    # Black's board is turned, as on a table: the network's flipped one would be a mirror image.
    files = range(7, -1, -1) if black else range(8)

    def square(row: int, file: int, **style: Any) -> None:
        axes.add_patch(Rectangle((files[file], row), 1, 1, **style))

    for row, file in np.ndindex(8, 8):
        dark = (row + file) % 2 == (1 if black else 0)
        square(row, file, color="#b4bfcd" if dark else "#eaeef3", lw=0)
        if heat is not None:
            square(row, file, color="#ea580c", alpha=0.9 * float(heat[row, file]), lw=0)
        elif answer[row, file]:
            square(row, file, color="#a3c644", alpha=0.75, lw=0)
        if inputs[:, row, file].any():
            channel = int(inputs[:, row, file].argmax())
            white = (channel < 6) != black
            axes.text(
                files[file] + 0.5,
                row + 0.47,
                "♚♛♝♞♜♟"[channel % 6],
                ha="center",
                va="center",
                size=36,
                color="#fdfdfb" if white else "#1c1c1c",
                path_effects=[withStroke(linewidth=1.6, foreground="#1c1c1c" if white else "#eaeef3")],
                family="DejaVu Sans",
            )
    if heat is not None:
        solved = torch.equal(answer, truth)
        for row, file in answer.nonzero().tolist():
            ink = "#1d4ed8" if not truth.any() else "#15803d" if solved else "#b91c1c"
            square(row, file, fill=False, ec=ink, lw=4, clip_on=False)
        for row, file in [] if solved else truth.nonzero().tolist():
            square(row, file, fill=False, ec="#15803d", lw=3, ls=(0, (3, 2)), clip_on=False)
    axes.set_xticks(np.arange(8) + 0.5, ["abcdefgh"[file] for file in files])
    axes.set_yticks(np.arange(8) + 0.5, [str(8 - row if black else row + 1) for row in range(8)])
    axes.tick_params(length=0, labelsize=12)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
