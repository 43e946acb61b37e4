"""The schedules of `tasks.config.schedules` for fairseq's own commands, each registered as `sa_<name>`.

A schedule needs the length of an epoch and of the training, which fairseq's commands do not provide. The updates of an
epoch are therefore counted during the first epoch, and a schedule that needs the end of training uses `--max-update`.
Our own training uses the schedules directly.
"""

from __future__ import annotations

import sys
from typing import Any

from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from tasks.config.options import read
from tasks.config.schedules import SCHEDULES, Schedule
from tasks.fairseq_plugin.architectures import config_class, entries, entry, values_of

LENGTH = (entry("lr", list[float], II("optimization.lr")), entry("max_update", int, II("optimization.max_update")))


class Adapter(FairseqLRScheduler):
    """Adapts one of our schedules to fairseq's interface."""

    made: type[Schedule]

    def __init__(self, cfg: Any, optimizer: Any) -> None:
        super().__init__(cfg, optimizer)
        options = read(self.made.Options, values_of(cfg, self.made.Options), "schedule")
        # The first epoch is treated as endless, since its length is not yet known.
        self.schedule = self.made(options, float(cfg.lr[0]), int(cfg.max_update or 0), sys.maxsize)
        self.updates = 0

    def _set(self) -> float:
        self.optimizer.set_lr(self.schedule.rate(self.updates))
        return self.optimizer.get_lr()

    def step_begin_epoch(self, epoch: int) -> float:
        if not self.schedule.total_updates and self.made is SCHEDULES["linear"]:
            raise ValueError("sa_linear falls to zero at the last update; set --max-update")
        if self.schedule.updates_per_epoch == sys.maxsize and epoch > 1:
            self.schedule.updates_per_epoch = max(self.updates // (epoch - 1), 1)
        return self._set()

    def step(self, epoch: int, val_loss: float | None = None) -> float:
        super().step(epoch, val_loss)
        if val_loss is not None:  # when resuming, fairseq calls once without a loss; the state is in the checkpoint
            self.schedule.epoch_ended(epoch, val_loss)
        return self._set()

    def step_update(self, num_updates: int) -> float:
        self.updates = num_updates
        return self._set()

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "schedule": self.schedule.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]
        self.schedule.load_state_dict(state_dict["schedule"])


for _name, _schedule in SCHEDULES.items():
    _made = type(f"sa_{_name}", (Adapter,), {"made": _schedule, "__doc__": _schedule.__doc__})
    register_lr_scheduler(f"sa_{_name}", dataclass=config_class(f"sa_{_name}", *entries(_schedule.Options), *LENGTH))(
        _made
    )
