"""Run experiments given by name: plan all cells, then run the missing ones and print the tables (`driver`)."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from repro import launch
from repro import plan as plans
from repro.errors import near
from repro.identity import Cell, pair
from repro.launch.display import clock, fitted
from repro.plan.experiment import Experiment, Row
from repro.results import estimate
from repro.store import Store
from tasks.commands.driver import Driver, refuse_empty
from tasks.commands.rates import ASSUMED
from tasks.config import compose, pages
from tasks.config.overrides import lacking, merged
from tasks.config.request import REPRODUCE, Request, parse
from tasks.data import DataError, Progress

TOOLS = plans.Tools(lambda overrides, user: {}, compose.module_of, compose.with_data, Progress, (DataError,))


def experiments(request: Request) -> list[Experiment]:
    """The experiments of a request, with the changes that it asks for. Raises ConfigError if one of them or the request is invalid."""
    return [adapt(compose.experiment(name, request.profile), request) for name in request.names]


def outlined(request: Request, tools: plans.Tools | None = None) -> tuple[Experiment, list[Cell]]:
    """The one experiment of a request and its cells. Reads no data. Raises ConfigError."""
    if tools is None:
        (one,), (cells,) = whole(request)
    else:
        (one,) = experiments(request)
        (cells,) = plans.outline([one], tools, request.overrides)
    return one, cells


def whole(request: Request, writes: bool = True) -> tuple[list[Experiment], list[list[Cell]]]:
    """The experiments of a request and the cells of each. Reads no data. Raises ConfigError."""
    loaded = experiments(request)
    return loaded, outline(loaded, request.overrides, writes)


def begin(request: Request) -> Driver:
    """The driver of a request's experiments; says what will be run before it prepares their data.

    Raises:
        ValueError: a name or configuration is invalid.
        DataError: data are unavailable.
        StoreError: the launcher cannot start.
    """
    loaded, groups = whole(request)
    cells = [cell for group in groups for cell in group]
    for told in (check_launcher(cells)[1], on_gpu(request, cells[0])):
        if told:
            print(told, file=sys.stderr)
    for one in loaded:
        if one.opening:
            print(fitted(one.opening), flush=True)
    store = store_of(cells)
    cost = estimate.estimate([("", cell) for cell in cells], store, ASSUMED)
    told = cost.text("").splitlines()[-1]
    print(fitted(f"{', '.join(request.names)}: {told}. First the data are prepared"), file=sys.stderr)
    return Driver(prepared(loaded, groups, request.overrides), store, cost.paces)


def on_gpu(request: Request, cell: Cell) -> str:
    """What the profile gpu would take, for the demo on a machine with a GPU; or ""."""
    names = [name for name in request.names if "gpu" in compose.page("experiment", name)["profiles"]]
    if request.profile != "demo" or not names or cell.config["runtime"]["device"] != "cuda":
        return ""
    groups = outline([compose.experiment(name, "gpu") for name in names])
    cost = estimate.estimate([("", one) for group in groups for one in group], store_of(groups[0]), ASSUMED)
    return f"PROFILE=gpu: about {max(1, round(cost.gpu_minutes(cost.total)))} minutes here"


def store_of(cells: Sequence[Cell]) -> Store:
    """The store of the cells of experiments, which all have the same `paths`, `launcher` and `runtime`."""
    return Store(cells[0].config["paths"]["outputs"])


def check_launcher(cells: Sequence[Cell]) -> tuple[int, str]:
    """Return how many cells will run at a time, and why if that is not `runtime.workers`.

    Raises StoreError if the launcher cannot start, ConfigError if the profile needs a GPU and there is none.
    """
    config = cells[0].config
    if config["runtime"]["device"] == "auto" and config["launcher"]["name"] != "slurm":
        cost = {}
        for device in ("cuda", "cpu"):
            placed = {"runtime": {**config["runtime"], "device": device}}
            labelled = [("", replace(cell, config={**cell.config, **placed})) for cell in cells]
            cost[device] = estimate.estimate(labelled, store_of(cells), ASSUMED)
        minutes, hours = cost["cuda"].gpu_minutes(cost["cuda"].total), cost["cpu"].total.hours
        told = "profile=gpu needs a GPU, and torch finds none here; it would take about"
        told = f"{told} {clock(60 * minutes)} of an H200, and with runtime.device=cpu"
        told = f"{told} {clock(3600 * hours)} of this machine's cores"
        told = f"{told}; add runtime.device=cpu, launcher=slurm_gpu, or profile=cpu, whose models are made for a CPU"
        raise compose.ConfigError(told)
    return launch.ready(config["launcher"], config["runtime"])


def prepared(
    loaded: Sequence[Experiment], cells: Sequence[Sequence[Cell]], rest: Sequence[str], sweep: str = ""
) -> list[plans.Plan]:
    """The plans of experiments, with the data of all their cells prepared.

    Raises StoreError if the launcher cannot start; this is checked before any data are read. Raises ConfigError if no
    column has data.
    """
    check_launcher([cell for group in cells for cell in group])
    made = plans.planned(loaded, cells, TOOLS, rest, sweep)
    refuse_empty(made)
    return made


def outline(loaded: Sequence[Experiment], rest: Sequence[str] = (), writes: bool = True) -> list[list[Cell]]:
    """The cells of experiments. Reads no data."""
    for one in loaded:
        check_keys(one, rest)
    with compose.composer(writes) as composed:
        return plans.outline(loaded, replace(TOOLS, compose=composed), rest)


def check_keys(experiment: Experiment, overrides: Sequence[str]) -> None:
    """Raise ConfigError if a key is misspelt, before every cell is composed and the values' check imports torch."""
    read = parse(overrides)
    for o in read:
        if not o.parsed.is_delete() and "." not in o.key and near(o.key, REPRODUCE) and (o.key != "seed" or o.several):
            told = f"{o.text} is not an option of experiments{near(o.key, REPRODUCE)}"
            raise compose.ConfigError(f"{told}; options: {', '.join(REPRODUCE)}, and configuration keys")
        if o.key == "mapping":
            name = o.values[0]
            told = f"{o.text} would put {name} into every row; add={name} adds a row, and rows=LABEL keeps some"
            raise compose.ConfigError(told)
        if o.key.startswith("mapping.") and not o.adds:
            lacking(o.key, dict.fromkeys(row.mapping for row in experiment.rows))
    if read and experiment.columns and experiment.rows:
        base = parse([*experiment.columns[0].overrides, f"profile={experiment.profile}", *experiment.rows[0].changes])
        merged("main", [*base, *(o for o in read if o.node != "mapping")])


def adapt(experiment: Experiment, request: Request) -> Experiment:
    """The experiment with the rows, columns, seeds, further rows and data that a request asks for."""
    experiment = _part(experiment, request.rows, request.columns)
    experiment = replace(experiment, seeds=request.seeds or experiment.seeds)
    added = [row for text in request.add for row in _added(experiment, text)]
    experiment = replace(experiment, rows=(*experiment.rows, *added))
    typed = request.keys
    if "data" not in typed:
        return experiment
    # the headings name the data set, and the paper's numbers are left out
    place = Path(str(typed["data.path"].value)).name if "data.path" in typed else ""
    label = f"{place} ({typed['data'].text})" if place else typed["data"].text
    several = len(experiment.columns) > 1
    told = {"published": (), "not_comparable": "other data"}
    columns = [replace(c, label=f"{label}, {c.key}" if several else label, **told) for c in experiment.columns]
    return replace(experiment, columns=tuple(columns), opening="")  # the opening is about the experiment's own data


def _part(experiment: Experiment, rows: Sequence[str], columns: Sequence[str]) -> Experiment:
    """Keep the rows and columns selected by, for example, `rows=softmax|csparse*` and `columns=fren`.

    Rows are matched by label, columns by name or label; their order is that of the experiment. Raises ConfigError if a
    pattern matches nothing.
    """

    def fitting(
        what: str, patterns: Sequence[str], having: Sequence[Any], names: Callable[[Any], Sequence[str]]
    ) -> tuple[Any, ...]:
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for each in having for name in names(each)):
                known = [names(each)[0] for each in having]
                where = f"{what}={pattern} matches no {what[:-1]} of {experiment.name}, profile={experiment.profile}"
                raise compose.ConfigError(f"{where}: {'; '.join(known)} (several: '{what}=ONE|OTHER')")
        return tuple(e for e in having if not patterns or any(fnmatchcase(n, p) for p in patterns for n in names(e)))

    kept = fitting("columns", columns, experiment.columns, lambda column: (column.key, column.label))
    return replace(experiment, rows=fitting("rows", rows, experiment.rows, lambda row: (row.label,)), columns=kept)


def _added(experiment: Experiment, text: str) -> list[Row]:
    """The rows that `add=NAME,key=value,key=[values]` adds.

    If every column selects a grid point on dev, several values become the grid of one row; otherwise each value becomes
    a row.
    """
    mapping, *parameters = re.split(r",(?![^\[]*\])", text)  # split at commas, except inside a list
    lists = {k: v[1:-1].split(",") for k, v in map(pair, parameters) if v[:1] + v[-1:] == "[]"}
    single = [p for p in parameters if pair(p)[0] not in lists]
    if any(not v.strip() for values in lists.values() for v in values):
        raise compose.ConfigError(f"add={text} has an empty value in a list; write add={mapping},KEY=[0.01,0.1]")
    points = [[f"{k}={v.strip()}" for k, v in point] for point in plans.points(lists)]
    selected = all(c.select is not None for c in experiment.columns)
    if len(points) == 1 or mapping not in compose.names_in("mapping") or not selected:
        return [compose.own_row(mapping, [*single, *point]) for point in points]
    for point in points:
        compose.own_row(mapping, point)  # raises an error if this is not a parameter
    grid = {k: [v.strip() for v in values] for k, values in lists.items()}
    told = compose.own_row(mapping, [*single, *(p for p in parameters if p not in single)]).label
    return [replace(compose.own_row(mapping, single), label=told, grids={c.grid: grid for c in experiment.columns})]


def main(request: Request) -> int:
    """Run experiments and print their tables. Returns the exit status, 1 if a cell failed.

    Raises:
        ValueError: the configuration is invalid.
        DataError: data are unavailable.
        StoreError: the launcher cannot start, or the store cannot be read or written.
    """
    return begin(request).run()


def plan(request: Request) -> int:
    """Print the plan of experiments. Returns exit status 0. Raises ConfigError."""
    loaded, groups = whole(request, writes=False)
    title = f"Plan of {', '.join(request.names)}, profile {loaded[0].profile}"
    labelled = [(one.columns[c.column].label, c) for one, cells in zip(loaded, groups) for c in cells]
    print(estimated(labelled, title))
    return 0


def estimated(labelled: Sequence[tuple[str, Cell]], title: str, refused: Mapping[str, str] = estimate.NONE) -> str:
    """The text for `--plan`: cells, finished cells and hours of cells, which are labelled by their part of the plan.

    Args:
        refused: configurations that cannot be run -> why.
    """
    return estimate.estimate(labelled, store_of([cell for _, cell in labelled]), ASSUMED).text(title, refused)


def describe(request: Request) -> None:
    """Print the parameters of the mappings that are named, and the list of experiments."""
    print(pages.parameters(request), end="\n\n")
    print("experiments:")
    for one in compose.names_in("experiment"):
        print(f"  {one:24s} {compose.page('experiment', one)['title']}")
