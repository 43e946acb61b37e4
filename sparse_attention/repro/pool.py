"""Run many cells in isolated processes that share one expensive import.

A fork server imports torch and fairseq once (`PRELOAD` of the families); every cell then runs in a child forked from it:
isolation is complete (no library state leaks from one training into the next, a killed or crashed cell takes nothing
with it) and the import is paid once, not per cell.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, cast

from sparse_attention.repro import cell as cells
from sparse_attention.repro.cell import Cell, Outcome
from sparse_attention.repro.store import Store

Loggers = Callable[[Cell], list[Any]] | None


@dataclass
class Event:
    """Something a running cell said: kind "stage" (fraction done, stats), "note" or "end" (outcome)."""

    cell: Cell
    kind: str
    text: str = ""
    fraction: float = 0.0
    stats: Mapping[str, float] = field(default_factory=dict)
    outcome: Outcome | None = None


def run_here(
    pending: Iterable[Cell], store: Store, show: Callable[[Event], None], loggers: Loggers = None
) -> list[Outcome]:
    """Run the cells one after another in this process (for one cell, and for schedulers that isolate by themselves)."""
    outcomes = []
    for cell in pending:
        outcomes.append(cells.run(cell, store, forward=lambda *said, c=cell: show(Event(c, *said)), loggers=loggers))
        show(Event(cell, "end", outcome=outcomes[-1]))
    return outcomes


def run(pending: Iterable[Cell], store: Store, workers: int, threads: int, loggers: Loggers = None) -> Iterator[Event]:
    """Run `pending` in order, `workers` at a time with `threads` threads each; yields events as they happen.

    A cell whose process dies (killed, out of memory) ends as failed; the others go on, and running again resumes it.
    `loggers` must be an importable function: it travels to the child by name.
    """
    waiting = list(pending)
    if not waiting:
        return
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(sorted({m for c in waiting for m in c.family.PRELOAD}))
    previous = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)  # inherited by the fork server
    active: dict[Connection, tuple[Cell, Any, float]] = {}
    try:
        while waiting or active:
            while waiting and len(active) < max(workers, 1):
                cell = waiting.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                arguments = (sender, cell, str(store.root), threads, loggers)
                process = context.Process(target=_child, args=arguments, name=cell.cell_id)
                process.start()
                sender.close()
                active[receiver] = (cell, process, time.monotonic())
            for ready in wait(list(active), timeout=1.0):
                receiver = cast(Connection, ready)
                cell, process, started = active[receiver]
                try:
                    kind, *rest = receiver.recv()
                except (EOFError, OSError):
                    process.join()
                    kind, rest = "end", [_died(cell, store, process.exitcode, time.monotonic() - started)]
                if kind != "end":
                    yield Event(cell, kind, *rest)
                    continue
                process.join()
                del active[receiver]
                receiver.close()
                yield Event(cell, "end", outcome=rest[0])
    finally:
        for _, process, _ in active.values():
            process.terminate()
        for _, process, _ in active.values():
            process.join(10)
        for name, value in previous.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def _child(sender: Connection, cell: Cell, root: str, threads: int, loggers) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches it too: no traceback beside the parent's sentence
    torch.set_num_threads(threads)
    outcome = cells.run(cell, Store(root), forward=lambda *message: sender.send(message), loggers=loggers)
    sender.send(("end", outcome))
    sender.close()


def _died(cell: Cell, store: Store, exitcode: int | None, seconds: float) -> Outcome:
    if exitcode is not None and exitcode < 0:
        why = f"its process was killed by signal {-exitcode}" + (" (out of memory?)" if exitcode == -9 else "")
    else:
        why = f"its process ended with exit code {exitcode}"
    error = f"{why}; run the same command again to resume it from its last checkpoint"
    with contextlib.suppress(Exception):  # the outcome below still reports it
        if not cell.entry(store).busy():  # another process may have taken it over already
            cell.entry(store).set_status("failed", error=error)
    return Outcome(cell.cell_id, "failed", seconds, error)
