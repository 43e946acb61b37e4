"""Turn experiments (rows x columns x grids x seeds) into the cells they need.

Every configuration is resolved and checked before any data are read (`outline`). Then every data set is prepared once,
several in parallel (`prepared`).
"""

import itertools
import multiprocessing as mp
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from repro.errors import ConfigError
from repro.identity import Cell, Point, digest, pair, prepare, value_at
from repro.launch import pool
from repro.plan import experiment as experiments
from repro.plan.experiment import Experiment
from repro.protocol import Metric

Config = Mapping[str, Any]


@dataclass
class Plan:
    """An experiment with its cells.

    Attributes:
        slots: the cell of each place of the table: row, column, grid point and seed; without data until `prepared`.
        unavailable: number of a column without cells -> the reason.
        overrides: the user's overrides.
    """

    experiment: Experiment
    slots: list[Cell] = field(default_factory=list)
    unavailable: dict[int, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()

    @property
    def cells(self) -> dict[str, Cell]:
        """Cell id -> cell; slots with the same training and scoring share one cell, which has all their test sets."""
        cells: dict[str, Cell] = {}
        for slot in self.slots:
            shared = cells.get(slot.cell_id)
            cells[slot.cell_id] = shared.with_tests(slot) if shared else slot
        return cells

    def at(self, row: int, column: int) -> list[Cell]:
        """The cells in a row and column."""
        return [slot for slot in self.slots if (slot.row, slot.column) == (row, column)]

    def metrics(self, column: int) -> Mapping[str, Metric]:
        """The metrics of a column's family."""
        return next((slot.family.METRICS for slot in self.slots if slot.column == column), {})


@dataclass(frozen=True)
class Tools:
    """The functions that a plan needs.

    Attributes:
        compose: (all overrides, the overrides that the user typed) -> resolved, checked configuration.
        module_of: configuration -> name of its family's module.
        with_data: (configuration, name of a data set) -> the configuration with that set's data node.
        check: raises ConfigError if the user's overrides do not fit an experiment, before its cells are composed.
        progress: creates the object to which a loader reports its progress; None by default.
        unavailable: exceptions of a loader that mean that data are unavailable; the column is then left out, with the
            reason.
    """

    compose: Callable[[Sequence[str], Sequence[str]], Config]
    module_of: Callable[[Config], str]
    with_data: Callable[[Config, str], Config]
    check: Callable[[Experiment, Sequence[str]], None] = lambda experiment, overrides: None
    progress: Callable[[], Any] = type(None)
    unavailable: tuple[type[Exception], ...] = ()


def points(grid: Mapping[str, Sequence[Any]] | None) -> list[Point]:
    """The grid's points, as tuples of (parameter, value); one empty point if there is no grid."""
    grid = grid or {}
    return [tuple(zip(grid, values)) for values in itertools.product(*grid.values())]


def outline(experiments: Sequence[Experiment], tools: Tools, overrides: Sequence[str] = ()) -> list[Plan]:
    """The plan of each experiment, with resolved and checked configurations; no data are read. Raises `ConfigError`."""
    problems: dict[str, list[str]] = {}  # error -> where
    for one in experiments:
        tools.check(one, overrides)
    made = [Plan(one, _resolve(one, tools, overrides, problems), overrides=tuple(overrides)) for one in experiments]
    if problems:
        listed = "\n  ".join(f"{', '.join(dict.fromkeys(where))}: {error}" for error, where in problems.items())
        count, titles = sum(map(len, problems.values())), ", ".join(one.title for one in experiments)
        raise ConfigError(f"{count} configuration(s) of {titles} cannot be used:\n  {listed}")
    if not any(one.slots for one in made):
        raise ConfigError("the experiment has no rows or columns")
    return made


def prepared(outlined: Sequence[Plan], tools: Tools, sweep: str = "") -> list[Plan]:
    """The plans with the data of all their cells, each data set prepared once.

    With several workers, several data sets are prepared at a time, in processes of their own; the versions of a data set
    are prepared one after the other, because they share what is fetched. Raises a loader's error, except that data are
    unavailable, and ConfigError if all are.
    """
    jobs: dict[str, dict[str, Cell]] = {}  # name of a data set -> `_key` of a version -> a cell that needs it
    for cell in (slot for one in outlined for slot in one.slots):
        jobs.setdefault(cell.config["data"]["name"], {}).setdefault(_key(cell), cell)
    prepare_all = partial(_prepare, progress=tools.progress, unavailable=tools.unavailable)
    workers = min(len(jobs), cell.config["runtime"]["workers"])
    if workers > 1 and pool.forks():
        quiet = (signal.SIGINT, signal.SIG_DFL)  # Ctrl-C also reaches the workers, which then end silently
        with ProcessPoolExecutor(workers, mp.get_context("fork"), signal.signal, quiet) as executor:
            try:
                made = list(executor.map(prepare_all, jobs.values()))
            except BaseException:  # the others, at work for minutes perhaps, end too
                for process in mp.active_children():
                    process.terminate()
                raise
    else:
        made = list(map(prepare_all, jobs.values()))
    results = {key: result for one in made for key, result in one.items()}

    def with_data(experiment: Experiment, cell: Cell) -> Cell | Exception:
        if isinstance(version := results[_key(cell)], Exception):
            return version
        return replace(cell, prepared=version.prepared, tests=version.tests, origin=origin(experiment, cell, sweep))

    plans = [filled(one, partial(with_data, one.experiment)) for one in outlined]
    if not any(one.slots for one in plans):
        told = "; ".join(f"{p.experiment.columns[c].label}: {why}" for p in plans for c, why in p.unavailable.items())
        raise ConfigError(f"no column can be run: {told}")
    return plans


def _resolve(
    experiment: Experiment, tools: Tools, overrides: Sequence[str], problems: dict[str, list[str]]
) -> list[Cell]:
    cells: list[Cell] = []
    checked: set[int] = set()
    given = {pair(o)[0] for o in overrides}
    for (c, column), (r, row) in itertools.product(enumerate(experiment.columns), enumerate(experiment.rows)):
        base = [*column.overrides, f"profile={experiment.profile}", *row.changes]
        try:
            grid = row.grids.get(column.grid)
            if grid == "own":
                grid = tools.compose([*base, *overrides], overrides)["mapping"].get("grid")
            grid = {key if "." in key else f"mapping.{key}": values for key, values in (grid or {}).items()}
            if given & grid.keys():  # parameters that the user sets are not searched
                config = tools.compose([*base, *overrides], overrides)
                grid = {k: [value_at(config, k)] if k in given else v for k, v in grid.items()}
            for point, seed in itertools.product(points(grid), experiment.seeds):
                assigned = [f"{key}={text(value)}" for key, value in point]
                config = tools.compose([*base, *assigned, f"seed={seed}", *overrides], overrides)
                further = {name: tools.with_data(config, name)["data"] for name in column.evaluate}
                module = tools.module_of(config)
                cells.append(Cell(config, module, further=further, row=r, column=c, point=point))
            if len(points(grid)) > 1 and column.select is None:
                problems.setdefault("several grid points need a `select`", []).append(column.key)
        except Exception as error:
            problems.setdefault(str(error), []).append(row.label)
            continue
        if c not in checked:
            checked.add(c)
            named = [*(s.metric for s in column.show), *([column.select.metric] if column.select else [])]
            for problem in experiments.unmeasured(named, column.evaluate, cells[-1].family.METRICS):
                problems.setdefault(problem, []).append(f"column {column.key}")
    return cells


def filled(outlined: Plan, with_data: Callable[[Cell], Cell | Exception]) -> Plan:
    """The plan with cells as `with_data` returns them; if it returns an exception instead, the column is unavailable."""
    plan = replace(outlined, slots=[], unavailable={})
    seen: set[tuple[int, int, str]] = set()
    for slot in outlined.slots:
        cell = with_data(slot)
        if isinstance(cell, Exception):
            plan.unavailable.setdefault(slot.column, str(cell))
            continue
        # an override on the command line can make grid points or seeds equal; they are then one run, not several
        if (place := (cell.row, cell.column, cell.cell_id)) not in seen:
            seen.add(place)
            plan.slots.append(cell)
    plan.slots = [slot for slot in plan.slots if slot.column not in plan.unavailable]
    return plan


def origin(experiment: Experiment, cell: Cell, sweep: str = "") -> dict[str, str]:
    """`Cell.origin` of a slot: the experiment or sweep, the row with its grid point, and the column and its heading."""
    point = "".join(f" {key.removeprefix('mapping.')}={value}" for key, value in cell.point)
    named = {"sweep": sweep} if sweep else {"experiment": experiment.name}
    column = experiment.columns[cell.column]
    return {**named, "row": f"{experiment.rows[cell.row].label}{point}", "column": column.key, "heading": column.label}


def _key(cell: Cell) -> str:
    """Equal for cells that share their data and their further test sets."""
    return digest(cell.data_key, cell.further)


def _prepare(
    versions: Mapping[str, Cell], progress: Callable[[], Any], unavailable: tuple[type[Exception], ...]
) -> dict[str, Cell | Exception]:
    """The cells with their data; in place of one whose data are unavailable, the exception that says why."""
    made: dict[str, Cell | Exception] = {}
    for key, cell in versions.items():
        try:
            made[key] = prepare(cell, progress())
        except unavailable as error:
            made[key] = error
    return made


def text(value: Any) -> str:
    """A grid value as text, in the syntax of an override."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)
