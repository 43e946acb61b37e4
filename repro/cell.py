"""Run a cell: train it if it has not been trained, run the missing evaluations, and record everything.

If a cell fails, `run` does not raise an error; it returns an `Outcome` with the error message.
"""

import contextlib
import json
import logging
import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from repro import plugins, signals
from repro.errors import StoreError
from repro.files import csv_text, disk_full, explain, read_json, usable, write_atomic, write_json
from repro.identity import Cell
from repro.identity import Results as Results
from repro.identity import prepare as prepare
from repro.loggers import Loggers
from repro.protocol import Evaluation, Prepared, TestSet, Training, check_family
from repro.rounding import ASKED, rounded
from repro.store import Entry, Level, Store, provenance, sources
from repro.store.locks import Busy

NODES = ("task", "data", "encode", "decode", "model", "optim", "schedule", "train", "mapping", "profile", "runtime")
ALWAYS = ("module", "task", "mapping", "seed", "profile", "data")  # keys that every config.yaml has
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # about ten times as fast if libyaml is installed
TRAINING_SHARE = 0.85  # rough share of a cell's time that is spent on training


@dataclass
class Outcome:
    """How a run of a cell ended.

    `state` is "done", "skipped" (the cell was done already), "failed", "busy" (another process is running the cell) or
    "queued" (a scheduler has the cell).
    """

    cell_id: str
    state: str
    seconds: float = 0.0
    error: str | None = None  # the error message, then the traceback
    machine: bool = False  # the cell failed because it was killed or stopped or its machine was lost; it can resume

    @property
    def reason(self) -> str:
        """The error message without the traceback; status.json in the cell's folder has both."""
        return (self.error or self.state).split("\nTraceback (most recent call last)", 1)[0]


class CellMonitor:
    """Writes the status, learning curves and log of a running cell, and passes stages and notes on to `forward`."""

    def __init__(self, entry: Entry, forward: Callable[..., None] | None) -> None:
        self.entry, self.forward, self.loggers = entry, forward, Loggers(list, self.note)
        self.start, self.share = 0.0, 1.0  # start and length of the current part, as fractions of the whole cell
        self._written = 0.0

    def stage(self, name: str, fraction: float, **stats: float) -> None:
        whole = self.start + self.share * fraction
        if self.forward:
            self.forward("stage", name, whole, stats)
        if time.monotonic() - self._written > 5:
            self._written = time.monotonic()
            self.entry.set_status("running", stage=name, fraction=round(whole, 4), **stats)

    def curve(self, rows: list[dict[str, float]]) -> None:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        lines = [[f"{row[key]:.6g}" if key in row else "" for key in columns] for row in rows]
        write_atomic(self.entry.path("curves.csv"), csv_text([columns, *lines]).encode())
        self.loggers.curve(rows)

    def note(self, text: str) -> None:
        logging.getLogger("cell").info(text)
        if self.forward:
            self.forward("note", text)


def run(
    cell: Cell,
    store: Store,
    *,
    forward: Callable[..., None] | None = None,
    loggers: Callable[[Cell], list[Any]] | None = None,
    named: Mapping[str, str] | None = None,
) -> Outcome:
    """Run the training and evaluations that a cell still lacks; a failure is recorded with its traceback.

    Args:
        forward: receives ("stage", name, fraction of the whole cell, stats) and ("note", text) while the cell runs.
        loggers: returns the extra loggers (e.g. wandb) for this cell, see `repro.loggers`; a logger error never fails
            the cell.
        named: path -> sha256 of the plugins that the command named, if it runs in another process (`plugins.pinned`).
    """
    entry = cell.entry(store)
    started = time.monotonic()
    monitor = CellMonitor(entry, forward)
    try:
        if cell.done(store):
            return Outcome(cell.cell_id, "skipped")
        aside = entry.set_aside()
        with signals.listening(), entry.locked():
            if cell.done(store):  # another process finished the cell while we waited
                return Outcome(cell.cell_id, "skipped")
            with _log_to(entry.path("log.txt")):
                plugins.load(plugins.pinned(cell.config.get("plugins")) if named is None else named)
                _run_locked(cell, store, monitor, loggers, aside)
        return Outcome(cell.cell_id, "done", time.monotonic() - started)
    except Busy as busy:
        return Outcome(cell.cell_id, "busy", error=str(busy))
    except signals.Stopped as stop:
        monitor.loggers.finish(None, "stopped")
        error = f"{stop}; run the same command again to resume it"
        return Outcome(cell.cell_id, "failed", time.monotonic() - started, error, machine=True)
    except Exception as error:
        trace = traceback.format_exc()
        if disk_full(error) and not isinstance(error, StoreError):
            error = explain(error, getattr(error, "filename", None) or entry.folder)
        try:
            entry.set_status("failed", error=f"{type(error).__name__}: {error}", traceback=trace)
        except Exception as second:  # such as a full disk, which usually caused the first error too
            trace += f"\n(the failure could not be recorded: {second})"
        monitor.loggers.finish(None, "failed")
        return Outcome(cell.cell_id, "failed", time.monotonic() - started, f"{type(error).__name__}: {error}\n{trace}")


def _run_locked(cell: Cell, store: Store, monitor: CellMonitor, loggers: Any, aside: Path | None) -> None:
    entry = monitor.entry
    attempt = int(entry.status().get("attempt", 0)) + 1
    entry.set_status("running", attempt=attempt)
    record = provenance.collect() | {"attempt": attempt, "seed": cell.seed}
    record["sources"] = sources.of(cell.module, cell.config)
    if named := cell.config.get("plugins"):
        record["plugins"] = {plugin: plugins.content(plugin) for plugin in named}
    # may change the last digits of a score
    for node, key in (("runtime", "tf32"), ("runtime", "device"), ("train", "precision")):
        record["machine"][key] = (cell.config.get(node) or {}).get(key, False)
    if loggers:
        monitor.loggers = Loggers(lambda: loggers(cell), monitor.note)
    if aside:
        monitor.note(f"the stored training was damaged and is now in {aside}")
    missing = [t for t in cell.tests if not (e := cell.evaluation(store, t)).finished() or e.damage()]
    begin = 0.0 if entry.finished() else TRAINING_SHARE
    if not entry.finished():
        monitor.share = begin if missing else 1.0
        _train(cell, entry, monitor, record)
    for i, test in enumerate(missing):
        monitor.share = (1 - begin) / len(missing)
        monitor.start = begin + i * monitor.share
        _evaluate(cell, store, test, monitor, record)
    entry.set_status("done", attempt=attempt)
    monitor.loggers.finish(cell.results(store), "done")


def _train(cell: Cell, entry: Entry, monitor: CellMonitor, record: Mapping[str, Any]) -> None:
    started = time.monotonic()
    write_atomic(entry.path("config.yaml"), page(cell))
    training = cell.family.train(cell.config, cell.data, entry.folder, monitor)
    if not training.metrics:
        raise ValueError(f"{cell.module}.train returned no metrics; it must return at least one")
    if lost := [k for k, v in training.metrics.items() if k.endswith("/loss") and not math.isfinite(v)]:
        raise FloatingPointError(f"{', '.join(lost)}: {training.metrics[lost[0]]}; lower optim.lr or set optim.clip")
    _write_results(entry, training, cell.data, record, started, seed=cell.seed, recipe=cell.recipes[0])
    entry.finish(training=cell.training_id)
    if not (cell.config.get("runtime") or {}).get("keep_checkpoints"):
        for path in entry.path("checkpoints").glob("*.pt"):
            path.unlink()
        with contextlib.suppress(OSError):  # the folder holds damaged checkpoints, or does not exist
            entry.path("checkpoints").rmdir()


def _evaluate(cell: Cell, store: Store, test: TestSet, monitor: CellMonitor, record: Mapping[str, Any]) -> None:
    started = time.monotonic()
    level = cell.evaluation(store, test)
    level.clear()
    write_atomic(level.path("config.yaml"), page(cell, test))
    scored = cell.family.evaluate(cell.config_of(test), cell.entry(store).folder, test, monitor)
    if not scored.metrics or any(not name.startswith(f"{test.name}/") for name in scored.metrics):
        told = f"{cell.module}.evaluate returned {', '.join(scored.metrics) or 'nothing'}"
        raise ValueError(f"{told}; every name must start with {test.name}/")
    if lost := [name for name, value in scored.metrics.items() if not math.isfinite(value)]:
        monitor.note(f"{', '.join(lost)}: {scored.metrics[lost[0]]}; tables cannot show its mean")
    level.write_predictions(scored.predictions)
    if scored.attention:
        from safetensors.torch import save

        write_atomic(level.path("attention.safetensors"), save(dict(scored.attention)))
    for name, content in scored.files.items():
        write_atomic(level.path(name), content)
    baselines = {k: dict(v) for k, v in test.baselines.items()}
    of_test = {"test": test.name, "baselines": baselines, "scoring": cell.scoring, "recipe": cell.recipes[1]}
    _write_results(level, scored, test, record, started, **of_test)
    level.finish(training=cell.training_id, evaluation=level.folder.name)


def _write_results(
    level: Level,
    results: Training | Evaluation,
    data: Prepared | TestSet,
    record: Mapping[str, Any],
    started: float,
    **more: Any,
) -> None:
    """Write provenance.json and metrics.json of a training or an evaluation."""
    told = {"seconds": round(time.monotonic() - started, 1), "data_sha256": data.sha256}
    write_json(level.path("provenance.json"), {**record, **told})
    metrics = {"metrics": {k: float(v) for k, v in results.metrics.items()}, "signatures": results.signatures}
    facts = {"facts": dict(data.facts), "shortfalls": list(data.shortfalls)}
    write_json(level.path("metrics.json"), {**told, **metrics, **facts, **more})


@contextlib.contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Write the log of this process to a file, too."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(logging.INFO)
    root = logging.getLogger()
    root.addHandler(handler)
    if root.level > logging.INFO or root.level == logging.NOTSET:
        root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        with contextlib.suppress(OSError):  # a full disk, which the next file of the cell reports
            handler.close()


# ---- config.yaml of a folder


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.yaml from the folder of a cell or an evaluation; numbers are `rounded`. Raises StoreError if it is unreadable or invalid."""
    path = folder / "config.yaml"
    try:
        config = yaml.load(path.read_text(encoding="utf-8"), LOADER)
        if not isinstance(config, dict) or (lost := [k for k in ALWAYS if k not in config]):
            why = f": it has no `{lost[0]}`" if isinstance(config, dict) else ""
            raise StoreError(f"{path} is not the configuration of a cell{why}")
        check_family(config["module"])
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        step = "name the folder of a cell, outputs/cells/TASK/MAPPING/ID"
        raise StoreError(f"{path} cannot be read ({' '.join(str(error).split())}); {step}") from error
    except ValueError as error:
        raise StoreError(f"{path}: {error}") from error
    return rounded(config)


def check_nodes(config: Mapping[str, Any]) -> None:
    """Check the types of the nodes that every configuration has. Raises ValueError if one is wrong."""
    if wrong := [k for k in NODES if not isinstance(config.get(k) or {}, Mapping)]:
        raise ValueError(f"{wrong[0]} of its config.yaml is not a mapping of options")
    if type(config.get("seed")) is not int or not isinstance((config.get("profile") or {}).get("name"), str):
        raise ValueError("its config.yaml needs a whole number as seed, and profile.name")


def finished(folder: str | Path) -> Cell:
    """The cell of a finished training, without test sets or training data; this is enough to evaluate the model.

    The cell's plugins are not run, see `admit`. Raises StoreError if the training is unfinished, damaged or
    inconsistent.
    """
    folder = Path(folder).resolve()
    config = read_config(folder)
    stored = Entry(folder).read()
    if stored is None:
        raise StoreError(f"{folder} holds no finished training (no manifest.json); run its command again")
    module, *_, origin = (config.pop(key, None) for key in ASKED)
    with usable(folder):
        named = plugins.listed(config.get("plugins"))
        config["plugins"] = [str(folder / p) if (folder / p).is_file() else p for p in named]
        shortfalls = tuple(stored.get("shortfalls") or ())
        prepared = Prepared(stored["data_sha256"], str(folder / "encoding"), stored.get("facts") or {}, shortfalls)
        cell = Cell(config, module, prepared, known_id=folder.name, origin=origin or {})
        check_nodes(config)
        if folder.parts[-4:-3] == ("cells",) and folder.parts[-3:-1] != (cell.task, cell.mapping):
            raise ValueError(f"its config.yaml is that of {cell.task}/{cell.mapping}")
    return cell


def admit(folder: Path, cell: Cell, named: Sequence[str]) -> Cell:
    """Run the plugins of a finished cell; the result has the files `named` in their place.

    Raises `StoreError`, and runs nothing, if no file with the content that a plugin had in the training is named,
    or if a named file is not a plugin of the cell. Raises ValueError as `plugins.load` does.
    """
    folder = folder.resolve()
    with usable(folder):
        files = (read_json(folder / "manifest.json") or {})["files"]  # an export contains its plugins
        told = (read_json(folder / "provenance.json") or {}).get("plugins") or {}
        trained = {str(folder / name): sha256 for name, sha256 in files.items()} | dict(told)
    given = {plugins.content(file): file for file in named if Path(file).is_file()}
    asked = {plugin: trained.get(plugin, "") for plugin in cell.config["plugins"]}
    if lost := [plugin for plugin, wanted in asked.items() if wanted not in given]:
        why = f"{', '.join(named)} is absent or not as in the training" if named else "the command does not name it"
        step = f"read the file, then name it:{plugins.naming(list(asked))}"
        raise StoreError(f"{folder} needs {', '.join(lost)}, not run because {why}; {step}")
    if other := [file for sha256, file in given.items() if sha256 not in asked.values()]:
        step = f"leave plugins={','.join(other)} out"
        raise StoreError(f"{folder} was trained without {', '.join(other)}; {step}")
    plugins.load({given[wanted]: wanted for wanted in asked.values()})
    return replace(cell, config={**cell.config, "plugins": [given[wanted] for wanted in asked.values()]})


def page(cell: Cell, test: TestSet | None = None) -> bytes:
    """The content of config.yaml for a cell or for one evaluation: everything that a worker needs to run it."""
    asked = {"module": cell.module, "further": cell.further, "origin": cell.origin}
    one = {**asked, **cell.config} if test is None else {**asked, "test": test.name, **cell.config_of(test)}
    plain = json.loads(json.dumps(one, default=str))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120).encode()
