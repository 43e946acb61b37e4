"""The cells of a report, each with its state and any error, and the provenance of all cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repro.files import read_json
from repro.identity import Cell
from repro.plan import Plan
from repro.protocol import metric_of
from repro.report.data import Missing, link
from repro.store import Store
from repro.tables.blocks import Table


def cell_views(
    plan: Plan, table: Table, store: Store, failed: Mapping[str, str], beside: Path | None
) -> list[dict[str, Any]]:
    """The columns of the plan, each with one line per slot. Links are relative to the folder `beside`; None: no links."""
    views = []
    for number, (column, block) in enumerate(zip(plan.experiment.columns, table.blocks)):
        shown = {s.metric: s.label for s in column.show}
        if column.select and column.select.metric not in shown:
            shown = {column.select.metric: column.select.metric.replace("/", " ").replace("_", " "), **shown}
        decimals = {m: metric_of(plan.metrics(number), m).decimals for m in shown}
        chosen = [{found.cell_id for found in row.results} for row in block.rows if not row.baseline]
        cells = []
        for slot in (slot for slot in plan.slots if slot.column == number):
            view = _cell(slot, store, failed, decimals)
            row = plan.experiment.rows[slot.row].label
            selected = slot.row < len(chosen) and slot.training_id in chosen[slot.row]
            folder = link(slot.entry(store).folder, beside) if beside else ""
            cells.append(view | {"row": row, "seed": slot.seed, "selected": selected, "folder": folder})
        views.append({"label": column.label, "headers": list(shown.values()), "cells": cells})
    return views


def _cell(cell: Cell, store: Store, failed: Mapping[str, str], decimals: Mapping[str, int]) -> dict[str, Any]:
    """State, error and numbers of a cell; `decimals`: metric -> digits, in the order of the columns."""
    entry, state, error, trace = cell.entry(store), cell.state(store), "", ""
    found = cell.results(store) if state == "done" else None
    metrics = found.metrics if found else {}
    if cell.cell_id in failed and state != "done":
        state = "failed"
    if state in ("failed", "lost"):
        status, (said, _, rest) = entry.status(), failed.get(cell.cell_id, "").strip().partition("\n")
        error, trace = status.get("error") or said, status.get("traceback") or rest
    elif state == "damaged":
        levels = (entry, *(cell.evaluation(store, t) for t in cell.tests))
        error = next((why for level in levels if (why := level.damage())), "")
    numbers = [f"{metrics[m]:.{digits}f}" if m in metrics else "" for m, digits in decimals.items()]
    epoch, epochs = metrics.get("best_epoch"), (cell.config.get("train") or {}).get("max_epochs")
    cost = (found.seconds if found else None, metrics.get("train/tokens_per_second"))
    numbers += ["" if epoch is None else f"{epoch:.0f} of {epochs}", *("" if v is None else f"{v:.0f}" for v in cost)]
    about = {"cell_id": cell.training_id, "parameters": cell.parameters, "numbers": numbers}
    return about | {"state": state, "error": error, "trace": trace}


def provenance(plan: Plan, store: Store) -> list[tuple[str, list[tuple[str, int]]]]:
    """The provenance of all cells as (item, [(value, number of cells)]); several values mean that the cells differ."""
    seen: dict[str, Counter[str]] = {}
    started, seconds = [], 0.0
    for cell in {cell.training_id: cell for cell in plan.cells.values()}.values():
        record = read_json(cell.entry(store).path("provenance.json"))
        if record is None:
            continue
        code, machine, runtime = record.get("code") or {}, record.get("machine") or {}, cell.config.get("runtime") or {}
        commit = code.get("commit") and code["commit"] + (" with uncommitted changes" if code.get("dirty") else "")
        kind = (machine.get("system"), machine.get("cpu"), f"{machine.get('cores')} cores")
        values = {
            "code": commit,
            **{key: record.get(key) for key in ("python", "kernels", "command")},
            "packages as locked": record.get("locked"),
            "packages": ", ".join(f"{k} {v}" for k, v in (record.get("packages") or {}).items()),
            "machine": ", ".join(str(v) for v in kind if v),
            "gpu": machine.get("gpu"),
            "ran on": ", ".join(f"{k} {runtime[k]}" for k in ("device", "threads") if k in runtime),
            "data": f"sha256 {record.get('data_sha256')}",
        }
        for what, value in values.items():
            if value not in (None, ""):
                seen.setdefault(what, Counter())[str(value)] += 1
        started.append(str(record.get("started", "")))
        seconds += float(record.get("seconds") or 0.0)
    if not started:
        raise Missing("No finished cell has left a provenance record.")
    found = [(what, values.most_common()) for what, values in seen.items()]
    found.append(("started", [(f"{min(started)} to {max(started)}", len(started))]))
    return [*found, ("time of all cells", [(f"{seconds / 60:.1f} minutes", len(started))])]
