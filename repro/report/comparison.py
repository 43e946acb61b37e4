"""Compare finished cells in files: a table (text, Markdown, CSV) and drawings (SVG, with their numbers as CSV)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.files import write_atomic
from repro.report.data import Missing, part
from repro.store.records import Record
from repro.tables import compare, render
from repro.tables.blocks import Table
from repro.tables.compare import Group

DRAWN = "plots"  # subfolder for the drawings


def write(records: Sequence[Record], folder: Path, title: str, notes: Sequence[str] = ()) -> tuple[Table, list[Path]]:
    """Compare finished cells and write table.{txt,md,csv} and plots/*.{svg,csv} in `folder`.

    Args:
        notes: sentences to print below the table.

    Returns:
        The table, and the paths of the files.
    """
    table, files = contents(records, title, notes)
    for name, content in files.items():
        write_atomic(folder / name, content.encode())
    return table, [folder / name for name in files]


def contents(records: Sequence[Record], title: str, notes: Sequence[str] = ()) -> tuple[Table, dict[str, str]]:
    """The table, and the content of the files that `write` writes (path -> text)."""
    found = compare.groups(records)
    table = compare.table(found, "table", title, notes)
    text = render.to_text(table, compare.WHOLE) + "\n"
    files = {"table.txt": text, "table.md": render.to_markdown(table), "table.csv": compare.to_csv(found)}
    for i, group in enumerate(found):
        drawings = part(_figures, group, f"g{i}", True)
        if drawings.note:
            logging.getLogger(__name__).warning("%s: %s", group.task, drawings.note)
        for drawn in drawings.content or ():
            files |= {f"{DRAWN}/{drawn.name}.svg": drawn.svg, f"{DRAWN}/{drawn.name}.csv": drawn.data}
    return table, files


def _figures(group: Group, salt: str, files: bool) -> list[Any]:
    from repro.report import sweeps

    return sweeps.figures(group, salt, files)


def points(records: Sequence[Record], salt: str) -> dict[str, Any]:
    """All grid points of an experiment's column for its report, as {"block": ..., "figures": Part}.

    Raises `Missing` if no cell of the column is finished.
    """
    found = compare.groups(records)
    if not found:
        raise Missing("No cell of this column is finished.")
    return {"block": compare.table(found, "", "").blocks[0], "figures": part(_figures, found[0], salt, False)}
