"""What every task that trains through fairseq shares: our configuration in fairseq's groups, and progress of the training."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

OPTIMIZERS = ("sgd", "adam")
SCHEDULE_KEYS: dict[str, tuple[str, ...]] = {
    "latched_halving": ("start_decay_at", "decay"),
    "inverse_sqrt": ("warmup_updates",),
    "mcan_steps": ("warmup_epochs", "decay_epochs", "decay"),
    "fixed": (),
}

# Training's share of a cell's time as a progress bar shows it.
TRAINING_SHARE = 0.93


def fairseq_groups(
    config: Mapping[str, Any],
    folder: Path,
    *,
    task: Mapping[str, Any],
    model: Mapping[str, Any],
    criterion: Mapping[str, Any],
) -> dict[str, Any]:
    """Our configuration in fairseq's groups.

    Args:
        config: the resolved configuration of a cell (groups train, optim, runtime; seed).
        folder: the cell's folder; checkpoints go below it.
        task, model, criterion: the groups of those names, with `_name`.
    """
    train, optim, runtime = config["train"], config["optim"], config["runtime"]
    optimizer: dict[str, Any] = {"_name": optim["name"], "lr": [optim["lr"]], "weight_decay": optim["weight_decay"]}
    if optim["name"] == "adam":
        optimizer |= {"adam_betas": str(tuple(optim["betas"])), "adam_eps": optim["eps"]}
    elif optim["name"] == "sgd":
        optimizer["momentum"] = 0.0  # fairseq's SGD has no configuration of its own to take a default from
    schedule = {"_name": optim["schedule"], "lr": [optim["lr"]]}
    schedule |= {k: optim[k] for k in SCHEDULE_KEYS[optim["schedule"]]}
    return {
        "common": {
            "seed": config["seed"], "cpu": runtime["device"] == "cpu", "no_progress_bar": True, "log_format": "none",
            "fp16": train["precision"] == "fp16", "bf16": train["precision"] == "bf16",
        },
        "dataset": {
            "batch_size": train["batch_size"], "max_tokens": train["max_tokens"], "batch_size_valid": train["batch_size_valid"],
            "num_workers": runtime["data_workers"], "train_subset": "train", "valid_subset": "valid",
            "required_batch_size_multiple": 1, "skip_invalid_size_inputs_valid_test": True,
        },
        "optimization": {
            "max_epoch": train["max_epochs"], "clip_norm": optim["clip"], "lr": [optim["lr"]],
            "sentence_avg": optim["normalize"] == "sentences", "update_freq": [train["update_freq"]],
        },
        "checkpoint": {"save_dir": str(folder / "checkpoints")},
        "task": dict(task),
        "model": dict(model),
        "criterion": dict(criterion),
        "optimizer": optimizer,
        "lr_scheduler": schedule,
    }  # fmt: skip


def with_mapping(config: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """fairseq's model group: the model's options and the attention mapping, parameters as JSON."""
    mapping = {k: v for k, v in config["mapping"].items() if k != "name"}
    return {
        "_name": config["model"]["name"],
        "mapping": config["mapping"]["name"],
        "mapping_params": json.dumps(mapping),
        **model,
    }


def training_metrics(trained: Any, units: tuple[str, float]) -> dict[str, float]:
    """The selected epoch's dev scores, the last epoch's training scores, and the speed in `units`, (name, number an epoch)."""
    last, seconds = trained.history[-1], sum(r["seconds"] for r in trained.history)
    values = {k: v for k, v in trained.best.items() if k.startswith("dev/")} | {"best_epoch": trained.best["epoch"]}
    values |= {k: last[k] for k in ("train/loss", "train/accuracy", "train/attention_zeros") if k in last}
    values["train/seconds"] = seconds
    values[f"train/{units[0]}_per_second"] = len(trained.history) * units[1] / max(seconds, 1e-9)
    return {k: float(v) for k, v in values.items()}


class TrainingMonitor:
    """Training's progress as progress of the cell."""

    def __init__(self, monitor: Any, share: float = TRAINING_SHARE) -> None:
        self.monitor, self.share = monitor, share

    def updated(self, epoch: float, max_epoch: int, stats: dict[str, float]) -> None:
        self.monitor.stage(f"epoch {int(epoch) + 1}/{max_epoch}", self.share * epoch / max_epoch, **stats)

    def epoch_done(self, history: list[dict[str, float]]) -> None:
        self.monitor.curve(history)
        row = history[-1]
        log.info("epoch %d: %s", row["epoch"], ", ".join(f"{k} {v:.4g}" for k, v in row.items() if k != "epoch"))

    def note(self, text: str) -> None:
        self.monitor.note(text)


def fit(config: Mapping[str, Any], groups: Mapping[str, Any], offer: str, monitor: Any) -> Any:
    """Train as `config["train"]` says, in one process or several; returns `training.Trained`.

    Args:
        groups: from `fairseq_groups`.
        offer: "module:function" that, given the configuration, makes the data available in a further process.
        monitor: of the cell.
    """
    from tasks.fairseq_plugin import processes, training

    train = config["train"]
    options = {
        "metric": train["best_metric"],
        "maximize": train["maximize"],
        "save_minutes": config["runtime"]["save_minutes"],
    }
    telling = TrainingMonitor(monitor)
    if train["processes"] > 1:
        return processes.train(groups, train["processes"], offer, config, telling, **options)
    return training.train(training.fairseq_config(dict(groups)), telling, **options)
