"""The report of one or more experiments: a single HTML file that a reader can keep, print and send.

Everything is inline (style, drawings, a few lines of script that only sort tables); the file loads nothing. Meant for a
reader who wants to believe or to doubt the numbers: tables beside the published ones, learning curves, what the attention
looks like, sample outputs, every cell with its failure, and what produced it all.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from sparse_attention.repro.blocks import Block, Table
from sparse_attention.repro.files import write_atomic
from sparse_attention.repro.plan import Plan
from sparse_attention.repro.report import cells as states
from sparse_attention.repro.report import data
from sparse_attention.repro.store import Store

if TYPE_CHECKING:
    import jinja2


@dataclass
class Column:
    """A column of an experiment: its table and everything drawn below it."""

    anchor: str
    block: Block
    lines: list[data.Line]
    table: data.Part  # TableView
    curves: data.Part  # list[Figure]
    quality: data.Part  # Figure
    scatter: data.Part  # list[Figure]
    heat: data.Part  # list[Example]
    samples: data.Part  # list[Sample]


@dataclass
class Experiment:
    anchor: str
    table: Table
    comparable: bool
    profile: str
    columns: list[Column]
    cells: data.Part  # list[CellView]
    states: dict[str, int]
    files: list[tuple[str, str]]  # (name, link)


def write(
    built: Sequence[Table],
    made: Sequence[Plan],
    store: Store,
    path: str | Path,
    failed: Mapping[str, str] | None = None,
) -> Path:
    """Write the report of `built[i]`, the table of the plan `made[i]`.

    Args:
        built: tables, from `table.build`.
        made: their plans, in the same order.
        store: where the cells are.
        path: the HTML file to write; folders are made.
        failed: cell id -> error of cells that failed in this run, beside what the store remembers.

    Returns:
        `path`.

    Raises:
        ValueError: not one table per plan.
        ModuleNotFoundError: jinja2 is not installed.
        StoreError: the file cannot be written.

    A missing or damaged piece (failed cell, no predictions, no matplotlib) becomes a note in its place.
    """
    if len(built) != len(made):
        raise ValueError(f"one table per plan is needed, got {len(built)} tables and {len(made)} plans")
    path = Path(path)
    environment = _environment()
    palette = data.styles(built)
    sections = [
        _experiment(f"e{i}", table, plan, store, palette, failed or {}, path.parent)
        for i, (table, plan) in enumerate(zip(built, made), 1)
    ]
    page = environment.get_template("report.html.jinja").render(
        title=" · ".join(t.title for t in built), experiments=sections, palette=palette,
        provenance=data.part(states.provenance, made, store), written=time.strftime("%Y-%m-%d %H:%M %Z"),
    )  # fmt: skip
    write_atomic(path, page.encode("utf-8", "replace"))
    return path


def _environment() -> jinja2.Environment:
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the HTML report needs jinja2: pip install 'sparse-attention[repro]' and run the command again"
        ) from error
    from sparse_attention.repro.report.figures import swatch

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals["swatch"] = swatch
    return environment


def _experiment(
    anchor: str,
    table: Table,
    plan: Plan,
    store: Store,
    palette: Mapping[str, int],
    failed: Mapping[str, str],
    beside: Path,
) -> Experiment:
    columns = [_column(f"{anchor}c{c}", c, block, plan, palette) for c, block in enumerate(table.blocks)]
    cells = data.part(states.cell_views, plan, table, store, failed, beside)
    # a cell that fills several slots is counted once
    count = Counter({cell.cell_id: cell.state for cell in cells.content or ()}.values())
    comparable = any(block.comparable for block in table.blocks)
    return Experiment(
        anchor, table, comparable, plan.experiment.profile, columns, cells, dict(count), _files(plan, store, beside)
    )


def _column(anchor: str, number: int, block: Block, plan: Plan, palette: Mapping[str, int]) -> Column:
    from sparse_attention.repro.report import figures, heat

    column = plan.experiment.columns[number]
    if block.unavailable:
        nothing = data.Part(note="not run")
        return Column(anchor, block, [], nothing, nothing, nothing, nothing, nothing, nothing)
    lines = data.lines_of(block, palette)
    records = data.predictions_of(lines, column.split)
    return Column(
        anchor, block, lines,
        data.part(data.table_view, block, column, plan.metrics(number)),
        data.part(figures.learning_curves, lines, column, f"{anchor}/curves"),
        data.part(figures.attention_quality, lines, column, column.split, f"{anchor}/quality"),
        data.part(figures.against_published, block, lines, column, f"{anchor}/published"),
        data.part(heat.heat_maps, lines, records, column.split),
        data.part(data.samples, lines, records, [s.metric for s in column.show]),
    )  # fmt: skip


def _files(plan: Plan, store: Store, beside: Path) -> list[tuple[str, str]]:
    """Links to the table's other forms, where they have been written."""
    stem = f"{plan.experiment.name}_{plan.experiment.profile}"
    folder = store.root / "tables"
    found = [folder / f"{stem}{suffix}" for suffix in (".txt", ".md", ".csv", ".tex")]
    return [(p.name, quote(os.path.relpath(p, beside).replace(os.sep, "/"))) for p in found if p.is_file()]
