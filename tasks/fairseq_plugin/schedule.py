"""The learning-rate schedule of OpenNMT-py 2017: halve every epoch once the dev perplexity rose or a given epoch is reached.

Source: OpenNMT-py defaults of May 2017 (`learning_rate_decay 0.5`, `start_decay_at 8`); the decision is latched: once
decay has begun it goes on in every later epoch, even when the perplexity falls again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fairseq.dataclass import FairseqDataclass
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II


@dataclass
class LatchedHalvingConfig(FairseqDataclass):
    start_decay_at: int = field(default=8, metadata={"help": "first epoch whose learning rate is decayed in any case"})
    decay: float = field(default=0.5, metadata={"help": "factor per epoch after the latch"})
    lr: list[float] = II("optimization.lr")


@register_lr_scheduler("latched_halving", dataclass=LatchedHalvingConfig)
class LatchedHalving(FairseqLRScheduler):
    """lr(epoch) is constant until the latch closes, then multiplied by `decay` at the start of every epoch."""

    def __init__(self, cfg: LatchedHalvingConfig, optimizer):
        super().__init__(cfg, optimizer)
        self.lr = float(cfg.lr[0])
        self.latched = False
        self.last_loss: float | None = None
        self.optimizer.set_lr(self.lr)

    def step_begin_epoch(self, epoch: int) -> float:
        self.optimizer.set_lr(self.lr)
        return self.lr

    def step(self, epoch: int, val_loss: float | None = None) -> float:
        """Called after epoch `epoch` (1-based) with its dev loss; decides the rate of epoch + 1."""
        super().step(epoch, val_loss)
        if val_loss is None:  # fairseq calls this once more when it resumes; the checkpoint holds the rate already
            return self.lr
        rose = self.last_loss is not None and val_loss > self.last_loss
        if rose or epoch + 1 >= self.cfg.start_decay_at:
            self.latched = True
        if self.latched:
            self.lr *= self.cfg.decay
        self.last_loss = val_loss
        self.optimizer.set_lr(self.lr)
        return self.lr

    def step_update(self, num_updates: int) -> float:
        return self.optimizer.get_lr()

    def state_dict(self) -> dict:
        return {"best": self.best, "lr": self.lr, "latched": self.latched, "last_loss": self.last_loss}

    def load_state_dict(self, state: dict) -> None:
        self.best, self.lr = state["best"], state["lr"]
        self.latched, self.last_loss = state["latched"], state["last_loss"]
        self.optimizer.set_lr(self.lr)
