"""Our schedules as fairseq drives them: with --max-update, counting the updates of an epoch, across a resume."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import tasks.fairseq_plugin.compat  # noqa: F401  # isort: skip  # before fairseq, for Python 3.14
from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY, LR_SCHEDULER_REGISTRY

from tasks.config.schedules import SCHEDULES


class Optimizer:
    """What a schedule needs of fairseq's optimizer."""

    def __init__(self) -> None:
        self.lr = None

    def set_lr(self, lr: float) -> None:
        self.lr = lr

    def get_lr(self) -> float:
        return self.lr


@pytest.fixture
def adapter(monkeypatch):
    """`adapter("linear", max_update=9, warmup_updates=1)` with base rate 1."""
    # the base class asks for a FairseqOptimizer
    monkeypatch.setattr("fairseq.optim.lr_scheduler.fairseq_lr_scheduler.FairseqOptimizer", Optimizer)

    def make(name: str, max_update: int = 0, **options):
        cfg = LR_SCHEDULER_DATACLASS_REGISTRY[f"sa_{name}"](**options)
        values = {k: getattr(cfg, k) for k in cfg.__dataclass_fields__} | {"lr": [1.0], "max_update": max_update}
        return LR_SCHEDULER_REGISTRY[f"sa_{name}"](SimpleNamespace(**values), Optimizer())

    return make


def drive(current, epochs: int, per_epoch: int, losses=None):
    """The rate of every update, as the trainer and its loop call the schedule."""
    rates, n = [], 0
    current.step_update(0)
    for epoch in range(1, epochs + 1):
        current.step_begin_epoch(epoch)
        for _ in range(per_epoch):
            rates.append(current.optimizer.lr)
            n += 1
            current.step_update(n)
        current.step(epoch, losses[epoch - 1] if losses else 1.0)
    return rates


def test_all_are_registered():
    assert {f"sa_{name}" for name in SCHEDULES} <= set(LR_SCHEDULER_REGISTRY)


def test_linear_falls_to_zero_at_the_last_update(adapter):
    rates = drive(adapter("linear", max_update=8, warmup_updates=2), 2, 4)
    assert rates == pytest.approx([1 / 2, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0])


def test_linear_without_an_end_says_so(adapter):
    with pytest.raises(ValueError, match="--max-update"):
        adapter("linear").step_begin_epoch(1)


def test_epochs_are_counted_when_nobody_says_how_long_they_are(adapter):
    rates = drive(adapter("epoch_steps", warmup_epochs=1, decay_epochs="[2]", decay=0.1), 3, 5)
    assert rates == pytest.approx([0.5] * 5 + [1.0] * 5 + [0.1] * 5)


def test_latched_halving(adapter):
    rates = drive(adapter("latched_halving", start_decay_at=9), 4, 2, losses=[3.0, 4.0, 2.0, 1.0])
    assert rates == [1.0] * 4 + [0.5] * 2 + [0.25] * 2


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_resumed_schedule_goes_on(adapter, tmp_path, name):
    losses = [3.0, 4.0, 2.0, 1.0]
    options = {"start_decay_at": 9} if name == "latched_halving" else {}
    expected = drive(adapter(name, 16, **options), 4, 4, losses)
    first = adapter(name, 16, **options)
    drive(first, 2, 4, losses)
    torch.save(first.state_dict(), tmp_path / "s.pt")

    second = adapter(name, 16, **options)
    second.step_update(0)
    second.load_state_dict(torch.load(tmp_path / "s.pt", weights_only=True))
    second.step_update(8)
    second.step(2, None)  # the trainer asks once without a loss when it resumes
    rates = []
    for epoch in (3, 4):
        second.step_begin_epoch(epoch)
        for n in range(4 * (epoch - 1), 4 * epoch):
            rates.append(second.optimizer.lr)
            second.step_update(n + 1)
        second.step(epoch, losses[epoch - 1])
    assert rates == expected[8:]
