"""How long an epoch of each setting takes, as far as we know without a finished cell (configs/rates.yaml)."""

import time
from functools import cache

from repro.results.estimate import Rates
from tasks.config.files import values_in

STEP = 0.005  # seconds of the training step of `slowness` on that core


@cache
def slowness() -> float:
    """Time of a small training step on one core of this machine, as a multiple of STEP."""
    import torch

    from tasks.layers.lstm import Lstm

    with torch.random.fork_rng(devices=[]):
        lstm, x = Lstm(128, 128, batch_first=True), torch.ones(32, 20, 128)
    times = []
    for _ in range(10):
        started = time.perf_counter()
        lstm(x)[0].sum().backward()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2] / STEP


ASSUMED = Rates(**values_in("rates"), slowness=slowness)
