"""The training loop of one process: epochs, dev evaluation, checkpoints, progress. It resumes a killed run exactly.

An interrupted run ends with the same weights as an uninterrupted one: every update is seeded with (seed, number of
updates), the order of the batches with (seed, epoch), and a checkpoint stores the number of updates made in the epoch.
"""

import math
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from repro import signals
from repro.protocol import Monitor
from tasks.config.models import learned
from tasks.training import checkpoints
from tasks.training.job import Batches, Job
from tasks.training.trainer import READ_EVERY, Trainer

SHARE = 0.97  # of the progress of training; the rest is for writing the best weights
EXPLODED = 1e4  # bits per token; guessing among a million words costs 20


class Means(dict[str, list[float]]):
    """Accumulates weighted means: name -> [weighted sum, sum of the weights]."""

    def add(self, measured: Mapping[str, tuple[float, float]]) -> None:
        for name, (value, weight) in measured.items():
            total, before = self.get(name, (0.0, 0.0))
            self[name] = [total + value * weight, before + weight]

    def values_of(self, criterion: Any, split: str) -> dict[str, float]:
        """The means as the criterion rounds them, named `<split>/<name>`."""
        means = {name: total / weight for name, (total, weight) in self.items()}
        return {f"{split}/{name}": value for name, value in criterion.rounded(means).items()}


class Training:
    """A training run in this process, number `rank` of `world` processes, and its state.

    Attributes:
        history: one row per epoch.
        best: the model's weights after the best epoch, or their mean with `train.average`, on the CPU.
        epoch, done: epoch of the next update (from 1), and the number of updates already made in that epoch.
        means: means of the values logged by the epoch's updates; recent: the same since the last report to the monitor.
        good: the last good values, for error messages.
    """

    def __init__(self, job: Job, monitor: Monitor, rank: int = 0, world: int = 1) -> None:
        self.job, self.monitor, self.rank, self.world = job, monitor, rank, world
        self.train, self.dev = (Batches(job, split, rank, world) for split in ("train", "dev"))
        self.trainer = Trainer(job, len(self.train), world)
        self.history: list[dict[str, float]] = []
        self.best: dict[str, torch.Tensor] = {}
        self.epoch, self.done = 1, 0
        self.means, self.recent = Means(), Means()
        self.good, self.saved = "none", time.monotonic()

    def run(self) -> None:
        """Train to the end, with signals deferred; the result is in the last checkpoint.

        Raises:
            Stopped: the process was asked to stop; everything up to the last update is saved.
        """
        self._resume()
        while self.epoch <= self.job.config["train"]["max_epochs"]:
            started = time.monotonic()
            self._train()
            self._end_epoch(time.monotonic() - started)
            if why := self._asked():
                raise signals.Stopped(why)

    def update(self, samples: list[Any]) -> None:
        """Make one update. If it fails, the logs of earlier updates are checked first, as one may hold the cause."""
        try:
            self.trainer.train_step(samples)
        except Exception:
            self.read()
            raise

    def read(self) -> None:
        """Read the values that the updates have logged since the last call.

        Raises:
            FloatingPointError: a loss is not finite or has exploded. The message names the update and the last good
                values, and suggests what to try.
        """
        for one in self.trainer.read():
            where, loss, norm = f"epoch {self.epoch}, update {one.update}", one.measured["loss"][0], one.norm
            if not (math.isfinite(norm) or self.trainer.scaler.is_enabled()):  # fp16 skips such an update
                self._diverged(f"{where}: the loss is {loss:g} and the gradient's norm {norm:g}", one.lr)
            if not abs(loss) < EXPLODED:
                self._diverged(f"{where}: the loss is {loss:g}", one.lr)
            self.good = f"update {one.update}: loss {loss:.4g}, gradient norm {norm:.4g}"
            for means in (self.means, self.recent):
                means.add(one.measured)

    def _train(self) -> None:
        """Make the remaining updates of the epoch."""
        max_epochs, minutes = self.job.config["train"]["max_epochs"], self.job.config["runtime"]["save_minutes"]
        total = len(self.train)
        for samples in self.train.updates(self.epoch, self.done):
            self.update(samples)
            due, self.done = self.done % READ_EVERY == 0, self.done + 1
            if due:
                self.read()
            if self.done < total:  # after the last update, dev is evaluated before saving
                if why := self._asked(due):
                    self._save()
                    raise signals.Stopped(why)
                if time.monotonic() - self.saved > 60 * minutes:
                    self._save()
            if due:
                weighted, weight = self.recent.get("loss", (math.nan, 1))
                self.recent.clear()
                done = SHARE * (self.epoch - 1 + self.done / total) / max_epochs
                self.monitor.stage(f"epoch {self.epoch}/{max_epochs}", done, loss=weighted / weight)
        self.read()

    def _end_epoch(self, seconds: float) -> None:
        """Evaluate dev, add the epoch's row to the history, and save a checkpoint."""
        trainer, criterion = self.trainer, self.trainer.criterion
        own = self._averaged()
        row = {"epoch": float(self.epoch), "updates": float(trainer.updates)}
        row |= {"lr": trainer.schedule.rate(trainer.updates), "seconds": seconds}
        row |= self.means.values_of(criterion, "train")
        row |= self._measure().values_of(criterion, "dev")
        row |= self.job.parts.dev_scores(trainer.model.net, self.rank, self.world)
        row |= {f"dev/learned_{name}": value for name, value in learned(trainer.model).items()}
        for key in ("train/loss", "dev/loss"):
            if not abs(row.get(key, 0.0)) < EXPLODED:
                self._diverged(f"epoch {self.epoch}, update {trainer.updates}: {key} is {row[key]:g}", row["lr"])
        if self.history and self.history[-1]["dev/loss"] > 0:
            row["dev/last_gain"] = 100 * (1 - row["dev/loss"] / self.history[-1]["dev/loss"])
        if own or not self.history or self.job.value(row) > max(map(self.job.value, self.history)):
            self.best = {name: value.to("cpu", copy=True) for name, value in trainer.model.state_dict().items()}
        if own:
            trainer.model.load_state_dict(own)
        self.history.append(row)
        trainer.schedule.epoch_ended(self.epoch, row["dev/loss"])
        self.epoch, self.done = self.epoch + 1, 0
        self.means.clear()
        self.recent.clear()
        self._save()
        self.monitor.curve(self.history)

    def _averaged(self) -> dict[str, torch.Tensor]:
        """In the last `train.average` epochs, give the model the mean of its weights after each of them so far.

        Returns the model's own weights, with which the training goes on; {} in earlier epochs.
        """
        train, model = self.job.config["train"], self.trainer.model
        count = self.epoch - train["max_epochs"] + (train.get("average") or 0)
        if count < 1:
            return {}
        own = {name: value.clone() for name, value in model.state_dict().items()}
        if count > 1:  # `best` is the mean of the epochs before
            floats = {name: value for name, value in own.items() if value.is_floating_point()}
            before = {name: self.best[name].to(value.device) for name, value in floats.items()}
            model.load_state_dict(own | {name: before[name].lerp(value, 1 / count) for name, value in floats.items()})
        return own

    def _measure(self) -> Means:
        """Evaluate the dev split; returns the means."""
        means = Means()
        for samples in self.dev.updates():
            self.trainer.valid_step(samples[0])
        for one in self.trainer.read():
            means.add(one.measured)
        return means

    def _resume(self) -> None:
        """Resume from the newest intact checkpoint. The first process chooses it for all processes."""
        folder = self.job.checkpoints
        folder.mkdir(parents=True, exist_ok=True)
        chosen = [checkpoints.newest(folder, self.monitor.note) if self.rank == 0 else None]
        if self.world > 1:
            torch.distributed.broadcast_object_list(chosen)
        if chosen[0] is None:
            return
        state = checkpoints.read(folder / chosen[0])
        self.trainer.load_state_dict(state)
        self.history, self.best, self.means = state["history"], state["best"], Means(state["means"])
        self.epoch, self.done = state["epoch"], state["done"]
        if self.history:
            self.good = f"epoch {self.history[-1]['epoch']:.0f}: dev/loss {self.history[-1]['dev/loss']:.4g}"
            self.monitor.curve(self.history)  # the file of learning curves may be damaged, so it is rewritten
        self.monitor.note(f"resuming from epoch {self.epoch}, update {self.trainer.updates}")

    def _save(self) -> None:
        self.read()
        if self.rank == 0:
            place = {name: getattr(self, name) for name in ("history", "best", "epoch", "done")}
            state = self.trainer.state_dict() | place | {"means": dict(self.means)}
            checkpoints.save(state, self.job.checkpoints)
        self.saved = time.monotonic()

    def _asked(self, due: bool = True) -> str:
        """Why training is to stop after this update, or "". All processes of a training run stop at the same update.

        With several processes on GPUs, requests are checked only if `due`.
        """
        asked = signals.asked()
        if self.world == 1 or (self.trainer.device.type == "cuda" and not due):
            return asked if self.world == 1 else ""
        stop = torch.tensor(int(bool(asked)), device=self.trainer.device)
        torch.distributed.all_reduce(stop, torch.distributed.ReduceOp.MAX)
        return asked or "another process of the training was asked to stop" if stop else ""

    def _diverged(self, what: str, rate: float) -> NoReturn:
        clip = self.job.config["optim"]["clip"]
        advice = f"lower optim.lr (it was {rate:g}) or set optim.clip (it was {clip:g})"
        raise FloatingPointError(f"{what}; last good values: {self.good}; {advice}")
