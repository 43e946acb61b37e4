"""What a report shows, read from the store: selected cells, curves, predictions.

Everything here is plain data for the template; nothing is drawn. A piece that is missing raises `Missing` with a sentence
for the reader, and `part` turns that (and any surprise) into a note, so that one broken file costs one figure.
"""

from __future__ import annotations

import csv
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from repro.identity import Found
from repro.plan.experiment import Column
from repro.protocol import Metric
from repro.store import Damaged
from repro.tables.blocks import Block, Table, best_of

LONGEST_TEXT = 700  # characters of a source or reference shown


class Missing(Exception):
    """A piece of the report that cannot be shown; the message says why and what would bring it."""


@dataclass
class Part:
    """A piece of the report, or the note that stands in its place."""

    content: Any = None
    note: str = ""


def part(make: Callable[..., Any], *arguments: Any) -> Part:
    """Call `make`; a failure becomes a note, because a report with a gap is worth more than no report."""
    try:
        return Part(make(*arguments))
    except Missing as missing:
        return Part(note=str(missing))
    except Exception as error:
        logging.getLogger(__name__).warning("%s: a part of the report is left out", make.__name__, exc_info=True)
        return Part(note=f"This part could not be made ({type(error).__name__}: {error}).")


@dataclass
class Line:
    """A row of the experiment in one column, with the cells selected for it (one per seed; empty: none finished)."""

    label: str
    detail: str
    style: int  # index into the palette
    found: list[Found] = field(default_factory=list)


def styles(tables: Sequence[Table]) -> dict[str, int]:
    """Row label -> palette index, the same wherever the label appears."""
    labels = [row.label for t in tables for block in t.blocks for row in block.rows if not row.baseline]
    return {label: i for i, label in enumerate(dict.fromkeys(labels))}


def lines_of(block: Block, palette: Mapping[str, int]) -> list[Line]:
    """The rows of a block with their selected cells."""
    return [Line(row.label, row.detail, palette[row.label], row.found) for row in block.rows if not row.baseline]


def link(path: Path, beside: Path) -> str:
    return quote(os.path.relpath(path, beside).replace(os.sep, "/"))


def table_view(block: Block, column: Column, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """A block ready to be printed: its rows, the (row, published column) that are best, every row's verdicts (word, all of it)."""
    rows = [row for row in block.rows if not row.baseline]
    against = [metric for group in column.published for metric in group.against]
    best_published = set()
    for c, full in enumerate(against):
        metric = metrics.get(full.rpartition("/")[2])
        printed = [None if (theirs := row.theirs[c]) is None else theirs.value for row in rows]
        best_published |= {(r, c) for r in best_of(printed, metric.better if metric else 0, 4)}
    verdicts = [list(dict.fromkeys((v.word, v.text) for v in row.verdicts if v)) for row in rows]
    baselines = [row for row in block.rows if row.baseline]
    differences = [[row.difference(c, against) for c in range(len(against))] for row in rows]
    return {
        "rows": rows,
        "runs": any(row.found for row in rows),
        "differences": differences if any(text for line in differences for text in line) else [],
        "baselines": baselines,
        "best_published": best_published,
        "verdicts": verdicts,
        "against": against,
    }


def read_curves(found: Found) -> dict[str, list[float]]:
    """`curves.csv` by columns; what is not a number is NaN. Empty when the file is absent."""
    try:
        with (found.folder / "curves.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        return {}
    return {key: [_number(row.get(key)) for row in rows] for key in rows[0] if key} if rows else {}


def _number(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan


def scores(line: Line, name: str) -> list[float]:
    """The metric `name` of the selected cells that have it."""
    return [v for f in line.found if (v := f.metrics.get(name)) is not None and math.isfinite(v)]


def predictions_of(lines: Sequence[Line], split: str) -> list[dict[int, dict[str, Any]] | None]:
    """Per line the records of its first selected cell by example index; None where there are none or they cannot be read."""
    read: list[dict[int, dict[str, Any]] | None] = []
    for line in lines:
        level = line.found[0].evaluations.get(split) if line.found else None
        try:
            records = level.predictions() if level else []
        except Damaged as error:  # costs this row its samples, not the report
            logging.getLogger(__name__).warning("%s", error)
            records = []
        read.append({int(r["index"]): r for r in records if "index" in r} or None)
    return read


def clip(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1].rstrip() + "…"
