"""The papers' figures in the report of their experiment: writes a note next to each drawing, and reads the notes.

A report shows the figures in <outputs>/figures/<experiment>/ that have a note for the report's profile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from repro.files import read_json, write_json
from repro.report.data import embedded, link

ENDING = ".about.json"
LARGEST = 2_000_000  # maximum size of an embedded drawing in bytes; larger drawings are only linked


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
    figures = []
    for path in sorted(folder.glob(f"*{ENDING}")):
        if (told := read_json(path) or {}).get("profile") != profile:
            continue
        svg = path.with_name(path.name.removesuffix(ENDING) + ".svg")
        image = embedded(svg.read_bytes() if svg.is_file() and svg.stat().st_size <= LARGEST else b"")
        links = {"svg": link(svg, beside), "data": link(path.with_name(told["data"]), beside)}
        figures.append({**told, **links, "image": image, "others": sum(cell not in known for cell in told["cells"])})
    return figures
