"""What an experiment asks of a task. A task is a module (`config["task"]["entry"]`) with these two functions."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Prepared:
    """The data of a cell, acquired and encoded.

    Attributes:
        sha256: hash of what the model will see; part of the cell's identity.
        facts: what a table's footer says of it: name, provenance, sizes, stands_for, demo, notes.
        baselines: metrics of trivial systems (name -> metric -> value), e.g. a constant output.
        handle: whatever `run` needs to find the data again; must survive pickling.
    """

    sha256: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    handle: Any = None


@dataclass
class Result:
    """The outcome of a cell.

    Attributes:
        metrics: flat `split/metric` -> value.
        signatures: metric -> how it was computed (e.g. sacreBLEU's signature).
        predictions: one JSON-able record per test example.
        attention: arrays to store (safetensors), name -> tensor.
    """

    metrics: dict[str, float]
    signatures: dict[str, str] = field(default_factory=dict)
    predictions: Iterable[Mapping[str, Any]] = ()
    attention: Mapping[str, Any] = field(default_factory=dict)


class Monitor(Protocol):
    """How a running cell tells where it is."""

    def stage(self, name: str, fraction: float, **stats: float) -> None:
        """`name` of the stage, `fraction` of the whole cell done (0..1), stats worth showing."""

    def curve(self, rows: list[dict[str, float]]) -> None:
        """All rows of the learning curve so far (one per epoch)."""

    def note(self, text: str) -> None:
        """Something a reader of the log should know."""


class Task(Protocol):
    """`PRELOAD` names modules worth importing once for many cells.

    A task may also have `problems(config) -> list[str]`, what is wrong with a configuration, told before any data is read;
    `DEV_METRICS`, the names `train.best_metric` may have; and `SCORES`, those of `task.scores`.
    """

    PRELOAD: tuple[str, ...]

    def prepare(self, config: Mapping[str, Any], progress: Any) -> Prepared: ...
    def run(self, config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Monitor) -> Result: ...


def task_of(config: Mapping[str, Any]) -> Task:
    """Import the task a configuration names."""
    entry = config["task"]["entry"]
    try:
        return importlib.import_module(entry)  # type: ignore[return-value]
    except ModuleNotFoundError as error:
        raise ValueError(
            f"task.entry={entry!r} cannot be imported ({error}): run from the repository's root"
        ) from error
