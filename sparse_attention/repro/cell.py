"""One cell: a fully resolved configuration, its identity, and running it once.

The identity is the hash of everything that can change the numbers: the resolved configuration without what only says
where and how to run it, the hash of the data, and the recipe version (`task.recipe`, raised by hand when the code of a
task changes what it computes). The git commit is recorded with the result, not hashed: a commit that changes a comment
must not make every finished cell worthless.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import importlib
import importlib.util
import io
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparse_attention.repro import provenance
from sparse_attention.repro.protocol import Prepared, task_of
from sparse_attention.repro.store import Busy, Entry, Store, explain, write_atomic, write_json

# Groups and keys that say where and how, not what.
NOT_IDENTITY = ("runtime", "logger", "paths", "hydra", "grid", "plugins", "profile", "experiment")
NOT_IDENTITY_DATA = ("root", "mirror", "path", "fallback")


@dataclass(frozen=True)
class Cell:
    """A configuration ready to run, its data prepared."""

    config: Mapping[str, Any]
    prepared: Prepared
    cell_id: str = field(default="")

    @property
    def task(self) -> str:
        return self.config["task"]["name"]

    @property
    def mapping(self) -> str:
        return self.config["mapping"]["name"]

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    def entry(self, store: Store) -> Entry:
        return store.entry(self.task, self.mapping, self.cell_id)


def identity(config: Mapping[str, Any], data_sha256: str) -> str:
    """The 16 hex digits that name a cell."""
    relevant = {k: v for k, v in config.items() if k not in NOT_IDENTITY}
    task = dict(relevant["task"])
    task["data"] = {k: v for k, v in (task.get("data") or {}).items() if k not in NOT_IDENTITY_DATA}
    encode = dict(task.get("encode") or {})
    if isinstance(vectors := encode.get("vectors"), str):
        encode["vectors"] = Path(vectors).name  # where the file lies says nothing; the data's hash knows what is in it
        task["encode"] = encode
    relevant["task"] = task
    relevant["plugins"] = [_file_hash(p) for p in config.get("plugins") or []]
    text = json.dumps({"config": relevant, "data": data_sha256}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _file_hash(plugin: str) -> str:
    path = Path(plugin)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else plugin


def load_plugins(plugins: Sequence[str]) -> None:
    """Import the Python files (or modules) that register mappings of a user's own; each once.

    Raises:
        ValueError: a file does not exist or fails to import, naming it.
    """
    for plugin in plugins:
        path = Path(plugin)
        name = f"_plugin_{path.stem}_{_file_hash(plugin)[:8]}" if path.suffix == ".py" else plugin
        if name in sys.modules:
            continue
        try:
            if path.suffix == ".py":
                spec = importlib.util.spec_from_file_location(name, path)
                assert spec is not None and spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                sys.modules[name] = module
                spec.loader.exec_module(module)
            else:
                importlib.import_module(name)
        except Exception as error:
            sys.modules.pop(name, None)
            raise ValueError(f"plugins: {plugin} cannot be imported ({type(error).__name__}: {error})") from error


def prepare(config: Mapping[str, Any], progress: Any) -> Cell:
    """Acquire and encode the data of a configuration and give the cell its identity."""
    prepared = task_of(config).prepare(config, progress)
    return Cell(config, prepared, identity(config, prepared.sha256))


@dataclass
class Outcome:
    """How a run of a cell ended: done, skipped (was done already), failed, or busy (another process has it)."""

    cell_id: str
    state: str
    seconds: float = 0.0
    error: str | None = None  # what happened, then the traceback

    @property
    def reason(self) -> str:
        """The error without its traceback; status.json in the cell's folder has both."""
        return (self.error or self.state).split("\nTraceback (most recent call last)", 1)[0]


class CellMonitor:
    """Writes status, curves and log of a running cell, and passes everything on to `forward`."""

    def __init__(
        self, entry: Entry, forward: Callable[..., None] | None = None, loggers: list[Any] | None = None
    ) -> None:
        self.entry, self.forward, self.loggers = entry, forward, loggers or []
        self._written = 0.0

    def stage(self, name: str, fraction: float, **stats: float) -> None:
        if self.forward:
            self.forward("stage", name, fraction, stats)
        if time.monotonic() - self._written > 5:
            self._written = time.monotonic()
            self.entry.set_status("running", stage=name, fraction=round(fraction, 4), **stats)

    def curve(self, rows: list[dict[str, float]]) -> None:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" for k, v in row.items()} for row in rows)
        write_atomic(self.entry.path("curves.csv"), text.getvalue().encode())
        for logger in self.loggers:
            logger.curve(rows)

    def note(self, text: str) -> None:
        logging.getLogger("cell").info(text)
        if self.forward:
            self.forward("note", text)


def run(
    cell: Cell, store: Store, *, forward: Callable[..., None] | None = None,
    loggers: Callable[[Cell], list[Any]] | None = None, config_text: str | None = None,
) -> Outcome:  # fmt: skip
    """Run one cell unless it is finished. Never raises for what the cell does: a failure is recorded with its traceback.

    Args:
        forward: receives ("stage", name, fraction, stats) and ("note", text) while the cell runs.
        loggers: makes the extra loggers (e.g. wandb) of this cell; each has `.curve(rows)` and `.finish(metrics, state)`.
        config_text: the configuration as the user would read it (YAML); JSON otherwise.
    """
    entry = cell.entry(store)
    if entry.metrics() is not None:
        return Outcome(cell.cell_id, "skipped")
    started = time.monotonic()
    active: list[Any] = []
    try:
        with entry.claimed():
            if entry.metrics() is not None:  # finished by another process while we waited
                return Outcome(cell.cell_id, "skipped")
            handler = _log_to(entry.path("log.txt"))
            try:
                load_plugins(cell.config.get("plugins") or [])
                return _run_claimed(cell, entry, started, forward, loggers, config_text, active)
            finally:
                logging.getLogger().removeHandler(handler)
                handler.close()
    except Busy as busy:
        return Outcome(cell.cell_id, "busy", error=str(busy))
    except Exception as error:
        trace = traceback.format_exc()
        try:
            entry.set_status("failed", error=f"{type(error).__name__}: {error}", traceback=trace)
        except Exception as second:  # a full disk, usually the same as the first
            trace += f"\n(the failure could not be recorded: {second})"
        _finish(active, {}, "failed")
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            error = explain(error, entry.folder)
        return Outcome(cell.cell_id, "failed", time.monotonic() - started, f"{type(error).__name__}: {error}\n{trace}")


def _run_claimed(cell, entry, started, forward, loggers, config_text, active) -> Outcome:
    attempts = int(entry.status().get("attempt", 0)) + 1
    text = config_text or json.dumps(cell.config, indent=1, default=str)
    write_atomic(entry.path("config.yaml"), text.encode())
    entry.set_status("running", attempt=attempts)
    record = provenance.collect()
    active.extend(loggers(cell) if loggers else [])
    monitor = CellMonitor(entry, forward, active)
    result = task_of(cell.config).run(cell.config, cell.prepared, entry.folder, monitor)
    seconds = time.monotonic() - started
    entry.write_predictions(result.predictions)
    if result.attention:
        from safetensors.torch import save

        write_atomic(entry.path("attention.safetensors"), save(dict(result.attention)))
    write_json(
        entry.path("provenance.json"),
        record
        | {"seconds": round(seconds, 1), "attempt": attempts, "seed": cell.seed, "data_sha256": cell.prepared.sha256},
    )
    write_json(
        entry.path("metrics.json"),
        {
            "metrics": result.metrics, "signatures": result.signatures, "data": dict(cell.prepared.facts),
            "baselines": {k: dict(v) for k, v in cell.prepared.baselines.items()}, "seconds": round(seconds, 1),
            "seed": cell.seed,
        },
    )  # fmt: skip
    entry.set_status("done", attempt=attempts, seconds=round(seconds, 1))
    _finish(active, result.metrics, "done")
    return Outcome(cell.cell_id, "done", seconds)


def _finish(loggers: Sequence[Any], metrics: Mapping[str, float], state: str) -> None:
    """Loggers come on top of the store: trouble with one is logged, it neither fails the cell nor escapes."""
    for logger in loggers:
        try:
            logger.finish(metrics, state)
        except Exception:
            logging.getLogger("cell").warning("logger %s failed at the end", type(logger).__name__, exc_info=True)


def _log_to(path: Path) -> logging.Handler:
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(logging.INFO)
    root = logging.getLogger()
    root.addHandler(handler)
    if root.level > logging.INFO or root.level == logging.NOTSET:
        root.setLevel(logging.INFO)
    return handler
