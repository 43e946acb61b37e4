"""Run cells as one Slurm array job, submitted with submitit.

Each element of the array runs one cell, which is pickled when it is submitted. The status of a cell names its job, so
running the same command again does not submit a cell twice. The result of a cell is read only from its folder, so a
cell may end while no command is running. Slurm is queried with squeue and scontrol, because many clusters have no
accounting database for sacct.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import submitit

from repro import cell as cells
from repro.cell import Cell, Outcome
from repro.errors import StoreError
from repro.identity import pair
from repro.launch.pool import Event, Loggers, progress
from repro.plugins import pinned
from repro.protocol import ROOT
from repro.store import Store
from repro.store.locks import Busy

POLL_SECONDS = 5.0
SETTLE_SECONDS = 10.0  # delay until another machine sees the last files of a job that has ended
REQUEUES = 1000  # how often an element may be requeued, after its time limit or when it is preempted
NAME = "sparse-attention"
STOPPED = 75  # EX_TEMPFAIL: a temporary failure, try again


def here() -> None:
    """Check that jobs can be submitted from this machine. Raises StoreError if not."""
    _ask("sinfo", "--version")


def run(
    pending: Sequence[Cell],
    store: Store,
    options: Mapping[str, Any],
    runtime: Mapping[str, Any],
    loggers: Loggers,
    say: Callable[[str], None],
) -> Iterator[Event]:
    """Submit the cells that have no job yet, and follow all jobs until they end, unless the option `wait` is false."""
    here()
    live, jobs, fresh = states(), {}, []
    for cell in pending:
        job = cell.entry(store).status().get("job")
        if job in live:
            jobs[cell.cell_id] = (cell, job)
        elif cell.entry(store).busy():
            yield _ended(cell, "busy" if options["wait"] else "queued", _held(cell, store))
        else:
            fresh.append(cell)
    if jobs:
        say(f"{len(jobs)} cell(s) are in the queue already: {', '.join(job for _, job in jobs.values())}")
    if fresh:
        jobs |= {cell.cell_id: (cell, job) for cell, job in submit(fresh, store, options, runtime, loggers, say)}
    if not options["wait"]:
        for cell, job in jobs.values():
            yield _ended(cell, "queued", f"job {job} is {live.get(job, 'PENDING').lower()}")
        return
    yield from follow(jobs, store)


def _ended(cell: Cell, state: str, why: str) -> Event:
    return Event(cell, "end", outcome=Outcome(cell.cell_id, state, error=why))


def _held(cell: Cell, store: Store) -> str:
    return f"another process is working on {cell.entry(store).folder}"


def follow(jobs: dict[str, tuple[Cell, str]], store: Store) -> Iterator[Event]:
    """Yield the events of the queued cells, read from their folders, until all cells have ended."""
    gone: dict[str, float] = {}
    began = time.monotonic()
    while jobs:
        live = states()
        for key, (cell, job) in list(jobs.items()):
            status = cell.entry(store).status()
            outcome = None
            if job in live:
                gone.pop(key, None)
                if live[job] == "RUNNING":
                    yield progress(cell, status)
                else:
                    yield Event(cell, "stage", f"job {job} {live[job].lower()}", float(status.get("fraction", 0.0)))
                continue
            if cell.done(store):
                outcome = Outcome(key, "done", time.monotonic() - began)
            elif status["state"] == "failed":
                said = "\n".join(str(status[k]) for k in ("error", "traceback") if k in status)
                outcome = Outcome(key, "failed", error=said)
            elif cell.entry(store).busy():
                outcome = Outcome(key, "busy", error=_held(cell, store))
            elif time.monotonic() - gone.setdefault(key, time.monotonic()) > SETTLE_SECONDS:
                outcome = _lost(cell, job, store)
            if outcome:
                del jobs[key]
                yield Event(cell, "end", outcome=outcome)
        if jobs:
            time.sleep(POLL_SECONDS)


def _lost(cell: Cell, job: str, store: Store) -> Outcome:
    """The outcome of a cell whose job ended before the cell did."""
    facts = _job(job)
    state = facts.get("JobState", "gone")
    code = f", exit code {facts['ExitCode']}" if "ExitCode" in facts else ""
    error = f"job {job} on {facts.get('NodeList') or 'no node'} ended ({state}{code}); log: {store.root / 'jobs' / f'{job}_0_log.err'}"
    cancelled = state == "CANCELLED"
    cell.entry(store).set_status("failed" if cancelled else "lost", error=error)
    return Outcome(cell.cell_id, "failed", error=f"{error}; the same command resumes it", machine=not cancelled)


def submit(
    fresh: Sequence[Cell],
    store: Store,
    options: Mapping[str, Any],
    runtime: Mapping[str, Any],
    loggers: Loggers,
    say: Callable[[str], None],
) -> list[tuple[Cell, str]]:
    """Submit one array job for the cells, and record each cell's job in its status. Returns (cell, job) pairs."""
    folder = (store.root / "jobs").resolve()
    executor = submitit.SlurmExecutor(folder, max_num_timeout=REQUEUES, python=options["python"])
    executor.update_parameters(**parameters(fresh, options))
    for cell in fresh:
        with contextlib.suppress(Busy):
            cell.entry(store).set_aside()  # if the training is damaged; must happen before the status is written
        cell.entry(store).set_status("queued")
    elements = [Element(cell, store, runtime["threads"], loggers) for cell in fresh]
    several, failures = len(elements) > 1, submitit.core.utils
    try:
        made = executor.submit_array(elements) if several else [executor.submit(elements[0])]
    except (failures.FailedJobError, failures.FailedSubmissionError, subprocess.CalledProcessError) as error:
        advice = "set launcher.partition, launcher.account, ..."
        raise StoreError(f"sbatch refused the job: {str(error).strip()}; {advice}") from error
    submitted = [job.job_id for job in made]
    for cell, job in zip(fresh, submitted):
        if cell.entry(store).state() == "queued":  # a cell that is already running has recorded its job itself
            cell.entry(store).set_status("queued", job=job)
    elements_of = f"_[0-{len(fresh) - 1}]" if several else ""
    say(f"{len(fresh)} cell(s) submitted as job {submitted[0].split('_')[0]}{elements_of}; logs: {folder}")
    return list(zip(fresh, submitted))


def parameters(fresh: Sequence[Cell], options: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that submitit writes at the top of the batch script."""
    given = {key: options[key] for key in ("partition", "account", "qos", "time", "mem", "gres", "exclude")}
    given |= {"job_name": NAME, "signal_delay_s": options["notice"], "cpus_per_task": options["cpus"]}
    parameters = {k: v for k, v in (given | {"array_parallelism": options["parallel"]}).items() if v is not None}
    # the folders from which the engine and the cells' families are imported
    files = {cell.module: Path(sys.modules[cell.module].__file__ or "").resolve() for cell in fresh}
    roots = {ROOT, *(file.parents[module.count(".")] for module, file in files.items())}
    parameters["setup"] = [*options["setup"], f"export PYTHONPATH={shlex.quote(':'.join(map(str, roots)))}:$PYTHONPATH"]
    parameters["additional_parameters"] = {"requeue": True, **dict(map(pair, options["sbatch"]))}
    return parameters


class Element:
    """Runs a cell in a job, with the plugins that the command named and no others.

    The exit status is 1 if the cell failed, and 75 if it was stopped; then the job is back in the queue.
    """

    def __init__(self, cell: Cell, store: Store, threads: int, loggers: Loggers) -> None:
        self.cell, self.threads, self.loggers = cell, threads, loggers
        self.entry = Store(store.root.resolve()).entry(cell.task, cell.mapping, cell.training_id)
        self.named = pinned(cell.config.get("plugins"))

    def __call__(self) -> None:
        import torch

        torch.set_num_threads(self.threads)
        runtime = dict(self.cell.config["runtime"])
        if runtime["device"] == "auto":
            runtime["device"] = "cuda" if torch.cuda.is_available() else "cpu"
        if not self.entry.busy():
            self.entry.set_status("queued", job=this_job())
        cell = replace(self.cell, config={**self.cell.config, "runtime": runtime})  # its id is computed again
        if cell.training_id != self.entry.folder.name:
            told = "its recipe or a plugin has changed since it was submitted; run the command again"
            self.entry.set_status("failed", error=told)
            sys.exit(told)
        outcome = cells.run(cell, Store(self.entry.folder.parents[3]), loggers=self.loggers, named=self.named)
        print(f"{outcome.state}: {outcome.error or outcome.cell_id}", flush=True)
        if outcome.machine:
            if _job(this_job()).get("JobState") == "RUNNING":  # neither cancelled nor requeued by the scheduler
                subprocess.run(["scontrol", "requeue", this_job()], check=False)
            sys.exit(STOPPED)
        if outcome.state == "failed":
            sys.exit(1)

    def checkpoint(self) -> Any:
        """Called by submitit if a signal comes before or after the cell: returns the job to submit again."""
        return submitit.helpers.DelayedSubmission(self)


def this_job() -> str:
    """The id of this job, in the form that squeue prints."""
    array = [os.environ[k] for k in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID") if k in os.environ]
    return "_".join(array) or os.environ.get("SLURM_JOB_ID", "")


def states() -> dict[str, str]:
    """Job id -> state, for this user's jobs in the queue; each element of an array is listed separately."""
    listed = _ask("squeue", "-h", "-r", "-u", str(os.getuid()), "-o", "%i %T")
    return dict(line.split() for line in listed.splitlines())


def _job(job: str) -> dict[str, str]:
    """The facts that scontrol still has about a job; empty if it has none."""
    shown = subprocess.run(["scontrol", "-o", "show", "job", job], capture_output=True, text=True, check=False).stdout
    return dict(re.findall(r"(\w+)=(\S*)", shown.splitlines()[0])) if shown else {}


def _ask(*command: str) -> str:
    """Run a Slurm command and return its output. Raises StoreError if the command is missing or fails."""
    if shutil.which(command[0]) is None:
        advice = "run this where jobs are submitted, or set launcher=local"
        raise StoreError(f"launcher=slurm: {command[0]} is not on the PATH; {advice}")
    for attempt in range(5):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout
        time.sleep(2.0**attempt)  # the controller may be busy or restarting
    why = f"{shlex.join(command)} failed: {done.stderr.strip()}"
    raise StoreError(f"launcher=slurm: {why}; if no Slurm controller answers here, set launcher=local")
