"""Runs on Weights & Biases."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sparse_attention.repro.cell import Cell
from tasks.models import parameters


class Logger:
    """One wandb run per cell: named by mapping and task, with configuration, curves and final scores.

    Without a key (environment or netrc) the run is stored offline under `paths.outputs`; `wandb sync` sends it later.
    A resumed cell continues its run: the run's id is the cell's.
    """

    def __init__(self, cell: Cell) -> None:
        import wandb

        config = cell.config
        options, task, mapping = config["logger"], config["task"]["name"], config["mapping"]
        mode = options["mode"]
        if mode == "auto":
            mode = "online" if os.environ.get("WANDB_API_KEY") or _in_netrc() else "offline"
        shown = "".join(f" {k}={v}" for k, v in parameters(mapping).items())
        folder = Path(config["paths"]["outputs"])
        folder.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            project=options["project"], entity=options["entity"], mode=mode, dir=str(folder), id=cell.training_id,
            resume="allow", name=f"{mapping['name']}{shown} {task} seed {config['seed']}", group=task, job_type=mapping["name"],
            config=json.loads(json.dumps(dict(config), default=str)), settings=wandb.Settings(silent=True, console="off"),
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
