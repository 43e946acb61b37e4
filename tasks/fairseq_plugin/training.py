"""Train a model with fairseq's Trainer and resume exactly where a killed run stopped.

fairseq's own loop (`fairseq_cli.train.main`) writes its checkpoints in place, forgets the dev loss that its schedule
needs, and reports through its logger only. This loop uses the same Trainer, tasks, criterions and checkpoint contents,
and differs in three points: a checkpoint is renamed into place (a kill never leaves half of one), the schedule's step
belongs to the checkpoint, and progress goes to a `Monitor`.

An interrupted run ends with the same weights as an uninterrupted one: fairseq seeds every update from
(seed, number of updates), and the position in the shuffled epoch is part of the checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from fairseq import checkpoint_utils, tasks, utils
from fairseq.data import iterators
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.initialize import add_defaults
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from omegaconf import DictConfig, OmegaConf

from tasks.fairseq_plugin import compat

log = logging.getLogger(__name__)
LAST, PREVIOUS, BEST = "last.pt", "previous.pt", "best.pt"


class Monitor(Protocol):
    """What a training tells the outside world."""

    def updated(self, epoch: float, max_epoch: int, stats: dict[str, float]) -> None: ...
    def epoch_done(self, history: list[dict[str, float]]) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass
class Trained:
    """The outcome: the task and the best model (by the dev metric), ready to score."""

    task: Any
    model: torch.nn.Module
    history: list[dict[str, float]] = field(default_factory=list)  # one row per epoch
    best: dict[str, float] = field(default_factory=dict)  # the row of the best epoch


def fairseq_config(groups: dict[str, Any]) -> DictConfig:
    """Nested dict of fairseq's groups (task, model, criterion, optimizer, ...) -> a validated FairseqConfig."""
    merged = OmegaConf.merge(OmegaConf.structured(FairseqConfig), OmegaConf.create(groups))
    add_defaults(merged)
    config = OmegaConf.create(OmegaConf.to_container(merged, resolve=True, enum_to_str=True))
    OmegaConf.set_struct(config, True)
    return config


def train(config: DictConfig, monitor: Monitor, *, metric: str, maximize: bool, save_minutes: float = 10.0) -> Trained:
    """Train to `config.optimization.max_epoch` (`run`) and load the best model (`finish`)."""
    task, history = run(config, monitor, metric=metric, maximize=maximize, save_minutes=save_minutes)
    return finish(task, config, history, metric=metric, maximize=maximize)


def finish(task: Any, config: DictConfig, history: list[dict[str, float]], *, metric: str, maximize: bool) -> Trained:
    """The best model of a finished training."""
    best = (max if maximize else min)(history, key=lambda row: row[f"dev/{metric}"])
    return Trained(task, load_best(Path(config.checkpoint.save_dir), task, config), history, best)


def run(config: DictConfig, monitor: Monitor, *, metric: str, maximize: bool, save_minutes: float = 10.0):
    """Train, keeping `best.pt` by dev `metric`; resumes from `config.checkpoint.save_dir`.

    Returns:
        the task, and the history: one row per epoch.

    Raises:
        FloatingPointError: the dev loss is not finite; more epochs would not bring it back.
        ValueError: no such dev metric, or no epoch to train.
    """
    compat.reset_run_state()
    np.random.seed(config.common.seed)
    utils.set_torch_seed(config.common.seed)
    task = tasks.setup_task(config.task)
    model = task.build_model(config.model)
    criterion = task.build_criterion(config.criterion)
    task.load_dataset("valid")
    trainer = Trainer(config, task, model, criterion)
    folder = Path(config.checkpoint.save_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if trainer.should_save_checkpoint_on_current_rank:
        for left in (*folder.glob("saving.*.pt"), *folder.glob("best.*.pt")):
            left.unlink(missing_ok=True)  # by a process that was killed while it saved
    state, batches = _resume(trainer, folder, monitor)
    history: list[dict[str, float]] = state.get("history", [])
    max_epoch = config.optimization.max_epoch
    saved = time.monotonic()
    sign = 1.0 if maximize else -1.0

    while batches.next_epoch_idx <= max_epoch:
        epoch = batches.next_epoch_idx
        iterator = batches.next_epoch_itr(shuffle=True)
        grouped = iterators.GroupedIterator(iterator, config.optimization.update_freq[0])
        trainer.begin_epoch(epoch)
        started, total = time.monotonic(), len(grouped)
        with metrics.aggregate("train"):
            for i, samples in enumerate(grouped, start=grouped.n):
                with metrics.aggregate("train_inner"):
                    trainer.train_step(samples)
                if i % 20 == 0:
                    stats = metrics.get_smoothed_values("train_inner")
                    metrics.reset_meters("train_inner")
                    monitor.updated(epoch - 1 + (i + 1) / total, max_epoch, {"loss": _number(stats.get("loss"))})
                if time.monotonic() - saved > 60 * save_minutes:
                    _save(trainer, batches, history, folder)
                    saved = time.monotonic()
            train_stats = metrics.get_smoothed_values("train")
        metrics.reset_meters("train")
        seconds = time.monotonic() - started
        dev_stats = _validate(trainer, epoch)
        row = {
            "epoch": float(epoch),
            "updates": float(trainer.get_num_updates()),
            "lr": trainer.get_lr(),
            "seconds": seconds,
        }
        row |= {f"train/{k}": v for k, v in _scalars(train_stats).items()}
        row |= {f"dev/{k}": v for k, v in _scalars(dev_stats).items()}
        if not np.isfinite(row["dev/loss"]):
            raise FloatingPointError(
                f"the dev loss of epoch {epoch} is {row['dev/loss']}: lower optim.lr={row['lr']:g} or the clipping norm"
            )
        if f"dev/{metric}" not in row:
            known = ", ".join(k.removeprefix("dev/") for k in row if k.startswith("dev/"))
            raise ValueError(f"train.best_metric={metric!r} is not measured on dev; there are: {known}")
        better = not history or sign * row[f"dev/{metric}"] > max(sign * r[f"dev/{metric}"] for r in history)
        history.append(row)
        trainer.lr_step(epoch, row["dev/loss"])  # before saving, so that the schedule's state is complete
        _save(trainer, batches, history, folder, best=better)
        saved = time.monotonic()
        monitor.epoch_done(history)
        batches = trainer.get_train_iterator(batches.next_epoch_idx, load_dataset=False)

    if not history:
        raise ValueError(f"nothing to train: max_epoch={max_epoch}")
    return task, history


def load_best(folder: Path, task, config: DictConfig) -> torch.nn.Module:
    """The model of `best.pt`, on the device the training used, in eval mode."""
    state = checkpoint_utils.load_checkpoint_to_cpu(str(folder / BEST))
    model = task.build_model(config.model)
    model.load_state_dict(state["model"], strict=True, model_cfg=config.model)
    device = "cuda" if torch.cuda.is_available() and not config.common.cpu else "cpu"
    return model.to(device).eval()


def _resume(trainer: Trainer, folder: Path, monitor: Monitor):
    """The newest readable checkpoint, or a fresh start; an unreadable one is put aside, never deleted."""
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            # A truncated file must not reach the trainer half-read.
            torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            aside = path.with_suffix(".unreadable")
            with contextlib.suppress(FileNotFoundError):  # another rank was first
                path.replace(aside)
            monitor.note(
                f"checkpoint {name} cannot be read ({type(error).__name__}: {error}); kept as {aside.name}, trying an older one"
            )
            continue
        state = trainer.load_checkpoint(str(path))
        position = state["train_iterator"]
        # epoch=1 as in an uninterrupted run: fairseq composes the batches from (seed, epoch in which the iterator is made)
        batches = trainer.get_train_iterator(epoch=1, load_dataset=True)
        batches.load_state_dict(position)
        monitor.note(f"resuming from epoch {position['epoch']}, update {trainer.get_num_updates()}")
        return state, batches
    return {}, trainer.get_train_iterator(epoch=1, load_dataset=True)


def _save(trainer: Trainer, batches, history: list[dict[str, float]], folder: Path, best: bool = False) -> None:
    trainer.consolidate_optimizer()
    if not trainer.should_save_checkpoint_on_current_rank:
        return
    temporary = folder / f"saving.{os.getpid()}.pt"
    try:
        trainer.save_checkpoint(str(temporary), {"train_iterator": batches.state_dict(), "history": list(history)})
        if best:
            link = folder / f"best.{os.getpid()}.pt"
            link.unlink(missing_ok=True)
            os.link(temporary, link)
            link.replace(folder / BEST)
        if (folder / LAST).exists():
            (folder / LAST).replace(folder / PREVIOUS)
        temporary.replace(folder / LAST)
    finally:
        temporary.unlink(missing_ok=True)


def _validate(trainer: Trainer, epoch: int) -> dict[str, Any]:
    trainer.begin_valid_epoch(epoch)
    with metrics.aggregate(new_root=True) as totals:
        for sample in trainer.get_valid_iterator("valid").next_epoch_itr(shuffle=False, set_dataset_epoch=False):
            trainer.valid_step(sample)
    return totals.get_smoothed_values()


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _scalars(stats: dict[str, Any]) -> dict[str, float]:
    keep = ("loss", "ppl", "accuracy", "attention_zeros", "attention_support", "gnorm")
    return {k: float(stats[k]) for k in keep if k in stats}
