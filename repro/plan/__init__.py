"""Turn experiments (rows x columns x grids x seeds) into the cells they need.

Every configuration is resolved and checked before any data are read. Then every data set is prepared once, several in
parallel (`Preparation`).
"""

from __future__ import annotations

import itertools
import json
import multiprocessing as mp
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from repro import plugins
from repro.identity import Cell, assemble, family, value_at
from repro.launch import pool
from repro.plan import experiment as experiments
from repro.plan.experiment import Experiment
from repro.protocol import Metric, Prepared
from repro.store import check_names

Config = Mapping[str, Any]
Point = tuple[tuple[str, Any], ...]
READ_FOR_DATA = ("data", "encode", "task", "decode", "model", "plugins")  # nodes that may affect how data are prepared


class PlanError(ValueError):
    """The configurations of one or more experiments are invalid; the message lists all errors."""


@dataclass(frozen=True)
class Slot:
    """A cell's place in the table: one row, column, grid point and seed."""

    row: int
    column: int
    point: Point
    seed: int
    cell: Cell


@dataclass
class Plan:
    """An experiment with its cells; `unavailable` maps each column without cells to the reason."""

    experiment: Experiment
    slots: list[Slot] = field(default_factory=list)
    unavailable: dict[int, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()

    @property
    def cells(self) -> dict[str, Cell]:
        """Cell id -> cell; slots with the same training and scoring share one cell, which has all their test sets."""
        found: dict[str, Cell] = {}
        for slot in self.slots:
            known = found.get(slot.cell.cell_id)
            found[slot.cell.cell_id] = known.with_tests(slot.cell) if known else slot.cell
        return found

    def at(self, row: int, column: int) -> list[Slot]:
        """The slots in a row and column."""
        return [slot for slot in self.slots if (slot.row, slot.column) == (row, column)]

    def metrics(self, column: int) -> Mapping[str, Metric]:
        """The metrics of a column's family."""
        return next((s.cell.family.METRICS for s in self.slots if s.column == column), {})


def _silent() -> None:
    """The default of `Tools.progress`: returns no object, so no progress is reported."""


@dataclass(frozen=True)
class Tools:
    """The functions that a plan needs.

    Attributes:
        compose: (all overrides, the overrides that the user typed) -> resolved, checked configuration.
        module_of: configuration -> name of its family's module.
        with_data: (configuration, name of a data set) -> the configuration with that set's data node.
        progress: creates the object to which a loader reports its progress.
        unavailable: exceptions by which a loader says that data are unavailable; the column is then left out, with the
            reason.
    """

    compose: Callable[[Sequence[str], Sequence[str]], Config]
    module_of: Callable[[Config], str]
    with_data: Callable[[Config, str], Config]
    progress: Callable[[], Any] = _silent
    unavailable: tuple[type[Exception], ...] = ()


@dataclass(frozen=True)
class Wanted:
    """A slot whose data have not been prepared yet."""

    row: int
    column: int
    point: Point
    seed: int
    config: Config
    module: str
    tests: tuple[Config, ...] = ()

    @cached_property
    def data_key(self) -> str:
        return _key(self.config)


def points(grid: Mapping[str, Sequence[Any]] | None) -> list[Point]:
    """The grid's points, as tuples of (parameter, value); one empty point if there is no grid."""
    if not grid:
        return [()]
    return [tuple(zip(grid, values)) for values in itertools.product(*grid.values())]


def make(
    loaded: Sequence[Experiment], tools: Tools, overrides: Sequence[str] = (), workers: int | None = None
) -> list[Plan]:
    """Make the plans of experiments with the user's `overrides`.

    Raises:
        PlanError: a configuration is invalid or a metric unknown; all errors are listed, before any data are read.
    """
    return fill(loaded, outline(loaded, tools, overrides), tools, overrides, workers)


def outline(loaded: Sequence[Experiment], tools: Tools, overrides: Sequence[str] = ()) -> list[list[Wanted]]:
    """The slots of each experiment, with resolved and checked configurations; no data are read. Raises `PlanError`."""
    problems: dict[str, list[str]] = {}  # error -> where
    resolved = [_resolve(one, tools, overrides, problems) for one in loaded]
    if problems:
        listed = "\n  ".join(f"{', '.join(dict.fromkeys(where))}: {error}" for error, where in problems.items())
        titles = ", ".join(one.title for one in loaded)
        raise PlanError(f"{sum(map(len, problems.values()))} configuration(s) of {titles} cannot be used:\n  {listed}")
    if not any(resolved):
        raise PlanError("the experiment has no rows or columns")
    return resolved


def fill(
    loaded: Sequence[Experiment], resolved: Sequence[Sequence[Wanted]], tools: Tools, overrides: Sequence[str] = (),
    workers: int | None = None, sweep: str = "",
) -> list[Plan]:  # fmt: skip
    """Make the plans of experiments from their slots (`resolved`); every data set is prepared once.

    `sweep` is the name of the sweep, if there is one.
    """
    with Preparation(loaded, resolved, tools, overrides, workers, sweep) as preparation:
        for key in preparation.jobs:
            preparation.start(key)
        return [preparation.plan(number) for number in range(len(loaded))]


class Preparation:
    """Prepares data sets in processes of its own, each once, and makes a plan when its data are ready.

    Without several data sets and workers, data are prepared in this process. The arguments are those of `fill`. `jobs`,
    `found` and `running` map the key of a data set to the job, its result (see `_prepare`) and its future.
    """

    def __init__(
        self, loaded: Sequence[Experiment], resolved: Sequence[Sequence[Wanted]], tools: Tools, overrides: Sequence[str] = (),
        workers: int | None = None, sweep: str = "",
    ) -> None:  # fmt: skip
        self.loaded, self.resolved, self.tools, self.overrides, self.sweep = loaded, resolved, tools, overrides, sweep
        wanted = [w for group in resolved for w in group]
        self.workers = workers or wanted[0].config["runtime"]["workers"]
        self.jobs: dict[str, Job] = {}
        for w in wanted:
            self.jobs.setdefault(w.data_key, (w.module, w.config, {}))[2].update({_key(test): test for test in w.tests})
        self.found: dict[str, Any] = {}
        self.running: dict[str, Future] = {}
        self._apart = len(self.jobs) > 1 and self.workers > 1 and pool.forks()
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> Preparation:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def next(self, number: int) -> str | None:
        """A data set of plan `number` that is not begun, or None. Two versions of one data set come one after the other."""
        busy = {self.jobs[key][1]["data"]["name"] for key in self.running}
        left = (w for w in self.resolved[number] if w.data_key not in self.found and w.data_key not in self.running)
        return next((w.data_key for w in left if w.config["data"]["name"] not in busy), None)

    def start(self, key: str, progress: Callable[[], Any] | None = None) -> None:
        """Begin to prepare a data set; the first call must come before this process has threads, because it forks."""
        arguments = (self.jobs[key], progress or self.tools.progress, self.tools.unavailable)
        if not self._apart:
            self.found[key] = _prepare(*arguments)
            return
        if self._executor is None:  # the loaders do not need the modules that the cells preload
            quiet = (signal.SIGINT, signal.SIG_DFL)  # Ctrl-C also reaches the workers, which then end silently
            self._executor = ProcessPoolExecutor(self.workers, mp.get_context("fork"), signal.signal, quiet)
        self.running[key] = self._executor.submit(_prepare, *arguments)

    def ready(self, number: int, waits: bool = False) -> bool:
        """Whether the data of plan `number` are prepared. Raises what a loader raised, unless its data are unavailable."""
        own = list(dict.fromkeys(w.data_key for w in self.resolved[number]))
        for key in [key for key, future in self.running.items() if future.done() or (waits and key in own)]:
            self.found[key] = self.running.pop(key).result()
        return all(key in self.found for key in own)

    def plan(self, number: int) -> Plan:
        """Plan `number`; waits for its data, which must have begun."""
        self.ready(number, waits=True)
        one = self.loaded[number]
        return filled(one, self.resolved[number], self.overrides, partial(self._cell_of, one))

    def close(self) -> None:
        """End the processes, also those that are at work."""
        if self._executor is not None:
            self._executor.shutdown(wait=not self.running, cancel_futures=True)
            if self.running:
                for process in mp.active_children():
                    if isinstance(process, mp.get_context("fork").Process):
                        process.terminate()
        self._executor = None

    def _cell_of(self, one: Experiment, w: Wanted) -> Cell | Exception:
        if isinstance(made := self.found[w.data_key], Exception):
            return made
        prepared, tests = made
        others = [tests[_key(test)] for test in w.tests]
        if lost := next((x for x in others if isinstance(x, Exception)), None):
            return lost
        told = origin(one, w, self.sweep)
        return assemble(w.config, w.module, prepared, list(zip(others, w.tests)), self.overrides, told)


def _resolve(one: Experiment, tools: Tools, overrides: Sequence[str], problems: dict[str, list[str]]) -> list[Wanted]:
    found: list[Wanted] = []
    checked: set[int] = set()
    given = {o.lstrip("+").partition("=")[0] for o in overrides}
    for (c, column), (r, row) in itertools.product(enumerate(one.columns), enumerate(one.rows)):
        base = [*column.overrides, f"profile={one.profile}", *row.changes]
        try:
            grid = row.grids.get(column.grid)
            if grid == "own":
                grid = tools.compose([*base, *overrides], overrides)["mapping"].get("grid")
            keys = {key: key if "." in key else f"mapping.{key}" for key in grid or ()}
            if grid and given & {*keys.values()}:  # what the user sets is not searched
                config = tools.compose([*base, *overrides], overrides)
                grid = {k: [value_at(config, keys[k])] if keys[k] in given else v for k, v in grid.items()}
            for point, seed in itertools.product(points(grid), one.seeds):
                assigned = [f"{keys[key]}={text(value)}" for key, value in point]
                config = tools.compose([*base, *assigned, f"seed={seed}", *overrides], overrides)
                check_names(config["task"]["name"], config["mapping"]["name"])
                tests = tuple(tools.with_data(config, name) for name in column.evaluate)
                found.append(Wanted(r, c, point, seed, config, tools.module_of(config), tests))
            if len(points(grid)) > 1 and column.select is None:
                problems.setdefault("several grid points need a `select`", []).append(column.key)
        except Exception as error:
            problems.setdefault(str(error), []).append(row.label)
            continue
        if c not in checked:
            checked.add(c)
            for problem in experiments.check(column, family(found[-1].module).METRICS):
                problems.setdefault(problem, []).append(f"column {column.key}")
    return found


def filled(
    one: Experiment, group: Sequence[Wanted], overrides: Sequence[str], cell_of: Callable[[Wanted], Any]
) -> Plan:
    """Make a plan whose slots have the cells that `cell_of` returns.

    If `cell_of` returns an exception instead of a cell, the column is unavailable.
    """
    plan = Plan(one, overrides=tuple(overrides))
    seen: set[tuple[int, int, str]] = set()
    for w in group:
        cell = cell_of(w)
        if isinstance(cell, Exception):
            plan.unavailable.setdefault(w.column, str(cell))
            continue
        # an override on the command line can make grid points or seeds equal; they are then one run, not several
        if (place := (w.row, w.column, cell.cell_id)) not in seen:
            seen.add(place)
            plan.slots.append(Slot(w.row, w.column, w.point, cell.seed, cell))
    plan.slots = [s for s in plan.slots if s.column not in plan.unavailable]
    return plan


def origin(one: Experiment, w: Wanted, sweep: str = "") -> dict[str, str]:
    """`Cell.origin` of a slot: the experiment or sweep, the row with its grid point, and the column and its heading."""
    point = "".join(f" {key}={value}" for key, value in w.point)
    asked = {"sweep": sweep} if sweep else {"experiment": one.name}
    column = one.columns[w.column]
    return {**asked, "row": f"{one.rows[w.row].label}{point}", "column": column.key, "heading": column.label}


def _key(config: Config) -> str:
    return json.dumps([{k: config.get(k) for k in READ_FOR_DATA}, config["paths"]["data"]], sort_keys=True, default=str)


Job = tuple[str, Config, dict[str, Config]]  # module, configuration, key -> configuration of a further test set


def _prepare(job: Job, progress: Callable[[], Any], unavailable: tuple) -> tuple[Prepared, dict[str, Any]] | Exception:
    """The prepared data, and each further test set or why it is unavailable; an exception if the data are unavailable."""
    module, config, tests = job
    plugins.load(plugins.pinned(config.get("plugins")))
    try:
        prepared, others = family(module).prepare(config, progress()), {}
    except unavailable as error:
        return error
    for key, test in tests.items():
        try:
            others[key] = family(module).prepare_test(test, Path(prepared.folder), progress())
        except unavailable as error:
            others[key] = error
    return prepared, others


def text(value: Any) -> str:
    """A grid value as text, in the syntax of an override."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)
