"""`scripts/compare.py`: compare the finished cells in the store that match filters, in a table and plots.

The cells of a sweep are listed in the manifest in its folder.
"""

import hashlib
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.errors import ConfigError, StoreError, near
from repro.files import broken_seal, read_json, sealed, write_json
from repro.identity import Cell, Results, asked_id, pair
from repro.plan.experiment import Experiment
from repro.report import comparison
from repro.results import records
from repro.store import Store, outputs_folder
from repro.store.provenance import code_version
from repro.tables import compare, render
from repro.tables.blocks import Block
from repro.tables.compare import Lost
from tasks.commands import reproduce
from tasks.config import compose
from tasks.config.files import NODES
from tasks.config.request import Request

OWN = ("experiment", "sweep", "to", "paths.outputs")


def main(request: Request) -> int:
    """Print and write the comparison of the cells that match the typed filters; exit status 1 if there are none.

    Raises ConfigError if a key, value, experiment or sweep is unknown.
    """
    filters = dict(map(pair, request.typed))
    store = Store(filters.get("paths.outputs") or outputs_folder())
    found, damaged = select(store, filters)
    told = read_manifest(store.root / "sweeps" / filters["sweep"]) or {} if "sweep" in filters else {}
    lost = _of(unfinished(store, told), filters)
    notes = [f"Left out: {one}" for one in damaged]
    if found or lost:
        folder = _folder(store, filters)
        show(compare.groups(found, points(told)), folder, f"Comparison: {_words(filters)}", notes, lost)
    return int(not found)


def show(groups: Sequence[Block], folder: Path, title: str, notes: Sequence[str], lost: Sequence[Lost]) -> None:
    """Print the table of finished cells, and write it and its plots to `folder`; see `comparison.write`."""
    table = compare.table(groups, "table", title, notes, lost)
    print(f"\n{render.to_screen(table)}\n")
    try:
        files = comparison.write(table, folder, lost)
    except StoreError as error:  # such as a store that can only be read
        raise StoreError(f"no files were written: {error}; to=FOLDER writes them elsewhere") from error
    drawings = sum(f.suffix == ".svg" for f in files)
    plots = f"; {drawings} plots: {comparison.DRAWN}/" if drawings else ""
    print(f"tables: {folder}/table.*; each run: {comparison.RUNS}{plots}")
    print(f"report: {folder / comparison.DASHBOARD}" if files[-1].name == comparison.DASHBOARD else "no dashboard")


def of_one(cell: Results, title: str) -> str:
    """The screen of a single cell."""
    return render.to_screen(compare.table(compare.groups([cell]), "", title))


def select(store: Store, filters: Mapping[str, str]) -> tuple[list[Results], list[str]]:
    """The records of the finished cells that match the filters, and one sentence for each damaged cell.

    Prints the damaged cells, and a message if no cell matches. Raises ConfigError as `main` does.
    """
    nodes = (*NODES, "seed", *OWN)
    for key in filters:
        if key.partition(".")[0] not in nodes:
            raise ConfigError(f"{key} is unknown{near(key, nodes)}; a filter is one of: {', '.join(nodes)}")
    ids = None
    if "sweep" in filters:
        folder = store.root / "sweeps" / filters["sweep"]
        if (told := read_manifest(folder)) is None:
            there = sorted(p.parent.name for p in folder.parent.glob("*/manifest.json"))
            known = f"{folder.parent}{near(folder.name, there)}; there are: {', '.join(there) or 'none'}"
            raise ConfigError(f"sweep={folder.name} is not in {known}")
        ids = list(points(told))
    tests = compare.conditions({k: v for k, v in filters.items() if k in ("task", "mapping")})

    def wanted(task: str, mapping: str, key: str) -> bool:
        """Whether a folder can match; other folders are not read."""
        own = {"task": task, "mapping": mapping}
        return (ids is None or key in ids) and all(fits(own[name]) for name, fits in tests.items())

    read = records.read(store, wanted)
    for one in read.lost:
        print(f"left out: {one}", file=sys.stderr)
    found = read.records
    if ids is not None:
        found.sort(key=lambda r: ids.index(r.cell_id))
    asked = filters.get("mapping", "").split(",")
    found.sort(key=lambda r: asked.index(m) if (m := r.config["mapping"]["name"]) in asked else len(asked))
    if "experiment" in filters:
        slots = slots_of(filters["experiment"], filters.get("profile"))
        ids = {asked_id(cell.config, cell.family) for _, cell in slots}
        found = [r for r in found if r.asked_id() in ids]
    plain = {k: v for k, v in filters.items() if k not in OWN}
    if found:
        return compare.fitting(found, plain), read.lost
    everything = records.read(store, check=False).records  # so that the error names the filter that matches nothing
    if everything:
        compare.fitting(everything, plain)
    advice = "" if everything else "; it has none yet: train some, or name another store by paths.outputs=FOLDER"
    print(f"no finished cell of {store.root / 'cells'} matches {_words(filters)}{advice}", file=sys.stderr)
    return [], read.lost


def points(told: Mapping[str, Any]) -> dict[str, Any]:
    """The points of the cells in the manifest of a sweep, by the cell's id."""
    return {one["cell"].rpartition("/")[2]: one.get("point") or {} for one in told.get("cells") or ()}


def unfinished(store: Store, told: Mapping[str, Any]) -> list[Lost]:
    """The cells in the manifest of a sweep that have no result now, each with the reason."""
    found = []
    for one in told.get("cells") or ():
        task, mapping, key = one["cell"].split("/")
        entry = store.entry(task, mapping, key)
        status = entry.status()
        if (state := status["state"]) == "done":
            continue
        why = str(status.get("error") or "") if state == "failed" else ""
        if state == "lost":
            state, why = "stopped", f"in {status['stage']}" if "stage" in status else ""
        elif state == "queued" and not entry.path("status.json").exists():
            state = "deleted" if one.get("state") == "done" else "never run"
        point, seed = one.get("point") or {}, int(one.get("seed", 0))
        found.append(Lost(key, task, mapping, point, seed, state, why.partition("\n")[0]))
    return found


def _of(lost: Sequence[Lost], filters: Mapping[str, str]) -> list[Lost]:
    """Those of the cells without a result that the filters can mean: they contradict none."""
    left = list(lost)
    for key, fits in compare.conditions(filters).items():
        known = [{"task": o.task, "mapping": o.mapping, "seed": o.seed} | dict(o.point) for o in left]
        near = [of.get(key) for of in known]
        left = [one for one, value in zip(left, near) if value is None or fits(value)]
    return left


def _words(filters: Mapping[str, str]) -> str:
    return ", ".join(f"{k}={v}" for k, v in filters.items() if k not in ("to", "paths.outputs")) or "all cells"


def _folder(store: Store, filters: Mapping[str, str]) -> Path:
    asked = {k: v for k, v in filters.items() if k not in ("to", "paths.outputs")}
    if "to" in filters:
        return Path(filters["to"])
    if set(asked) == {"sweep"}:
        return store.root / "sweeps" / asked["sweep"]
    name = re.sub(r"[^\w.=-]+", "_", ",".join(f"{k}={v}" for k, v in sorted(asked.items()))) or "all"
    if len(name) > 80:
        name = f"{name[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return store.root / "compare" / name


def slots_of(name: str, profile: str | None) -> Iterator[tuple[Experiment, Cell]]:
    """The slots of an experiment with the given profiles, separated by commas (default: all of its profiles)."""
    for one in profile.split(",") if profile else compose.page("experiment", name)["profiles"]:
        (plan,) = reproduce.outline([compose.experiment(name, one)])
        yield from ((plan.experiment, cell) for cell in plan.slots)


def write_manifest(folder: Path, arguments: Sequence[str], cells: Sequence[Mapping[str, Any]], **more: Any) -> None:
    """Write manifest.json in a sweep's folder; if the file exists, its start time is kept."""
    before = read_manifest(folder) or {}
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    told = {"sweep": folder.name, "asked": list(arguments), "started": before.get("started", now), "written": now}
    told["code"] = code_version()
    write_json(folder / "manifest.json", sealed({**told, **more, "cells": list(cells)}))


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The content of manifest.json in a sweep's folder, or None if there is no such file.

    Raises StoreError if the file was changed.
    """
    path = folder / "manifest.json"
    if (told := read_json(path)) is None and not path.is_file():
        return None
    if why := broken_seal(told) if told else "cannot be read":
        step = "rename it and run the sweep's command again: its finished cells are not trained again"
        raise StoreError(f"{path} {why}; {step}")
    return told
