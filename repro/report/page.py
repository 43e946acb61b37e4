"""The report of an experiment: a page for each table, to keep, print and send.

Everything is inline (style, drawings and a short script that sorts tables), so the file loads nothing. It opens with the
screen that a command prints (`repro.tables.screen`); the rest is folded under five headings.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from repro.files import templates, write_atomic
from repro.identity import Cell
from repro.plan import Plan
from repro.protocol import metric_of
from repro.report import draw, examples, pictures
from repro.report.data import Part, embedded, part, predictions_of
from repro.store import Store
from repro.tables import render, screen
from repro.tables.blocks import Block, Table


def write(table: Table, plan: Plan, store: Store, path: Path) -> Path:
    """Write the report of a plan's table as the HTML file `path`.

    A part that is missing or damaged (failed cell, no predictions) is replaced by a note.

    Raises StoreError if the file cannot be written.
    """
    cells = part(cell_views, plan, table, store, path.parent)
    # a cell that fills several slots is counted once
    count = Counter({x["cell_id"]: x["state"] for column in cells.content or () for x in column["cells"]}.values())
    outcomes = Counter(one.outcome for one in table.claims if one.parts)
    told = {"table": table, "legend": screen.legend(table), "own": plan.experiment.own, "states": count, "cells": cells}
    told["columns"] = [_column(c, block, plan) for c, block in enumerate(table.blocks)]
    told["outcomes"] = ", ".join(f"{n} {word}" for word, n in outcomes.items())
    page = rendered("report.html.jinja", **told)
    write_atomic(path, page.encode("utf-8", "replace"))
    return path


def _column(number: int, block: Block, plan: Plan) -> dict[str, Any]:
    """The template's values for one column of an experiment."""
    anchor, column = f"c{number}", plan.experiment.columns[number]
    if block.unavailable:
        return {"anchor": anchor, "block": block}
    shown = sorted((show.metric for show in column.show), key=lambda metric: "/attention_" in metric)
    selects = column.select.metric if column.select else ""
    return {"anchor": anchor, **view(block, selects, shown, column.split, part(_images, plan, number).content)}


def view(block: Block, selects: str, shown: Sequence[str], split: str, images: Any = None) -> dict[str, Any]:
    """The template's values for a block of a table: its screen and what is folded below.

    Args:
        selects: the metric that selects the epoch.
        shown: the shown scores; a sample has the first one that is known of its example.
        images: a function that maps the image of an example to a PNG.
    """
    rows = block.own
    records = predictions_of(rows, split)
    return of_screen(block) | {
        "main": part(pictures.main_score, block),
        "curves": part(pictures.learning_curves, rows, selects, split),
        "heat": part(examples.heat_maps, rows, records, split, images),
        "samples": part(examples.samples, rows, records, shown, images),
    }


def of_screen(block: Block) -> dict[str, Any]:
    """The template's values for the screen of a block and for its tables."""
    made = {f.__name__: f(block) for f in (screen.finding, screen.rows, screen.columns, screen.notes, render.further)}
    return {"block": block, "whole": screen.columns(block, whole=True), "figures": Part(), **made}


def cell_views(plan: Plan, table: Table, store: Store, beside: Path) -> list[dict[str, Any]]:
    """The columns of the plan, each with one line per slot. Links to the cells' folders are relative to the folder `beside`."""
    views = []
    for number, (column, block) in enumerate(zip(plan.experiment.columns, table.blocks)):
        shown = {s.metric: s.label for s in column.show}
        if column.select and column.select.metric not in shown:
            shown = {column.select.metric: column.select.metric.replace("/", " ").replace("_", " "), **shown}
        decimals = {m: metric_of(plan.metrics(number), m).decimals for m in shown}
        chosen = [{found.cell_id for found in row.results} for row in block.rows if not row.baseline]
        cells = []
        for slot in (slot for slot in plan.slots if slot.column == number):
            view = _cell(slot, store, decimals)
            row = plan.experiment.rows[slot.row].label
            selected = slot.row < len(chosen) and slot.training_id in chosen[slot.row]
            place = slot.entry(store).folder
            folder = quote(os.path.relpath(place, beside)) if place.is_dir() else ""
            cells.append(view | {"row": row, "seed": slot.seed, "selected": selected, "folder": folder})
        views.append({"label": column.label, "headers": list(shown.values()), "cells": cells})
    return views


def _cell(cell: Cell, store: Store, decimals: Mapping[str, int]) -> dict[str, Any]:
    """State, error and numbers of a cell; `decimals`: metric -> digits, in the order of the columns."""
    state, found, error = cell.found(store)
    metrics = found.metrics if found else {}
    trace = cell.entry(store).status().get("traceback", "") if state == "failed" else ""
    numbers = [f"{metrics[m]:.{digits}f}" if m in metrics else "" for m, digits in decimals.items()]
    epoch, epochs = metrics.get("best_epoch"), (cell.config.get("train") or {}).get("max_epochs")
    cost = (found.seconds if found else None, metrics.get("train/tokens_per_second"))
    numbers += ["" if epoch is None else f"{epoch:.0f} of {epochs}", *("" if v is None else f"{v:.0f}" for v in cost)]
    about = {"cell_id": cell.training_id, "parameters": cell.parameters, "numbers": numbers}
    return about | {"state": state, "error": error, "trace": trace}


def _images(plan: Plan, number: int) -> Any:
    """A function that maps the image of a test record to a PNG, or None if the family's examples are not images."""
    cell = next(slot for slot in plan.slots if slot.column == number)
    find = getattr(cell.family, "pictures", None)
    return find(cell.config) if find else None


def rendered(name: str, **told: Any) -> str:
    """A page from its template, with the time."""
    return environment().get_template(name).render(told, written=time.strftime("%Y-%m-%d %H:%M %Z"))


@cache
def environment() -> Any:
    """The jinja2 environment with the templates."""
    made = templates(Path(__file__).parent / "templates", autoescape=True)
    colours = {w: "rgb({:.0f} {:.0f} {:.0f})".format(*255 * draw.shade(float(w))) for w in ("0", ".1", ".5", "1")}
    made.globals |= {"swatch": draw.swatch, "shades": colours}
    made.filters |= {"prose": prose, "embedded": embedded}
    return made


def prose(text: str) -> Markup:
    """Escape text for HTML, and format the parts in backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))
