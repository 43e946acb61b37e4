"""Trains the model of a configuration on a folder of encoded data; this is what a cell calls to train."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tasks.fairseq_plugin import checkpoints
from tasks.fairseq_plugin.job import Job
from tasks.fairseq_plugin.loop import Monitor, run
from tasks.fairseq_plugin.processes import spread


def train(
    family: str, config: Mapping[str, Any], encoded: Path, folder: Path, monitor: Monitor, better: int
) -> tuple[nn.Module, list[dict[str, float]], dict[str, float]]:
    """Train as configured, in one or several processes; resumes from `folder`. See `Job` for the arguments.

    Returns:
        the plain torch model of the best epoch (by the dev metric), on the CPU; one row per epoch; the best epoch's row.

    Raises:
        FloatingPointError: a loss is not finite or has exploded.
        ValueError: the dev metric is unknown, an example is longer than a batch may be, or a checkpoint was damaged
            after it was written.
    """
    job = Job(family, dict(config), encoded, folder, better)
    (spread if config["train"]["processes"] > 1 else run)(job, monitor)
    last = checkpoints.read(job.checkpoints / checkpoints.LAST)
    model = job.model()
    model.load_state_dict(last["best"])
    return model.net.eval(), last["history"], max(last["history"], key=job.value)
