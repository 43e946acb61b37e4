"""Run the cells of experiments that end within a time limit, and keep their records in a folder (`scripts/on_gpu.sh`).

A cell whose record is in the folder is finished, also on a machine that has no other file of it. So the next lease continues
with this folder alone; with the store of the last one, it also resumes the training that the end of the time interrupted.
"""

import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from repro import launch, signals
from repro.identity import Cell
from repro.launch.display import clock
from repro.plan import Plan
from repro.results import archive, estimate
from repro.store import Store
from tasks.commands import records, reproduce
from tasks.commands.driver import ASSUMED, Driver
from tasks.config.request import Request

SAVING = 40.0  # seconds at the end of the time in which the running cells save and the records are written


@dataclass
class Lease(Driver):
    """Runs the cells that will end in time, and asks those that still run to save when the time is over.

    `ends` is the end, in seconds of `time.monotonic`.
    """

    ends: float = 0.0

    def order(self, work: Mapping[str, float]) -> list[str]:
        """The ids of the cells that end in time, by the estimate; those that begin first if none does."""
        ids, left = super().order(work), self.ends - time.monotonic()
        workers = max(1, min(launch.ready(self.launcher, self.runtime)[0], len(ids)))
        slower = 1 + (workers - 1) * ASSUMED.slowed * (self.runtime["device"] == "cuda")
        free, kept = [0.0] * workers, []
        for key in ids:
            worker = min(range(workers), key=free.__getitem__)
            if (end := free[worker] + slower * work[key]) <= left:
                free[worker] = end
                kept.append(key)
        told = f"{len(kept)} of {len(ids)} cells end within {clock(max(left, 0))}, by the estimate"
        if not kept and left > 0:
            kept = ids[:workers]
            told += f"; {len(kept)} begin and save what they have"
        print(told, file=sys.stderr)
        return kept

    def run(self) -> int:
        """As `Driver.run`; returns 0 if the time ended first."""
        timer = threading.Timer(max(0.0, self.ends - time.monotonic()), signals.ask, ["the time is over"])
        timer.daemon = True
        if self.ends > time.monotonic():  # otherwise nothing begins
            timer.start()
        try:
            return self._run()
        except signals.Stopped as stop:
            print(f"{stop}: the running cells have saved", file=sys.stderr)
            self.done |= {key for key, cell in self.cells.items() if cell.done(self.store)}
            return self.count()
        finally:
            timer.cancel()


def main(request: Request) -> int:
    """Run what ends within `request.minutes`, of which preparing the data is a part; write the records to request.lease.

    Returns the exit status, 1 if a cell failed. Raises the errors of `reproduce.main`.
    """
    folder = Path(request.lease).resolve()
    ends = time.monotonic() + 60 * request.minutes - SAVING
    begun = reproduce.Work(reproduce.outlined(request)).begin()
    for plan in begun.plans:
        restore(plan, begun.store, folder)
    paces, status, going = begun.paces, 0, True
    while going:  # as long as cells end and time is left, those that now end in time by the pace of the finished ones
        lease = Lease(begun.plans, begun.store, paces, ends=ends)
        status |= lease.run()
        going = lease.reused < len(lease.done) < len(lease.cells) - len(lease.failed) and time.monotonic() < ends
        paces = estimate.estimate([("", cell) for cell in lease.cells.values()], begun.store, ASSUMED).paces
    for name in request.names:
        path, count, *_ = records.record(replace(request, names=(name,)), folder)
        print(f"{path}: {count} cells" if count else f"{name}: no cell is finished")
    return status


def restore(plan: Plan, store: Store, folder: Path) -> None:
    """Take the results of a plan's cells that are recorded in a folder, and made by today's code from the same data."""
    path = records.file_of(plan.experiment.name, plan.experiment.profile, folder)
    known = {record["key"]: record for record in archive.cells_of(path)}

    def same(cell: Cell, record: archive.Archived) -> bool:
        tests = {name: one["evaluation"] for name, one in record["tests"].items()}
        scored = all(tests.get(test.name) == cell.evaluation_id(test) for test in cell.tests)
        return scored and record["training"] == cell.training_id

    for i, cell in enumerate(plan.slots):
        record = known.get(archive.key(cell.config, cell.family))
        if record is not None and same(cell, record) and not cell.done(store):
            plan.slots[i] = replace(cell, known=archive.results(record, cell.module, cell.config))
