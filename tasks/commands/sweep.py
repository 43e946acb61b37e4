"""Sweeps: `scripts/train.py -m`, in the syntax of Hydra's basic sweeper, with all cells run by one driver.

    task=toy mapping=sparsegen_lin,oscarmax seed=1,2,3 grid=paper       every mapping over its own grid (configs/mapping)
    task=toy mapping=glob(*)                                            the mappings that fit; the others are listed
    experiment=laha2018_table2 seed=1,2                                 an experiment with its rows, grids and tables

Each sweep has a folder `<outputs>/sweeps/<name>` with its manifest, table and plots. Command lines that choose another
sweeper or a launcher of Hydra (`hydra/sweeper=optuna`) are run by Hydra.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from repro import plan as plans
from repro.launch.display import Display, name
from repro.plan import Wanted
from repro.plan.experiment import Column, Experiment, Row
from repro.results import records
from repro.store import Store, check_names
from tasks.commands import compare, reproduce
from tasks.config import compose
from tasks.config.options import near, short
from tasks.config.overrides import OF_SWEEPS, ConfigError, Swept, lacking, merged, swept

FLAGS = ("-m", "--multirun", "--plan")
GRIDS = ("paper",)  # the grid of each mapping's configuration file
WHERE = ("runtime", "paths", "logger", "launcher", "sweep")  # nodes that may change when a sweep is continued
SHOWN = 12  # most invalid configurations that are printed one by one


@dataclass
class Asked:
    """A parsed command line: the swept values by key, and the sweep's own arguments."""

    arguments: list[str]
    keys: dict[str, Swept]
    sweep: str = ""
    grid: str = ""
    experiments: list[str] = field(default_factory=list)
    only_plan: bool = False

    @property
    def lasting(self) -> list[str]:
        """The arguments that identify the sweep: all except those that may change when it is continued."""
        return sorted(a for a in self.arguments if a.lstrip("+~").split("=")[0].split(".")[0] not in WHERE)


@dataclass
class Resolved:
    """The cells of a sweep, before any data are read.

    Attributes:
        experiments, slots: the experiments, and the slots of each.
        left_out: configurations in which a value from a glob does not fit: configuration -> reason.
        wrong: invalid configurations: configuration -> reason.
        without: key of a mapping's parameter -> the mappings that have no such parameter, and run without it.
    """

    experiments: list[Experiment]
    slots: list[list[Wanted]]
    left_out: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    without: dict[str, list[str]] = field(default_factory=dict)


def ours(arguments: Sequence[str]) -> bool:
    """True if this module runs the command line (sweep or plan), False if Hydra does (its flags, sweepers, launchers).

    Raises ConfigError if the command line has sweep arguments that are not available there.
    """
    flags = [a for a in arguments if a.startswith("-")]
    hydras = [a for a in arguments if a.lstrip("+~").startswith(("hydra/", "hydra."))]
    own = [a for a in arguments if a.split("=")[0] in OF_SWEEPS]
    if own and (hydras or not set(FLAGS) & set(flags)):
        why = f"{hydras[0]} gives the sweep to Hydra, which knows no" if hydras else "a sweep needs -m, for"
        if not (hydras and all(a.startswith("sweep=") for a in own)):
            raise ConfigError(f"{own[0]} is not available here: {why} {own[0].split('=')[0]}=")
    return bool(set(FLAGS) & set(flags)) and set(flags) <= set(FLAGS) and not hydras


def read(arguments: Sequence[str]) -> Asked:
    """Parse a command line. Raises ConfigError for invalid syntax or invalid values of this module's own arguments."""
    overrides = [a for a in arguments if a not in FLAGS]
    asked = Asked(overrides, swept([o for o in overrides if o.split("=")[0] not in ("sweep", "grid")]))
    asked.only_plan = "--plan" in arguments
    for key in ("sweep", "grid"):
        setattr(asked, key, next((o.split("=", 1)[1] for o in reversed(overrides) if o.startswith(f"{key}=")), ""))
    if asked.grid and asked.grid not in GRIDS:
        raise ConfigError(f"grid={asked.grid} is unknown{near(asked.grid, GRIDS)}; allowed: {', '.join(GRIDS)}")
    if any(o.startswith("sweep=") for o in overrides):
        check_name(asked.sweep)
    if chosen := asked.keys.pop("experiment", None):
        asked.experiments = [o.split("=", 1)[1] for o in chosen.overrides]
        if asked.grid:
            raise ConfigError(
                "grid=paper does not go with experiment=: the experiment file has the grid of each row; leave grid= out"
            )
    return asked


def check_name(text: str) -> None:
    """Raise ConfigError if a name is not valid for the folder of a sweep."""
    if not compose.NAME.fullmatch(text):
        raise ConfigError(
            f"sweep={short(text)} must be a name of up to 64 letters, digits, - and _: its folder is called so"
        )


# ---- the cells of a sweep


def resolve(asked: Asked, every: bool = False) -> Resolved:
    """Compose and check every configuration. Raises ConfigError or PlanError if all of them are invalid.

    A mapping without one of the swept parameters runs once, without it; with `every`, that is an invalid configuration.
    """
    with compose.composer() as composed:
        tools = replace(reproduce.TOOLS, compose=composed)
        return _of_experiments(asked, tools) if asked.experiments else _of_keys(asked, tools, every)


def _without(keys: Mapping[str, Swept]) -> dict[str, list[str]]:
    """Key of a mapping's parameter -> the mappings of the sweep that have no such parameter.

    Raises ConfigError, before the slow imports that checking a value needs, if a key is unknown.
    """
    chosen = keys.get("mapping")
    mappings = [_pair(o)[1].strip("'\"") for o in chosen.overrides] if chosen else ["softmax"]
    found = {key: lacking(key, mappings) for key in keys if key.startswith("mapping.")}
    others = [one for key, one in keys.items() if key.partition(".")[0] != "mapping"]
    if not any(one.glob for one in others):
        merged("main", [one.overrides[0] for one in others])
    return {} if chosen and chosen.glob else {key: names for key, names in found.items() if names}


def _combinations(keys: Mapping[str, Swept]) -> Iterator[tuple[str, ...]]:
    return itertools.product(*(one.overrides for one in keys.values()))


def _of_keys(asked: Asked, tools: plans.Tools, every: bool) -> Resolved:
    keys = dict(asked.keys)
    without = {} if every else _without(keys)
    seeds = keys.pop("seed").overrides if "seed" in keys else [""]
    varied = [one for one in keys.values() if len(one.overrides) > 1 or one.glob]
    rows: dict[str, int] = {}
    columns: dict[str, int] = {}
    labels: list[Column] = []
    slots: list[Wanted] = []
    found = Resolved([], [slots], without=without)
    whole: dict[str, list[str]] = {}  # values of globs -> invalid configurations with them
    fitting: set[str] = set()
    for chosen in dict.fromkeys(_applicable(keys, given, without) for given in _combinations(keys)):
        base = tuple(o for _, o in chosen)
        told = ", ".join(o for key, o in chosen if keys[key] in varied) or ", ".join(base)
        globbed = ", ".join(o for key, o in chosen if keys[key].glob)
        try:
            point = tuple(_pair(o) for key, o in chosen if keys[key] in varied and key not in ("task", "mapping"))
            for more in _grid(base, tools) if asked.grid else [()]:
                assigned = [f"mapping.{key}={plans.text(value)}" for key, value in more]
                for seed in seeds:
                    config = tools.compose([*base, *assigned, *([seed] if seed else [])], base)
                    task, mapping = config["task"]["name"], config["mapping"]["name"]
                    check_names(task, mapping)
                    row = rows.setdefault(mapping, len(rows))
                    w = Wanted(row, 0, (*point, *more), config["seed"], config, tools.module_of(config))
                    column = columns.setdefault(w.data_key, len(columns))
                    if column == len(labels):
                        labels.append(Column(task, task, ()))
                    slots.append(replace(w, column=column) if column else w)
                    fitting.add(globbed)
        except (ConfigError, ValueError) as error:
            if globbed:
                found.left_out[told] = str(error)
                whole.setdefault(globbed, []).append(told)
            else:
                found.wrong[told] = str(error)
    for values, places in whole.items():
        if values not in fitting:
            found.left_out = {k: v for k, v in found.left_out.items() if k not in places} | {
                values: found.left_out[places[0]]
            }
    if not slots:
        raise ConfigError("; ".join(dict.fromkeys([*found.wrong.values(), *found.left_out.values()])))
    title = f"Sweep of {', '.join(one.text for one in asked.keys.values() if one in varied) or 'one setting'}"
    profile = slots[0].config["profile"]["name"]
    found.experiments = [Experiment("sweep", profile, title, tuple(Row(m, m) for m in rows), tuple(labels), ())]
    return found


def _applicable(
    keys: Iterable[str], given: Sequence[str], without: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, str], ...]:
    """The pairs (key, override) of a combination, without the parameters that its mapping does not have."""
    mapping = next((_pair(o)[1].strip("'\"") for key, o in zip(keys, given) if key == "mapping"), "softmax")
    return tuple((key, o) for key, o in zip(keys, given) if mapping not in without.get(key, ()))


def _pair(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key.lstrip("+").removeprefix("mapping."), value


def _grid(base: Sequence[str], tools: plans.Tools) -> list[plans.Point]:
    """The points of the mapping's own grid, without the parameters that the command line sets."""
    given = {_pair(o)[0] for o in base if o.lstrip("+").startswith("mapping.")}
    grid = tools.compose(base, base)["mapping"]["grid"]
    return plans.points({k: v for k, v in grid.items() if k not in given})


def _of_experiments(asked: Asked, tools: plans.Tools) -> Resolved:
    keys = dict(asked.keys)
    profiles = keys.pop("profile").overrides if "profile" in keys else ["profile=demo"]
    seeds = [o.split("=", 1)[1] for o in keys.pop("seed").overrides] if "seed" in keys else []
    mappings = [o.split("=", 1)[1] for o in keys.pop("mapping").overrides] if "mapping" in keys else []
    combinations = list(_combinations(keys))
    several = len(combinations) > 1
    found = Resolved([], [])
    for (n, more), profile, title in itertools.product(enumerate(combinations, 1), profiles, asked.experiments):
        one = compose.experiment(title, profile.split("=", 1)[1])
        one = reproduce.of_data(reproduce.adapt(one, [",".join(seeds)] if seeds else [], []), more)
        if mappings:
            there = [row.mapping for row in one.rows]
            if lost := [m for m in mappings if m not in there]:
                raise ConfigError(
                    f"experiment={title} has no row of mapping={lost[0]}{near(lost[0], there)}; it has: {', '.join(dict.fromkeys(there))}"
                )
            one = replace(one, rows=tuple(row for row in one.rows if row.mapping in mappings))
        reproduce.check_keys(one, more)
        if several:
            one = replace(one, name=f"{one.name}_{n}", title=f"{one.title} ({', '.join(more)})")
        found.experiments.append(one)
        found.slots += plans.outline([one], tools, more)
    return found


# ---- the folder of a sweep


def folder_of(store: Store, asked: Asked, resolved: Resolved) -> Path:
    """A new folder, or the folder of an earlier sweep with the same name and arguments.

    Raises ConfigError if a sweep with this name has other arguments.
    """
    root = store.root / "sweeps"
    if asked.sweep:
        folder = root / asked.sweep
        before = compare.read_manifest(folder)
        if before is not None and before.get("asked") != asked.lasting:
            raise ConfigError(
                f"sweep={asked.sweep} exists already, with other arguments: {' '.join(before.get('asked') or ['?'])}; choose another name"
            )
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    return new_folder(root, _words(asked, resolved))


def new_folder(root: Path, words: str) -> Path:
    """Make a new folder, named after `words` and the current time."""
    stem = f"{words[:40].strip('-_')}_{time.strftime('%Y%m%d-%H%M%S')}"
    for n in itertools.count(1):
        folder = root / (stem if n == 1 else f"{stem}-{n}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
    raise AssertionError


def _words(asked: Asked, resolved: Resolved) -> str:
    if asked.experiments:
        return "-".join(asked.experiments)
    one = resolved.experiments[0]
    mappings = [row.label for row in one.rows]
    said = "-".join(mappings) if len(mappings) <= 3 else f"{len(mappings)}_mappings"
    return "-".join([*dict.fromkeys(c.key for c in one.columns), said])


# ---- running


def main(arguments: Sequence[str]) -> int:
    """Run a sweep or print its plan; raises the same errors as `reproduce.main`.

    Returns:
        exit status: 0, 1 if a cell failed (for a plan: if a configuration is invalid), 130 after Ctrl-C.
    """
    asked = read(arguments)
    resolved = resolve(asked)
    tell(resolved)
    if asked.only_plan:
        wanted = [
            (one.columns[w.column].label + (f", {one.rows[w.row].label}" if one.name == "sweep" else ""), w)
            for one, group in zip(resolved.experiments, resolved.slots)
            for w in group
        ]
        print(reproduce.estimated(wanted, f"Plan of: {' '.join(asked.arguments)}"))
        return int(bool(resolved.wrong))
    refuse_wrong(resolved)
    store = Store(next(w for group in resolved.slots for w in group).config["paths"]["outputs"])
    folder = folder_of(store, asked, resolved)
    overrides = [o for o in asked.arguments if o.split("=")[0] not in OF_SWEEPS]
    planned = reproduce.filled(resolved.experiments, resolved.slots, overrides, folder.name)
    return reproduce.drive(Sweep(planned, store, asked=asked, resolved=resolved, folder=folder))


def refuse_wrong(resolved: Resolved) -> None:
    """Raise ConfigError if an explicitly named configuration is invalid; a sweep starts only if all of them can run."""
    if resolved.wrong:
        raise ConfigError(
            f"nothing was run, because of {short(', '.join(resolved.wrong))}; correct the values, or use glob(...), which "
            "leaves out what does not fit"
        )


def tell(resolved: Resolved) -> None:
    """Print on stderr which configurations are left out, which are invalid, and which parameters do not apply."""
    for key, names in resolved.without.items():
        print(f"{key} is not a parameter of {', '.join(names)}: run once, without it", file=sys.stderr)
    for what, told in (("left out", resolved.left_out), ("cannot be run", resolved.wrong)):
        for n, (where, why) in enumerate(told.items()):
            if n < SHOWN or what == "left out":
                print(f"{what}: {where}: {why}", file=sys.stderr)
        if len(told) > SHOWN and what != "left out":
            print(f"and {len(told) - SHOWN} more that cannot be run", file=sys.stderr)


@dataclass
class Sweep(reproduce.Driver):
    """The driver of a sweep, which prints one table of all cells at the end, and the tables of experiments."""

    asked: Asked = field(default_factory=lambda: Asked([], {}))
    resolved: Resolved = field(default_factory=lambda: Resolved([], []))
    folder: Path = Path()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._manifest()

    def _manifest(self) -> None:
        states = (
            dict.fromkeys(self.cells, "queued")
            | dict.fromkeys(self.done, "done")
            | dict.fromkeys(self.failed, "failed")
        )
        cells = [
            {"cell": f"{c.task}/{c.mapping}/{c.training_id}", "setting": c.label, "seed": c.seed, "state": states[key]}
            for key, c in self.cells.items()
        ]
        compare.write_manifest(
            self.folder, self.asked.lasting, cells, command=self.asked.arguments, left_out=self.resolved.left_out
        )

    def _print_complete(self, display: Display) -> None:
        if self.asked.experiments:
            super()._print_complete(display)

    def conclude(self) -> int:
        """Write the comparison and the tables of experiments. Returns the exit status."""
        failed = super().conclude() if self.asked.experiments else self.count()
        for one in self.planned.plans:
            for c, why in one.unavailable.items():
                print(f"not run: {one.experiment.columns[c].label}: {why}", file=sys.stderr)
                failed = 1
        self._manifest()
        lost = [
            f"{name(cell)} failed: {self.failed[key].splitlines()[0]}"
            for key, cell in self.cells.items()
            if key in self.failed
        ]
        notes = [*lost, *(f"Left out: {k}: {v}." for k, v in self.resolved.left_out.items())]
        title = " and ".join(dict.fromkeys(e.title for e in self.resolved.experiments))
        print_comparison(records.of_cells(self.cells.values(), self.store), self.folder, title, notes)
        return 1 if failed else 0


def print_comparison(found: Sequence[records.Record], folder: Path, title: str, notes: Sequence[str]) -> None:
    """Print the table of finished cells and write it to files."""
    if not found:
        print(f"no cell of this sweep is finished; its manifest: {folder / 'manifest.json'}")
        return
    compare.show(found, folder, title, notes)
    print(f"again at any time: python scripts/compare.py sweep={folder.name}")
