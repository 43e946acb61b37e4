"""Progress of long steps: a live bar on a terminal, plain lines otherwise.

Code that may run for more than a second takes a `progress` argument with these methods:

    progress.say("fetching the package lists")
    for record in progress.over(records, "encoding"):
        ...
    with progress.bar(total, "fetching") as bar:     # total=None if unknown
        bar.advance(n)
"""

import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TextIO, TypeVar

T = TypeVar("T")
Done = Callable[[float], None]  # called with the share that is done


def untold(share: float) -> None:
    """The default `done`, which does nothing."""


class Progress:
    """Progress on `stream` (default stderr): rich bars if it is a terminal, plain lines if not.

    Args:
        stream: where the lines are written.
        interval: seconds between two plain lines of one bar.
    """

    def __init__(self, stream: TextIO | None = None, interval: float = 60.0) -> None:
        self._stream = stream or sys.stderr
        self._interval = interval

    def say(self, text: str) -> None:
        """Print one line."""
        print(text, file=self._stream, flush=True)

    def step(self, text: str) -> None:
        """Say what is being done now; only on a terminal, because a log file needs results."""
        if self._stream.isatty():
            self.say(text)

    @contextmanager
    def bar(self, total: float | None, label: str) -> Iterator[Any]:
        """Context of one long step of `total` units (None if unknown).

        Without a terminal, a bar writes at most one line every `interval` seconds, so that a log file stays readable.
        """
        if not self._stream.isatty():
            done, start = 0.0, time.monotonic()
            last = start

            def advance(amount: float = 1) -> None:
                nonlocal done, last
                done, now = done + amount, time.monotonic()
                if now - last >= self._interval:
                    last, left = now, (now - start) * max(0.0, (total or 0) / max(done, 1) - 1)
                    self.say(f"{label}: {done:,.0f}" + (f" of {total:,.0f}, about {left:.0f} s left" if total else ""))

            yield SimpleNamespace(advance=advance)
            return
        from rich import progress as rich
        from rich.console import Console

        columns = ("{task.description}", rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeRemainingColumn())
        with rich.Progress(*columns, console=Console(file=self._stream), transient=True) as display:
            task = display.add_task(label, total=total)
            yield SimpleNamespace(advance=lambda amount=1: display.advance(task, amount))

    def over(self, items: Iterable[T], label: str) -> Iterator[T]:
        """The items, with a bar that shows how many of them have been processed."""
        with self.bar(len(items) if isinstance(items, Sized) else None, label) as bar:
            for item in items:
                yield item
                bar.advance()


class NullProgress(Progress):
    """Shows nothing and stores the messages in `lines`; for tests and silent runs."""

    def __init__(self) -> None:
        super().__init__(io.StringIO(), interval=float("inf"))
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    step = say
