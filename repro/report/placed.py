"""Draw figures of a paper from an experiment's cells, and put them into the experiment's report.

Each figure comes with a description of the published figure and a link to the data. The code that draws a figure also
writes a note about it (`note`). A report shows the figures in <outputs>/figures/<experiment>/ that have a note for the
report's profile.
"""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from repro.files import read_json, write_json
from repro.report.data import link

ENDING = ".about.json"
LARGEST = 2_000_000  # maximum size of an embedded drawing in bytes; larger drawings are only linked
GREY, COLOUR = "#dddddd", (8 / 255, 81 / 255, 156 / 255)  # of a weight that is exactly zero, and of all others


@contextmanager
def drawing(
    rows: int, columns: int, size: tuple[float, float], files: Iterable[Path], caption: str, **options: Any
) -> Iterator[Any]:
    """Axes [rows, columns] to draw on; the figure is then written to .svg, .png or .pdf files, above its caption.

    Args:
        size: width and height in inches.
        options: further options of matplotlib's `Figure.subplots`.
    """
    import matplotlib
    from matplotlib.figure import Figure

    # fonttype: text stays text; hashsalt: the same numbers give the same file
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": caption}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure.subplots(rows, columns, squeeze=False, **options)
        figure.supxlabel(textwrap.fill(caption, int(size[0] * 17)), fontsize=7)
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(file, dpi=130, metadata={"Date": None} if file.suffix == ".svg" else None)


def grid(
    axis: Any, rectangles: Iterable[tuple[int, int, int, float]], down: Sequence[str], across: Sequence[str]
) -> None:
    """Draw weights as (row, first column, end column, weight), beside the words of the rows and above them the columns'."""
    from matplotlib.patches import Rectangle

    for row, start, end, weight in rectangles:
        fill: Any = GREY if weight == 0 else (*COLOUR, 0.08 + 0.92 * min(1.0, weight))
        axis.add_patch(Rectangle((start, row), end - start, 1, facecolor=fill, edgecolor="white", linewidth=0.6))
    axis.set(xlim=(0, len(across)), ylim=(len(down), 0), aspect="equal")
    places = [i + 0.5 for i in range(max(len(across), len(down)))]
    axis.set_xticks(places[: len(across)], across, rotation=60, ha="left", rotation_mode="anchor", fontsize=7)
    axis.set_yticks(places[: len(down)], down, fontsize=7)
    axis.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)


def write_numbers(file: Path, caption: str, examples: Sequence[Any]) -> None:
    """Write the numbers of a figure as JSON, with its caption."""
    file.parent.mkdir(parents=True, exist_ok=True)
    told = json.dumps({"about": caption, "examples": examples}, ensure_ascii=False, indent=1)
    file.write_text(told + "\n", encoding="utf-8")


def note(stem: Path, title: str, caption: str, published: str, profile: str, data: Path, cells: Sequence[str]) -> Path:
    """Write the texts and links that a report shows with the drawing `stem`.svg.

    Args:
        published: a description of the paper's figure.
        data: the file with the numbers in the drawing.
        cells: ids of the trainings that the drawing shows.
    """
    told = {"title": title, "caption": caption, "published": published, "profile": profile}
    path = stem.with_name(stem.name + ENDING)
    write_json(path, {**told, "data": data.name, "cells": list(cells)})
    return path


def placed(folder: Path, profile: str, known: Collection[str], beside: Path) -> list[dict[str, Any]]:
    """The template's values for the figures in a folder.

    Args:
        known: ids of the report's trainings.
        beside: the report's folder; links are relative to this folder.
    """
    found = []
    for path in sorted(folder.glob(f"*{ENDING}")):
        if (told := read_json(path) or {}).get("profile") != profile:
            continue
        svg = path.with_name(path.name.removesuffix(ENDING) + ".svg")
        drawing = svg.read_bytes() if svg.is_file() and svg.stat().st_size <= LARGEST else b""
        image = f"data:image/svg+xml;base64,{base64.b64encode(drawing).decode()}" if drawing else ""
        links = {"svg": link(svg, beside), "data": link(path.with_name(told["data"]), beside)}
        found.append({**told, **links, "image": image, "others": sum(one not in known for one in told["cells"])})
    return found
