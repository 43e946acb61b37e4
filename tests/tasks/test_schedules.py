"""Learning rates against sequences written by hand, also across a resume."""

import pytest
import torch

from repro.options import read
from tasks.config.schedules import SCHEDULES


def make(name: str, lr: float = 1.0, total: int = 1000, per_epoch: int = 100, **options):
    kind = SCHEDULES[name]
    return kind(read(kind.Options, options, "schedule"), lr, total, per_epoch)


HALVING, EARLY = ("latched_halving", {"start_decay_at": 8}), ("latched_halving", {"start_decay_at": 2})
PLATEAU = ("plateau", {"patience": 2, "least": 0.2})  # and factor .5
LATE = ("latched_halving", {"start_decay_at": 2, "decay": 0.1})
LONG, LONG_RATES = [5, 6, 7, 6, 6, 6, 6, 1, 2], [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.2, 0.2]
# Name, schedule and options, dev losses of epochs 1.., rate used in epochs 1.. (by hand; halving from OpenNMT-py's
# updateLearningRate).
BY_LOSSES = [
    ("epoch 9 is the first halved one", HALVING, [*range(9, -1, -1)], [1, 1, 1, 1, 1, 1, 1, 1, 0.5, 0.25]),
    ("rose once: goes on although it falls again", HALVING, [5, 4, 6, 3, 2, 1], [1, 1, 1, 0.5, 0.25, 0.125]),
    ("equal is not a rise", HALVING, [5, 5, 5, 4], [1, 1, 1, 1]),
    ("start early", EARLY, [5, 4, 3, 2], [1, 1, 0.5, 0.25]),
    ("decay factor", LATE, [5, 4, 3], [1, 1, 0.1]),
    ("one bad epoch is waited for", PLATEAU, [5, 6, 4, 6, 3], [1, 1, 1, 1, 1]),
    ("equal is not lower", PLATEAU, [5, 5, 5, 4], [1, 1, 1, 0.5]),
    ("again and again, not below the least", PLATEAU, LONG, LONG_RATES),
    ("fixed", ("fixed", {}), [5, 9, 9, 9], [1, 1, 1, 1]),
]


@pytest.mark.parametrize("schedule, losses, expected", [pytest.param(*case, id=name) for name, *case in BY_LOSSES])
@pytest.mark.parametrize("resume", [False, True])
def test_rates_by_dev_losses(schedule, losses, expected, resume, tmp_path):
    name, options = schedule
    current, rates = make(name, **options), []
    for epoch, loss in enumerate(losses, 1):
        if resume and epoch > 1:  # a new process every epoch, from the state in the checkpoint
            torch.save(current.state_dict(), tmp_path / "s.pt")
            current = make(name, **options)
            current.load_state_dict(torch.load(tmp_path / "s.pt", weights_only=True))
        rates.append(current.rate(100 * (epoch - 1)))
        assert current.rate(100 * epoch - 1) == rates[-1]
        current.epoch_ended(epoch, float(loss))
    assert rates == pytest.approx(expected)


def test_inverse_sqrt():
    found = make("inverse_sqrt", lr=2.0, warmup_updates=4)
    assert [found.rate(n) for n in range(4)] == [0.5, 1.0, 1.5, 2.0]
    assert found.rate(15) == pytest.approx(1.0) and found.rate(63) == pytest.approx(0.5)


def test_epoch_steps_are_the_authors():
    """Yu et al. 2019: 1/4, 1/2, 3/4 of the rate, then the rate, times .2 after epochs 10 and 12."""
    found = make("epoch_steps", lr=1e-4, per_epoch=7)
    rates = [found.rate(7 * (epoch - 1) + 3) for epoch in range(1, 14)]
    expected = [2.5e-5, 5e-5, 7.5e-5, *[1e-4] * 7, 2e-5, 2e-5, 4e-6]
    assert rates == pytest.approx(expected)
    found = make("epoch_steps", per_epoch=7, warmup_epochs=0, decay_epochs=[2])  # at the first update of an epoch
    assert [found.rate(n) for n in (0, 13, 14)] == pytest.approx([1.0, 1.0, 0.2])


def test_linear_rises_and_comes_to_rest_at_zero():
    found = make("linear", lr=3.0, total=100, warmup_updates=10)
    assert [found.rate(n) for n in (0, 4, 9)] == pytest.approx([0.3, 1.5, 3.0])
    assert found.rate(54) == pytest.approx(1.5)  # half way down
    assert found.rate(98) == pytest.approx(3.0 / 90) and found.rate(99) == 0.0
    rates = [found.rate(n) for n in range(9, 100)]
    assert rates == sorted(rates, reverse=True)
    found = make("linear", total=5, warmup_updates=200)  # longer than the training
    assert all(0 <= found.rate(n) <= 5 / 200 for n in range(7))
