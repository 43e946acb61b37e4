"""Run many cells in isolated processes that share one expensive import.

A fork server imports torch and fairseq once (`PRELOAD` of the families), and every cell runs in a child process forked
from the server. So no library state leaks from one training into the next, a crash affects only one cell, and the
libraries are imported only once.
"""

import contextlib
import multiprocessing as mp
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, cast

from repro import cell as cells
from repro import signals
from repro.cell import Cell, Outcome
from repro.plugins import pinned
from repro.store import Store

Loggers = Callable[[Cell], list[Any]] | None
STOP_SECONDS = 60.0  # time to write checkpoints after Ctrl-C


@dataclass
class Event:
    """A message from a running cell.

    `kind` is "stage" (with the fraction done and stats), "note" or "end" (with the outcome).
    """

    cell: Cell
    kind: str
    text: str = ""
    fraction: float = 0.0
    stats: Mapping[str, float] = field(default_factory=dict)
    outcome: Outcome | None = None


def progress(cell: Cell, status: Mapping[str, Any]) -> Event:
    """The event "stage" of a running cell, from the status in its folder; its process may be on another machine."""
    known = ("time", "attempt", "fraction")
    stats = {k: v for k, v in status.items() if isinstance(v, int | float) and k not in known}
    return Event(cell, "stage", str(status.get("stage", "starting")), float(status.get("fraction", 0.0)), stats)


def forks() -> bool:
    """Whether pools of forked processes work here; they need `fork` and, for semaphores, /dev/shm."""
    try:
        mp.Lock()
    except OSError:
        return False
    return "fork" in mp.get_all_start_methods()


def run(
    pending: Sequence[Cell], store: Store, places: Sequence[str | None], threads: int, loggers: Loggers = None
) -> Iterator[Event]:
    """Run the cells `pending` in order, each in a process with `threads` threads; yields events as they happen.

    A cell whose process dies (killed or out of memory) ends as failed, while the other cells continue; running the
    command again resumes the failed cell.

    Args:
        places: CUDA_VISIBLE_DEVICES for each of the workers that run at the same time; None means unchanged.
        loggers: a function that returns a cell's extra loggers; it must be importable, because it is passed to the
            child by name.
    """
    left, free = list(pending), list(places)
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(sorted({module for cell in left for module in cell.family.PRELOAD}))
    previous = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)  # inherited by the fork server
    active: dict[Connection, tuple[Cell, Any, float, str | None]] = {}
    try:
        while left or active:
            while left and free:
                cell, place = left.pop(0), free.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                named = pinned(cell.config.get("plugins"))
                arguments = (sender, cell, str(store.root), threads, loggers, place, named)
                process = context.Process(target=_child, args=arguments, name=cell.cell_id)
                with signals.deferred():  # a process that began is known here before a signal stops it
                    process.start()
                    sender.close()
                    active[receiver] = (cell, process, time.monotonic(), place)
                signals.obey()
            for ready in wait(list(active)):
                receiver = cast(Connection, ready)
                cell, process, started, place = active[receiver]
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
                free.append(place)
                receiver.close()
                yield Event(cell, "end", outcome=rest[0])
    finally:
        for _, process, *_ in active.values():
            process.terminate()  # the process saves a checkpoint before it ends
        for _, process, *_ in active.values():
            process.join(STOP_SECONDS)
        for name, value in previous.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def _child(
    sender: Connection, cell: Cell, root: str, threads: int, loggers: Loggers, place: str | None, named: dict[str, str]
) -> None:
    if place is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = place  # takes effect because the fork server has not initialised CUDA
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C, the parent asks this process to save and end
    torch.set_num_threads(threads)

    def forward(*message: Any) -> None:
        try:
            sender.send(message)
        except BrokenPipeError:
            signals.ask("the command that started it is gone")

    forward("end", cells.run(cell, Store(root), forward=forward, loggers=loggers, named=named))
    sender.close()


def _died(cell: Cell, store: Store, exitcode: int | None, seconds: float) -> Outcome:
    if cell.done(store):  # the process died after it had written its last file
        if not cell.entry(store).busy():
            cell.entry(store).set_status("done")
        return Outcome(cell.cell_id, "done", seconds)
    if exitcode is not None and exitcode < 0:
        why = f"its process was killed by signal {-exitcode}" + (" (out of memory?)" if exitcode == -9 else "")
    else:
        why = f"its process ended with exit code {exitcode}"
    error = f"{why}; run the same command again to resume it from its last checkpoint"
    with contextlib.suppress(Exception):  # the outcome below still reports the error
        if not cell.entry(store).busy():  # another process may have taken over
            cell.entry(store).set_status("failed", error=error)
    return Outcome(cell.cell_id, "failed", seconds, error, machine=True)
