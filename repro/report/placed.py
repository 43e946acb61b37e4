"""The papers' figures in the report of their experiment: the note that is written beside a drawing, and what is shown.

A report shows the figures in <outputs>/figures/<experiment>/ that have a note for the report's profile.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from repro.files import read_json, write_json
from repro.report.data import link

ENDING = ".about.json"
LARGEST = 2_000_000  # maximum size of an embedded drawing in bytes; larger drawings are only linked


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
