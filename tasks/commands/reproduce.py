"""Run experiments given by name: plan all cells, run the missing ones, and print each table when it is complete."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, cast

from repro import launch, report
from repro import plan as plans
from repro.cell import Cell
from repro.identity import family
from repro.launch import pool
from repro.launch.display import Display, name
from repro.plan import estimate
from repro.plan.experiment import Experiment, Row
from repro.store import Store
from repro.tables import build as tables
from repro.tables import render
from repro.tables.blocks import Table
from tasks.commands import closing
from tasks.config import compose, pages
from tasks.config.options import near
from tasks.config.overrides import lacking, merged
from tasks.data import DataError, NullProgress, Progress, is_own
from tasks.loggers import make_loggers

# Estimated hours per epoch of the paper profile on one A100, by data set: FLOPs of the model's matrix products at 35 %
# (recurrent) or 50 % (attention) of the card's fp32 peak, or 10 microseconds per kernel if that is longer. None of this
# was measured on an A100.
RATES = {
    "baseline_1m_enfr": 0.21, "gigaword": 0.38, "imdb": 0.014, "iwslt2017": 0.05, "multi30k": 0.0017, "snli": 0.055, "vqa2": 0.38,
    "multilabel": 0.0013,
}  # fmt: skip
# Training examples of the other settings, and seconds per epoch on one core with AVX-512 at about 2.6 GHz, test sets included.
SECONDS = {
    "translation_demo": (8_900, 8), "summarization_demo": (9_500, 12), "vqa_demo": (36_700, 36), "imdb_demo": (11_500, 12), "snli_demo": (12_000, 12),
    "snli_esim_demo": (12_000, 40), "multilabel_demo": (1_200, 0.5), "fertility_demo": (8_900, 10), "translation_cpu": (29_000, 45),
    "summarization_cpu": (13_800, 20), "vqa_cpu": (36_700, 60), "imdb_cpu": (22_500, 90), "snli_cpu": (20_000, 25), "snli_esim_cpu": (20_000, 45),
    "multilabel_cpu": (1_200, 0.5), "fertility_cpu": (29_000, 25),
}  # fmt: skip
STEP = 0.005  # seconds of the training step of `slowness` on that core
OWN = ("profile", "seeds", "add", "rows", "columns")  # arguments of this command; everything else is Hydra's
DOCS = compose.ROOT / "docs" / "reference" / "tasks"
TOOLS = plans.Tools(lambda overrides, user: {}, compose.module_of, compose.with_data, Progress, (DataError,))
POLL_SECONDS = 5.0
Slots = tuple[Experiment, list[plans.Wanted], list[str]]


@dataclass(frozen=True)
class Planned:
    """The plans of experiments with all their cells, and the options shared by the cells."""

    plans: list[plans.Plan]
    profile: str
    runtime: dict[str, Any]
    outputs: str
    cost: estimate.Estimate | None = None
    preparation: plans.Preparation | None = None  # then the driver makes the plans, when their data are ready

    @property
    def launcher(self) -> dict[str, Any]:
        """The launcher of all cells."""
        slots = [slot.cell for one in self.plans for slot in one.slots]
        return (slots or [w for group in self.preparation.resolved for w in group])[0].config["launcher"]


@cache
def slowness() -> float:
    """Time of a small training step on one core of this machine, as a multiple of STEP."""
    import torch

    with torch.random.fork_rng(devices=[]):
        lstm, x = torch.nn.LSTM(128, 128, batch_first=True), torch.ones(32, 20, 128)
    times = []
    for _ in range(10):
        started = time.perf_counter()
        lstm(x)[0].sum().backward()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2] / STEP


ASSUMED = estimate.Rates(RATES, SECONDS, slowness)


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


def table(made: plans.Plan, store: Store, failed: Mapping[str, str] | None = None) -> Table:
    """The table of a plan, built from the cells in the store."""
    one = made.experiment
    claims = [claim for paper in compose.names_in("claims") for claim in compose.claims(paper)]
    return tables.build(made, store, compose.published(one.published), failed or {}, DOCS, claims)


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
    where = f"{config['paths']['outputs']}/report/{'+'.join(names)}_{loaded[0].profile}.html"
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


def refuse_empty(made: Sequence[plans.Plan]) -> None:
    """Raise ConfigError if no plan has a slot, because no data are available."""
    if not any(one.slots for one in made):
        told = "; ".join(f"{p.experiment.columns[c].label}: {why}" for p in made for c, why in p.unavailable.items())
        raise compose.ConfigError(f"no column can be run: {told}")


def notes(made: Sequence[plans.Plan]) -> list[str]:
    """What the readers of the user's own data have to say, each sentence once."""
    facts = [cell.prepared.facts for one in made for cell in one.cells.values()]
    return list(dict.fromkeys(f"note: {note}" for of in facts if is_own(of) for note in of.get("notes", ())))


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


def drive(driver: Driver) -> int:
    """Run the cells and print the tables. Returns the exit status."""
    try:
        return driver.run()
    except KeyboardInterrupt:
        done = f"stopped with {len(driver.done)} of {driver.total} cells done"
        print(f"{done}; run the same command again to continue", file=sys.stderr)
        return 130


@dataclass
class Driver:
    """Runs the cells of plans, and writes and prints each table as soon as its last cell has ended.

    The cells of one table run together, the table with the least work first and in it the longest cell. The data of
    the later tables are prepared beside the training, by processes that each take the place of a worker.
    """

    planned: Planned
    store: Store
    failed: dict[str, str] = field(default_factory=dict)  # cell id -> error with traceback
    tables: dict[int, Table] = field(default_factory=dict)
    written: list[Path] = field(default_factory=list)
    queued: set[str] = field(default_factory=set)  # cells queued by a scheduler, for which this process does not wait

    def __post_init__(self) -> None:
        self.cells: dict[str, Cell] = {}
        self.done: set[str] = set()
        self.reused = 0
        self.damaged: list[Cell] = []
        self.told: set[str] = set()
        self.unmade = set(range(len(self.planned.plans))) if self.planned.preparation else set()
        self.missing = [self._add(one) for one in self.planned.plans]  # ids of each table's cells, in order

    @property
    def total(self) -> int:
        """Number of cells, also of those whose data are not prepared yet."""
        return max(len(self.cells), len(set(self.planned.cost.keys)) if self.planned.cost and self.unmade else 0)

    def _add(self, one: plans.Plan) -> list[str]:
        """Take the cells of a plan; returns the ids of those to run that no earlier plan has, the longest first."""
        missing = []
        for key, cell in one.cells.items():
            known = self.cells.get(key)
            self.cells[key] = cell = known.with_tests(cell) if known else cell
            if known and key not in self.done:
                continue
            state = cell.state(self.store)
            self.reused += state == "done" and not known
            if state == "done":
                self.done.add(key)
                continue
            self.done.discard(key)
            missing.append(key)
            self.damaged += [cell] * (state == "damaged")
        return sorted(missing, key=lambda key: self.seconds(self.cells[key]), reverse=True)

    def seconds(self, cell: Cell) -> float:
        """How long a cell will probably take."""
        cost = self.planned.cost
        return 3600 * estimate.hours(cell.config, ASSUMED, cost.paces if cost else None)[0]

    def run(self) -> int:
        """Run the missing cells, and write the tables and the report. Returns the exit status."""
        try:
            return self._run()
        finally:
            if self.planned.preparation:
                self.planned.preparation.close()

    def _run(self) -> int:
        runtime, preparation, cost = self.planned.runtime, self.planned.preparation, self.planned.cost
        ids = [key for keys in self.missing for key in keys]
        expected = {key: self.seconds(self.cells[key]) for key in ids}
        each: list[list[str]] = self.missing
        if preparation and cost:
            keys = iter(cost.keys)
            expected = {key: 3600 * hours for key, hours in cost.left.items()}
            each = self.keys = [[next(keys) for _ in group] for group in preparation.resolved]
        self.order = sorted(range(len(each)), key=lambda n: sum(expected.get(key, 0.0) for key in set(each[n])))
        ids = [key for n in self.order for key in self.missing[n]]
        if preparation:
            while not preparation.ready(self.order[0]):
                self._prepare(runtime["workers"], TOOLS.progress)
                time.sleep(0.1)
        else:
            trained = sum(self.cells[key].entry(self.store).state() == "done" for key in ids)
            left = f"{len(ids) - trained} to run" + (f", {trained} to evaluate" if trained else "")
            where = "by Slurm" if self.planned.launcher["name"] == "slurm" else f"on {runtime['workers']} worker(s)"
            print(f"{len(self.cells)} cells: {self.reused} finished before, {left} {where}", file=sys.stderr)
        with Display(expected, runtime["workers"]) as display:
            self._begin(display)
            self._run_all(Tables(self, display) if preparation else [self.cells[key] for key in ids], display)
        # another process may have finished cells that failed here
        self.done |= {key for key in self.failed if self.cells[key].done(self.store)}
        self.failed = {key: error for key, error in self.failed.items() if key not in self.done}
        for key in self.failed:  # the error itself was printed when it happened
            where = self.cells[key].entry(self.store).path("status.json")
            print(f"{name(self.cells[key])} failed: traceback in {where} and in the report", file=sys.stderr)
        if self.queued:
            print("run the same command again to see what is done, and the tables when all cells are")
            return self.count()
        return self.conclude()

    def take(self, idle: int, display: Display) -> Cell | None:
        """The next cell, while `idle` workers have no cell; begins to prepare data in those that remain."""
        self._make(display)
        preparation = cast(plans.Preparation, self.planned.preparation)
        if idle > len(preparation.running):
            for number in self.order:
                if self.missing[number]:
                    return self.cells[self.missing[number].pop(0)]
                if number in self.unmade and preparation.next(number):
                    break
            self._prepare(idle, NullProgress if sys.stderr.isatty() else TOOLS.progress)  # a terminal shows the cells
        return None

    def _prepare(self, idle: int, progress: Callable[[], Any]) -> None:
        """Begin to prepare data in those of `idle` workers that prepare none yet, for one table after the other."""
        preparation = cast(plans.Preparation, self.planned.preparation)
        idle -= len(preparation.running)
        for number in self.order:
            while idle > 0 and number in self.unmade and (key := preparation.next(number)):
                preparation.start(key, progress)
                idle -= 1

    def _make(self, display: Display) -> None:
        """Make the plans whose data are ready."""
        preparation = cast(plans.Preparation, self.planned.preparation)
        ready = [n for n in self.order if n in self.unmade and preparation.ready(n)]
        for number in ready:
            one = self.planned.plans[number] = preparation.plan(number)
            self.unmade.remove(number)
            self.missing[number] = self._add(one)
            display.expect({key: self.seconds(self.cells[key]) for key in self.missing[number]}, self.keys[number])
        if ready and not self.unmade:
            preparation.close()
            refuse_empty(self.planned.plans)
        if ready:
            self._begin(display)

    def _begin(self, display: Display) -> None:
        """Say what there is to say of the plans that were made, and print the tables that are complete."""
        said = [f"{name(cell)}: what is stored is damaged; it is moved aside and run again" for cell in self.damaged]
        for line in [*said, *(notes(self.planned.plans) if self.planned.preparation else [])]:
            if line not in self.told:
                display.say(line)
                self.told.add(line)
        self._print_complete(display)

    def conclude(self) -> int:
        """Write the report and print the paths of all files. Returns the exit status."""
        for number, one in enumerate(self.planned.plans):
            if one.experiment.draw:
                print(closing.text(self.tables[number], one), flush=True)
        titles = "+".join(one.experiment.name for one in self.planned.plans)
        html = self.store.root / "report" / f"{titles}_{self.planned.profile}.html"
        built = [self.tables[n] for n in range(len(self.tables))]
        report.write(built, self.planned.plans, self.store, html, self.failed)
        print(f"tables: {', '.join(str(p.with_suffix('')) for p in self.written[::4])} (.txt .md .csv .tex)")
        print(f"report: {html}")
        return self.count()

    def count(self) -> int:
        """Print how many cells were run, reused and failed. Returns the exit status."""
        left = len(self.cells) - len(self.done) - len(self.failed)
        more = f", {left} not finished" if left else ""
        print(f"{len(self.done) - self.reused} cells run, {self.reused} reused, {len(self.failed)} failed{more}")
        return 1 if self.failed else 0

    def _run_all(self, pending: pool.Queue | list[Cell], display: Display) -> None:
        """Run cells. Wait for cells that another process is running, and finish them here if that process gives up."""
        waiting: list[Cell] = []
        runtime, launcher = self.planned.runtime, self.planned.launcher
        while pending or waiting:
            for event in launch.run(pending, self.store, launcher, runtime, make_loggers, display.say):
                display.show(event)
                if event.outcome is None:
                    continue
                if event.outcome.state == "busy" or len(self.cells[event.cell.cell_id].tests) > len(event.cell.tests):
                    waiting.append(self.cells[event.cell.cell_id])
                elif event.outcome.state == "queued":
                    self.queued.add(event.cell.cell_id)
                elif event.outcome.state == "failed":
                    self.failed[event.cell.cell_id] = event.outcome.error or "unknown error"
                else:
                    self.done.add(event.cell.cell_id)
                self._print_complete(display)
            pending = []
            while waiting and not pending:
                pending = [cell for cell in waiting if not cell.entry(self.store).busy()]
                if not pending:
                    time.sleep(POLL_SECONDS)
            free = {cell.cell_id for cell in pending}
            waiting = [cell for cell in waiting if cell.cell_id not in free]

    def _print_complete(self, display: Display) -> None:
        for number, one in enumerate(self.planned.plans):
            if number in self.tables or number in self.unmade:
                continue
            if all(key in self.done or key in self.failed for key in one.cells):
                self.tables[number] = built = table(one, self.store, self.failed)
                stem = self.store.root / "tables" / f"{one.experiment.name}_{one.experiment.profile}"
                self.written.extend(render.write(built, stem))
                display.result("\n" + render.to_text(built) + "\n")


class Tables(pool.Queue):
    """The cells of a driver's tables, which come when their data are ready."""

    def __init__(self, driver: Driver, display: Display) -> None:
        super().__init__()
        self.driver, self.display = driver, display
        wanted = [w for group in cast(plans.Preparation, driver.planned.preparation).resolved for w in group]
        self.preload = {module for name in {w.module for w in wanted} for module in family(name).PRELOAD}
        self.processes = max(w.config["train"].get("processes", 1) for w in wanted)

    def __bool__(self) -> bool:
        return bool(self.driver.unmade or any(self.driver.missing))

    def take(self, idle: int) -> Cell | None:
        return self.driver.take(idle, self.display)
