"""Write the small records of a table's cells (`repro.results.archive`), and rebuild the table from them.

`docs/results/records/<experiment>_<profile>.jsonl` holds the records of a table; `tasks.commands.results` writes the
pages of docs/results from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from repro import plan as plans
from repro.identity import digest, pair
from repro.plan import Plan, origin
from repro.report import page
from repro.report import pictures as drawings
from repro.results import archive
from repro.store import Store
from repro.tables import render, runs
from repro.tables.blocks import Table
from repro.tables.compare import groups
from repro.tables.compare import table as table_of
from tasks.commands import compare, driver, reproduce
from tasks.config import compose
from tasks.config.request import REPRODUCE, Request

RESULTS = compose.ROOT / "docs" / "results"
FOLDER = "records"
# where and how cells ran; not part of the records, like MIRRORS
HERE = ("paths", "runtime", "launcher", "logger", "plugins", "sweep", "lease", "minutes")
MIRRORS = ("data.mirror", "data.path")


def file_of(name: str, profile: str, results: Path = RESULTS) -> Path:
    """The path of the file with the records of a table."""
    return results / FOLDER / f"{name}_{profile}.jsonl"


def joined(request: Request, head: Mapping[str, Any]) -> Request:
    """The request with the seeds, rows and columns that earlier records of the table have; it is the same if they have no other."""
    (name,), kept = request.names, ("seeds", "rows", "columns")
    before = Request.read([f"profile={request.profile}", *head.get("arguments", ())], REPRODUCE, [name])
    own = compose.experiment(name, request.profile).seeds
    seeds = tuple(dict.fromkeys((*(before.seeds or own), *(request.seeds or own))))
    seeds = () if {*seeds} == {*own} else tuple(sorted(seeds))
    same = {k: getattr(request, k) if getattr(request, k) == getattr(before, k) else () for k in kept[1:]}
    words = {"seeds": ",".join(map(str, seeds)), **{key: "|".join(value) for key, value in same.items()}}
    typed = [text for text in request.typed if pair(text)[0] not in kept]
    typed += [f"{key}={text}" for key, text in words.items() if text]
    return replace(request, seeds=seeds, typed=tuple(typed), **same)


def record(request: Request, results: Path = RESULTS, other: Path | None = None) -> tuple[Path, int, int, list[str]]:
    """Write the records of an experiment's table from the cells in the store `paths.outputs`; reads no data.

    Cells that are missing from the store keep the records that the file has of them, also those of other seeds, rows and
    columns than the request's, so that a table can grow; then those of the folder `other` are taken. Returns
    the file, the number of its cells, how many of them were only in the earlier file, and the row, column and seed
    of each cell that is missing from both.

    Raises ValueError if a name or configuration is invalid, StoreError if a cell is damaged.
    """
    (name,), wanted = request.names, {archive.key(c.config, c.family) for c in outlined(request, {}).slots}
    path, configs = file_of(name, request.profile, results), dict[str, Any]()
    earlier, further = archive.cells_of(path), []
    if other is not None:
        head, further = archive.read(file_of(name, request.profile, other))
        if not any(pair(text)[0].partition(".")[0] not in (*HERE, "profile") for text in request.typed):
            request = Request.read([*request.typed, *head["arguments"]], REPRODUCE, [name])  # what was run there
        request = joined(request, head)
    if earlier:
        request = joined(request, archive.read(path)[0])
    plan = outlined(request, {}, configs)
    one, store = plan.experiment, reproduce.store_of(plan.slots)
    records, lost = archive.collect(plan.slots, store, [*further, *earlier])
    lost = [cell for cell in lost if archive.key(cell.config, cell.family) in wanted]
    kept = sum(any(record is old for old in earlier) for record in records)  # the store may hold an equal one
    if kept < len(records):
        asked = {"experiment": one.name, "profile": one.profile, "arguments": _what(request.typed)}
        archive.write(path, asked | archive.packed_configs(configs), records)
    places = [(origin(one, cell), cell.seed) for cell in lost]
    return path, len(records), kept, [f"{of['row']}, {of['heading']}, seed {seed}" for of, seed in places]


def _what(overrides: Sequence[str]) -> list[str]:
    """The overrides that say what is run, not where."""
    keys = {text: pair(text)[0] for text in overrides}
    return [text for text, key in keys.items() if key.partition(".")[0] not in HERE and key not in MIRRORS]


def outlined(request: Request, known: Mapping[str, Any], used: dict[str, Any] | None = None) -> Plan:
    """The plan of a request's one experiment, with the configurations that are `known`; only the others are composed.

    Args:
        known: hash of overrides -> configuration without the nodes that say where cells run, as `archive.configs` reads them.
        used: receives the configurations of the request, without these nodes.
    """
    with ExitStack() as stack:
        composer = cache(lambda: stack.enter_context(compose.composer()))

        def composed(overrides: Sequence[str], user: Sequence[str]) -> Mapping[str, Any]:
            name = digest(_what(overrides))
            config = known[name] if name in known else composer()(overrides, user)
            if used is not None:
                data = {k: Path(v).name if k == "path" and v else v for k, v in config["data"].items() if k != "mirror"}
                used[name] = {k: v for k, v in config.items() if k not in HERE} | {"data": data}
            return config

        tools = plans.Tools(composed, compose.module_of, lambda config, name: {"data": {"name": name}})
        (plan,) = plans.outline(reproduce.experiments(request), tools, request.overrides)
        return plan


def restored(path: Path, request: Request | None = None) -> Plan:
    """The plan of a file of records with their results; a request may select other cells, or say where they would run.

    Raises ValueError if a name or configuration is invalid, StoreError if there are no records.
    """
    told, known = archive.read(path)
    typed = request.typed if request else (f"profile={told['profile']}",)
    if not any(pair(text)[0].partition(".")[0] not in (*HERE, "profile") for text in typed):
        typed = (*typed, *told["arguments"])
    asked = Request.read(typed, REPRODUCE, [told["experiment"]])
    return archive.restore(outlined(asked, archive.configs(told)), known)


def write(request: Request, results: Path, other: Path | None = None) -> int:
    """Write the records of a request's experiments or sweep, and say what was written. Returns 1 if cells are missing, else 0.

    The records of experiments also come from the folder `other`, of another machine.

    Raises ValueError and StoreError as `record` and `record_sweep` do.
    """
    if request.sweep:
        path, count = record_sweep(request.sweep, request.outputs, results)
        print(f"{path}: {count} cells")
    missing = False
    for name in request.names:
        path, count, kept, lost = record(replace(request, names=(name,)), results, other)
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
    found, configs = [], {}
    for one in cells:
        if (made := archive.record(one, one.evaluations)) is not None:
            found.append(made)
            configs[made["key"]] = {k: v for k, v in one.config.items() if k not in HERE}
    path = results / FOLDER / f"sweep_{name}.jsonl"
    archive.write(path, {"sweep": name, "title": title} | archive.packed_configs(configs), found)
    return path, len(found)


@dataclass
class Page:
    """Everything computed from a file of records: its table, and other content that pages and folders show.

    Attributes:
        table: the table.
        more: Markdown that a page shows in place of the table: the points of the generated documents of Laha et al. 2018.
        picture: the runs of the table as SVG, or empty if the records have no learning curves.
    """

    table: Table
    more: str = ""
    picture: str = ""


def read(path: Path) -> Page:
    """Compute everything that follows from a file of records. Raises StoreError if the file cannot be read."""
    if path.stem.startswith("sweep_"):
        header, lines = archive.read(path)
        configs = archive.configs(header)
        of = [(one, configs[one["key"]]) for one in lines]
        cells = [archive.results(one, compose.module_of(config), config) for one, config in of]
        return Page(table_of(groups(cells), "table", header["title"]))
    plan = restored(path)
    cells = [(plan.experiment.rows[s.row].label, s.config, s.known) for s in plan.slots]
    table, documents = driver.table(plan, archive.NOWHERE), ""
    if any(config["data"]["name"] == "synthetic" for _, config, _ in cells):
        from tasks.draw import documents as figures  # loads pandas

        points = figures.collect((row, config, one.metrics) for row, config, one in cells if one is not None)
        documents = "" if points.empty else figures.page(points)
    return Page(table, documents, picture=drawings.runs(table))


def show(request: Request, results: Path) -> int:
    """Print tables from their records; write <outputs>/tables/..._from_records and their reports. Runs no cells.

    Args:
        request: as for scripts/reproduce.py; if it does not select what to run, the tables are printed as recorded.
        results: the folder with the records.

    Returns exit status 1 if cells have no records, else 0. Raises ValueError if a name or configuration is invalid,
    StoreError if there are no records.
    """
    status, store, outputs = 0, archive.NOWHERE, request.outputs
    for name in request.names:
        path, stem = file_of(name, request.profile, results), f"{name}_{request.profile}_from_records"
        plan = restored(path, request)
        cells = plan.cells.values()
        lost = sum(cell.known is None for cell in cells)
        made = driver.table(archive.from_records(plan, f"{FOLDER}/{path.name}"), store)
        html = page.write(made, plan, store, outputs / "report" / f"{stem}.html")
        runs.write(plan, store, outputs / "tables" / f"runs_{stem}.csv")
        print(f"{render.to_screen(made)}\nfrom {FOLDER}/{path.name}, nothing was run\nreport: {html}\n")
        if lost:
            print(f"{lost} of {len(cells)} cells have no records; without records={results} they are run")
        render.write(made, outputs / "tables" / stem)
        status |= bool(lost)
    return status
