"""What the rows of a finished translation table attend to: stored test sentences, or sentences of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repro.cell import Cell
from repro.plan.experiment import Column
from repro.store import Store
from tasks.data import DataUnavailable
from tasks.load.model import load_cell
from tasks.seq2seq.figures import Example, Panel, Row


@dataclass
class Finished:
    """A column of an experiment: (label, cell) of every row, under one seed; the cells are below `outputs`."""

    title: str
    column: Column
    cells: list[tuple[str, Cell]]
    outputs: str


def finished(
    name: str, overrides: Sequence[str], column: str | None = None, seed: int | None = None, points: str = ""
) -> Finished:
    """The cells of an experiment's column (default: its first) under a seed (default: the experiment's first).

    Args:
        points: how a row's label begins: the finished grid points of such rows (add=sparsegen_lin,lam=[0,0.5] too) instead of the rows.

    Raises:
        ValueError: another column's name, a column without cells. DataUnavailable: a row that is not finished.
    """
    from tasks.commands import reproduce

    planned = reproduce.plan([name], overrides if seed is None else [*overrides, f"seeds={seed}"])
    (plan,), store, cells = planned.plans, Store(planned.outputs), {}
    columns = plan.experiment.columns
    keys = [c.key for c in columns]
    if column is not None and column not in keys:
        raise ValueError(f"column {column!r} is not in {name} with this profile; there are: {', '.join(keys)}")
    at = keys.index(column) if column else 0
    for slot in (s for s in plan.slots if s.column == at):
        label = plan.experiment.rows[slot.row].label
        if points and label.replace("_", "-").startswith(points.replace("_", "-")):
            label = ", ".join(f"{key}={_short(value)}" for key, value in slot.point) or label
            if slot.cell.found(store) is None:
                continue
        elif points:
            continue
        if slot.cell.found(store) is None:
            again = " ".join(["python scripts/reproduce.py", name, *overrides])
            raise DataUnavailable(
                f"the row {label!r} is not finished", str(slot.cell.entry(store).folder), f"run: {again}"
            )
        cells.setdefault(label, slot.cell)
    if not cells:
        raise ValueError(f"{columns[at].label}: {plan.unavailable.get(at, f'no point of {points} is finished')}")
    return Finished(plan.experiment.title, columns[at], list(cells.items()), str(planned.outputs))


def _short(value: object) -> str:
    """A grid's value, which the command line gives as text."""
    try:
        return f"{float(value):g}"  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(value)


def stored(of: Finished) -> list[Row]:
    """The rows' test records and stored attention. Raises DataUnavailable when a row has stored none."""
    from safetensors.numpy import load_file

    rows = []
    for label, cell in of.cells:
        test = cell.found(Store(of.outputs)).evaluations["test"]
        file = test.path("attention.safetensors")
        if not file.is_file():
            raise DataUnavailable(f"the row {label!r} has no stored attention", str(file), "set task.keep_attention=50")
        records = {r["index"]: r for r in test.predictions() if r["set"] == "test"}
        rows.append((label, cell.mapping, records, load_file(file)))
    return rows


def translated(of: Finished, text: str) -> Example:
    """A sentence of one's own, translated by every row's model."""
    panels, source = [], []
    for label, cell in of.cells:
        loaded = load_cell(cell.entry(Store(of.outputs)).folder)
        (one,) = loaded.translate([text])
        kept = {"weights": one.attention}
        if hasattr(loaded.model, "densities"):
            kept |= loaded.model.densities(one.attention)
        source = one.source_tokens
        panels.append(Panel(label, cell.mapping, one.output_tokens, {k: v.numpy() for k, v in kept.items()}))
    return Example(text, source, "", panels)


def classified(of: Finished, texts: Sequence[str]) -> Example:
    """A text or pair of texts of one's own, classified by every row's model: one panel, a line a row."""
    lines, source, weights = [], [], []
    for label, cell in of.cells:
        (one,) = load_cell(cell.entry(Store(of.outputs)).folder).classify([tuple(texts)])
        source, lines = one.source_tokens, [*lines, f"{label}: {one.output}"]
        weights.append(one.attention[0].numpy())
    mappings = tuple(cell.mapping for _, cell in of.cells)
    return Example(
        " / ".join(texts), source, "", [Panel(" / ".join(texts[1:]), mappings, lines, {"weights": np.stack(weights)})]
    )
