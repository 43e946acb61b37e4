"""Show the progress of many cells, and fit text to the terminal."""

import contextlib
import os
import sys
import textwrap
import time
from collections.abc import Mapping
from typing import TextIO

from repro.cell import Cell, Outcome
from repro.launch.pool import Event

WIDEST = 100  # columns of text, also if there is no terminal
TRUST = 60.0  # the expected pace counts like this many seconds of measured work


class Display:
    """Counts the cells that are done, failed, running and left, and estimates the remaining time.

    In a terminal, one line shows the running cells and is rewritten; else each cell that ends has a line. Notes and
    failures always have lines of their own.

    The pace is the work done in one second of a running cell. It starts at the expected value and soon becomes the
    measured one. The time before a cell's first report, and the work of an earlier run, do not count.

    Args:
        work: cell id -> expected seconds of work.
        workers: number of cells that run at the same time.
    """

    def __init__(self, work: Mapping[str, float], workers: int = 1) -> None:
        self.work = dict(work)  # work of cells that have not ended
        self.workers, self.done, self.failed = workers, 0, 0
        # running cell -> the first fraction that it reported, the time then, its fraction now, and its stage
        self._running: dict[str, tuple[float, float, float, str]] = {}
        self._gained = self._spent = TRUST  # work and seconds of cells that have ended

    @property
    def total(self) -> int:
        return self.done + len(self.work)

    def show(self, event: Event) -> None:
        """Show an event from the launcher."""
        cell = event.cell
        if event.kind == "stage":
            stats = "".join(f", {k} {v:.3g}" for k, v in event.stats.items())
            first, since, *_ = self._running.get(cell.cell_id, (event.fraction, time.monotonic()))
            self._running[cell.cell_id] = first, since, event.fraction, f"{event.text}{stats}: {name(cell)}"
            self._tick()
        elif event.kind == "note":
            told = f"  {name(cell)}: {event.text}"
            self.say(fitted(told, stream=sys.stderr) if sys.stderr.isatty() else told)
        elif event.outcome is not None:
            self._end(cell, event.outcome)

    def _end(self, cell: Cell, outcome: Outcome) -> None:
        state, said, ran = outcome.state, outcome.reason.splitlines()[0], self._running.pop(cell.cell_id, None)
        if state in ("busy", "queued"):
            self.say(f"  {name(cell)}: {said}{'; waiting for it' if state == 'busy' else ''}")
            return
        work = self.work.pop(cell.cell_id, 0.0)
        if state == "done" and ran:
            self._gained, self._spent = self._gained + work * (1 - ran[0]), self._spent + time.monotonic() - ran[1]
        self.done, self.failed = self.done + 1, self.failed + (state == "failed")
        took = f" in {outcome.seconds:.0f} s" if state == "done" else ""
        told = f"FAILED {name(cell)}: {said}" if state == "failed" else f"{state} {name(cell)}{took}{self._left()}"
        if state == "failed" or not sys.stderr.isatty():
            self.say(f"[{self.done}/{self.total}] {told}")
        print(cleared(), end="", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a text as it is: a command in it must stay in one line."""
        print(f"{cleared()}{text}", file=sys.stderr, flush=True)

    def remaining(self) -> float:
        """The estimated seconds until all cells are done."""
        gained, spent, left = self._gained, self._spent, sum(self.work.values())
        for key, (first, since, fraction, _) in self._running.items():
            work = self.work.get(key, 0.0)
            gained, left = gained + work * (fraction - first), left - work * fraction
            spent += time.monotonic() - since
        return left * spent / gained / max(1, min(self.workers, len(self.work)))

    def _left(self) -> str:
        return f"; about {clock(self.remaining())} left" if self.work else ""

    def _tick(self) -> None:
        if not sys.stderr.isatty():
            return
        failed = f", {self.failed} failed" if self.failed else ""
        head = f"  {self.done}/{self.total} done{failed}{self._left()}"
        room = (width(sys.stderr) - 1 - len(head)) // len(self._running)
        cells = "".join(f" | {stage}"[:room] for *_, stage in self._running.values())
        print(f"{cleared()}{head}{cells}", end="", file=sys.stderr, flush=True)


def cleared() -> str:
    """What removes the line of progress from a terminal; nothing elsewhere."""
    return "\r\033[K" if sys.stderr.isatty() else ""


def width(stream: TextIO | None = None) -> int:
    """The columns for text: those of the terminal (or COLUMNS), at most `WIDEST`; `WIDEST` without a terminal."""
    known = os.environ.get("COLUMNS", "")
    with contextlib.suppress(OSError, ValueError):  # ValueError: a stream without a file
        known = known or str(os.get_terminal_size((stream or sys.stdout).fileno()).columns)
    return min(WIDEST, int(known) or WIDEST) if known.isdecimal() else WIDEST


def cut(text: str, most: int) -> str:
    """The text, shortened to `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def fitted(text: str, indent: str = "", stream: TextIO | None = None) -> str:
    """Text with its lines broken at spaces to fit `width`; `indent` is put before each line."""
    wrapper = textwrap.TextWrapper(width(stream), indent, f"{indent}  ")
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return "\n".join(map(wrapper.fill, text.splitlines()))


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
