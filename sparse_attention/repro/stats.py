"""Spread over seeds and significance against the baseline row."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation over `n` seeds (std is None for one seed: one run has no spread)."""

    mean: float
    std: float | None
    n: int

    def text(self, decimals: int = 2) -> str:
        spread = "" if self.std is None else f" ±{self.std:.{decimals}f}"
        return f"{self.mean:.{decimals}f}{spread}"


def summarize(values: Sequence[float]) -> Summary:
    """Raises ValueError on an empty sequence."""
    if not values:
        raise ValueError("no values to summarize")
    return Summary(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def paired_randomization(a: Sequence[float], b: Sequence[float], trials: int = 2000, seed: int = 1) -> float:
    """Two-sided p-value of the difference of means of paired per-example scores, by random sign flips.

    Args:
        a, b: scores of the same examples in the same order.
        trials: number of random assignments; the smallest p-value is 1 / (trials + 1).

    Raises:
        ValueError: lengths differ.

    Source: Noreen 1989 (approximate randomization), with the add-one estimate of the p-value.
    """
    if len(a) != len(b):
        raise ValueError(f"paired scores need equal lengths, got {len(a)} and {len(b)}")
    differences = [x - y for x, y in zip(a, b) if x != y]
    if not differences:
        return 1.0
    observed = abs(math.fsum(differences))
    rng = random.Random(seed)
    count = len(differences)
    hits = 0
    for _ in range(trials):
        bits = rng.getrandbits(count)
        flipped = math.fsum(d if bits >> i & 1 else -d for i, d in enumerate(differences))
        hits += abs(flipped) >= observed - 1e-12
    return (hits + 1) / (trials + 1)
