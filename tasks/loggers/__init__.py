"""Loggers beside the curves.csv that every cell writes: `logger=<name>` is `tasks/loggers/<name>.py` with a class `Logger`.

Logger(cell, options), then as `sparse_attention.repro.loggers` says. `logger=[wandb,tensorboard]` takes both.
"""

from __future__ import annotations

import importlib
from typing import Any

from sparse_attention.repro.cell import Cell


def make_loggers(cell: Cell) -> list[Any]:
    """The further loggers of a cell; its configuration has been checked."""
    chosen = {name: options for name, options in cell.config["logger"].items() if name != "csv"}
    return [importlib.import_module(f"tasks.loggers.{name}").Logger(cell, options) for name, options in chosen.items()]
