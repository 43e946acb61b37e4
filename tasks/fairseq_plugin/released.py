"""Writes a finished model as a checkpoint that fairseq's own commands read (`fairseq-generate --path`).

The checkpoint contains no optimiser state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf
from torch import nn

from tasks.fairseq_plugin.job import Job


def write(family: str, config: Mapping[str, Any], encoded: Path, model: nn.Module, path: Path) -> None:
    """Write a checkpoint.

    Args:
        config: configuration of the cell.
        encoded: folder with the cell's encoding. Its path is not stored; fairseq's commands are given a path.
        model: the plain torch model.
    """
    job = Job(family, dict(config), encoded, path.parent, 1)
    job.groups.model.compile_step = False
    wrapped = job.model()
    wrapped.net.load_state_dict(model.state_dict())
    made = OmegaConf.merge(OmegaConf.structured(FairseqConfig), job.groups)
    told: Any = OmegaConf.to_container(made, resolve=True, enum_to_str=True)
    told["task"]["data"], told["checkpoint"]["save_dir"] = "data", "checkpoints"
    last = {"criterion_name": told["criterion"]["_name"], "optimizer_name": config["optim"]["name"]}
    state = {
        "args": None, "cfg": told, "model": wrapped.state_dict(), "task_state": {}, "extra_state": {"train_iterator": None},
        "optimizer_history": [last | {"lr_scheduler_state": {}, "num_updates": 0}], "last_optimizer_state": None,
    }  # fmt: skip
    torch.save(state, path)
