"""Loggers beside the curves.csv that every cell writes: `logger=<name>` is `configs/logger/<name>.yaml` and
`tasks/loggers/<name>.py` with the classes `Options` and `Logger`; nothing else names it.

Logger(cell, options), then as `repro.loggers` says. `logger=[wandb,tensorboard]` takes both.
"""

from __future__ import annotations

import importlib
from typing import Any

from repro.cell import Cell
from tasks.config import nodes
from tasks.config.overrides import CONFIGS


def options() -> dict[str, type]:
    """The options of every logger that has a file in configs/logger."""
    names = sorted(page.stem for page in (CONFIGS / "logger").glob("*.yaml"))
    return {n: nodes.Csv if n == "csv" else importlib.import_module(f"tasks.loggers.{n}").Options for n in names}


def make_loggers(cell: Cell) -> list[Any]:
    """The further loggers of a cell; its configuration has been checked."""
    chosen = {name: options for name, options in cell.config["logger"].items() if name != "csv"}
    return [importlib.import_module(f"tasks.loggers.{name}").Logger(cell, options) for name, options in chosen.items()]
