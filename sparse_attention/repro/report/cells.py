"""The cells of a report, each with its state and failure, and what produced them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparse_attention.repro.blocks import Table
from sparse_attention.repro.plan import Plan
from sparse_attention.repro.report.data import Missing
from sparse_attention.repro.store import Store, read_json


@dataclass
class CellView:
    cell_id: str
    state: str
    row: str
    column: str
    seed: int
    parameters: str
    selected: bool
    epoch: str
    seconds: float | None
    speed: float | None
    folder: str
    error: str
    trace: str


def cell_views(plan: Plan, table: Table, store: Store, failed: Mapping[str, str], beside: Path) -> list[CellView]:
    """One line per slot of the plan; `beside` is the report's folder, links are relative to it."""
    views = []
    for slot in plan.slots:
        cell, entry = slot.cell, slot.cell.entry(store)
        state, status, error = cell.state(store), entry.status(), ""
        found = cell.found(store) if state == "done" else None
        metrics = found.metrics if found else {}
        if cell.cell_id in failed and state != "done":
            state = "failed"
        told = failed.get(cell.cell_id, "").strip()
        trace = ""
        if state in ("failed", "lost"):
            error = status.get("error") or told.partition("\n")[0]
            trace = status.get("traceback") or told.partition("\n")[2]
        elif state == "damaged":
            error = next(
                (w for level in (entry, *(cell.evaluation(store, t) for t in cell.tests)) if (w := level.damage())), ""
            )
        rows = [row for row in table.blocks[slot.column].rows if not row.baseline]
        epoch, epochs = metrics.get("best_epoch"), (cell.config.get("train") or {}).get("max_epochs")
        views.append(
            CellView(
                cell.training_id, state, plan.experiment.rows[slot.row].label, plan.experiment.columns[slot.column].label, slot.seed,
                ", ".join(f"{k}={v}" for k, v in cell.config["mapping"].items() if k not in ("name", "at", "grid")),
                slot.row < len(rows) and cell.training_id in rows[slot.row].cells,
                "" if epoch is None else f"{epoch:.0f} of {epochs}", found.seconds if found else None,
                metrics.get("train/tokens_per_second"), quote(os.path.relpath(entry.folder, beside).replace(os.sep, "/")),
                error, trace,
            )
        )  # fmt: skip
    return views


def provenance(plans: Sequence[Plan], store: Store) -> list[tuple[str, list[tuple[str, int]]]]:
    """(what, [(value, number of cells)]) over all cells: several values mean that the cells were not made alike."""
    seen: dict[str, Counter[str]] = {}

    def count(what: str, value: Any) -> None:
        if value not in (None, "", {}):
            seen.setdefault(what, Counter())[str(value)] += 1

    cells = {cell.training_id: cell for plan in plans for cell in plan.cells.values()}
    started: list[str] = []
    seconds = 0.0
    for cell in cells.values():
        record = read_json(cell.entry(store).path("provenance.json"))
        if record is None:
            continue
        code, machine = record.get("code") or {}, record.get("machine") or {}
        count(
            "code", code.get("commit") and code["commit"] + (" with uncommitted changes" if code.get("dirty") else "")
        )
        count("python", record.get("python"))
        count("kernels", record.get("kernels"))
        count("packages as locked", record.get("locked"))
        count("packages", ", ".join(f"{k} {v}" for k, v in (record.get("packages") or {}).items()))
        count(
            "machine",
            ", ".join(
                str(v) for v in (machine.get("system"), machine.get("cpu"), f"{machine.get('cores')} cores") if v
            ),
        )
        count("gpu", machine.get("gpu"))
        runtime = cell.config.get("runtime") or {}
        count("ran on", ", ".join(f"{k} {runtime[k]}" for k in ("device", "threads") if k in runtime))
        count("data", f"sha256 {record.get('data_sha256')}")
        count("command", record.get("command"))
        started.append(str(record.get("started", "")))
        seconds += float(record.get("seconds") or 0.0)
    if not started:
        raise Missing("No finished cell has left a provenance record.")
    found = [(what, values.most_common()) for what, values in seen.items()]
    found.append(("started", [(f"{min(started)} to {max(started)}", len(started))]))
    return [*found, ("time of all cells", [(f"{seconds / 60:.1f} minutes", len(started))])]
