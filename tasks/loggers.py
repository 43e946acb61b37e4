"""Loggers a configuration can name beside the CSV that is always written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sparse_attention.repro.cell import Cell

NAMES = ("csv", "wandb")


def make_loggers(cell: Cell) -> list[Any]:
    """The extra loggers of a cell. Raises ValueError for an unknown name."""
    name = cell.config["logger"]["name"]
    if name == "csv":
        return []
    if name == "wandb":
        return [WandbLogger(cell)]
    raise ValueError(f"logger={name!r} is unknown; allowed: {', '.join(NAMES)}")


class WandbLogger:
    """One wandb run per cell: named by mapping and task, with configuration, curves and final scores.

    Without a key (environment or netrc) the run is stored offline under `paths.outputs`; `wandb sync` sends it later.
    A resumed cell continues its run: the run's id is the cell's.
    """

    def __init__(self, cell: Cell) -> None:
        import wandb

        options = cell.config["logger"]
        mode = options["mode"]
        if mode == "auto":
            mode = "online" if os.environ.get("WANDB_API_KEY") or _in_netrc() else "offline"
        parameters = {k: v for k, v in cell.config["mapping"].items() if k != "name"}
        shown = "".join(f" {k}={v}" for k, v in parameters.items())
        folder = Path(cell.config["paths"]["outputs"])
        folder.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            project=options["project"], entity=options["entity"], mode=mode, dir=str(folder), id=cell.cell_id, resume="allow",
            name=f"{cell.mapping}{shown} {cell.task} seed {cell.seed}", group=cell.task, job_type=cell.mapping,
            config=json.loads(json.dumps(dict(cell.config), default=str)), settings=wandb.Settings(silent=True, console="off"),
        )  # fmt: skip
        self.run.define_metric("epoch")
        self.run.define_metric("*", step_metric="epoch")
        self._sent = 0

    def curve(self, rows: list[dict[str, float]]) -> None:
        for row in rows[self._sent :]:
            self.run.log(row)
        self._sent = len(rows)

    def finish(self, metrics: dict[str, float], state: str) -> None:
        self.run.summary.update({**metrics, "state": state})
        self.run.finish(exit_code=0 if state == "done" else 1)


def _in_netrc() -> bool:
    path = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    try:
        return "api.wandb.ai" in path.read_text()
    except OSError:
        return False
