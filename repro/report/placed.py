"""Figures that were drawn from an experiment's cells, in its report: each with what is published beside it and the link to its numbers.

Whoever draws one leaves a note beside it (`note`); a report shows what lies in <outputs>/figures/<experiment>/ for its profile.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from repro.files import read_json, write_json
from repro.report.data import link

ENDING = ".about.json"
LARGEST = 2_000_000  # bytes of a drawing in a page; a larger one is linked


def note(stem: Path, title: str, caption: str, published: str, profile: str, data: Path, cells: Sequence[str]) -> Path:
    """Write what a report says of the drawing `stem`.svg.

    Args:
        published: what the paper's own shows. data: the file with its numbers. cells: ids of the trainings it was drawn from.
    """
    told = {
        "title": title,
        "caption": caption,
        "published": published,
        "profile": profile,
        "data": data.name,
        "cells": list(cells),
    }
    path = stem.with_name(stem.name + ENDING)
    write_json(path, told)
    return path


def files(folder: Path, profile: str) -> list[Path]:
    """The notes in a folder whose figures were drawn under a profile."""
    return [path for path in sorted(folder.glob(f"*{ENDING}")) if (read_json(path) or {}).get("profile") == profile]


def placed(folder: Path, profile: str, known: Collection[str], beside: Path) -> list[dict[str, Any]]:
    """What a page shows of the figures in a folder.

    Args:
        known: ids of the report's trainings. beside: the report's folder, links are relative to it.
    """
    found = []
    for path in files(folder, profile):
        told = read_json(path) or {}
        svg = path.with_name(path.name.removesuffix(ENDING) + ".svg")
        drawing = svg.read_bytes() if svg.is_file() and svg.stat().st_size <= LARGEST else b""
        image = f"data:image/svg+xml;base64,{base64.b64encode(drawing).decode()}" if drawing else ""
        others = [one for one in told["cells"] if one not in known]
        found.append(
            told
            | {
                "image": image,
                "svg": link(svg, beside),
                "data": link(path.with_name(told["data"]), beside),
                "others": len(others),
            }
        )
    return found
