"""Run the missing cells of plans, and print each table when it is complete."""

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from repro import launch
from repro import plan as plans
from repro.cell import Cell
from repro.identity import family
from repro.launch import pool
from repro.launch.display import Display, name
from repro.report import examples, page
from repro.report.data import Missing, predictions_of
from repro.results import estimate
from repro.store import Store
from repro.tables import build as tables
from repro.tables import render
from repro.tables.blocks import Block, Table
from tasks.commands.rates import ASSUMED
from tasks.config import compose
from tasks.data import NullProgress, is_own
from tasks.draw import terminal
from tasks.loggers import make_loggers

POLL_SECONDS = 5.0


def table(plan: plans.Plan, store: Store, failed: Mapping[str, str] | None = None) -> Table:
    """The table of a plan, built from the cells in the store."""
    one = plan.experiment
    claims = [claim for paper in compose.names_in("claims") for claim in compose.claims(paper)]
    deviations = {task: compose.page("deviations", task) for task in compose.names_in("deviations")}
    return tables.build(plan, store, compose.published(one.published), failed or {}, deviations, claims)


def refuse_empty(made: Sequence[plans.Plan]) -> None:
    """Raise ConfigError if no plan has a slot, because no data are available."""
    if not any(one.slots for one in made):
        told = "; ".join(f"{p.experiment.columns[c].label}: {why}" for p in made for c, why in p.unavailable.items())
        raise compose.ConfigError(f"no column can be run: {told}")


@dataclass
class Driver:
    """Runs the cells of plans; writes each table and its report, and prints it, as soon as its last cell has ended.

    The cells of one table run together: the table with the least work first, and within it the longest cell first. The
    data of later tables are prepared during training, by processes that each take the place of a worker.
    """

    preparation: plans.Preparation
    store: Store
    cost: estimate.Estimate | None = None  # of all cells; needed if plans are still to be made
    failed: dict[str, str] = field(default_factory=dict)  # cell id -> error with traceback
    tables: dict[int, Table] = field(default_factory=dict)
    written: list[Path] = field(default_factory=list)
    reports: list[Path] = field(default_factory=list)
    queued: set[str] = field(default_factory=set)  # cells queued by a scheduler, for which this process does not wait

    def __post_init__(self) -> None:
        self.plans, self.unmade = self.preparation.plans, self.preparation.unmade
        self.runtime, self.launcher = (self.preparation.config[key] for key in ("runtime", "launcher"))
        self.cells: dict[str, Cell] = {}
        self.done: set[str] = set()
        self.reused = 0
        self.damaged: list[Cell] = []
        self.told: set[str] = set()
        self.missing = [self._add(one) for one in self.plans]  # ids of each table's cells, in order

    @property
    def total(self) -> int:
        """Number of cells, including those whose data are not prepared yet."""
        return max(len(self.cells), len(set(self.cost.keys)) if self.cost and self.unmade else 0)

    def _add(self, plan: plans.Plan) -> list[str]:
        """Add the cells of a plan; returns the ids of those to run that are in no earlier plan, longest first."""
        missing = []
        for key, cell in plan.cells.items():
            known = self.cells.get(key)
            self.cells[key] = cell = known.with_tests(cell) if known else cell
            if known and key not in self.done:
                continue
            state = cell.state(self.store)
            self.reused += state == "done" and not known
            (self.done.add if state == "done" else self.done.discard)(key)
            missing += [key] * (state != "done")
            self.damaged += [cell] * (state == "damaged")
        return sorted(missing, key=lambda key: self.seconds(self.cells[key]), reverse=True)

    def seconds(self, cell: Cell) -> float:
        """How long a cell will probably take."""
        return 3600 * estimate.hours(cell.config, ASSUMED, self.cost.paces if self.cost else None)[0]

    def run(self) -> int:
        """Run the missing cells, and write the tables and the report. Returns the exit status, 130 after Ctrl-C."""
        try:
            with self.preparation:
                return self._run()
        except KeyboardInterrupt:
            done = f"stopped with {len(self.done)} of {self.total} cells done"
            print(f"{done}; run the same command again to continue", file=sys.stderr)
            return 130

    def _run(self) -> int:
        workers = self.runtime["workers"]
        each, expected = self.missing, {key: self.seconds(self.cells[key]) for keys in self.missing for key in keys}
        if self.unmade and self.cost:
            keys = iter(self.cost.keys)
            expected = {key: 3600 * hours for key, hours in self.cost.left.items()}
            each = self.keys = [[next(keys) for _ in group] for group in self.preparation.cells]
        self.order = sorted(range(len(each)), key=lambda n: sum(expected.get(key, 0.0) for key in set(each[n])))
        ids = [key for n in self.order for key in self.missing[n]]
        if not self.unmade:
            trained = sum(self.cells[key].entry(self.store).state() == "done" for key in ids)
            left = f"{len(ids) - trained} to run" + (f", {trained} to evaluate" if trained else "")
            where = "by Slurm" if self.launcher["name"] == "slurm" else f"on {workers} worker(s)"
            print(f"{len(self.cells)} cells: {self.reused} finished before, {left} {where}", file=sys.stderr)
        while self.unmade and not self.preparation.ready(self.order[0]):
            self._prepare(workers, self.preparation.tools.progress)
            time.sleep(0.1)
        with Display(expected, workers) as display:
            self._begin(display)
            self._run_all(Tables(self, display) if self.unmade else [self.cells[key] for key in ids], display)
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
        """The next cell for one of `idle` workers; workers that get no cell begin to prepare data."""
        self._make(display)
        if idle > len(self.preparation.running):
            for number in self.order:
                if self.missing[number]:
                    return self.cells[self.missing[number].pop(0)]
                if number in self.unmade and self.preparation.next(number):
                    break
            # in a terminal, the display shows the cells instead
            self._prepare(idle, NullProgress if sys.stderr.isatty() else self.preparation.tools.progress)
        return None

    def _prepare(self, idle: int, progress: Callable[[], Any]) -> None:
        """Let the `idle` workers that are not yet preparing data do so, for one table after the other."""
        idle -= len(self.preparation.running)
        for number in self.order:
            while idle > 0 and number in self.unmade and (key := self.preparation.next(number)):
                self.preparation.start(key, progress)
                idle -= 1

    def _make(self, display: Display) -> None:
        """Make the plans whose data are ready."""
        ready = [n for n in self.order if n in self.unmade and self.preparation.ready(n)]
        for number in ready:
            self.missing[number] = self._add(self.preparation.plan(number))
            display.expect({key: self.seconds(self.cells[key]) for key in self.missing[number]}, self.keys[number])
        if ready and not self.unmade:
            self.preparation.close()
            refuse_empty(self.plans)
        if ready:
            self._begin(display)

    def _begin(self, display: Display) -> None:
        """Print the notes on the plans that were made, and the tables that are complete."""
        said = [f"{name(cell)}: its stored files are damaged; it is moved aside and run again" for cell in self.damaged]
        facts = [of.facts for one in self.plans for cell in one.cells.values() for of in (cell.data, *cell.tests)]
        said += [
            f"note: {note}" for of in facts if is_own(of) for note in of.get("notes", ())
        ]  # notes on the user's own data
        for line in [line for line in dict.fromkeys(said) if line not in self.told]:
            display.say(line)
            self.told.add(line)
        self._print_complete(display)

    def conclude(self) -> int:
        """Write the report and print the paths of all files. Returns the exit status."""
        for number, one in enumerate(self.plans):
            if one.experiment.draw:
                print(drawings(self.tables[number], one), flush=True)
        print(f"tables: {', '.join(str(p.with_suffix('')) for p in self.written[::4])} (.txt .md .csv .tex)")
        print("\n".join(f"report: {html}" for html in sorted(self.reports)))
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
        while pending or waiting:
            for event in launch.run(pending, self.store, self.launcher, self.runtime, make_loggers, display.say):
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
        for number, one in enumerate(self.plans):
            if number in self.tables or number in self.unmade:
                continue
            if all(key in self.done or key in self.failed for key in one.cells):
                self.tables[number] = built = table(one, self.store, self.failed)
                stem = self.store.root / "tables" / f"{one.experiment.name}_{one.experiment.profile}"
                self.written.extend(render.write(built, stem))
                display.result("\n" + render.to_text(built) + "\n")
                html = self.store.root / "report" / f"{stem.name}.html"
                self.reports.append(page.write(built, one, self.store, html, self.failed))


class Tables(pool.Queue):
    """The cells of a driver's tables, which are added when their data are ready."""

    def __init__(self, driver: Driver, display: Display) -> None:
        super().__init__()
        self.driver, self.display = driver, display
        cells = [cell for group in driver.preparation.cells for cell in group]
        self.preload = {module for name in {cell.module for cell in cells} for module in family(name).PRELOAD}
        self.processes = max(cell.config["train"].get("processes", 1) for cell in cells)

    def __bool__(self) -> bool:
        return bool(self.driver.unmade or any(self.driver.missing))

    def take(self, idle: int) -> Cell | None:
        return self.driver.take(idle, self.display)


def drawings(table: Table, plan: plans.Plan) -> str:
    """The drawings of every column that has finished rows."""
    said = []
    for number, block in enumerate(table.blocks):
        if any(row.results for row in block.own):
            try:
                said += drawn(block, plan.experiment.columns[number].split, plan.experiment.draw)
            except Missing as missing:
                said.append(str(missing))
    return "\n".join(said) + "\n"


def drawn(block: Block, split: str, labels: Sequence[str]) -> list[str]:
    """The attention of the rows `labels` for one test example of the report: the one whose outputs are nearest to a reference.

    Raises `Missing` if the rows have no example with stored weights in common.
    """
    if not any(row.label in labels for row in block.own):
        raise Missing(f"No row is left to draw: {', '.join(labels)}.")
    drawable = examples.attention(block.own, predictions_of(block.own, split), split)

    def agreement(index: int) -> float:
        """How alike the outputs of the rows and the nearest references are."""
        found = 0.0
        for *_, record in drawable[index]:
            said = record["output"].lower()
            found += max((SequenceMatcher(None, r.lower(), said).ratio() for r in record["references"]), default=0)
        return found

    panels = drawable[max(drawable, key=agreement)]
    about = panels[0][-1]
    said = [f"Attention for a test example: {about['source']}", f"Reference: {' / '.join(about['references'])}"]
    for row, weights, source, outputs, record in panels:
        if row.label in labels:
            one = SimpleNamespace(attention=weights, source_tokens=source, output_tokens=outputs)
            width = shutil.get_terminal_size().columns
            said += ["", f"{row.label}: {record['output']}", terminal.terminal(one, width)]
    return [*said, "", terminal.LEGEND]
