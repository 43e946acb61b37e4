"""A comparison of finished cells as files: table (text, Markdown, CSV, HTML) and drawings (SVG, each with its numbers as CSV)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.files import write_atomic
from repro.report.data import Missing, Part, part
from repro.report.pages import environment
from repro.store.records import Record
from repro.tables import compare, render
from repro.tables.blocks import Table
from repro.tables.compare import Group

DRAWN = "plots"  # subfolder of the drawings


def write(
    records: Sequence[Record], folder: Path, title: str, notes: Sequence[str] = (), stem: str = "table"
) -> tuple[Table, list[Path]]:
    """Compare finished cells and write `folder`/table.{txt,md,csv,html} and plots/*.svg with *.csv; (the table, the files).

    Args:
        notes: sentences below the table.
    """
    table, files = contents(records, title, notes, stem)
    for name, content in files.items():
        write_atomic(folder / name, content.encode())
    return table, [folder / name for name in files]


def contents(
    records: Sequence[Record], title: str, notes: Sequence[str] = (), stem: str = "table"
) -> tuple[Table, dict[str, str]]:
    """What `write` writes: the table, and path -> text."""
    found = compare.groups(records)
    table = compare.table(found, stem, title, notes)
    pictures = [part(_figures, group, f"g{i}", True) for i, group in enumerate(found)]
    files = {
        f"{stem}.txt": render.to_text(table, compare.WHOLE) + "\n", f"{stem}.md": render.to_markdown(table),
        f"{stem}.csv": compare.to_csv(found), f"{stem}.html": _page(table, found, pictures, stem),
    }  # fmt: skip
    for picture in pictures:
        for drawn in picture.content or ():
            files |= {f"{DRAWN}/{drawn.name}.svg": drawn.file, f"{DRAWN}/{drawn.name}.csv": drawn.data}
    return table, files


def _figures(group: Group, salt: str, files: bool) -> list[Any]:
    from repro.report import sweeps

    return sweeps.figures(group, salt, files)


def _page(table: Table, found: Sequence[Group], pictures: Sequence[Part], stem: str) -> str:
    try:
        template = environment().get_template("comparison.html.jinja")
    except ModuleNotFoundError as error:
        return f"<p>{error}</p>\n"
    blocks = list(zip(table.blocks, pictures))
    return template.render(table=table, blocks=blocks, stem=stem, written=time.strftime("%Y-%m-%d %H:%M %Z"))


def points(records: Sequence[Record], salt: str) -> dict[str, Any]:
    """All grid points of an experiment's column, for its report: {"block": ..., "figures": Part}. Raises `Missing` without any."""
    found = compare.groups(records)
    if not found:
        raise Missing("No cell of this column is finished.")
    return {"block": compare.table(found, "", "").blocks[0], "figures": part(_figures, found[0], salt, False)}
