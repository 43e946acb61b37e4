"""Compare finished cells in files: a table (text, Markdown, CSV), drawings (SVG) and a page with filters."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.files import write_atomic
from repro.report import page, sweeps
from repro.report.data import Part, part
from repro.tables import render, runs, screen
from repro.tables.blocks import Block, Table
from repro.tables.compare import Lost

DRAWN = "plots"  # subfolder for the drawings
DASHBOARD = "dashboard.html"
RUNS = "runs.csv"
MOST_LINES = 24  # maximum number of settings that are drawn as lines


def write(table: Table, folder: Path, lost: Sequence[Lost] = ()) -> list[Path]:
    """Write table.{txt,md,csv,tex}, runs.csv, plots/*.svg and dashboard.html in `folder`; returns their paths.

    Args:
        table: from `compare.table`. lost: the cells without a result.
    """
    files = {f"table{suffix}": text for suffix, text in render.files(table).items()}
    for block in table.blocks:
        drawings = part(sweeps.pictures, block)
        if drawings.note:
            logging.getLogger(__name__).warning("%s: %s", block.label, drawings.note)
        for drawn in drawings.content or ():
            files[f"{DRAWN}/{drawn.name}.svg"] = drawn.svg
    files[RUNS] = runs.to_csv(table.blocks, lost)
    made = part(dashboard, table)
    if made.note:
        logging.getLogger(__name__).warning("no %s: %s", DASHBOARD, made.note)
    else:
        files[DASHBOARD] = made.content
    for name, content in files.items():
        write_atomic(folder / name, content.encode())
    return [folder / name for name in files]


def dashboard(table: Table) -> str:
    """A page of all cells of a table, with selects that show and hide rows by task, data and mapping."""
    records = [r for block in table.blocks for row in block.own for r in row.results]
    views = [{"anchor": f"g{i}", "task": block.label, **_view(block)} for i, block in enumerate(table.blocks)]
    named = {name: [r.config[name]["name"] for r in records] for name in ("task", "data", "mapping")}
    told = {"filters": {name: dict.fromkeys(values) for name, values in named.items()}, "legend": screen.legend(table)}
    return page.rendered("dashboard.html.jinja", table=table, views=views, **told)


def _view(block: Block) -> dict[str, Any]:
    """The template's values for a task. With more than `MOST_LINES` settings, only the sweeps are drawn."""
    scores = [value.metric for value in block.rows[0].values if value.better]
    figures, main = part(sweeps.pictures, block), "" if block.main is None else block.rows[0].values[block.main].metric
    if len(block.own) <= MOST_LINES:
        selects = next((m for m in scores if m.startswith("dev/")), "")
        return page.view(block, selects, [main, *scores], (main or "test/").partition("/")[0]) | {"figures": figures}
    many = "settings are too many for one drawing; run the command with mapping=NAME or another filter."
    drawn = dict.fromkeys(("main", "curves", "heat", "samples"), Part(note=f"{len(block.own)} {many}"))
    return page.of_screen(block) | drawn | {"figures": figures}
