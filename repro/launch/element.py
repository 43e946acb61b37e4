"""One element of a Slurm array job: it runs the folders of a cell and requeues its job when it is asked to stop."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repro import cell as cells
from repro.cell import Outcome
from repro.launch.pool import Loggers
from repro.store import Entry

STOPPED = 75  # EX_TEMPFAIL: a temporary failure, try again


class Element:
    """Runs the folders of a cell (from `cell.enter`) in a job.

    `named` are the plugins that the command named, path -> sha256; the job runs no other plugins, whatever its home folder is.
    The exit status is 1 if the cell failed, and 75 if it was stopped.
    """

    def __init__(
        self, folders: Sequence[str], threads: int, loggers: Loggers = None, named: Mapping[str, str] | None = None
    ) -> None:
        self.folders, self.threads, self.loggers, self.named = list(folders), threads, loggers, named

    def __call__(self) -> list[Outcome]:
        import torch

        torch.set_num_threads(self.threads)
        outcomes = [run(folder, job(), self.loggers, self.named) for folder in self.folders]
        for outcome in outcomes:
            print(f"{outcome.state}: {outcome.error or outcome.cell_id}", flush=True)
        if any(o.machine for o in outcomes):
            requeue()
            sys.exit(STOPPED)
        if any(o.state == "failed" for o in outcomes):
            sys.exit(1)
        return outcomes

    def checkpoint(self) -> Any:
        """Called by submitit if a signal comes before or after the cell: returns the job to submit again."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def job() -> str:
    """The id of this job, in the form that squeue prints."""
    array = [os.environ[k] for k in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID") if k in os.environ]
    return "_".join(array) or os.environ.get("SLURM_JOB_ID", "")


def run(folder: str, job: str, loggers: Loggers = None, named: Mapping[str, str] | None = None) -> Outcome:
    """Run a folder, and record an error that keeps its cell from starting."""
    path = Path(folder)
    entry = Entry(path.parents[1] if path.parent.name == "evaluations" else path)
    try:
        if not entry.busy():
            entry.set_status("queued", job=job)
        return cells.run_folder(folder, loggers=loggers, named=named)
    except Exception as error:  # e.g. config.yaml cannot be read, or the data are missing
        entry.set_status("failed", error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
        return Outcome(entry.folder.name, "failed", error=str(error))


def requeue() -> None:
    """Put this job back into the queue, unless it was cancelled or the scheduler has already requeued it."""
    shown = subprocess.run(["scontrol", "-o", "show", "job", job()], capture_output=True, text=True, check=False).stdout
    if re.search(r"JobState=RUNNING\b", shown):
        subprocess.run(["scontrol", "requeue", job()], check=False)
