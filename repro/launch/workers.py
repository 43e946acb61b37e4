"""Run cells in joblib's workers (loky). A worker runs many cells, so libraries are loaded only once per worker."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from joblib.externals import loky

from repro import cell as cells
from repro import signals
from repro.cell import Cell, Outcome
from repro.launch import pool
from repro.launch.pool import Event, Loggers, progress
from repro.store import Store

POLL_SECONDS = 1.0


def run(
    pending: Sequence[Cell], store: Store, places: Sequence[str | None], threads: int, loggers: Loggers = None
) -> Iterator[Event]:
    """Run cells in one worker for each of `places`, which are values of CUDA_VISIBLE_DEVICES.

    If a worker is killed, the whole pool ends, and joblib does not say which worker was killed. So every cell that a
    worker had started continues from its last checkpoint in its own process.
    """
    left = {cell.cell_id: cell for cell in pending}
    while left:
        with tempfile.TemporaryDirectory() as slots:
            for number, place in enumerate(places):
                (Path(slots) / f"{number}.free").write_text("inherited" if place is None else f"={place}")
            executor = loky.ProcessPoolExecutor(len(places))
            try:
                running = {executor.submit(_one, c, str(store.root), threads, loggers, slots) for c in left.values()}
                while running:
                    ended, running = loky.wait(running, POLL_SECONDS, loky.FIRST_COMPLETED)
                    for outcome in [future.result() for future in ended]:
                        yield Event(left.pop(outcome.cell_id), "end", outcome=outcome)
                    for cell in left.values():
                        if (status := cell.entry(store).status())["state"] == "running":
                            yield progress(cell, status)
            except loky.BrokenProcessPool:
                executor.shutdown(kill_workers=True)  # joblib reports this before it has ended the other workers
                begun = {mark.read_text() for mark in Path(slots).glob("*.cell")} & left.keys() or set(left)
                suspects = [left.pop(key) for key in begun]
                yield from pool.run(suspects, store, places, threads, loggers)
            finally:
                executor.shutdown(kill_workers=bool(left))  # after Ctrl-C nothing waits for them


def _one(cell: Cell, root: str, threads: int, loggers: Loggers, slots: str) -> Outcome:
    """Run a cell in a worker. The worker chooses its GPUs for its first cell, before torch looks for GPUs."""
    if slots not in _TAKEN:
        for slot in sorted(Path(slots).glob("*.free")):
            try:
                slot.rename(mine := slot.with_suffix(f".{os.getpid()}"))
            except FileNotFoundError:  # another worker has taken this slot
                continue
            if (place := mine.read_text()) != "inherited":
                os.environ["CUDA_VISIBLE_DEVICES"] = place[1:]
            break
        _TAKEN.add(slots)
    import torch

    torch.set_num_threads(threads)
    mark = Path(slots) / f"{os.getpid()}.cell"
    mark.write_text(cell.cell_id)
    command = os.getppid()

    def forward(*_: Any) -> None:
        if os.getppid() != command:
            signals.ask("the command that started it is gone")

    outcome = cells.run(cell, Store(root), forward=forward, loggers=loggers)
    mark.unlink()
    return outcome


_TAKEN: set[str] = set()
