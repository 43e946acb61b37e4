"""The latched halving of OpenNMT-py against a sequence written by hand, also across a resume."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tasks.fairseq_plugin.schedule import LatchedHalving


class Optimizer:
    """What the schedule needs of fairseq's optimizer."""

    def __init__(self) -> None:
        self.lr = None

    def set_lr(self, lr: float) -> None:
        self.lr = lr

    def get_lr(self) -> float:
        return self.lr


@pytest.fixture
def schedule(monkeypatch):
    # the base class asks for a FairseqOptimizer
    monkeypatch.setattr("fairseq.optim.lr_scheduler.fairseq_lr_scheduler.FairseqOptimizer", Optimizer)

    def make(start_decay_at: int = 8, decay: float = 0.5) -> LatchedHalving:
        return LatchedHalving(SimpleNamespace(lr=[1.0], start_decay_at=start_decay_at, decay=decay), Optimizer())

    return make


# dev losses of epochs 1.., first decayed epoch, rate used in epochs 1.. (by hand)
CASES = [
    pytest.param([5, 4, 3, 2, 1], 8, [1, 1, 1, 1, 1], id="falls: constant"),
    pytest.param([9, 8, 7, 6, 5, 4, 3, 2, 1, 0], 8, [1, 1, 1, 1, 1, 1, 1, 0.5, 0.25, 0.125], id="from epoch 8 on"),
    pytest.param([5, 4, 6, 3, 2, 1], 8, [1, 1, 1, 0.5, 0.25, 0.125], id="rose once: goes on although it falls again"),
    pytest.param([5, 5, 5, 4], 8, [1, 1, 1, 1], id="equal is not a rise"),
    pytest.param([5, 6], 8, [1, 1], id="the second epoch"),
    pytest.param([5, 4, 3, 2], 2, [1, 0.5, 0.25, 0.125], id="start early"),
]


@pytest.mark.parametrize("losses, start, expected", CASES)
@pytest.mark.parametrize("resume", [False, True])
def test_rates(schedule, losses, start, expected, resume):
    current, rates = schedule(start), []
    for epoch, loss in enumerate(losses, 1):
        if resume and epoch > 1:  # a new process every epoch, from the state in the checkpoint
            state = current.state_dict()
            current = schedule(start)
            current.load_state_dict(state)
            assert current.optimizer.get_lr() == expected[epoch - 1]
            current.step(epoch - 1, None)  # fairseq asks once without a loss when it resumes
        current.step_begin_epoch(epoch)
        rates.append(current.optimizer.get_lr())
        assert current.step_update(100 * epoch) == rates[-1]
        current.step(epoch, float(loss))
    assert rates == expected


def test_decay_factor(schedule):
    found = schedule(2, decay=0.1)
    found.step(1, 1.0)
    assert found.step(2, 0.5) == pytest.approx(0.01)


def test_state_survives_the_safe_unpickler(schedule, tmp_path):
    current = schedule()
    current.step(1, 3.0)
    torch.save(current.state_dict(), tmp_path / "s.pt")
    assert torch.load(tmp_path / "s.pt", weights_only=True) == current.state_dict()
