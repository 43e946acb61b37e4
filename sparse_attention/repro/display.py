"""Progress of many cells: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from sparse_attention.repro.cell import Cell, Outcome
from sparse_attention.repro.pool import Event


class Display:
    """Counts done, failed, running and left, and estimates the time that remains.

    The estimate divides the seconds spent on cells by the fraction of them that is done: finished cells count whole,
    running ones by their own progress.
    """

    def __init__(self, total: int, workers: int, stream: TextIO | None = None, interval: float = 10.0) -> None:
        self.total, self.workers, self.stream = total, max(workers, 1), stream or sys.stderr
        self.done = self.failed = 0
        self.fractions: dict[str, float] = {}
        self.stages: dict[str, str] = {}
        self.started = time.monotonic()
        self.interval, self._last = interval, time.monotonic()
        self._live: Any = None

    def __enter__(self) -> Display:
        if self.stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self.stream), refresh_per_second=4, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live:
            self._live.__exit__(*error)

    def show(self, event: Event) -> None:
        """Take an event of the pool into account."""
        cell = event.cell
        if event.kind == "stage":
            self.fractions[cell.cell_id] = event.fraction
            stats = "".join(f", {k} {v:.3g}" for k, v in event.stats.items())
            self.stages[cell.cell_id] = f"{name(cell)}: {event.text}{stats}"
            self._tick()
        elif event.kind == "note":
            self.say(f"  {name(cell)}: {event.text}")
        elif event.outcome is not None:
            self.fractions.pop(cell.cell_id, None)
            self.stages.pop(cell.cell_id, None)
            if event.outcome.state == "busy":
                self.say(f"  {name(cell)}: {event.outcome.reason}; waiting for it")
                return
            self.done += 1
            self._ended(cell, event.outcome)

    def _ended(self, cell: Cell, outcome: Outcome) -> None:
        if outcome.state == "failed":
            self.failed += 1
            first = (outcome.error or "").splitlines()[0] if outcome.error else "unknown error"
            self.say(f"[{self.done}/{self.total}] FAILED {name(cell)}: {first}")
        else:
            took = f" in {outcome.seconds:.0f} s" if outcome.state == "done" else ""
            self.say(f"[{self.done}/{self.total}] {outcome.state} {name(cell)}{took}{self._left_text()}")

    def say(self, text: str) -> None:
        if self._live:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=self.stream, flush=True)

    def remaining(self) -> float | None:
        """Estimated seconds until all cells are done; None before anything is known."""
        finished = self.done + sum(self.fractions.values())
        if finished < 0.05:
            return None
        return (time.monotonic() - self.started) * (self.total - finished) / finished

    def _left_text(self) -> str:
        left = self.remaining()
        return "" if left is None or self.done == self.total else f"; about {clock(left)} left"

    def _tick(self) -> None:
        if self._live:
            from rich.text import Text

            lines = [
                f"{self.done} of {self.total} cells done, {self.failed} failed{self._left_text()}",
                *self.stages.values(),
            ]
            self._live.update(Text("\n".join(lines)))
        elif time.monotonic() - self._last > self.interval:
            self._last = time.monotonic()
            self.say(f"  {self.done}/{self.total} done{self._left_text()} | " + " | ".join(self.stages.values()))


def name(cell: Cell) -> str:
    """Task, row and column of the table, seed; outside a table the mapping with its parameters and the data."""
    node = cell.config["mapping"]
    parameters = ", ".join(f"{k}={v}" for k, v in node.items() if k not in ("name", "at", "grid"))
    places = "".join(f", {at['name']} at {place}" for place, at in (node.get("at") or {}).items())
    label = cell.label or f"{cell.mapping}({parameters}){places} on {cell.config['data']['name']}"
    return f"{cell.task}: {label}, seed {cell.seed}"


def clock(seconds: float) -> str:
    """`45 s`, `3 min`, `2 h 10 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
