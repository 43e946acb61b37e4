"""Learning-rate schedules: plain classes that return the rate of an update. `SCHEDULES` maps names to classes.

    latched_halving   lr, halved after every epoch once the dev loss rose or epoch `start_decay_at` has ended
    inverse_sqrt      lr min(n / w, sqrt(w / n))                                n = 1, 2, ... the update, w = warmup_updates
    epoch_steps       lr min(e / (w + 1), 1) decay^(number of decay_epochs < e)  e = 1, 2, ... the epoch, w = warmup_epochs
    plateau           lr, halved after every `patience` epochs without a new lowest dev loss
    linear            lr min(n / w, (N - n) / (N - w))                          N = total number of updates
    fixed             lr

To add a schedule, write a class here, whose options have `@defaults("schedule/<name>")`, add it to `SCHEDULES`, and
write `configs/schedule/<name>.yaml`.
"""

from typing import Any

from repro.options import integer, listing, number
from tasks.config.files import defaults
from tasks.config.nodes import Nothing


class Schedule:
    """A constant rate, and the base class of the other schedules.

    A schedule has the base rate `lr` and is made for `total_updates` updates, `updates_per_epoch` in each epoch. To resume,
    it needs the attributes named in STATE, in addition to the number of updates.
    """

    STATE: tuple[str, ...] = ()

    Options: type = Nothing

    def __init__(self, options: Any, lr: float, total_updates: int, updates_per_epoch: int) -> None:
        self.options, self.lr = options, lr
        self.total_updates, self.updates_per_epoch = total_updates, updates_per_epoch

    def rate(self, update: int) -> float:
        """The rate of the next update, given that `update` (0, 1, ...) updates have been made."""
        return self.lr

    def epoch_ended(self, epoch: int, dev_loss: float) -> None:
        """Called at the end of epoch `epoch` (1, 2, ...) with the dev loss of that epoch."""

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        vars(self).update(state)


class LatchedHalving(Schedule):
    """The schedule of OpenNMT-py in May 2017.

    The rate decays after every epoch as soon as the dev perplexity has risen once or epoch `start_decay_at` has ended.
    OpenNMT's `updateLearningRate(ppl, epoch)` runs after the epoch and tests `epoch >= start_decay_at`: with 8, epoch 9
    is the first with a smaller rate. "Latched" means that decay continues even if the perplexity falls again.
    """

    @defaults("schedule/latched_halving")
    class Options:
        start_decay_at: int = integer(low=1, help="the rate decays after this epoch in any case")
        decay: float = number(above=0, high=1, help="factor per epoch")

    STATE = ("lr", "latched", "last_loss")
    latched = False
    last_loss: float | None = None

    def epoch_ended(self, epoch: int, dev_loss: float) -> None:
        rose = self.last_loss is not None and dev_loss > self.last_loss
        self.latched = self.latched or rose or epoch >= self.options.start_decay_at
        if self.latched:
            self.lr *= self.options.decay
        self.last_loss = dev_loss


class Plateau(Schedule):
    """Decay after every `patience` epochs in a row without a new lowest dev loss, down to `least` (JoeyNMT's "plateau")."""

    @defaults("schedule/plateau")
    class Options:
        patience: int = integer(low=1, help="epochs without a new lowest dev loss before the rate decays")
        decay: float = number(above=0, high=1, help="factor of each decay")
        least: float = number(low=0, high=1, help="the rate does not fall below it")

    STATE = ("lr", "lowest", "waited")
    lowest: float | None = None
    waited = 0

    def epoch_ended(self, epoch: int, dev_loss: float) -> None:
        if self.lowest is None or dev_loss < self.lowest:
            self.lowest, self.waited = dev_loss, 0
            return
        self.waited += 1
        if self.waited == self.options.patience:
            self.lr, self.waited = max(self.lr * self.options.decay, min(self.options.least, self.lr)), 0


class InverseSqrt(Schedule):
    """Linear warm-up, then decay with the inverse square root of the update (Vaswani et al. 2017)."""

    @defaults("schedule/inverse_sqrt")
    class Options:
        warmup_updates: int = integer(low=1, help="updates of linear warm-up")

    def rate(self, update: int) -> float:
        n, warm = update + 1, self.options.warmup_updates
        return self.lr * min(n / warm, (warm / n) ** 0.5)


class EpochSteps(Schedule):
    """The schedule of MCAN (Yu et al. 2019): warm-up by epochs, then steps.

    MCAN uses 1/4, 1/2 and 3/4 of the rate in epochs 1 to 3, then the full rate, multiplied by .2 after epochs 10 and
    12.
    """

    @defaults("schedule/epoch_steps")
    class Options:
        warmup_epochs: int = integer(low=0, help="warm-up: epoch e has e / (warmup_epochs + 1) of lr")
        decay_epochs: list = listing(integer(low=1), help="epochs after which the rate decays")
        decay: float = number(above=0, high=1, help="factor of each decay")

    def rate(self, update: int) -> float:
        epoch, options = update // self.updates_per_epoch + 1, self.options
        warm = min(epoch / (options.warmup_epochs + 1), 1.0)
        return self.lr * warm * options.decay ** sum(epoch > e for e in options.decay_epochs)


class Linear(Schedule):
    """Linear warm-up, then linear decay to zero over all updates, so that short training converges."""

    @defaults("schedule/linear")
    class Options:
        warmup_updates: int = integer(low=1, help="updates of linear warm-up")

    def rate(self, update: int) -> float:
        n, warm, total = update + 1, self.options.warmup_updates, self.total_updates
        return self.lr * max(min(n / warm, (total - n) / max(total - warm, 1)), 0.0)


SCHEDULES: dict[str, type[Schedule]] = {
    "latched_halving": LatchedHalving,
    "plateau": Plateau,
    "inverse_sqrt": InverseSqrt,
    "epoch_steps": EpochSteps,
    "linear": Linear,
    "fixed": Schedule,
}
