"""Spread over seeds and significance against the baseline row."""

from __future__ import annotations

import math
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
    if any(math.isnan(v) for v in values):
        return Summary(math.nan, math.nan if len(values) > 1 else None, len(values))
    return Summary(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def paired_randomization(a: Sequence[float], b: Sequence[float], trials: int = 2000) -> float:
    """Two-sided p-value of the difference of means of paired per-example scores, by random sign flips.

    Args:
        a, b: scores of the same examples in the same order.
        trials: number of random assignments; the smallest p-value is 1 / (trials + 1).

    Raises ValueError on unequal lengths. Source: Noreen 1989, with the add-one estimate of the p-value.
    """
    import torch

    if len(a) != len(b):
        raise ValueError(f"paired scores need equal lengths, got {len(a)} and {len(b)}")
    differences = torch.tensor([float(x) - float(y) for x, y in zip(a, b)], dtype=torch.float64)
    differences = differences[differences != 0]
    if not len(differences):
        return 1.0
    signs = _coins(trials, len(differences)) * 2 - 1
    hits = ((signs @ differences).abs() >= differences.sum().abs() - 1e-9).sum()
    return (int(hits) + 1) / (trials + 1)


def paired_bleu_randomization(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], trials: int = 1000) -> float:
    """Two-sided p-value of a difference of corpus BLEU, by randomly swapping the two systems' outputs per sentence.

    Args:
        a, b: [sentences, 10] sufficient statistics: 4 n-gram hits, 4 n-gram totals, output length, reference length.

    Raises ValueError on unequal shapes. Source: Riezler & Maxwell 2005.
    """
    import torch

    first, second = (torch.tensor(rows, dtype=torch.float64).reshape(-1, 10) for rows in (a, b))
    if first.shape != second.shape:
        raise ValueError(f"paired statistics need equal shapes, got {tuple(first.shape)} and {tuple(second.shape)}")
    if torch.equal(first, second):
        return 1.0
    total = first.sum(0) + second.sum(0)
    shuffled = first.sum(0) - _coins(trials, len(first)) @ (
        first - second
    )  # [trials, 10]: of the system made by swapping
    observed = (_bleu(first.sum(0)) - _bleu(second.sum(0))).abs()
    hits = ((_bleu(shuffled) - _bleu(total - shuffled)).abs() >= observed - 1e-9).sum()
    return (int(hits) + 1) / (trials + 1)


def _coins(trials: int, n: int):
    """[trials, n] of 0 and 1, always the same ones."""
    import torch

    return torch.randint(0, 2, (trials, n), generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _bleu(sums):
    """Corpus BLEU in per cent of summed statistics [..., 10]; 0 where an n-gram order has no hit."""
    hits, totals = sums[..., :4], sums[..., 4:8]
    precision = (hits / totals.clamp_min(1)).clamp_min(1e-300).log().mean(-1).exp()
    brevity = (1 - sums[..., 9] / sums[..., 8].clamp_min(1)).clamp_max(0).exp()
    return 100 * precision * brevity
