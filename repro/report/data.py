"""The data of a report, read from the store: selected cells and predictions.

If a part is missing, `Refused` is raised with a message for the reader. `part` turns this error, and any other, into a
note, so that a broken file costs only one figure.
"""

import base64
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from repro.errors import Refused
from repro.store import Damaged
from repro.tables.blocks import Row

LONGEST_TEXT = 700  # maximum number of characters shown of a source or reference


@dataclass
class Part:
    """A part of the report, or a note that replaces the part."""

    content: Any = None
    note: str = ""


def part(make: Callable[..., Any], *arguments: Any) -> Part:
    """Call `make` and turn any error into a note, because a report with a gap is better than no report."""
    try:
        return Part(make(*arguments))
    except Refused as missing:
        return Part(note=str(missing))
    except Exception as error:
        logging.getLogger(__name__).warning("%s: a part of the report is left out", make.__name__, exc_info=True)
        return Part(note=f"This part could not be made ({type(error).__name__}: {error}).")


@dataclass
class Picture:
    """A drawing as an SVG file; for a sweep, also the name of the file."""

    caption: str
    svg: str
    name: str = ""


def embedded(image: str | bytes, kind: str = "svg+xml") -> str:
    """An image as an address that a page can show without loading a file; an empty string without an image."""
    content = image.encode() if isinstance(image, str) else image
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}" if content else ""


def scores(row: Row, name: str) -> list[float]:
    """The finite values of the metric `name` in the row's cells."""
    return [v for cell in row.results if (v := cell.metrics.get(name)) is not None and math.isfinite(v)]


def predictions_of(rows: Sequence[Row], split: str) -> list[dict[int, dict[str, Any]] | None]:
    """For each row, the records of the row's first cell by example index, or None if none can be read."""
    read: list[dict[int, dict[str, Any]] | None] = []
    for row in rows:
        level = row.results[0].evaluations.get(split) if row.results else None
        try:
            records = level.predictions() if level else []
        except Damaged as error:  # only this row loses its samples
            logging.getLogger(__name__).warning("%s", error)
            records = []
        read.append({int(r["index"]): r for r in records if "index" in r} or None)
    return read


def clip(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1].rstrip() + "…"
