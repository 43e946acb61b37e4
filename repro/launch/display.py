"""Show the progress of many cells: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from repro.cell import Cell, Outcome
from repro.launch.pool import Event

INTERVAL = 60.0  # seconds between two plain lines
TRUST = 60.0  # the expected pace counts like this many seconds of measured work


class Display:
    """Counts the cells that are done, failed, running and left, and estimates the remaining time.

    The pace is the work done in one second of a running cell. It starts at the expected value and soon becomes the
    measured one. The time before a cell's first report, and the work of an earlier run, do not count.

    Args:
        work: cell id -> expected seconds of work.
        workers: number of cells that run at the same time.
    """

    def __init__(self, work: Mapping[str, float], workers: int = 1) -> None:
        self.work = dict(work)  # work of cells that have not ended
        self.workers, self.done, self.failed = workers, 0, 0
        self.fractions: dict[str, float] = {}
        self.stages: dict[str, str] = {}
        self._gained = self._spent = 0.0  # work and seconds of cells that have ended
        self._begun: dict[str, tuple[float, float]] = {}  # the first fraction that a cell reported, and its time
        self._last = time.monotonic()
        self._live: Any = None

    @property
    def total(self) -> int:
        return self.done + len(self.work)

    def __enter__(self) -> Display:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True, redirect_stdout=False)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live:
            self._live.__exit__(*error)

    def show(self, event: Event) -> None:
        """Show an event from the launcher."""
        cell = event.cell
        if event.kind == "stage":
            stats = "".join(f", {k} {v:.3g}" for k, v in event.stats.items())
            self._begun.setdefault(cell.cell_id, (event.fraction, time.monotonic()))
            self.fractions[cell.cell_id] = event.fraction
            self.stages[cell.cell_id] = f"{name(cell)}: {event.text}{stats}"
            self._tick()
        elif event.kind == "note":
            self.say(f"  {name(cell)}: {event.text}")
        elif event.outcome is not None:
            self.fractions.pop(cell.cell_id, None)
            self.stages.pop(cell.cell_id, None)
            if event.outcome.state in ("busy", "queued"):
                waits = "; waiting for it" if event.outcome.state == "busy" else ""
                self.say(f"  {name(cell)}: {event.outcome.reason}{waits}")
                return
            work = self.work.pop(cell.cell_id, 0.0)
            if event.outcome.state == "done" and cell.cell_id in self._begun:
                first, since = self._begun[cell.cell_id]
                self._gained, self._spent = self._gained + work * (1 - first), self._spent + time.monotonic() - since
            self.done += 1
            self.failed += event.outcome.state == "failed"
            self.say(f"[{self.done}/{self.total}] {self._ended(cell, event.outcome)}")

    def _ended(self, cell: Cell, outcome: Outcome) -> str:
        if outcome.state == "failed":
            return f"FAILED {name(cell)}: {(outcome.error or 'unknown error').splitlines()[0]}"
        took = f" in {outcome.seconds:.0f} s" if outcome.state == "done" else ""
        return f"{outcome.state} {name(cell)}{took}{self._left_text()}"

    def say(self, text: str) -> None:
        if self._live:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def result(self, text: str) -> None:
        """Print a result, such as a finished table, to standard output."""
        if self._live and sys.stdout.isatty():
            self.say(text)
        else:
            print(text, flush=True)

    def remaining(self) -> float:
        """The estimated seconds until all cells are done."""
        gained, spent, left = TRUST + self._gained, TRUST + self._spent, sum(self.work.values())
        for key, fraction in self.fractions.items():
            work, (first, since) = self.work.get(key, 0.0), self._begun[key]
            gained, left = gained + work * (fraction - first), left - work * fraction
            spent += time.monotonic() - since
        return left * spent / gained / max(1, min(self.workers, len(self.work)))

    def _left_text(self) -> str:
        return "" if self.done == self.total else f"; about {clock(self.remaining())} left"

    def _tick(self) -> None:
        if self._live:
            from rich.text import Text

            first = f"{self.done} of {self.total} cells done, {self.failed} failed{self._left_text()}"
            self._live.update(Text("\n".join([first, *self.stages.values()])))
        elif time.monotonic() - self._last > INTERVAL:
            self._last = time.monotonic()
            self.say(f"  {self.done}/{self.total} done{self._left_text()} | " + " | ".join(self.stages.values()))


def setting(cell: Cell) -> str:
    """The row and column of the cell's table; outside a table, the mapping with its parameters and the data."""
    places = "".join(f", {at['name']} at {place}" for place, at in (cell.config["mapping"].get("at") or {}).items())
    return cell.label or f"{cell.mapping}({cell.parameters}){places} on {cell.config['data']['name']}"


def name(cell: Cell) -> str:
    """The task, setting and seed of a cell."""
    return f"{cell.task}: {setting(cell)}, seed {cell.seed}"


def clock(seconds: float) -> str:
    """A duration as text, e.g. `45 s`, `3 min` or `2 h 10 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
