"""How long an epoch of each setting takes, as far as we know without a finished cell."""

from __future__ import annotations

import time
from functools import cache

from repro.results.estimate import Rates

# Estimated hours per epoch of the paper profile on one A100, by data set: FLOPs of the model's matrix products at 35 %
# (recurrent) or 50 % (attention) of the card's fp32 peak, or 10 microseconds per kernel if that is longer. None of this
# was measured on an A100.
RATES = {
    "baseline_1m_enfr": 0.21, "gigaword": 0.38, "imdb": 0.014, "iwslt2017": 0.05, "multi30k": 0.0017, "snli": 0.055, "vqa2": 0.38,
    "multilabel": 0.0013,
}  # fmt: skip
# Training examples of the other settings, and seconds per epoch on one core with AVX-512 at about 2.6 GHz, test sets included.
SECONDS = {
    "translation_demo": (8_900, 8), "summarization_demo": (9_500, 12), "vqa_demo": (36_700, 22), "imdb_demo": (11_500, 12), "snli_demo": (12_000, 12),
    "snli_esim_demo": (12_000, 40), "multilabel_demo": (1_200, 0.5), "fertility_demo": (8_900, 10), "translation_cpu": (29_000, 45),
    "summarization_cpu": (13_800, 20), "vqa_cpu": (36_700, 60), "imdb_cpu": (22_500, 90), "snli_cpu": (20_000, 25), "snli_esim_cpu": (20_000, 45),
    "multilabel_cpu": (1_200, 0.5), "fertility_cpu": (29_000, 25),
}  # fmt: skip
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


ASSUMED = Rates(RATES, SECONDS, slowness)
