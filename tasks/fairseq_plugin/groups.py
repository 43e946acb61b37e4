"""Our configuration in fairseq's groups."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.initialize import add_defaults
from omegaconf import DictConfig, OmegaConf

from tasks.config import models
from tasks.config.nodes import shares
from tasks.config.schedules import SCHEDULES
from tasks.fairseq_plugin.architectures import group, model_group


def wrapper(family: str) -> ModuleType:
    """The file of this room that wraps a family."""
    return importlib.import_module(f"tasks.fairseq_plugin.{family}")


def groups_of(family: str, config: Mapping[str, Any], encoded: Path, folder: Path) -> dict[str, Any]:
    """fairseq's groups.

    Args:
        config: the resolved configuration of a cell.
        encoded: folder of the encoded data.
        folder: the cell's folder; checkpoints go below it.
    """
    train, optim, runtime, schedule = config["train"], config["optim"], config["runtime"], config["schedule"]
    batch_size, max_tokens, update_freq = shares(train)
    optimizer: dict[str, Any] = {"_name": optim["name"], "lr": [optim["lr"]], "weight_decay": optim["weight_decay"]}
    if optim["name"] == "adam":
        optimizer |= {"adam_betas": str(tuple(optim["betas"])), "adam_eps": optim["eps"]}
    elif optim["name"] == "sgd":
        optimizer["momentum"] = 0.0  # fairseq's SGD has no configuration of its own to take a default from
    return {
        "common": {
            "seed": config["seed"], "cpu": runtime["device"] == "cpu", "no_progress_bar": True, "log_format": "none",
            "fp16": train["precision"] == "fp16", "bf16": train["precision"] == "bf16",
        },
        "dataset": {
            "batch_size": batch_size, "max_tokens": max_tokens, "batch_size_valid": train["batch_size_valid"],
            "num_workers": runtime["data_workers"], "train_subset": "train", "valid_subset": "valid",
            "required_batch_size_multiple": 1, "skip_invalid_size_inputs_valid_test": True,
        },
        "optimization": {
            "max_epoch": train["max_epochs"], "clip_norm": optim["clip"], "lr": [optim["lr"]],
            "sentence_avg": optim["normalize"] == "sentences", "update_freq": [update_freq],
        },
        "checkpoint": {"save_dir": str(folder / "checkpoints")},
        "model": model_group(config, models.architecture(family, config["model"]["name"]).Options),
        "optimizer": optimizer,
        "lr_scheduler": group(f"sa_{schedule['name']}", schedule, SCHEDULES[schedule["name"]].Options) | {"lr": [optim["lr"]]},
        **wrapper(family).groups(config, encoded),
    }  # fmt: skip


def fairseq_config(groups: Mapping[str, Any]) -> DictConfig:
    """Nested dict of fairseq's groups -> a validated FairseqConfig."""
    merged = OmegaConf.merge(OmegaConf.structured(FairseqConfig), OmegaConf.create(dict(groups)))
    add_defaults(merged)
    config = OmegaConf.create(OmegaConf.to_container(merged, resolve=True, enum_to_str=True))
    OmegaConf.set_struct(config, True)
    return config
