"""The report of an experiment: a page for each table, to keep, print and send.

Everything is inline (style, drawings and a short script that sorts tables), so the file loads nothing. Each column opens
with the answer, then comes a picture and the table; details are folded: learning curves, attention, sample outputs,
every cell with its error if it failed, deviations and provenance.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from repro.files import write_atomic
from repro.plan import Plan
from repro.plan.experiment import Show
from repro.report import cells as states
from repro.report import draw, examples, pictures, sweeps
from repro.report.data import Missing, embedded, link, part, predictions_of
from repro.report.placed import placed
from repro.results.records import Record, of_cells
from repro.store import Store
from repro.tables import compare, render
from repro.tables.blocks import Block, Table


def write(
    table: Table, plan: Plan, store: Store, path: Path, failed: Mapping[str, str] | None = None, links: bool = True
) -> Path:
    """Write the report of a plan's table as the HTML file `path`.

    A part that is missing or damaged (failed cell, no predictions) is replaced by a note.

    Args:
        failed: cell id -> error, for cells that failed in this run, in addition to the failures recorded in the store.
        links: link to the folders of the cells, unless the store is temporary. Links are relative to the page's folder.

    Raises StoreError if the file cannot be written.
    """
    cells = part(states.cell_views, plan, table, store, failed or {}, path.parent if links else None)
    # a cell that fills several slots is counted once
    count = Counter({x["cell_id"]: x["state"] for column in cells.content or () for x in column["cells"]}.values())
    stem = store.root / "tables" / f"{plan.experiment.name}_{plan.experiment.profile}"
    forms = [stem.with_name(stem.name + suffix) for suffix in (".txt", ".md", ".csv", ".tex")]
    folder, known = store.root / "figures" / plan.experiment.name, {cell.training_id for cell in plan.cells.values()}
    outcomes = Counter(one.outcome for one in table.claims if one.parts)
    page = (
        environment()
        .get_template("report.html.jinja")
        .render(
            table=table,
            own=plan.experiment.own,
            columns=[_column(c, block, plan, store) for c, block in enumerate(table.blocks)],
            states=count,
            cells=cells,
            figures=part(placed, folder, plan.experiment.profile, known, path.parent),
            outcomes=", ".join(f"{n} {word}" for word, n in outcomes.items()),
            provenance=part(states.provenance, plan, store),
            files=[(form.name, link(form, path.parent)) for form in forms if form.is_file()],
            written=time.strftime("%Y-%m-%d %H:%M %Z"),
        )
    )
    write_atomic(path, page.encode("utf-8", "replace"))
    return path


def _column(number: int, block: Block, plan: Plan, store: Store) -> dict[str, Any]:
    """The template's values for one column of an experiment."""
    anchor, column = f"c{number}", plan.experiment.columns[number]
    if block.unavailable:
        return {"anchor": anchor, "block": block}
    first = next((s for s in column.show if "/attention_" not in s.metric), column.show[0])
    selects = column.select.metric if column.select else ""
    values = view(block, selects, [first, *column.show], column.split, part(_images, plan, number).content)
    if any(slot.point for slot in plan.slots):
        values["points"] = part(points, of_cells([slot for slot in plan.slots if slot.column == number], store))
    return {"anchor": anchor, **values}


def view(block: Block, selects: str, shown: Sequence[Show], split: str, images: Any = None) -> dict[str, Any]:
    """The template's values for a block of a table: its picture, small tables and details.

    Args:
        selects: the metric that selects the epoch.
        shown: the shown scores; the first one is drawn next to the statistics of the attention.
        images: a function that maps the image of an example to a PNG.
    """
    rows = block.own
    records = predictions_of(rows, split)
    return {
        "block": block,
        "small": [*render.minus_published(block), *render.differences(block)],
        "main": part(pictures.main_score, block),
        "curves": part(pictures.learning_curves, rows, selects, split),
        "quality": part(pictures.attention_quality, rows, shown[0], split),
        "heat": part(examples.heat_maps, rows, records, split, images),
        "samples": part(examples.samples, rows, records, [s.metric for s in shown], images),
        "points": None,
    }


def points(records: Sequence[Record]) -> dict[str, Any]:
    """All grid points of an experiment's column, as {"block": ..., "figures": Part}.

    Raises `Missing` if no cell of the column is finished.
    """
    groups = compare.groups(records)
    if not groups:
        raise Missing("No cell of this column is finished.")
    return {"block": compare.table(groups, "", "").blocks[0], "figures": part(sweeps.pictures, groups[0])}


def _images(plan: Plan, number: int) -> Any:
    """A function that maps the image of a test record to a PNG, or None if the family's examples are not images."""
    cell = next(slot for slot in plan.slots if slot.column == number)
    find = getattr(cell.family, "pictures", None)
    return find(cell.config) if find else None


@cache
def environment() -> Any:
    """The jinja2 environment with the templates."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    colours = {w: "rgb({:.0f} {:.0f} {:.0f})".format(*255 * draw.shade(float(w))) for w in ("0", ".1", ".5", "1")}
    made.globals |= {"swatch": draw.swatch, "shades": colours, "best": render.BEST}
    made.filters |= {"prose": prose, "embedded": embedded}
    return made


def prose(text: str) -> Markup:
    """Escape text for HTML, and format the parts in backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))
