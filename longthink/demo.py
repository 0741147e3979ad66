"""A minute with the shipped weights: ``python -m longthink.demo [--out out]``.

Solves problems far larger than those the networks were trained on, shows them think, and writes pictures.
Exits with 0 only if all were solved.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from longthink.errors import UserError
from longthink.pictures import Album, answer_picture, check_place, save_figure, thinking_picture
from longthink.solving import default_steps, find_weights, pose, solve
from longthink.terminal import Watching, report

SIZES = {"prefix_sums": 512, "mazes": 33, "sudoku": 30}
_FILES = {"prefix_sums": "prefix_sums", "mazes": "maze", "sudoku": "sudoku"}


def demo(out: Path, sizes: dict[str, int] | None = None, seed: int = 0) -> bool:
    """Was everything solved?"""
    check_place(out / "maze.png")
    solved, pictures = [], []
    for name, size in (SIZES if sizes is None else sizes).items():
        weights, loaded = find_weights(name)
        trained = ", ".join(map(str, loaded.recipe.difficulty))
        unit, steps = loaded.task.unit, loaded.recipe.steps
        print(f"{name}: {size} {unit}, by a network trained on {trained} {unit} and {steps} steps", flush=True)
        batch = pose(loaded, size=size, seed=seed)
        album = Album()
        with Watching(loaded.task, batch, default_steps(loaded, batch)) as watching:
            solution = solve(loaded, batch, weights=weights, on_step=[album, watching.on_step])
        report(solution)
        print()
        solved.append(solution.solved)
        for suffix, figure in (("", answer_picture(solution)), ("-thinking", thinking_picture(solution, album))):
            pictures.append(out / f"{_FILES.get(name, name)}{suffix}.png")
            save_figure(figure, pictures[-1])
    print("pictures:", *map(str, pictures))
    return all(solved)


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m longthink.demo", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the pictures (out)")
    try:
        return 0 if demo(parser.parse_args(args).out) else 1
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    # Two threads are twice as fast on an idle machine, but several times slower on a busy one, waiting for each other.
    torch.set_num_threads(1)
    sys.exit(main())
