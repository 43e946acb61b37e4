"""The cells of a report, each with its state and any error, and the provenance of all cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.files import read_json
from repro.plan import Plan
from repro.protocol import metric_of
from repro.report.data import Missing, link
from repro.store import Store
from repro.tables.blocks import Table


def cell_views(
    plan: Plan, table: Table, store: Store, failed: Mapping[str, str], beside: Path | None
) -> list[dict[str, Any]]:
    """The columns of the plan, each with one line per slot. Links are relative to the folder `beside`; None means no links."""
    return [_column(c, plan, table, store, failed, beside) for c in range(len(plan.experiment.columns))]


def _column(
    number: int, plan: Plan, table: Table, store: Store, failed: Mapping[str, str], beside: Path | None
) -> dict[str, Any]:
    column, metrics_of = plan.experiment.columns[number], plan.metrics(number)
    shown = [(s.metric, s.label) for s in column.show]
    if column.select and all(metric != column.select.metric for metric, _ in shown):
        shown.insert(0, (column.select.metric, column.select.metric.replace("/", " ").replace("_", " ")))
    decimals = {s.metric: s.decimals for s in column.show}
    views = []
    for cell in (c for c in plan.slots if c.column == number):
        entry = cell.entry(store)
        state, error, trace = cell.state(store), "", ""
        found = cell.found(store) if state == "done" else None
        metrics = found.metrics if found else {}
        if cell.cell_id in failed and state != "done":
            state = "failed"
        if state in ("failed", "lost"):
            status, (said, _, rest) = entry.status(), failed.get(cell.cell_id, "").strip().partition("\n")
            error, trace = status.get("error") or said, status.get("traceback") or rest
        elif state == "damaged":
            levels = (entry, *(cell.evaluation(store, t) for t in cell.tests))
            error = next((why for level in levels if (why := level.damage())), "")
        rows = [row for row in table.blocks[cell.column].rows if not row.baseline]
        scores = []
        for metric, _ in shown:
            digits = decimals[metric] if decimals.get(metric) is not None else metric_of(metrics_of, metric).decimals
            scores.append(f"{metrics[metric]:.{digits}f}" if metric in metrics else "")
        epoch, epochs = metrics.get("best_epoch"), (cell.config.get("train") or {}).get("max_epochs")
        views.append({
            "cell_id": cell.training_id, "state": state, "row": plan.experiment.rows[cell.row].label, "seed": cell.seed,
            "parameters": cell.parameters, "scores": scores,
            "selected": cell.row < len(rows) and cell.training_id in [f.cell_id for f in rows[cell.row].found],
            "epoch": "" if epoch is None else f"{epoch:.0f} of {epochs}", "seconds": found.seconds if found else None,
            "speed": metrics.get("train/tokens_per_second"), "folder": link(entry.folder, beside) if beside else "",
            "error": error, "trace": trace,
        })  # fmt: skip
    return {"label": column.label, "headers": [label for _, label in shown], "cells": views}


def provenance(plans: Sequence[Plan], store: Store) -> list[tuple[str, list[tuple[str, int]]]]:
    """The provenance of all cells as (item, [(value, number of cells)]); several values mean that the cells differ."""
    seen: dict[str, Counter[str]] = {}
    started, seconds = [], 0.0
    for cell in {cell.training_id: cell for plan in plans for cell in plan.cells.values()}.values():
        record = read_json(cell.entry(store).path("provenance.json"))
        if record is None:
            continue
        code, machine, runtime = record.get("code") or {}, record.get("machine") or {}, cell.config.get("runtime") or {}
        commit = code.get("commit") and code["commit"] + (" with uncommitted changes" if code.get("dirty") else "")
        kind = (machine.get("system"), machine.get("cpu"), f"{machine.get('cores')} cores")
        for what, value in {
            "code": commit, "python": record.get("python"), "kernels": record.get("kernels"),
            "packages as locked": record.get("locked"),
            "packages": ", ".join(f"{k} {v}" for k, v in (record.get("packages") or {}).items()),
            "machine": ", ".join(str(v) for v in kind if v), "gpu": machine.get("gpu"),
            "ran on": ", ".join(f"{k} {runtime[k]}" for k in ("device", "threads") if k in runtime),
            "data": f"sha256 {record.get('data_sha256')}", "command": record.get("command"),
        }.items():  # fmt: skip
            if value not in (None, ""):
                seen.setdefault(what, Counter())[str(value)] += 1
        started.append(str(record.get("started", "")))
        seconds += float(record.get("seconds") or 0.0)
    if not started:
        raise Missing("No finished cell has left a provenance record.")
    found = [(what, values.most_common()) for what, values in seen.items()]
    found.append(("started", [(f"{min(started)} to {max(started)}", len(started))]))
    return [*found, ("time of all cells", [(f"{seconds / 60:.1f} minutes", len(started))])]
