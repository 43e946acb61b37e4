"""What one element of an array job does: run a cell's pages, and go back into the queue when it was asked to stop."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from repro import cell as cells
from repro.cell import Outcome
from repro.launch import ranks
from repro.launch.pool import Loggers
from repro.store import Entry, locks

STOPPED = 75  # EX_TEMPFAIL: try again


class Element:
    """The pages of a cell (`cell.enter`), to be run in a job. Ends the process with 1 for a failed cell, 75 for a stopped one."""

    def __init__(self, pages: Sequence[str], threads: int, loggers: Loggers = None) -> None:
        self.pages, self.threads, self.loggers = list(pages), threads, loggers

    def __call__(self) -> list[Outcome]:
        import torch

        torch.set_num_threads(self.threads)
        rank = ranks.read(os.environ)
        with ranks.together(rank) if rank else nullcontext():
            if rank and rank.number:
                ranks.follow(self.pages[0])
                return []
            outcomes = [run(page, job(), self.loggers) for page in self.pages]
        for outcome in outcomes:
            print(f"{outcome.state}: {outcome.error or outcome.cell_id}", flush=True)
        if any(o.machine for o in outcomes):
            requeue()
            sys.exit(STOPPED)
        if any(o.state == "failed" for o in outcomes):
            sys.exit(1)
        return outcomes

    def checkpoint(self) -> Any:
        """For submitit: a signal came before the cell was begun, or after."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def job() -> str:
    """As squeue calls it."""
    array = [os.environ[k] for k in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID") if k in os.environ]
    return "_".join(array) or os.environ.get("SLURM_JOB_ID", "")


def run(page: str, job: str, loggers: Loggers = None) -> Outcome:
    """Run a page; while a dead process's claim on it is still young, wait until it may be taken."""
    folder = Path(page).parents[1] if Path(page).parent.name == "evaluations" else Path(page)
    entry = Entry(folder)
    while True:
        try:
            if not entry.busy():
                entry.set_status("queued", job=job)
            outcome = cells.run_folder(page, loggers=loggers)
        except Exception as error:  # the page cannot be read, its data are gone
            entry.set_status("failed", error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
            return Outcome(folder.name, "failed", error=str(error))
        if outcome.state != "busy":
            return outcome
        before = locks.look(folder / locks.NAME)
        time.sleep(2 * locks.HEARTBEAT_SECONDS)
        after = locks.look(folder / locks.NAME)
        if before and after and before != after:  # it lives: its own process finishes it
            return outcome


def requeue() -> None:
    """Put this job back into the queue, unless it has been cancelled or the scheduler does it by itself."""
    shown = subprocess.run(["scontrol", "-o", "show", "job", job()], capture_output=True, text=True, check=False).stdout
    if re.search(r"JobState=RUNNING\b", shown):
        subprocess.run(["scontrol", "requeue", job()], check=False)
