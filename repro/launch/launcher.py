"""Start cells with the launcher of a configuration, and start again those whose machine failed; assign GPUs to workers.

A worker on this machine has one GPU, or as many as a training has processes.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from repro import cell as cells
from repro import signals
from repro.cell import Cell, Outcome
from repro.errors import StoreError
from repro.launch import pool
from repro.launch.pool import Event, Loggers
from repro.store import Store

# with `auto`; eight 2 x 500 LSTMs on one GPU with 16 cores were measured (docs/reference/gpu.md)
GB_OF_CELL, CORES_OF_CELL = 8, 2
_SAY = partial(print, file=sys.stderr, flush=True)


def run(
    pending: Sequence[Cell],
    store: Store,
    launcher: Mapping[str, Any],
    runtime: Mapping[str, Any],
    loggers: Loggers = None,
    say: Callable[[str], None] = _SAY,
) -> Iterator[Event]:
    """Run cells with the launcher `launcher["name"]`; the last event of every cell has its outcome.

    A cell whose process or machine failed is restarted from its last checkpoint, up to `launcher.retries` times; a cell
    that failed with its own error is not restarted. The outcome "queued" means that a scheduler has the cell and
    `launcher.wait` is false.

    Args:
        loggers: an importable function that returns a cell's extra loggers.
        say: called with messages that concern all cells.

    Raises:
        StoreError: Slurm refuses the job.
    """
    begun: Counter[str] = Counter()
    while pending:
        again = []
        for event in _begin(pending, store, launcher, runtime, loggers, say):
            outcome, key = event.outcome, event.cell.cell_id
            if outcome and outcome.machine and begun[key] < launcher.get("retries", 0):
                begun[key] += 1
                yield Event(event.cell, "note", f"{outcome.reason}; restarted ({begun[key]} of {launcher['retries']})")
                again.append(event.cell)
            else:
                if outcome and outcome.machine and begun[key]:
                    outcome = replace(outcome, error=f"{outcome.error} (restarted {begun[key]} times)")
                yield replace(event, outcome=outcome)
        pending = again


def ready(launcher: Mapping[str, Any], runtime: Mapping[str, Any]) -> tuple[int, str]:
    """Check that `run` can start on this machine, before any data are prepared.

    Returns how many cells will run at a time, and why if that is not `runtime.workers`.

    Raises:
        StoreError: Slurm is not available here, or a requested GPU does not exist.
    """
    if launcher["name"] == "slurm":
        from repro.launch import slurm  # loads submitit

        slurm.here()
        return launcher["parallel"], ""
    found, said = places(runtime)
    return len(found), said or ""


def run_one(cell: Cell, store: Store, show: Callable[[Event], None], loggers: Loggers = None) -> Outcome:
    """Run one cell with the launcher in its configuration.

    A `local` launcher without special devices or retries runs the cell in this process.
    """
    launcher, runtime = cell.config["launcher"], cell.config["runtime"]
    if launcher["name"] == "local" and runtime.get("devices", "all") == "all" and not launcher.get("retries"):
        outcome = cells.run(cell, store, forward=lambda *said: show(Event(cell, *said)), loggers=loggers)
        show(Event(cell, "end", outcome=outcome))
        return outcome
    outcome = Outcome(cell.cell_id, "failed", error="nothing was run")
    for event in run([cell], store, launcher, runtime, loggers):
        show(event)
        outcome = event.outcome or outcome
    return outcome


def _begin(pending, store, launcher, runtime, loggers, say) -> Iterator[Event]:
    if launcher["name"] == "slurm":
        from repro.launch import slurm

        yield from slurm.run(pending, store, launcher, runtime, loggers, say)
        return
    found, said = places(runtime, max(cell.config["train"].get("processes", 1) for cell in pending))
    if said:
        say(said)
    with signals.listening():  # on a signal, the children save and end before this process does
        yield from pool.run(pending, store, found, runtime["threads"], loggers)


def room(gpus: Sequence[str]) -> tuple[int, str]:
    """How many cells can share each of the `gpus`, by the least free memory (nvidia-smi) and the cores; and a sentence that says so."""
    asked = ["nvidia-smi", f"--id={','.join(gpus)}", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    cores = len(os.sched_getaffinity(0)) // len(gpus)
    try:
        listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
        free = min(int(megabytes) // 1024 for megabytes in listed)
        why = f"{free} GB of free memory at {GB_OF_CELL} a cell, {cores} cores at {CORES_OF_CELL} a cell"
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        free, why = 0, f"nvidia-smi does not tell the free memory ({error})"
    count = max(1, min(free // GB_OF_CELL, cores // CORES_OF_CELL))
    told = f"{count} cell(s) at a time on each of {len(gpus)} GPU(s): {why}"
    return count, f"{told}; runtime.workers_per_device=N sets it"


def places(runtime: Mapping[str, Any], processes: int = 1) -> tuple[list[str | None], str | None]:
    """The workers' CUDA_VISIBLE_DEVICES (None means unchanged), and a message if there are fewer than requested.

    Args:
        runtime: the options `workers`, `device`, `devices` (all, none, or numbers of visible GPUs) and
            `workers_per_device` (a number, or `auto`: `room` decides, and `workers` is not read).
        processes: the number of GPUs that a cell needs.

    Raises:
        StoreError: a requested GPU does not exist.
    """
    workers, asked = runtime["workers"], runtime.get("devices", "all")
    if asked == "none":
        return [""] * workers, None
    visible: list[str] = []
    if asked != "all" or runtime["device"] != "cpu":
        import torch

        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        visible = [*map(str, range(torch.cuda.device_count()))] if named is None else [*filter(None, named.split(","))]
    if asked != "all" and (absent := [n for n in asked if n >= len(visible)]):
        raise StoreError(
            f"runtime.devices={asked} is invalid: this machine shows {len(visible)} GPU(s), so there is no {absent[0]}; "
            f"allowed: all, none" + (f", numbers up to {len(visible) - 1}" if visible else "")
        )
    if runtime["device"] == "cpu" or not visible:
        return [None] * workers, None
    chosen = visible if asked == "all" else [visible[n] for n in asked]
    sets = [",".join(chosen[i : i + processes]) for i in range(0, len(chosen) - processes + 1, processes)]
    sets = sets or [",".join(chosen)]  # there are too few GPUs; the training reports the error
    share, why = runtime.get("workers_per_device", 1), None
    if share == "auto":
        share, why = room(chosen)
        workers = len(sets) * share
    most = len(sets) * share
    found: list[str | None] = [sets[i % len(sets)] for i in range(min(workers, most))]
    if workers <= most:
        return found, why
    each = f"one for each of {len(sets)} GPU(s){f' x {processes}' if processes > 1 else ''}"
    told = f"{most} worker(s), not runtime.workers={workers}: {each}"
    return found, f"{told}; runtime.workers_per_device=2 lets two share one"
