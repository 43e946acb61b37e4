"""Sweeps: `scripts/train.py -m`, in the syntax of Hydra's basic sweeper, with all cells run by one driver.

    task=toy mapping=sparsegen_lin,oscarmax seed=1,2,3 grid=paper       every mapping over its own grid (configs/mapping)
    task=toy mapping=glob(*)                                            the mappings that fit; the others are listed

Each sweep has a folder `<outputs>/sweeps/<name>` with its manifest, table and plots. Command lines that choose another
sweeper or a launcher of Hydra (`hydra/sweeper=optuna`) are run by Hydra.
"""

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from repro import plan as plans
from repro.errors import ConfigError, short
from repro.identity import Cell, Results
from repro.plan.experiment import Column, Experiment, Row
from repro.results import estimate, records
from repro.store import Store, check_names, elsewhere
from repro.tables.compare import groups
from tasks.commands import compare, reproduce
from tasks.commands.driver import ASSUMED
from tasks.config import compose
from tasks.config.overrides import lacking
from tasks.config.request import Override, Request, own_mappings

WHERE = ("runtime.", "paths.", "logger", "launcher", "sweep=")  # what may change when a sweep is continued
SHOWN = 12  # maximum number of invalid configurations that are printed one by one
Keys = Mapping[str, Override]


@dataclass
class Outline(plans.Plan):
    """The plan of a sweep: a table with a row for each mapping and a column for each data set.

    Attributes:
        left_out: configurations in which a value from a glob does not fit: configuration -> reason.
        wrong: invalid configurations: configuration -> reason.
        without: key of a mapping's parameter -> the mappings that lack this parameter and run once.
    """

    left_out: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    without: dict[str, list[str]] = field(default_factory=dict)


def lasting(request: Request) -> list[str]:
    """The arguments that identify a sweep: all except those that may change when it is continued."""
    return sorted(text for text in request.typed if not text.lstrip("+~").startswith(WHERE))


# ---- the cells of a sweep


def outline(request: Request) -> Outline:
    """Compose and check every configuration. Raises ConfigError if all of them are invalid.

    A mapping without one of the swept parameters runs once, without it.
    """
    with compose.composer(writes=not request.plan) as composed:
        return _outlined(request, replace(reproduce.TOOLS, compose=composed))


def _without(keys: Keys) -> dict[str, list[str]]:
    """Key of a mapping's parameter -> the mappings of the sweep that have no such parameter.

    Raises ConfigError, before the slow imports that checking a value needs, if a key is unknown.
    """
    mappings = keys["mapping"].values if "mapping" in keys else ("softmax",)
    own = own_mappings(keys.values())
    set_ = [k for k, one in keys.items() if k.startswith("mapping.") and (not one.adds or own)]
    found = {key: lacking(key, mappings, own) for key in set_}
    glob = "mapping" in keys and keys["mapping"].glob
    return {} if glob else {key: names for key, names in found.items() if names}


def _outlined(request: Request, tools: plans.Tools) -> Outline:
    keys = dict(request.keys)
    outlined = Outline(Experiment("sweep", "", "", (), (), ()), overrides=request.overrides, without=_without(keys))
    cells = outlined.slots
    seeds = keys.pop("seed").texts if "seed" in keys else [""]
    varied = [key for key, one in keys.items() if len(one.texts) > 1 or one.glob]
    rows: dict[str, Row] = {}  # by mapping
    columns: dict[str, Column] = {}  # by the key of their data
    combinations = []
    for every in itertools.product(*(one.each for one in keys.values())):
        mapping = next((one.value for one in every if one.key == "mapping"), "softmax")
        combinations.append(tuple(one for one in every if mapping not in outlined.without.get(one.key, ())))
    for chosen in dict.fromkeys(combinations):
        base = tuple(one.text for one in chosen)
        told = ", ".join(one.text for one in chosen if one.key in varied) or ", ".join(base)
        try:
            points = [one for one in chosen if one.key in varied and one.key not in ("task", "mapping")]
            point = tuple((one.key, one.values[0]) for one in points)
            for more in _grid(chosen, tools) if request.grid else [()]:
                assigned = [f"{key}={plans.text(value)}" for key, value in more]
                for seed in seeds:
                    config = tools.compose([*base, *assigned, *([seed] if seed else [])], base)
                    task, mapping = config["task"]["name"], config["mapping"]["name"]
                    check_names(task, mapping)
                    rows.setdefault(mapping, Row(mapping, mapping))
                    cell = Cell(config, tools.module_of(config), row=[*rows].index(mapping), point=(*point, *more))
                    columns.setdefault(cell.data_key, Column(task, task, ()))
                    cells.append(replace(cell, column=[*columns].index(cell.data_key)))
        except (ConfigError, ValueError) as error:
            globbed = any(keys[one.key].glob for one in chosen)
            (outlined.left_out if globbed else outlined.wrong)[told] = str(error)
    if not cells:
        raise ConfigError([*outlined.wrong.values(), *outlined.left_out.values()])
    swept = [one.text for key, one in request.keys.items() if key in varied]
    title, profile = f"Sweep of {', '.join(swept) or 'one setting'}", cells[0].config["profile"]["name"]
    table = {"rows": tuple(rows.values()), "columns": tuple(columns.values())}
    outlined.experiment = replace(outlined.experiment, profile=profile, title=title, **table)
    return outlined


def _grid(chosen: Sequence[Override], tools: plans.Tools) -> list[plans.Point]:
    """The points of the mapping's own grid, without the parameters that the command line sets."""
    base = [one.text for one in chosen]
    given = {one.key for one in chosen}
    grid = {f"mapping.{k}": values for k, values in tools.compose(base, base)["mapping"]["grid"].items()}
    return plans.points({k: values for k, values in grid.items() if k not in given})


# ---- the folder of a sweep


def earlier(request: Request, root: Path) -> dict[str, Any]:
    """The manifest of an earlier sweep with the same name; {} if there is none.

    Raises ConfigError if its arguments are not the same, but for seeds.
    """
    before = (compare.read_manifest(root / request.sweep) if request.sweep else None) or {}
    if before and _without_seeds(before.get("asked") or ["?"]) != _without_seeds(lasting(request)):
        told = f"sweep={request.sweep} exists already, with other arguments: {' '.join(before.get('asked') or ['?'])}"
        raise ConfigError(f"{told}; only seeds can be added to it; choose another name")
    return before


def grown(request: Request, outlined: Outline, before: Mapping[str, Any]) -> Request:
    """The request with the seeds of an earlier sweep, from its manifest, in addition to its own."""
    asked = dict.fromkeys(cell.seed for cell in outlined.slots)
    known = dict.fromkeys(int(one["seed"]) for one in before.get("cells", ()))
    if known.keys() <= asked.keys():
        return request
    every = ",".join(map(str, sorted(known | asked)))
    told = f"it had the seeds {', '.join(map(str, sorted(known)))}"
    print(f"sweep={request.sweep} exists already: {told}; it now has seed={every}", file=sys.stderr)
    overrides, typed = ((*_without_seeds(words), f"seed={every}") for words in (request.overrides, request.typed))
    return replace(request, overrides=overrides, typed=typed)


def _without_seeds(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.lstrip("+~").startswith("seed=")]


def folder_of(root: Path, request: Request, outlined: Outline) -> Path:
    """The folder of a sweep that has a name, or a new one."""
    if request.sweep:
        (root / request.sweep).mkdir(parents=True, exist_ok=True)
        return root / request.sweep
    mappings = [row.label for row in outlined.experiment.rows]
    said = "-".join(mappings) if len(mappings) <= 3 else f"{len(mappings)}_mappings"
    return new_folder(root, "-".join([*dict.fromkeys(c.key for c in outlined.experiment.columns), said]))


def new_folder(root: Path, words: str) -> Path:
    """Make a new folder, named after `words` and the current time in microseconds."""
    folder = root / f"{words[:40].strip('-_')}_{datetime.now():%Y%m%d-%H%M%S-%f}"
    folder.mkdir(parents=True)
    return folder


# ---- running


def plan(request: Request) -> int:
    """Print the plan of a sweep, with the configurations that cannot be run. Returns exit status 0. Raises ConfigError."""
    request, outlined = whole(request)
    tell(replace(outlined, wrong={}))
    one = outlined.experiment
    labelled = [(f"{one.columns[c.column].label}, {one.rows[c.row].label}", c) for c in outlined.slots]
    cost = estimate.estimate(labelled, reproduce.store_of(outlined.slots), ASSUMED)
    print(cost.text(f"Plan of: {' '.join(request.typed)}", outlined.wrong))
    return 0


def main(request: Request) -> int:
    """Run a sweep; raises the same errors as `reproduce.main`. Returns the exit status, 1 if a cell failed."""
    request, outlined = whole(request)
    tell(outlined)
    if outlined.wrong:  # a sweep starts only if every configuration that is named can run
        told = f"nothing was run, because of {short(', '.join(outlined.wrong))}"
        raise ConfigError(f"{told}; correct the values, or use glob(...), which leaves out what does not fit")
    store = reproduce.store_of(outlined.slots)
    folder = folder_of(store.root / "sweeps", request, outlined)
    return Sweep(reproduce.prepared([outlined], folder.name), store, request=request, folder=folder).run()


def whole(request: Request) -> tuple[Request, Outline]:
    """The request and its cells, with the seeds of an earlier sweep with the same name (`grown`)."""
    outlined = outline(request)
    before = earlier(request, reproduce.store_of(outlined.slots).root / "sweeps")
    more = grown(request, outlined, before)
    return (request, outlined) if more is request else (more, outline(more))


def tell(outlined: Outline) -> None:
    """Print on stderr which configurations are left out, which are invalid, and which parameters do not apply."""
    said = [f"{k} is not a parameter of {', '.join(m)}: run once, without it" for k, m in outlined.without.items()]
    said += [f"left out: {where}: {why}" for where, why in outlined.left_out.items()]
    said += [f"cannot be run: {where}: {why}" for where, why in list(outlined.wrong.items())[:SHOWN]]
    if (more := len(outlined.wrong) - SHOWN) > 0:
        said.append(f"and {more} more that cannot be run")
    print("".join(f"{line}\n" for line in said), end="", file=sys.stderr)


@dataclass
class Sweep(reproduce.Driver):
    """The driver of a sweep, which prints one table of all cells at the end."""

    request: Request = Request()
    folder: Path = Path()

    def __post_init__(self) -> None:
        super().__post_init__()
        (outlined,) = self.plans
        self.left_out = outlined.left_out if isinstance(outlined, Outline) else {}
        self._manifest()

    def _manifest(self) -> None:
        cells = []
        for key, cell in self.cells.items():
            state = "done" if key in self.done else "failed" if key in self.failed else "queued"
            place = f"{cell.task}/{cell.mapping}/{cell.training_id}"
            at = {"setting": cell.label, "point": dict(cell.point), "seed": cell.seed}
            cells.append({"cell": place, **at, "state": state})
        more = {"command": list(self.request.typed), "left_out": self.left_out}
        compare.write_manifest(self.folder, lasting(self.request), cells, **more)

    def _print_complete(self) -> None:
        """There is no table before the end."""

    def conclude(self) -> int:
        """Write the comparison. Returns the exit status."""
        (plan,), failed = self.plans, self.count()
        notes = [f"Not run: {plan.experiment.columns[c].label}: {why}" for c, why in plan.unavailable.items()]
        print("".join(f"{note}\n" for note in notes), end="", file=sys.stderr)
        self._manifest()
        notes += [f"Left out: {k}: {v}." for k, v in self.left_out.items()]
        results = records.of_cells(self.cells.values(), self.store)
        print_comparison(results, self.folder, plan.experiment.title, notes)
        return 1 if failed or plan.unavailable else 0


def print_comparison(results: Sequence[Results], folder: Path, title: str, notes: Sequence[str]) -> None:
    """Print the table of finished cells and write it to files."""
    told = compare.read_manifest(folder) or {}
    lost = compare.unfinished(Store(folder.parent.parent), told)
    if not results and not lost:
        print(f"no cell of this sweep is finished; its manifest: {folder / 'manifest.json'}")
        return
    compare.show(groups(results, compare.points(told)), folder, title, notes, lost)
    print(f"again at any time: python scripts/compare.py sweep={folder.name}{elsewhere(folder.parent.parent)}")
