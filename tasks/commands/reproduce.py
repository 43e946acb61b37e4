"""Run experiments given by name: plan all cells, then run the missing ones and print the tables (`driver`)."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from repro import launch
from repro import plan as plans
from repro.errors import near
from repro.identity import Cell, pair
from repro.launch.display import clock, fitted
from repro.plan.experiment import Added, Experiment
from repro.results import estimate
from repro.store import Store
from tasks.commands.driver import ASSUMED, Driver
from tasks.config import compose, pages
from tasks.config.overrides import lacking, merged
from tasks.config.request import REPRODUCE, Override, Request, parse
from tasks.data import DataError, Progress


def experiments(request: Request) -> list[Experiment]:
    """The experiments of a request, with the changes that it asks for. Raises ConfigError if one of them or the request is invalid."""
    further, data = [added(text) for text in request.add], named_data(request.keys)
    part = (request.rows, request.columns, request.seeds, further, data)
    return [compose.experiment(name, request.profile).adapted(*part) for name in request.names]


def outlined(request: Request, writes: bool = True) -> list[plans.Plan]:
    """The plans of a request, without data. Raises ConfigError."""
    return outline(experiments(request), request.overrides, writes)


class Work:
    """The cells of plans without data, with their store and what they cost."""

    def __init__(self, outlines: Sequence[plans.Plan]) -> None:
        self.plans = outlines
        self.labelled = [(one.experiment.columns[cell.column].label, cell) for one in outlines for cell in one.slots]
        self.cells = [cell for _, cell in self.labelled]
        self.store = store_of(self.cells)

    def cost(self) -> estimate.Estimate:
        return estimate.estimate(self.labelled, self.store, ASSUMED)

    def begin(self) -> Driver:
        """Say what will be run, and prepare the data."""
        named = [one.experiment for one in self.plans]
        for told in (check_launcher(self.cells)[1], self.on_gpu(named)):
            if told:
                print(told, file=sys.stderr)
        for one in named:
            if one.opening:
                print(fitted(one.opening), flush=True)
        cost, names = self.cost(), ", ".join(one.name for one in named)
        print(fitted(f"{names}: {cost.text('').splitlines()[-1]}. First the data are prepared"), file=sys.stderr)
        return Driver(prepared(self.plans), self.store, cost.paces)

    def on_gpu(self, named: Sequence[Experiment]) -> str:
        """What the profile gpu would take, for the demo on a machine with a GPU; or ""."""
        if named[0].profile != "demo" or self.cells[0].config["runtime"]["device"] != "cuda":
            return ""
        names = [one.name for one in named if "gpu" in compose.page("experiment", one.name)["profiles"]]
        cost = Work(outline([compose.experiment(name, "gpu") for name in names])).cost() if names else None
        return f"PROFILE=gpu: about {max(1, round(cost.gpu_minutes(cost.total)))} minutes here" if cost else ""


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


def prepared(outlined: Sequence[plans.Plan], sweep: str = "") -> list[plans.Plan]:
    """The plans with the data of all their cells.

    Raises StoreError if the launcher cannot start; this is checked before any data are read. Raises ConfigError if no
    column has data.
    """
    check_launcher([cell for one in outlined for cell in one.slots])
    return plans.prepared(outlined, TOOLS, sweep)


def outline(loaded: Sequence[Experiment], rest: Sequence[str] = (), writes: bool = True) -> list[plans.Plan]:
    """The plans of experiments, without data. Raises ConfigError."""
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


TOOLS = plans.Tools(lambda *_: {}, compose.module_of, compose.with_data, check_keys, Progress, (DataError,))


def added(text: str) -> Added:
    """The rows that `add=NAME,key=value,key=[values]` adds: one for each of several values, or one with a grid of them."""
    mapping, *parameters = re.split(r",(?![^\[]*\])", text)  # split at commas, except inside a list
    lists = {k: [one.strip() for one in v[1:-1].split(",")] for k, v in map(pair, parameters) if v[:1] + v[-1:] == "[]"}
    single = [p for p in parameters if pair(p)[0] not in lists]
    if not all(map(all, lists.values())):
        raise compose.ConfigError(f"add={text} has an empty value in a list; write add={mapping},KEY=[0.01,0.1]")
    rows = [compose.own_row(mapping, [*single, *(f"{k}={v}" for k, v in point)]) for point in plans.points(lists)]
    if len(rows) == 1 or mapping not in compose.names_in("mapping"):
        return rows, None
    label = compose.own_row(mapping, [*single, *(p for p in parameters if p not in single)]).label
    return rows, replace(compose.own_row(mapping, single), label=label, grids=lists)


def named_data(keys: Mapping[str, Override]) -> str:
    """The name of the data set that a command chooses, with its file or folder; or ""."""
    place = Path(str(keys["data.path"].value)).name if "data.path" in keys else ""
    chosen = keys["data"].text if "data" in keys else ""
    return f"{place} ({chosen})" if place and chosen else chosen


def main(request: Request) -> int:
    """Run experiments and print their tables. Returns the exit status, 1 if a cell failed.

    Raises:
        ValueError: the configuration is invalid.
        DataError: data are unavailable.
        StoreError: the launcher cannot start, or the store cannot be read or written.
    """
    return Work(outlined(request)).begin().run()


def plan(request: Request) -> int:
    """Print the plan of experiments. Returns exit status 0. Raises ConfigError."""
    title = f"Plan of {', '.join(request.names)}, profile {request.profile}"
    print(Work(outlined(request, writes=False)).cost().text(title))
    return 0


def describe(request: Request) -> None:
    """Print the parameters of the mappings that are named, and the list of experiments."""
    print(pages.parameters(request), end="\n\n")
    print("experiments:")
    for one in compose.names_in("experiment"):
        print(f"  {one:24s} {compose.page('experiment', one)['title']}")
