"""One element of a Slurm array job: it runs a cell and requeues its job when it is asked to stop."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from repro import cell as cells
from repro import plugins
from repro.cell import Cell, Outcome
from repro.files import StoreError
from repro.launch.pool import Loggers
from repro.store import Store, locks

STOPPED = 75  # EX_TEMPFAIL: a temporary failure, try again


class Element:
    """Runs a cell in a job, in the store `root`.

    `named` are the plugins that the command named, path -> sha256; the job runs no other plugins, whatever its home folder is.
    The exit status is 1 if the cell failed, and 75 if it was stopped.
    """

    def __init__(self, cell: Cell, root: Path, threads: int, loggers: Loggers = None) -> None:
        self.cell, self.root, self.threads, self.loggers = cell, root.resolve(), threads, loggers
        self.training, self.named = cell.training_id, plugins.pinned(cell.config.get("plugins"))

    def __call__(self) -> Outcome:
        import torch

        torch.set_num_threads(self.threads)
        outcome = self.run()
        print(f"{outcome.state}: {outcome.error or outcome.cell_id}", flush=True)
        if outcome.machine:
            requeue()
            sys.exit(STOPPED)
        if outcome.state == "failed":
            sys.exit(1)
        return outcome

    def checkpoint(self) -> Any:
        """Called by submitit if a signal comes before or after the cell: returns the job to submit again."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)

    def run(self) -> Outcome:
        """Run the cell; if a dead process has left a recent lock, wait until the lock may be taken."""
        store = Store(self.root)
        entry = store.entry(self.cell.task, self.cell.mapping, self.training)
        while True:
            try:
                if not entry.busy():
                    entry.set_status("queued", job=job())
                outcome = cells.run(self.here(), store, loggers=self.loggers, named=self.named)
            except Exception as error:  # e.g. a plugin or the recipe has changed
                entry.set_status("failed", error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
                return Outcome(entry.folder.name, "failed", error=str(error))
            if outcome.state != "busy":
                return outcome
            before = locks.look(entry.path(locks.NAME))
            time.sleep(2 * locks.HEARTBEAT_SECONDS)
            after = locks.look(entry.path(locks.NAME))
            if before and after and before != after:  # the lock's holder is alive and will finish the cell
                return outcome

    def here(self) -> Cell:
        """The cell on this machine, with its device and with the paths of its plugins.

        Raises ValueError if a plugin has changed since the command named it, StoreError if the recipe has changed.
        """
        import torch

        plugins.load(self.named)
        config = {**self.cell.config, "plugins": list(self.named)}
        if config["runtime"].get("device") == "auto":
            config["runtime"] = config["runtime"] | {"device": "cuda" if torch.cuda.is_available() else "cpu"}
        cell = replace(self.cell, config=config)
        if cell.training_id != self.training:
            said = (
                f"the recipe of {self.training} has changed since it was submitted; run the experiment's command again"
            )
            raise StoreError(said, key="recipe", value=self.training)
        return cell


def job() -> str:
    """The id of this job, in the form that squeue prints."""
    array = [os.environ[k] for k in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID") if k in os.environ]
    return "_".join(array) or os.environ.get("SLURM_JOB_ID", "")


def requeue() -> None:
    """Put this job back into the queue, unless it was cancelled or the scheduler has already requeued it."""
    shown = subprocess.run(["scontrol", "-o", "show", "job", job()], capture_output=True, text=True, check=False).stdout
    if re.search(r"JobState=RUNNING\b", shown):
        subprocess.run(["scontrol", "requeue", job()], check=False)
