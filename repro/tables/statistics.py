"""Spread over seeds, intervals, significance and rank agreement.

Two sources of chance are kept apart. Which examples happen to be in the test set: permutation of paired outputs. Which seed
was drawn: Student's t over seeds. Neither says anything about the other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

LEVEL = 0.95  # of every interval
FEWEST = 3  # seeds of a printed interval and of an order of rows: for two, t is 12.7 and the runs say more


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation over `n` seeds (std is None for one seed: one run has no spread)."""

    mean: float
    std: float | None
    n: int

    @property
    def half(self) -> float | None:
        """Half the width of the 95 % interval of the mean, t sd / sqrt(n) with n - 1 degrees of freedom; None for one seed."""
        return None if self.std is None else t_quantile(self.n - 1) * self.std / math.sqrt(self.n)

    def text(self, decimals: int = 2) -> str:
        spread = "" if self.std is None else f" ±{self.std:.{decimals}f}"
        return f"{self.mean:.{decimals}f}{spread}"

    def interval(self, decimals: int = 2, shift: float = 0.0, sign: str = "") -> str:
        """`[low, high]`, the 95 % interval of the mean less `shift`; nothing for fewer than `FEWEST` seeds."""
        if self.half is None or self.n < FEWEST:
            return ""
        low, high = self.mean - shift - self.half, self.mean - shift + self.half
        return f"[{low:{sign}.{decimals}f}, {high:{sign}.{decimals}f}]"


def summarize(values: Sequence[float]) -> Summary:
    """Raises ValueError on an empty sequence."""
    if not values:
        raise ValueError("no values to summarize")
    if not all(map(math.isfinite, values)):
        return Summary(math.nan, math.nan if len(values) > 1 else None, len(values))
    return Summary(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


# ---- Student's t


def t_tail(t: float, df: int) -> float:
    """P(|T| >= t) for a whole number of degrees of freedom. Source: Abramowitz & Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(abs(t) / math.sqrt(df))
    cos, sin = math.cos(angle), math.sin(angle)
    term = cos if df % 2 else 1.0
    total = 0.0
    for k in range(2 + df % 2, df + 1, 2):  # cos, 2/3 cos^3, ... for odd df; 1, 1/2 cos^2, ... for even df
        total += term
        term *= cos * cos * (k - 1) / k
    inside = 2 / math.pi * (angle + sin * total) if df % 2 else sin * total
    return max(0.0, 1.0 - inside)


@lru_cache(maxsize=256)
def t_quantile(df: int, level: float = LEVEL) -> float:
    """The t that |T| stays below with probability `level`. Raises ValueError without a degree of freedom."""
    if df < 1:
        raise ValueError(f"an interval needs two values, not {df + 1}")
    low, high = 0.0, 1.0
    while t_tail(high, df) > 1 - level:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, df) > 1 - level else (low, middle)
    return high


def paired_t(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Two-sided p-value of a difference of means of two rows over the same seeds, in order; None for one seed.

    Raises ValueError on unequal lengths.
    """
    if len(a) != len(b):
        raise ValueError(f"paired scores need equal lengths, got {len(a)} and {len(b)}")
    if len(a) < 2:
        return None
    found = summarize([x - y for x, y in zip(a, b)])
    if not found.std:  # the same difference with every seed: no difference at all, or one without any noise
        return 1.0 if found.mean == 0 else 0.0
    return math.nan if math.isnan(found.mean) else t_tail(found.mean / found.std * math.sqrt(found.n), found.n - 1)


# ---- several comparisons, ranks


def holm(p_values: Mapping[int, float]) -> dict[int, float]:
    """Adjusted p-values of a family of comparisons: below x means significant at x for the family. Source: Holm 1979."""
    adjusted: dict[int, float] = {}
    largest = 0.0
    for rank, key in enumerate(sorted(p_values, key=lambda k: p_values[k])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[key]))
        adjusted[key] = largest
    return adjusted


def kendall(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings of the same things, ties counted; None where one of them has no order at all."""

    def signs(values: Sequence[float]) -> list[int]:
        return [(x > y) - (x < y) for i, x in enumerate(values) for y in values[:i]]

    if len(a) != len(b):
        raise ValueError(f"two rankings need equal lengths, got {len(a)} and {len(b)}")
    first, second = signs(a), signs(b)
    scale = math.sqrt(sum(map(abs, first)) * sum(map(abs, second)))
    return sum(x * y for x, y in zip(first, second)) / scale if scale else None


# ---- the sampling of test examples


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


@lru_cache(maxsize=8)
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
