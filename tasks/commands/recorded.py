"""Write the small records of a table's cells (`repro.results.archive`), and rebuild the table from them.

`docs/results/records/<experiment>_<profile>.jsonl` holds the records of a table; `tasks.commands.results` writes the
pages of docs/results from them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from repro import convergence
from repro.identity import Cell, Results, Scored, pair
from repro.plan import Plan, origin
from repro.plan.experiment import Experiment
from repro.report import comparison, page
from repro.report import pictures as drawings
from repro.results import archive
from repro.store import Store, outputs_folder
from repro.tables import render, runs
from repro.tables.blocks import Table
from tasks.commands import compare, driver, reproduce
from tasks.config import compose
from tasks.config.request import REPRODUCE, Request

RESULTS = compose.ROOT / "docs" / "results"
FOLDER = "records"
# where and how cells ran; not part of the records, like MIRRORS
HERE = ("paths", "runtime", "launcher", "logger", "plugins", "sweep")
OF_SWEEP = ("module", "metrics", "seconds", "data_sha256", "recipe")
ABOUT = ("facts", "signatures")  # only in newer records of sweeps, like baselines, curve and examples
MIRRORS = ("data.mirror", "data.path")


def file_of(name: str, profile: str, results: Path = RESULTS) -> Path:
    """The path of the file with the records of a table."""
    return results / FOLDER / f"{name}_{profile}.jsonl"


def record(request: Request, results: Path = RESULTS) -> tuple[Path, int, int, list[str]]:
    """Write the records of an experiment's table from the cells in the store `paths.outputs`; reads no data.

    Cells that are missing from the store keep the records that the file has of them, so that a table can grow. Returns
    the file, the number of its cells, how many of them were only in the earlier file, and the row, column and seed
    of each cell that is missing from both.

    Raises ValueError if a name or configuration is invalid, StoreError if a cell is damaged.
    """
    one, cells = reproduce.outlined(request)
    path = file_of(one.name, one.profile, results)
    earlier = archive.cells_of(path)
    records, lost = archive.collect(cells, Store(cells[0].config["paths"]["outputs"]), earlier)
    kept = sum(any(record is old for old in earlier) for record in records)  # the store may hold an equal one
    if kept < len(records):
        keys = {text: pair(text)[0] for text in request.typed}  # arguments that say what was run, not where
        typed = [text for text, key in keys.items() if key.partition(".")[0] not in HERE and key not in MIRRORS]
        archive.write(path, {"experiment": one.name, "profile": one.profile, "arguments": typed}, records)
    places = [(origin(one, cell), cell.seed) for cell in lost]
    return path, len(records), kept, [f"{of['row']}, {of['heading']}, seed {seed}" for of, seed in places]


def write(request: Request, results: Path) -> int:
    """Write the records of a request's experiments or sweep, and say what was written. Returns 1 if cells are missing, else 0.

    Raises ValueError and StoreError as `record` and `record_sweep` do.
    """
    if request.sweep:
        outputs = dict(map(pair, request.overrides)).get("paths.outputs", outputs_folder())
        path, count = record_sweep(request.sweep, Path(outputs), results)
        print(f"{path}: {count} cells")
    missing = False
    for name in request.names:
        path, count, kept, lost = record(replace(request, names=(name,)), results)
        told = f"{path}: {count} cells" + f", {kept} of them not in the store and kept as they were" * (kept > 0)
        print(told if count > kept else f"{name}: the store has none of its cells; nothing was written")
        print("".join(f"  missing: {one}\n" for one in lost), end="")
        missing |= bool(lost)
    return int(missing)


def record_sweep(name: str, outputs: Path, results: Path = RESULTS) -> tuple[Path, int]:
    """Write the records of a sweep's table from a store. Returns the file and the number of its cells.

    Raises ValueError if there is no such sweep.
    """
    store = Store(outputs)
    cells, _ = compare.select(store, {"sweep": name})
    title = (store.root / "sweeps" / name / "table.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("## ")
    found = []
    for one in cells:
        told = {"key": one.cell_id} | {k: getattr(one, k) for k in OF_SWEEP}
        told |= {"tests": {k: v._asdict() for k, v in one.scored.items()}, "tested": one.tests}
        told |= {k: getattr(one, k) for k in ABOUT} | archive.without_texts({"baselines": one.baselines})
        told["curve"] = convergence.judged(one.curves, one.best_metric)
        told["examples"] = {k: archive.packed(v.predictions()) for k, v in one.evaluations.items()}
        found.append(told | {"config": {k: v for k, v in one.config.items() if k not in HERE}})
    path = results / FOLDER / f"sweep_{name}.jsonl"
    archive.write(path, {"sweep": name, "title": title}, found)
    return path, len(found)


def _of_sweep(header: Mapping[str, Any], recorded: Sequence[Mapping[str, Any]]) -> Made:
    """The table and files computed from the records of a sweep."""
    cells = []
    for one in recorded:
        told = {k: one[k] for k in (*OF_SWEEP, "config")} | {k: one.get(k, {}) for k in (*ABOUT, "baselines")}
        curve, by = one.get("curve", {}), f"dev/{one['config']['train']['best_metric']}"
        told |= {"tests": one.get("tested", {}), "curve": {by: curve} if isinstance(curve, list) else curve}
        scored = {k: Scored(**v) for k, v in one["tests"].items()}
        where = {"cell_id": one["key"], "folder": Path(one["key"])}
        cells.append(Results(**where, **told, scored=scored, shortfalls={}, evaluations={}))
    table, made = comparison.contents(cells, header["title"])
    kept = {name: text for name, text in made.items() if name.endswith((".csv", ".svg"))}
    return Made(table, sweep=header["sweep"], files=kept)


@contextmanager
def restored(
    experiment: Experiment, cells: Sequence[Cell], known: Sequence[Mapping[str, Any]], overrides: Sequence[str] = ()
) -> Iterator[tuple[Plan, Store]]:
    """Context manager: the plan of an experiment's cells, and a temporary store with the cells whose records are `known`."""
    with tempfile.TemporaryDirectory() as work:
        store = Store(work)
        yield archive.restore(experiment, cells, known, store, overrides), store


@dataclass
class Made:
    """Everything computed from a file of records: its table, and other content that pages and folders show.

    Attributes:
        table: the table.
        more: Markdown that a page shows in place of the table: the points of the generated documents of Laha et al. 2018.
        sweep: name of the sweep, or empty if the records are not from a sweep.
        files: files in the sweep's folder (numbers and drawings): path -> content.
        picture: the runs of the table as SVG, or empty if the records have no learning curves.
    """

    table: Table
    more: str = ""
    sweep: str = ""
    files: dict[str, str] = field(default_factory=dict)
    picture: str = ""


def read(path: Path) -> Made:
    """Compute everything that follows from a file of records. Raises StoreError if the file cannot be read."""
    asked, known = archive.read(path)
    if "sweep" in asked:
        return _of_sweep(asked, known)
    arguments = [f"profile={asked['profile']}", *asked["arguments"]]
    request = Request.read(arguments, REPRODUCE, [asked["experiment"]])
    with restored(*reproduce.outlined(request), known, request.overrides) as (plan, store):
        cells = [(plan.experiment.rows[s.row].label, s.config, s.results(store)) for s in plan.slots]
        table, documents = driver.table(plan, store), ""
        if any(config["data"]["name"] == "synthetic" for _, config, _ in cells):
            from tasks.draw import documents as figures  # loads pandas

            points = figures.collect((row, config, one.metrics) for row, config, one in cells if one is not None)
            documents = "" if points.empty else figures.page(points)
        return Made(table, documents, picture=drawings.runs(table))


def show(request: Request, results: Path) -> int:
    """Print tables from their records; write <outputs>/tables/..._from_records and their reports. Runs no cells.

    Args:
        request: as for scripts/reproduce.py; if it does not select what to run, the tables are printed as recorded.
        results: the folder with the records.

    Returns exit status 1 if cells have no records, else 0. Raises ValueError if a name or configuration is invalid,
    StoreError if there are no records.
    """
    status, profile = 0, request.profile
    for name in request.names:
        path = file_of(name, profile, results)
        told, known = archive.read(path)
        selects = any(pair(text)[0].partition(".")[0] not in (*HERE, "profile") for text in request.typed)
        typed = [*request.typed, *([] if selects else told["arguments"])]
        asked = Request.read(typed, REPRODUCE, [name])
        one, cells = reproduce.outlined(asked)
        outputs, stem = Path(cells[0].config["paths"]["outputs"]), f"{name}_{profile}_from_records"
        keys = {archive.key(cell.config, cell.family) for cell in cells}
        lost = len(keys - {record["key"] for record in known})
        with restored(one, cells, known, asked.overrides) as (plan, store):
            made = driver.table(archive.from_records(plan, f"{FOLDER}/{path.name}"), store)
            html = page.write(made, plan, store, outputs / "report" / f"{stem}.html", links=False)
            runs.write(plan, store, {}, outputs / "tables" / f"runs_{stem}.csv", folders=False)
        print(render.to_text(made))
        if lost:
            print(f"{lost} of {len(keys)} cells have no records; without records={results} they are run")
        written = render.write(made, outputs / "tables" / stem)
        print(
            f"table: {written[0].with_suffix('')} ({', '.join(p.suffix for p in written)}; each run: runs_{stem}.csv)\nreport: {html}"
        )
        status |= bool(lost)
    return status
