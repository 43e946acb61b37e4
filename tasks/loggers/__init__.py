"""Loggers beside the curves.csv that every cell writes: `logger=<name>` is `tasks/loggers/<name>.py` with a class `Logger`.

Logger(cell)
.curve(rows)              all rows of the learning curve so far
.finish(metrics, state)   the cell's scores, "done" or "failed"
"""

from __future__ import annotations

import importlib
from typing import Any

from sparse_attention.repro.cell import Cell


def make_loggers(cell: Cell) -> list[Any]:
    """The further loggers of a cell; its configuration has been checked."""
    name = cell.config["logger"]["name"]
    return [] if name == "csv" else [importlib.import_module(f"tasks.loggers.{name}").Logger(cell)]
