"""Spread over seeds, intervals, significance and rank agreement.

Two sources of chance are kept apart. Permutation of paired outputs covers which examples are in the test set. Student's t covers
which seeds were drawn. Neither says anything about the other.

scipy gives Student's t and Kendall's tau. Written here: Holm's correction (scipy has none), and BLEU's randomization test
(sacrebleu's needs the texts; the records keep per-sentence statistics alone).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

LEVEL = 0.95  # of every interval that is printed
EQUIVALENCE = 0.90  # of the interval that decides two one-sided t-tests at 5 % each
FEWEST = 3  # seeds of a printed interval and of an order of rows: for two, t is 12.7 and the runs say more


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation over `n` seeds (std is None for one seed: one run has no spread)."""

    mean: float
    std: float | None
    n: int

    @property
    def half(self) -> float | None:
        """Half the width of the 95 % interval of the mean; None for one seed."""
        return None if self.std is None else half_width(self.std, self.n)

    def bounds(self, level: float) -> tuple[float, float]:
        """The interval of the mean at `level`; for one seed the mean itself."""
        half = half_width(self.std or 0.0, self.n, level) if self.n > 1 else 0.0
        return self.mean - half, self.mean + half

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


@lru_cache(maxsize=256)
def t_quantile(df: int, level: float = LEVEL) -> float:
    """The t that |T| stays below with probability `level`. Raises ValueError without a degree of freedom."""
    if df < 1:
        raise ValueError(f"an interval needs two values, not {df + 1}")
    from scipy.special import stdtrit

    return float(stdtrit(df, (1 + level) / 2))


def half_width(std: float, n: int, level: float = LEVEL) -> float:
    """Half the width of the interval of a mean, t sd / sqrt(n) with n - 1 degrees of freedom."""
    return t_quantile(n - 1, level) * std / math.sqrt(n)


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
    from scipy.special import stdtr

    return float(2 * stdtr(found.n - 1, -abs(found.mean) / found.std * math.sqrt(found.n)))


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

    if len(a) != len(b):
        raise ValueError(f"two rankings need equal lengths, got {len(a)} and {len(b)}")
    from scipy.stats import kendalltau

    tau = float(kendalltau(a, b).statistic)
    return None if math.isnan(tau) else tau


# ---- the sampling of test examples


def paired_randomization(a: Sequence[float], b: Sequence[float], trials: int = 2000) -> float:
    """Two-sided p-value of the difference of means of paired per-example scores, by random sign flips.

    Args:
        a, b: scores of the same examples in the same order.
        trials: number of random assignments; the smallest p-value is 1 / (trials + 1).

    Raises ValueError on unequal lengths. Source: Noreen 1989, with the add-one estimate of the p-value.
    """
    if len(a) != len(b):
        raise ValueError(f"paired scores need equal lengths, got {len(a)} and {len(b)}")
    differences = np.asarray(a, float) - np.asarray(b, float)
    differences = differences[differences != 0]
    if not len(differences):
        return 1.0
    sums = (_coins(trials, len(differences)) * 2 - 1) @ differences
    return _p_value(np.abs(sums), abs(differences.sum()))


def paired_bleu_randomization(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], trials: int = 1000) -> float:
    """Two-sided p-value of a difference of corpus BLEU, by randomly swapping the two systems' outputs per sentence.

    Args:
        a, b: [sentences, 10] sufficient statistics: 4 n-gram hits, 4 n-gram totals, output length, reference length.

    Raises ValueError on unequal shapes. Source: Riezler & Maxwell 2005.
    """
    first, second = (np.asarray(rows, float).reshape(-1, 10) for rows in (a, b))
    if first.shape != second.shape:
        raise ValueError(f"paired statistics need equal shapes, got {first.shape} and {second.shape}")
    if np.array_equal(first, second):
        return 1.0
    total = first.sum(0) + second.sum(0)
    swapped = first.sum(0) - _coins(trials, len(first)) @ (first - second)  # [trials, 10]: one system after the swaps
    observed = abs(_bleu(first.sum(0)) - _bleu(second.sum(0)))
    return _p_value(np.abs(_bleu(swapped) - _bleu(total - swapped)), observed)


def _p_value(drawn: np.ndarray, observed: float) -> float:
    """The share of random assignments that differ at least as much as observed, add-one estimate; `drawn`: [trials]."""
    return (int((drawn >= observed - 1e-9).sum()) + 1) / (len(drawn) + 1)


@lru_cache(maxsize=8)
def _coins(trials: int, n: int) -> np.ndarray:
    """[trials, n] of 0 and 1, always the same ones."""
    return np.random.RandomState(1).randint(0, 2, (trials, n)).astype(float)


def _bleu(sums: np.ndarray) -> np.ndarray:
    """Corpus BLEU in per cent of summed statistics [..., 10]; 0 where an n-gram order has no hit."""
    hits, totals = sums[..., :4], sums[..., 4:8]
    precision = np.exp(np.log((hits / totals.clip(1)).clip(1e-300)).mean(-1))
    brevity = np.exp((1 - sums[..., 9] / sums[..., 8].clip(1)).clip(max=0))
    return 100 * precision * brevity
