"""What a person sees while training: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Report:
    """Use as a context manager; ``quiet`` says nothing at all."""

    def __init__(self, title: str, total: int, done: int, quiet: bool = False, interval: float = 10.0) -> None:
        self.title, self.total, self.done, self.interval = title, total, done, interval
        self.console = Console(stderr=True)
        self.bar: Progress | None = None
        self.quiet = quiet
        self._began, self._began_at, self._spoke = time.monotonic(), done, 0.0
        if not quiet and sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, TextColumn("{task.fields[news]}"), console=self.console)
            self._row = self.bar.add_task(title, total=total, completed=done, news="")

    def __enter__(self) -> Report:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()

    def update(self, done: int, news: str) -> None:
        self.done = done
        if self.quiet:
            return
        if self.bar:
            self.bar.update(self._row, completed=done, news=news)
        elif time.monotonic() - self._spoke >= self.interval or done == self.total:
            self._spoke = time.monotonic()
            pace = (self._spoke - self._began) / max(1, done - self._began_at)
            left = pace * (self.total - done)
            print(f"{self.title}  {done}/{self.total}  {left:.0f} s left  {news}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        if self.quiet:
            return
        if self.bar:
            self.console.print(text)
        else:
            print(text, file=sys.stderr, flush=True)
