"""Run the missing cells of plans, and print each table when it is complete."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import cache
from types import SimpleNamespace
from typing import Any

from repro import launch
from repro.cell import Cell
from repro.errors import Refused
from repro.launch.display import Display, cleared, fitted, name, width
from repro.plan import Plan
from repro.results import estimate
from repro.statistics import FEWEST
from repro.store import Store
from repro.tables import build as tables
from repro.tables import render, runs
from repro.tables.blocks import Block, Table
from tasks.config import compose
from tasks.config.files import values_in
from tasks.data import is_own
from tasks.draw import terminal
from tasks.loggers import make_loggers
from tasks.use.finding import of_other_code

POLL_SECONDS = 5.0
STEP = 0.005  # seconds of the training step of `slowness` on the core of configs/rates.yaml


@cache
def slowness() -> float:
    """Time of a small training step on one core of this machine, as a multiple of STEP."""
    import torch

    from tasks.layers.lstm import Lstm

    with torch.random.fork_rng(devices=[]):
        lstm, x = Lstm(128, 128, batch_first=True), torch.ones(32, 20, 128)
    times = []
    for _ in range(10):
        started = time.perf_counter()
        lstm(x)[0].sum().backward()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2] / STEP


ASSUMED = estimate.Rates(**values_in("rates"), slowness=slowness)  # how long an epoch takes, without a finished cell
STEADY = replace(ASSUMED, slowness=lambda: 1.0)  # for the pages, which must be the same on every machine


def table(plan: Plan, store: Store) -> Table:
    """The table of a plan, built from the cells in the store."""
    one = plan.experiment
    deviations = {task: compose.page("deviations", task) for task in compose.names_in("deviations")}
    published = compose.published(one.published)
    return tables.build(plan, store, published, deviations, compose.claims(), lambda c: estimate.hours(c, STEADY)[0])


def of_threads(config: Mapping[str, Any]) -> str:
    """A sentence on what `runtime.threads` changes, if it is not 1; or ""."""
    if (threads := config["runtime"]["threads"]) == 1:
        return ""
    rounded = f"runtime.threads={threads}: sums are rounded differently than with another number of threads, so that the weights differ"
    return f"note: {rounded}, although the id of a cell is the same. Give all cells of a table the same number"


@dataclass
class Driver:
    """Runs the cells of plans; writes each table and its report, and prints it, as soon as its last cell has ended.

    The cells of one table run together: the table with the least work first, and within it the longest cell first.
    """

    plans: Sequence[Plan]
    store: Store
    paces: estimate.Paces = field(default_factory=dict)  # of finished cells
    failed: set[str] = field(default_factory=set)
    tables: dict[int, Table] = field(default_factory=dict)
    queued: set[str] = field(default_factory=set)  # cells queued by a scheduler, for which this process does not wait

    def __post_init__(self) -> None:
        self.cells: dict[str, Cell] = {}
        for key, cell in (pair for one in self.plans for pair in one.cells.items()):
            self.cells[key] = self.cells[key].with_tests(cell) if key in self.cells else cell
        self.states = {key: cell.state(self.store) for key, cell in self.cells.items()}  # before the run
        self.done = {key for key, state in self.states.items() if state == "done"}
        self.reused = len(self.done)
        config = next(iter(self.cells.values())).config
        self.runtime, self.launcher = config["runtime"], config["launcher"]

    def seconds(self, cell: Cell) -> float:
        """How long a cell will probably take."""
        return 3600 * estimate.hours(cell.config, ASSUMED, self.paces)[0]

    def run(self) -> int:
        """Run the missing cells, and write the tables and the report. Returns the exit status, 130 after Ctrl-C."""
        try:
            return self._run()
        except KeyboardInterrupt:
            done = f"{cleared()}stopped with {len(self.done)} of {len(self.cells)} cells done"
            print(f"{done}; run the same command again to continue", file=sys.stderr)
            return 130

    def _run(self) -> int:
        work = {key: self.seconds(cell) for key, cell in self.cells.items() if key not in self.done}
        ids = self.order(work)
        trained = sum(self.cells[key].entry(self.store).state() == "done" for key in ids)
        left = f"{len(ids) - trained} to run" + (f", {trained} to evaluate" if trained else "")
        slurm = self.launcher["name"] == "slurm"
        workers = self.runtime["workers"] if slurm else launch.ready(self.launcher, self.runtime)[0]
        where = "by Slurm" if slurm else f"on {workers} worker(s)"
        print(f"{len(self.cells)} cells: {self.reused} finished before, {left} {where}", file=sys.stderr)
        display = Display(work, workers)
        self._begin(display)
        self._run_all([self.cells[key] for key in ids], display)
        # another process may have finished cells that failed here
        self.done |= {key for key in self.failed if self.cells[key].done(self.store)}
        self.failed -= self.done
        for key in (key for key in self.cells if key in self.failed):  # the error itself was printed when it happened
            where = self.cells[key].entry(self.store).path("status.json")
            print(fitted(f"{name(self.cells[key])} failed: traceback in {where}"), file=sys.stderr)
        if self.queued:
            print("run the same command again to see what is done, and the tables when all cells are")
            return self.count()
        return self.conclude()

    def order(self, work: Mapping[str, float]) -> list[str]:
        """The ids of the cells to run, in order; work: cell id -> seconds."""
        tables = [[key for key in one.cells if key in work] for one in self.plans]
        tables.sort(key=lambda keys: sum(work[key] for key in keys))
        return list(dict.fromkeys(key for keys in tables for key in sorted(keys, key=work.__getitem__, reverse=True)))

    def _begin(self, display: Display) -> None:
        """Print the notes on the cells, and the tables that are complete."""
        for key, cell in self.cells.items():
            if self.states[key] == "damaged":
                display.say(f"{name(cell)}: its stored files are damaged; it is moved aside and run again")
        facts = [of.facts for cell in self.cells.values() for of in (cell.data, *cell.tests)]
        for note in dict.fromkeys(note for of in facts if is_own(of) for note in of.get("notes", ())):
            display.say(f"note: {note}")  # on the user's own data
        for told in filter(None, dict.fromkeys(of_threads(cell.config) for cell in self.cells.values())):
            display.say(told)
        if told := of_other_code([cell for key, cell in self.cells.items() if key in self.done], self.store):
            display.say(told)
        self._print_complete()

    def conclude(self) -> int:
        """Print the drawings and what to read next. Returns the exit status."""
        for number, one in enumerate(self.plans):
            if one.experiment.draw and number in self.tables:
                print(drawings(self.tables[number], one), flush=True)
        print(self.following())
        return self.count()

    def following(self) -> str:
        """What to run and to read next."""
        few = all(len(one.experiment.seeds) < FEWEST for one in self.plans)
        pages = [f"docs/results/{one.experiment.name}_cpu.md" for one in self.plans]
        known = [page for page in pages if (compose.ROOT / page).is_file()] or ["docs/reference/report.md"]
        seeds = "the same command with seeds=1,2,3 gives three runs each; " * few
        return fitted(f"next: {seeds}read {', '.join(known)}; all scores: {self.store.root}/tables")

    def count(self) -> int:
        """Print how many cells were run, reused and failed. Returns the exit status."""
        left = len(self.cells) - len(self.done) - len(self.failed)
        more = f", {left} not finished" if left else ""
        print(f"{len(self.done) - self.reused} cells run, {self.reused} reused, {len(self.failed)} failed{more}")
        return 1 if self.failed else 0

    def _run_all(self, pending: Sequence[Cell], display: Display) -> None:
        """Run cells. Wait for cells that another process is running, and finish them here if that process gives up."""
        waiting: list[Cell] = []
        while pending or waiting:
            for event in launch.run(pending, self.store, self.launcher, self.runtime, make_loggers, display.say):
                display.show(event)
                if event.outcome is None:
                    continue
                if event.outcome.state == "busy":
                    waiting.append(event.cell)
                elif event.outcome.state == "queued":
                    self.queued.add(event.cell.cell_id)
                elif event.outcome.state == "failed":
                    self.failed.add(event.cell.cell_id)
                else:
                    self.done.add(event.cell.cell_id)
                self._print_complete()
            pending = []
            while waiting and not pending:
                pending = [cell for cell in waiting if not cell.entry(self.store).busy()]
                if not pending:
                    time.sleep(POLL_SECONDS)
            free = {cell.cell_id for cell in pending}
            waiting = [cell for cell in waiting if cell.cell_id not in free]

    def _print_complete(self) -> None:
        from repro.report import page  # loads what draws, which a refusal does not need

        for number, one in enumerate(self.plans):
            if number not in self.tables and all(key in self.done or key in self.failed for key in one.cells):
                self.tables[number] = built = table(one, self.store)
                stem = self.store.root / "tables" / f"{one.experiment.name}_{one.experiment.profile}"
                render.write(built, stem)
                runs.write(one, self.store, stem.with_name(f"runs_{stem.name}.csv"))
                html = self.store.root / "report" / f"{stem.name}.html"
                page.write(built, one, self.store, html)
                print(f"{render.to_screen(built)}\nreport: {html}\n", flush=True)


def drawings(table: Table, plan: Plan) -> str:
    """The drawings of every column that has finished rows."""
    said = []
    for number, block in enumerate(table.blocks):
        if any(row.results for row in block.own):
            try:
                said += drawn(block, plan.experiment.columns[number].split, plan.experiment.draw)
            except Refused as missing:
                said.append(str(missing))
    return "\n".join(said) + "\n"


def drawn(block: Block, split: str, labels: Sequence[str]) -> list[str]:
    """The attention of the rows `labels` for one test example of the report: the one whose outputs are nearest to a reference.

    Raises `Refused` if the rows have no example with stored weights in common.
    """
    from repro.report import examples
    from repro.report.data import predictions_of

    if not any(row.label in labels for row in block.own):
        raise Refused(f"No row is left to draw: {', '.join(labels)}.")
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
    said = [fitted(f"Attention for a test example: {about['source']}")]
    said += [fitted(f"Reference: {' / '.join(about['references'])}")]
    for row, weights, source, outputs, record in panels:
        if row.label in labels:
            one = SimpleNamespace(attention=weights, source_tokens=source, output_tokens=outputs)
            said += ["", f"{row.label}: {record['output']}", terminal.terminal(one, width())]
    return [*said, "", fitted(terminal.LEGEND), fitted(terminal.LOOK)]
