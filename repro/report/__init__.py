"""The report of one or more experiments: a single HTML file to keep, print and send.

Everything is inline (style, drawings and a short script that sorts tables), so the file loads nothing. It shows our
numbers next to the published ones, learning curves, attention, sample outputs, every cell with its error if it failed,
and provenance.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.files import write_atomic
from repro.plan import Plan
from repro.plan.experiment import Show
from repro.report import cells as states
from repro.report.data import Line, Part, lines_of, link, part, predictions_of, styles, table_view
from repro.report.placed import placed
from repro.results.records import of_cells
from repro.store import Store
from repro.tables.blocks import Block, Table
from repro.tables.render import BEST

if TYPE_CHECKING:
    from markupsafe import Markup


def write(
    built: Sequence[Table],
    made: Sequence[Plan],
    store: Store,
    path: str | Path,
    failed: Mapping[str, str] | None = None,
    links: bool = True,
) -> Path:
    """Write the report of the tables `built` as the HTML file `path`; `built[i]` is the table of the plan `made[i]`.

    A part that is missing or damaged (failed cell, no predictions, no matplotlib) is replaced by a note.

    Args:
        failed: cell id -> error, for cells that failed in this run, in addition to the failures recorded in the store.
        links: link to the folders of the cells, unless the store is temporary.

    Raises:
        ValueError: `built` and `made` differ in length. ModuleNotFoundError: jinja2 is not installed.
        StoreError: the file cannot be written.
    """
    if len(built) != len(made):
        raise ValueError(f"one table per plan is needed, got {len(built)} tables and {len(made)} plans")
    path, palette = Path(path), styles(built)
    template = environment().get_template("report.html.jinja")
    sections = [
        _experiment(f"e{i}", table, plan, store, palette, failed or {}, path.parent, links)
        for i, (table, plan) in enumerate(zip(built, made), 1)
    ]
    page = template.render(
        title=" · ".join(t.title for t in built), experiments=sections, palette=palette,
        deviations=_deviations(built), best=BEST, provenance=part(states.provenance, made, store), written=time.strftime("%Y-%m-%d %H:%M %Z"),
    )  # fmt: skip
    write_atomic(path, page.encode("utf-8", "replace"))
    return path


def _deviations(built: Sequence[Table]) -> dict[str, list[str]]:
    """Deviation -> the titles of the tables that it concerns."""
    found: dict[str, list[str]] = {}
    for table in built:
        for text in table.deviations:
            found.setdefault(text, []).append(table.title)
    return found


def _experiment(
    anchor: str, table: Table, plan: Plan, store: Store, palette: Mapping[str, int], failed: Mapping[str, str], beside: Path,
    links: bool,
) -> dict[str, Any]:  # fmt: skip
    """The template's values for one experiment. Links are relative to the folder `beside`."""
    cells = part(states.cell_views, plan, table, store, failed, beside if links else None)
    # a cell that fills several slots is counted once
    count = Counter({x["cell_id"]: x["state"] for column in cells.content or () for x in column["cells"]}.values())
    forms = [
        store.root / "tables" / f"{plan.experiment.name}_{plan.experiment.profile}{suffix}"
        for suffix in (".txt", ".md", ".csv", ".tex")
    ]
    folder, known = store.root / "figures" / plan.experiment.name, {cell.training_id for cell in plan.cells.values()}
    return {
        "figures": part(placed, folder, plan.experiment.profile, known, beside),
        "anchor": anchor, "table": table, "comparable": any(block.comparable for block in table.blocks),
        "own": plan.experiment.own,
        "profile": plan.experiment.profile, "cells": cells, "states": dict(count),
        "columns": [_column(f"{anchor}c{c}", c, block, plan, palette, store) for c, block in enumerate(table.blocks)],
        "outcomes": ", ".join(f"{n} {word}" for word, n in Counter(o.outcome for o in table.claims if o.parts).items()),
        "swept": any(slot.point for slot in plan.slots),
        "files": [(p.name, link(p, beside)) for p in forms if p.is_file()],
    }  # fmt: skip


def _column(
    anchor: str, number: int, block: Block, plan: Plan, palette: Mapping[str, int], store: Store
) -> dict[str, Any]:  # fmt: skip
    """The template's values for one column: the column's table and the drawings below the table."""
    from repro.report import comparison, figures

    column = plan.experiment.columns[number]
    if block.unavailable:
        return {"anchor": anchor, "block": block, "table": Part(note="not run")}
    lines = lines_of(block, palette)
    swept = any(slot.point for slot in plan.slots)
    selects = column.select.metric if column.select else ""
    first = next((s for s in column.show if "/attention_" not in s.metric), column.show[0])
    cells = of_cells([cell for cell in plan.slots if cell.column == number], store) if swept else []
    return {
        "table": part(table_view, block, column),
        "scatter": part(figures.against_published, block, lines, plan.metrics(number), f"{anchor}/published"),
        "points": part(comparison.points, cells, f"{anchor}/points") if swept else None,
        **drawn(anchor, block, lines, selects, [first, *column.show], column.split, part(_pictures, plan, number).content),
    }  # fmt: skip


def drawn(
    anchor: str, block: Block, lines: Sequence[Line], selects: str, shown: Sequence[Show], split: str, picture: Any = None
) -> dict[str, Any]:  # fmt: skip
    """The template's values for what is drawn of the rows of a block: main score, curves, attention and samples.

    Args:
        selects: the metric that selects the epoch.
        shown: the shown scores, of which the first stands beside the statistics of the attention.
        picture: a function that maps the image of an example to a PNG.
    """
    from repro.report import figures, heat
    from repro.report.samples import image, samples

    records = predictions_of(lines, split)
    maps = part(heat.heat_maps, lines, records, split)
    for example in maps.content or ():
        example["image"] = image(picture, example["key"])
    return {
        "anchor": anchor, "block": block, "lines": lines, "heat": maps,
        "main": part(figures.main_score, block, lines, f"{anchor}/main"),
        "curves": part(figures.learning_curves, lines, selects, split, f"{anchor}/curves"),
        "quality": part(figures.attention_quality, lines, shown[0], split, f"{anchor}/quality"),
        "samples": part(samples, lines, records, [s.metric for s in shown], picture),
    }  # fmt: skip


def _pictures(plan: Plan, number: int) -> Any:
    """A function that maps the image of a test record to a PNG, or None if the family's examples are not images."""
    cell = next(slot for slot in plan.slots if slot.column == number)
    find = getattr(cell.family, "pictures", None)
    return find(cell.config) if find else None


def environment() -> Any:
    """The jinja2 environment with the templates. Raises ModuleNotFoundError if jinja2 is not installed."""
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the HTML report needs jinja2: run make setup and the command again") from error
    from repro.report.figures import swatch

    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found.globals["swatch"] = swatch
    found.filters |= {"prose": prose, "finding": finding}
    return found


def prose(text: str) -> Markup:
    """Escape text for HTML, and format the parts in backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def finding(text: str) -> Markup:
    """Escape a sentence for HTML, with the words up to its first colon (what was found, or where) in bold."""
    from markupsafe import Markup

    head, colon, rest = text.partition(": ")
    return Markup("<b>{}</b>{}").format(head + colon, rest) if colon else Markup.escape(text)
