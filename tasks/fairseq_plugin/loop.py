"""One training with fairseq's Trainer in this process; it resumes exactly where a killed run stopped.

fairseq's own loop (`fairseq_cli.train.main`) writes its checkpoints in place, forgets the dev loss that a schedule needs,
and reports through its logger only. This loop uses fairseq's Trainer with a step of its own (`trainer`), the same tasks,
criterions and checkpoint contents, and differs in three points: a checkpoint is renamed into place (a kill never leaves half
of one), the schedule's step belongs to the checkpoint, and progress goes to a `Monitor`.

An interrupted run ends with the same weights as an uninterrupted one: fairseq seeds every update from
(seed, number of updates), and the position in the shuffled epoch is part of the checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from fairseq import tasks, utils
from fairseq.data import iterators
from fairseq.logging import metrics
from omegaconf import DictConfig

from repro import signals
from tasks.config.models import learned
from tasks.fairseq_plugin import checkpoints, compat
from tasks.fairseq_plugin.trainer import READ_EVERY, Trainer

EXPLODED = 1e4  # bits a token: guessing among a million words costs 20
MEASURED = ("loss", "ppl", "accuracy", "attention_zeros", "attention_support", "gnorm")


class Monitor(Protocol):
    """What a training tells the outside world."""

    def updated(self, epoch: float, max_epoch: int, stats: dict[str, float]) -> None: ...
    def epoch_done(self, history: list[dict[str, float]]) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Selection:
    """Which epoch is kept: that with the best dev `metric`; `better` is 1 where higher is better, -1 where lower is."""

    metric: str
    better: int

    def value(self, row: Mapping[str, float]) -> float:
        """The larger, the better. Raises ValueError when there is no such dev metric."""
        if f"dev/{self.metric}" not in row:
            known = ", ".join(k.removeprefix("dev/") for k in row if k.startswith("dev/"))
            raise ValueError(f"train.best_metric={self.metric!r} is not measured on dev; there are: {known}")
        return self.better * row[f"dev/{self.metric}"]


def run(
    config: DictConfig, monitor: Monitor, selection: Selection, save_minutes: float
) -> tuple[Any, list[dict[str, float]]]:
    """Train in this process, keeping the best and the last checkpoints; the task, and the history: one row an epoch.

    Raises:
        Stopped: the process was asked to stop; everything up to the last update is saved.
    """
    with signals.deferred():
        return _run(config, monitor, selection, save_minutes)


def _run(
    config: DictConfig, monitor: Monitor, selection: Selection, save_minutes: float
) -> tuple[Any, list[dict[str, float]]]:
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
    state, batches = checkpoints.resume(trainer, folder, selection.value, monitor)
    history: list[dict[str, float]] = state.get("history", [])
    if history:
        monitor.epoch_done(history)  # what was written of it may be damaged
    watch = Watch(trainer, history)
    max_epoch, every = config.optimization.max_epoch, config.optimization.update_freq[0]
    updates = math.ceil(len(batches) / every)
    trainer.lr_scheduler.set_length(updates * max_epoch, updates)
    saved = time.monotonic()

    while batches.next_epoch_idx <= max_epoch:
        epoch = batches.next_epoch_idx
        grouped = iterators.GroupedIterator(batches.next_epoch_itr(shuffle=True), every)
        trainer.begin_epoch(epoch)
        started, total = time.monotonic(), len(grouped)
        with metrics.aggregate("train"):
            for i, samples in enumerate(grouped, start=grouped.n):
                with metrics.aggregate("train_inner"):
                    watch.step(samples, epoch)
                    due = i % READ_EVERY == 0
                    if due:
                        watch.read(epoch)
                inside = (
                    i + 1 < total
                )  # a checkpoint after the last update would pass over the epoch's end: dev is measured first
                if inside and (asked := _asked(trainer, due)):
                    watch.read(epoch)
                    if asked.save:
                        checkpoints.save(trainer, batches, history, folder)
                    raise signals.Stopped(asked.why)
                if due:
                    loss = metrics.get_smoothed_values("train_inner").get("loss", math.nan)
                    metrics.reset_meters("train_inner")
                    monitor.updated(epoch - 1 + (i + 1) / total, max_epoch, {"loss": float(loss)})
                if inside and time.monotonic() - saved > 60 * save_minutes:
                    watch.read(epoch)
                    checkpoints.save(trainer, batches, history, folder)
                    saved = time.monotonic()
            watch.read(epoch)
            train_stats = metrics.get_smoothed_values("train")
        metrics.reset_meters("train")
        row = {
            "epoch": float(epoch), "updates": float(trainer.get_num_updates()), "lr": trainer.get_lr(),
            "seconds": time.monotonic() - started,
        } | _measured("train", train_stats)  # fmt: skip
        row |= _measured("dev", _validate(trainer, epoch))
        row |= {f"dev/learned_{name}": value for name, value in learned(trainer.model).items()}
        watch.epoch(row)
        if history and history[-1]["dev/loss"] > 0:
            row["dev/last_gain"] = 100 * (1 - row["dev/loss"] / history[-1]["dev/loss"])
        better = not history or selection.value(row) > max(map(selection.value, history))
        history.append(row)
        trainer.lr_step(epoch, row["dev/loss"])  # before saving, so that the schedule's state is complete
        checkpoints.save(trainer, batches, history, folder, best=better)
        saved = time.monotonic()
        monitor.epoch_done(history)
        if asked := _asked(trainer):
            raise signals.Stopped(asked.why)
        batches = trainer.get_train_iterator(batches.next_epoch_idx, load_dataset=False)

    if not history:
        raise ValueError(f"nothing to train: max_epoch={max_epoch}")
    return task, history


def _asked(trainer: Trainer, due: bool = True) -> signals.Asked | None:
    """Whether to stop after this update; every process of a training gets the same answer, on GPUs only where one is due."""
    asked = signals.asked()
    if trainer.data_parallel_world_size == 1:
        return asked
    if trainer.cuda and not due:
        return None
    votes = torch.tensor(
        [asked is not None, asked is not None and not asked.save], dtype=torch.int32, device=trainer.device
    )
    torch.distributed.all_reduce(votes, torch.distributed.ReduceOp.MAX)
    stop, lost = votes.tolist()
    return asked or signals.Asked("another process of the training was asked to stop", not lost) if stop else None


class Watch:
    """Ends a training whose loss is no number or has exploded: where, the last good values, what to try."""

    def __init__(self, trainer: Trainer, history: Sequence[Mapping[str, float]]) -> None:
        self.trainer = trainer
        self.good = f"epoch {history[-1]['epoch']:.0f}: dev/loss {history[-1]['dev/loss']:.4g}" if history else "none"

    def step(self, samples: list[Any], epoch: int) -> None:
        """One update. One that fails is told after those before it, which may be why."""
        try:
            self.trainer.train_step(samples)
        except Exception:
            self.read(epoch)
            raise

    def read(self, epoch: int) -> None:
        """What the updates since the last time have logged."""
        for one in self.trainer.read():
            where, norm = f"epoch {epoch}, update {one.update}", float("nan") if one.norm is None else float(one.norm)
            if not (math.isfinite(norm) or self.trainer.scaler.is_enabled()):  # fp16 leaves such an update out
                self._end(f"{where}: the loss is {one.loss:g} and the gradient's norm {norm:g}", one.lr)
            if not abs(one.loss) < EXPLODED:
                self._end(f"{where}: the loss is {one.loss:g}", one.lr)
            self.good = f"update {one.update}: loss {one.loss:.4g}, gradient norm {norm:.4g}"

    def epoch(self, row: Mapping[str, float]) -> None:
        """The losses of an epoch that has ended."""
        for key in ("train/loss", "dev/loss"):
            if not abs(row.get(key, 0.0)) < EXPLODED:
                self._end(f"epoch {row['epoch']:.0f}, update {row['updates']:.0f}: {key} is {row[key]:g}", row["lr"])

    def _end(self, what: str, rate: float) -> NoReturn:
        clip = self.trainer.cfg.optimization.clip_norm
        advice = f"lower optim.lr (it was {rate:g}) or set optim.clip (it was {clip:g})"
        raise FloatingPointError(f"{what}; last good values: {self.good}; {advice}")


def _validate(trainer: Trainer, epoch: int) -> dict[str, Any]:
    trainer.begin_valid_epoch(epoch)
    with metrics.aggregate(new_root=True) as totals:
        for sample in trainer.get_valid_iterator("valid").next_epoch_itr(shuffle=False, set_dataset_epoch=False):
            trainer.valid_step(sample)
        for _ in trainer.read():
            pass
    return totals.get_smoothed_values()


def _measured(split: str, stats: Mapping[str, Any]) -> dict[str, float]:
    return {f"{split}/{k}": float(stats[k]) for k in MEASURED if k in stats}
