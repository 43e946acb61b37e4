"""Running cells with the launcher of the configuration (docs/cluster.md).

    local    children of a fork server on this machine (`repro.launch.pool`)
    joblib   joblib's workers on this machine, which live for many cells
    slurm    one array job by submitit

All write to the same store; its locks say which process works on which cell.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from repro import cell as cells
from repro import signals
from repro.cell import Cell, Outcome
from repro.files import StoreError
from repro.launch import pool
from repro.launch.devices import places
from repro.launch.pool import Event, Loggers
from repro.store import Store

Say = Callable[[str], None]
_say: Say = partial(print, file=sys.stderr, flush=True)


def run(
    pending: Sequence[Cell], store: Store, launcher: Mapping[str, Any], runtime: Mapping[str, Any], loggers: Loggers = None,
    say: Say = _say,
) -> Iterator[Event]:  # fmt: skip
    """Run cells with the launcher `launcher["name"]`; every cell ends in one event with its outcome.

    A cell whose process or machine failed is restarted from its last checkpoint, up to `launcher.retries` times; one that
    failed by itself is not. The outcome "queued" means: a scheduler has the cell, and `launcher.wait` is false.

    Args:
        loggers: an importable function. say: called with messages that concern all cells.

    Raises:
        StoreError: joblib or submitit is not installed, or Slurm refuses the job.
    """
    begun: Counter[str] = Counter()
    waiting = list(pending)
    while waiting:
        again = []
        for event in _begin(waiting, store, launcher, runtime, loggers, say):
            outcome, key = event.outcome, event.cell.cell_id
            if outcome and outcome.machine and begun[key] < launcher.get("retries", 0):
                begun[key] += 1
                yield Event(event.cell, "note", f"{outcome.reason}; restarted ({begun[key]} of {launcher['retries']})")
                again.append(event.cell)
            else:
                if outcome and outcome.machine and begun[key]:
                    outcome = replace(outcome, error=f"{outcome.error} (restarted {begun[key]} times)")
                yield replace(event, outcome=outcome)
        waiting = again


def ready(launcher: Mapping[str, Any], runtime: Mapping[str, Any]) -> None:
    """Check whether `run` can start here, before data are prepared for it.

    Raises:
        StoreError: no Slurm here, a GPU that does not exist, joblib or submitit is not installed.
    """
    if launcher["name"] == "slurm":
        _extra("slurm").here()
        return
    if launcher["name"] == "joblib":
        _extra("joblib")
    places(runtime)


def _extra(name: str) -> Any:
    """The module of a launcher that needs the extra [cluster]. Raises StoreError where it is not installed."""
    try:
        return importlib.import_module({"slurm": "repro.launch.slurm", "joblib": "repro.launch.workers"}[name])
    except ModuleNotFoundError as error:
        raise StoreError(f"launcher={name} needs {error.name}: pip install -e '.[cluster]'") from error


def one(cell: Cell, store: Store, show: Callable[[Event], None], loggers: Loggers = None) -> Outcome:
    """Run one cell with the launcher of its own configuration; in this process where that launcher is a plain `local`."""
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
        yield from _extra("slurm").run(pending, store, launcher, runtime, loggers, say)
        return
    begin = _extra("joblib").run if launcher["name"] == "joblib" else pool.run
    found, said = places(runtime, max(cell.config["train"].get("processes", 1) for cell in pending))
    if said:
        say(said)
    with signals.listening():  # a signal ends the children, which save, before it ends us
        yield from begin(pending, store, found, runtime["threads"], loggers)
