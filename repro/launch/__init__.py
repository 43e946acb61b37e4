"""Running cells somewhere: `run` with the launcher of the configuration (docs/cluster.md).

    local    children of a fork server on this machine (`repro.launch.pool`)
    joblib   joblib's workers on this machine
    slurm    one array job by submitit

All of them run a cell by its folder or by itself against the same store; claims say who works on what.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

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
    """Run cells as `launcher` says; every cell ends in one event with its outcome.

    A cell whose process or machine failed is begun again `launcher.retries` times, from its last checkpoint; one that
    failed by itself is not. An outcome "queued": a scheduler has the cell, and `launcher.wait` is false.

    Args:
        loggers: an importable function. say: where sentences about the whole go.

    Raises:
        StoreError: the launcher is not installed, or refuses.
    """
    begin = {"local": _local, "joblib": _joblib, "slurm": _slurm}[launcher["name"]]
    begun: Counter[str] = Counter()
    waiting = list(pending)
    while waiting:
        again = []
        for event in begin(waiting, store, launcher, runtime, loggers, say):
            outcome, key = event.outcome, event.cell.cell_id
            if outcome and outcome.machine and begun[key] < launcher.get("retries", 0):
                begun[key] += 1
                yield Event(event.cell, "note", f"{outcome.reason}; again ({begun[key]} of {launcher['retries']})")
                again.append(event.cell)
            else:
                if outcome and outcome.machine and begun[key]:
                    outcome = replace(outcome, error=f"{outcome.error} (begun again {begun[key]} times)")
                yield replace(event, outcome=outcome)
        waiting = again


def ready(launcher: Mapping[str, Any], runtime: Mapping[str, Any]) -> None:
    """Ask whether `run` could begin here, before data are prepared for it.

    Raises:
        StoreError: no Slurm here, a GPU that is not there, a package that is not installed.
    """
    if launcher["name"] == "slurm":
        _extra("slurm").here()
        return
    if launcher["name"] == "joblib":
        _extra("workers")
    places(runtime)


def _extra(module: str) -> Any:
    """A module of this package that needs packages of the extra [cluster]. Raises StoreError."""
    try:
        return importlib.import_module(f"{__name__}.{module}")
    except ModuleNotFoundError as error:
        name = {"workers": "joblib"}.get(module, module)
        raise StoreError(f"launcher={name} needs {error.name}: pip install -e '.[cluster]'") from error


def one(cell: Cell, store: Store, show: Callable[[Event], None], loggers: Loggers = None) -> Outcome:
    """Run one cell as its own configuration says; in this process when nothing speaks against it."""
    launcher, runtime = cell.config["launcher"], cell.config["runtime"]
    if launcher["name"] == "local" and runtime.get("devices", "all") == "all" and not launcher.get("retries"):
        return pool.run_here([cell], store, show, loggers)[0]
    outcome = Outcome(cell.cell_id, "failed", error="nothing was run")
    for event in run([cell], store, launcher, runtime, loggers):
        show(event)
        outcome = event.outcome or outcome
    return outcome


def _here(pending: Sequence[Cell], runtime: Mapping[str, Any], say: Say) -> list[str | None]:
    found, said = places(runtime, max(cell.config["train"].get("processes", 1) for cell in pending))
    if said:
        say(said)
    return found


def _local(pending, store, launcher, runtime, loggers, say) -> Iterator[Event]:
    found = _here(pending, runtime, say)
    with signals.listening():  # a signal ends the children, which save, before it ends us
        yield from pool.run(pending, store, len(found), runtime["threads"], loggers, found)


def _joblib(pending, store, launcher, runtime, loggers, say) -> Iterator[Event]:
    workers = _extra("workers")
    found = _here(pending, runtime, say)
    with signals.listening():  # it ends joblib's workers before it ends us
        yield from workers.run(pending, store, found, runtime["threads"], loggers)


def _slurm(pending, store, launcher, runtime, loggers, say) -> Iterator[Event]:
    yield from _extra("slurm").run(pending, store, launcher, runtime, loggers, say)
