"""Loggers, in addition to the curves.csv that every cell writes.

The logger `logger=<name>` consists of `configs/logger/<name>.yaml` and `tasks/loggers/<name>.py`, which defines the
classes `Options` and `Logger`; no other file mentions it. A logger is made by `Logger(cell, options)` and then used as
described in `repro.loggers`. `logger=[wandb,tensorboard]` uses both.
"""

import importlib
from typing import Any

from repro.cell import Cell
from tasks.config import nodes
from tasks.config.files import names_in


def options() -> dict[str, type]:
    """The options of every logger that has a file in configs/logger."""
    others = [name for name in names_in("logger") if name != "csv"]
    return {"csv": nodes.Nothing} | {name: importlib.import_module(f"tasks.loggers.{name}").Options for name in others}


def make_loggers(cell: Cell) -> list[Any]:
    """Make all loggers of a cell except csv. The cell's configuration must have been checked."""
    chosen = {name: options for name, options in cell.config["logger"].items() if name != "csv"}
    return [importlib.import_module(f"tasks.loggers.{name}").Logger(cell, options) for name, options in chosen.items()]
