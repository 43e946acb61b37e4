"""Run experiments given by name: plan all cells, then run the missing ones and print the tables (`driver`)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from repro import launch
from repro import plan as plans
from repro.plan.experiment import Experiment, Row
from repro.results import estimate
from repro.store import Store
from tasks.commands.driver import Driver, Planned, drive, notes, refuse_empty
from tasks.commands.rates import ASSUMED
from tasks.config import compose, pages
from tasks.config.options import near
from tasks.config.overrides import lacking, merged
from tasks.data import DataError, Progress

OWN = ("profile", "seeds", "add", "rows", "columns")  # arguments of this command; everything else is Hydra's
TOOLS = plans.Tools(lambda overrides, user: {}, compose.module_of, compose.with_data, Progress, (DataError,))
Slots = tuple[Experiment, list[plans.Wanted], list[str]]


def asked(names: Sequence[str], overrides: Sequence[str]) -> tuple[list[Experiment], list[str]]:
    """The experiments, changed by this command's own overrides (OWN), and the remaining overrides, which are for Hydra.

    Raises ConfigError if an experiment or one of this command's overrides is invalid.
    """
    own = {key: [o.split("=", 1)[1] for o in overrides if o.startswith(f"{key}=")] for key in OWN}
    rest = [o for o in overrides if o.split("=", 1)[0] not in OWN]
    profile = (own["profile"] or ["demo"])[-1]
    read = [compose.experiment(one, profile) for one in names]
    kept = [_part(one, own["rows"][-1:], own["columns"][-1:]) for one in read]
    return [of_data(adapt(one, own["seeds"], own["add"]), rest) for one in kept], rest


def slots(name: str, overrides: Sequence[str]) -> Slots:
    """One experiment changed by `overrides`, its slots, and the overrides that are for Hydra. Raises ConfigError."""
    (one,), rest = asked([name], overrides)
    (wanted,) = outline([one], rest)
    return one, wanted, rest


def plan(names: Sequence[str], overrides: Sequence[str], announce: bool = False) -> Planned:
    """The cells of experiments, as selected by `overrides` (this command's own, OWN, and Hydra's).

    Prints the experiments' openings and prepares every data set. With `announce`, prints what will be run, and leaves
    the data to the driver where it can prepare them beside the training.

    Raises:
        ValueError: a name or configuration is invalid.
        DataError: data are unavailable.
    """
    loaded, rest = asked(names, overrides)
    for one in loaded:
        if one.opening:
            print(one.opening, flush=True)
    wanted = outline(loaded, rest)
    if not announce:
        return filled(loaded, wanted, rest)
    config = next(w for group in wanted for w in group).config
    launch.ready(config["launcher"], config["runtime"])
    cost = estimate.estimate([("", w) for group in wanted for w in group], Store(config["paths"]["outputs"]), ASSUMED)
    where = ", ".join(f"{config['paths']['outputs']}/report/{one.name}_{one.profile}.html" for one in loaded)
    told = cost.text("").splitlines()[-1]
    print(f"{', '.join(names)}: {told}. First the data are prepared. The report: {where}", file=sys.stderr)
    if config["launcher"]["name"] == "slurm":  # one job array for all cells
        return replace(filled(loaded, wanted, rest), cost=cost)
    empty = [plans.Plan(one, overrides=tuple(rest)) for one in loaded]
    preparation = plans.Preparation(loaded, wanted, TOOLS, rest)
    return Planned(empty, loaded[0].profile, config["runtime"], config["paths"]["outputs"], cost, preparation)


def planned(loaded: Sequence[Experiment], rest: Sequence[str] = ()) -> Planned:
    """The cells of experiments that have already been read."""
    return filled(loaded, outline(loaded, rest), rest)


def filled(
    experiments: Sequence[Experiment], slots: list[list[plans.Wanted]], rest: Sequence[str], sweep: str = ""
) -> Planned:
    """The cells for the slots, with their data prepared.

    Raises StoreError if the launcher cannot start; this is checked before any data are read. Raises ConfigError if no
    column has data.
    """
    config = next(w for group in slots for w in group).config
    launch.ready(config["launcher"], config["runtime"])
    made = plans.fill(experiments, slots, TOOLS, rest, sweep=sweep)
    refuse_empty(made)
    for note in notes(made):
        print(note, file=sys.stderr)
    return Planned(made, experiments[0].profile, config["runtime"], config["paths"]["outputs"])


def outline(loaded: Sequence[Experiment], rest: Sequence[str] = ()) -> list[list[plans.Wanted]]:
    """The slots of experiments. Reads no data."""
    for one in loaded:
        check_keys(one, rest)
    with compose.composer() as composed:
        return plans.outline(loaded, replace(TOOLS, compose=composed), rest)


def check_keys(one: Experiment, overrides: Sequence[str]) -> None:
    """Raise ConfigError if a key is misspelt, before every slot is composed and the values' check imports torch."""
    keys = {o: o.partition("=")[0] for o in overrides}
    for o, key in keys.items():
        if not key.startswith("~") and "." not in key and near(key, OWN) and (key != "seed" or "," in o):
            raise compose.ConfigError(
                f"{o} is not an option of experiments{near(key, OWN)}; theirs: {', '.join(OWN)}, and configuration keys"
            )
    if not any(key == "mapping" for key in keys.values()):
        for key in keys.values():
            if key.startswith("mapping."):
                lacking(key, dict.fromkeys(row.mapping for row in one.rows))
    if keys and one.columns and one.rows:
        others = [o for o, key in keys.items() if key.lstrip("+~").partition(".")[0] != "mapping"]
        merged("main", [*one.columns[0].overrides, f"profile={one.profile}", *one.rows[0].changes, *others])


def of_data(one: Experiment, overrides: Sequence[str]) -> Experiment:
    """The experiment with the data set from `overrides` in every column.

    The column headings name the data set, and the paper's numbers are left out.
    """
    said = {o.lstrip("+").partition("=")[0]: o.partition("=")[2] for o in overrides}
    if "data" not in said:
        return one
    place = Path(said["data.path"].strip("'\"")).name if "data.path" in said else ""
    label = f"{place} (data={said['data']})" if place else f"data={said['data']}"
    several = len(one.columns) > 1
    columns = [
        replace(c, label=f"{label}, {c.key}" if several else label, published=(), not_comparable="other data")
        for c in one.columns
    ]
    return replace(one, columns=tuple(columns), opening="")  # which is about the experiment's own data


def adapt(one: Experiment, seeds: Sequence[str], added: Sequence[str]) -> Experiment:
    """Apply `seeds=1,2,3` and `add=NAME,key=value` from the command line, which set the seeds and add rows."""
    if seeds:
        try:
            one = replace(one, seeds=tuple(dict.fromkeys(int(s) for s in seeds[-1].split(","))))
        except ValueError:
            raise compose.ConfigError(f"seeds={seeds[-1]} must be whole numbers, as in seeds=1,2,3") from None
    return replace(one, rows=(*one.rows, *(row for text in added for row in _added(one, text))))


def _part(one: Experiment, rows: Sequence[str], columns: Sequence[str]) -> Experiment:
    """Keep the rows and columns selected by, for example, `rows=softmax|csparse*` and `columns=fren`.

    Rows are matched by label, columns by name or label; their order is that of the experiment. Raises ConfigError if a
    pattern matches nothing.
    """

    def fitting(
        what: str, asked: Sequence[str], having: Sequence[Any], names: Callable[[Any], Sequence[str]]
    ) -> tuple[Any, ...]:
        patterns = [pattern for text in asked for pattern in text.split("|")]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for each in having for name in names(each)):
                told = "; ".join(names(each)[0] for each in having)
                raise compose.ConfigError(
                    f"{what}={pattern} is in no {what[:-1]} of {one.name} under profile {one.profile}: {told} (several: '{what}=ONE|OTHER')"
                )
        return tuple(e for e in having if not patterns or any(fnmatchcase(n, p) for p in patterns for n in names(e)))

    kept = fitting("columns", columns, one.columns, lambda column: (column.key, column.label))
    return replace(one, rows=fitting("rows", rows, one.rows, lambda row: (row.label,)), columns=kept)


def _added(one: Experiment, text: str) -> list[Row]:
    """The rows that `add=NAME,key=value,key=[values]` adds.

    If every column selects a grid point on dev, several values become the grid of one row; otherwise each value becomes
    a row.
    """
    mapping, *parameters = re.split(r",(?![^\[]*\])", text)  # split at commas, except inside a list
    lists = {k: v[1:-1].split(",") for k, _, v in (p.partition("=") for p in parameters) if v[:1] + v[-1:] == "[]"}
    single = [p for p in parameters if p.partition("=")[0] not in lists]
    if any(not v.strip() for values in lists.values() for v in values):
        raise compose.ConfigError(f"add={text} has an empty value in a list; write add={mapping},KEY=[0.01,0.1]")
    points = [[f"{k}={v.strip()}" for k, v in point] for point in plans.points(lists)]
    if len(points) == 1 or mapping not in compose.names_in("mapping") or any(c.select is None for c in one.columns):
        return [compose.own_row(mapping, [*single, *point]) for point in points]
    for point in points:
        compose.own_row(mapping, point)  # raises an error if this is not a parameter
    grid = {k: [v.strip() for v in values] for k, values in lists.items()}
    told = compose.own_row(mapping, [*single, *(p for p in parameters if p not in single)]).label
    return [replace(compose.own_row(mapping, single), label=told, grids={c.grid: grid for c in one.columns})]


def main(names: Sequence[str], overrides: Sequence[str], only_plan: bool = False) -> int:
    """Run experiments and print their tables; with `only_plan`, print only the plan.

    Returns:
        exit status: 0 if no cell failed, 1 if a cell failed, 130 after Ctrl-C.

    Raises:
        ValueError: the configuration is invalid.
        DataError: data are unavailable.
        StoreError: the launcher cannot start, or the store cannot be read or written.
    """
    if only_plan:
        loaded, rest = asked(names, overrides)
        slots = zip(loaded, outline(loaded, rest))
        title = f"Plan of {', '.join(names)}, profile {loaded[0].profile}"
        labelled = [(one.columns[w.column].label, w) for one, group in slots for w in group]
        print(estimated(labelled, title))
        return 0
    todo = plan(names, overrides, announce=True)
    return drive(Driver(todo, Store(todo.outputs)))


def estimated(labelled: Sequence[tuple[str, plans.Wanted]], title: str) -> str:
    """The text for `--plan`: cells, finished cells and hours of slots, which are labelled by their part of the plan."""
    store = Store(labelled[0][1].config["paths"]["outputs"])
    return estimate.estimate(labelled, store, ASSUMED).text(title)


def describe(overrides: Sequence[str]) -> None:
    """Print the parameters of the mappings named in `overrides`, and the list of experiments."""
    print(pages.parameters(overrides), end="\n\n")
    print("experiments:")
    for one in compose.names_in("experiment"):
        print(f"  {one:24s} {compose.page('experiment', one)['title']}")
