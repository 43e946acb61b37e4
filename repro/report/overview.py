"""All tables of a report on one screen: a line for each column of an experiment, its first score for every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repro.tables.blocks import Table, rank_agreement


def overview(built: Sequence[Table], anchors: Sequence[str], palette: Mapping[str, int]) -> list[dict[str, Any]]:
    """Lines: the table and its anchor, what is scored, the `Value` and verdict of each label of the palette, agreement of ranks."""
    lines = []
    for table, anchor in zip(built, anchors):
        for c, block in enumerate(table.blocks):
            line: dict[str, Any] = {
                "anchor": f"{anchor}c{c}",
                "table": table.name,
                "label": block.label,
                "unavailable": block.unavailable,
            }
            rows = {row.label: row for row in block.rows if not row.baseline and row.values}
            cells = []
            for label in palette:
                row = rows.get(label)
                verdict = next((v for v in row.verdicts if v), None) if row else None
                cells.append((row.values[0] if row else None, verdict.word if verdict and verdict.comparable else ""))
            agreement = rank_agreement(block, 0) if block.against else None
            lines.append(
                line | {"score": block.headers[0] if block.headers else "", "cells": cells, "agreement": agreement}
            )
    return lines
