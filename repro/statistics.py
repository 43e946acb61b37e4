"""Spread over seeds, intervals and significance.

Student's t covers the sampling of seeds; the variance that all runs of a row have in common over test examples is
added to it (`Noise`). With fewer than `FEWEST` seeds the printed interval covers the sampling of test examples alone,
and says so.

Two rows are compared seed by seed where runs with the same seed are alike (`alike`), and otherwise by their means. A
table tests this once for each score, on all its rows, so that no comparison chooses its own test.

Student's t comes from scipy, and BLEU from sacrebleu. Two methods are implemented here: Holm's correction, which scipy
does not have, and the error of BLEU over sentences, because sacrebleu's bootstrap needs the texts and draws at random,
and the records keep only per-sentence statistics. It is the error of the printed score, linearised (delta method).
"""

import itertools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

LEVEL = 0.95  # confidence level of every interval that is printed
EQUIVALENCE = 0.90  # confidence level of the interval that is equivalent to two one-sided t-tests at 5 % each
# Minimum number of seeds for a printed interval over seeds and a ranking of rows; with two seeds, t is 12.7.
FEWEST = 3
OVER = " over test examples"
ALIKE = 0.05  # level of the test of whether runs with the same seed are alike
Bounds = tuple[float, float]
ANY: Bounds = (-math.inf, math.inf)


# ---- means over seeds


@lru_cache(maxsize=256)
def t_quantile(df: float, level: float = LEVEL) -> float:
    """The t for which |T| < t has probability `level`."""
    from scipy.special import stdtrit

    return float(stdtrit(df, (1 + level) / 2))


@dataclass(frozen=True)
class Mean:
    """A mean over seeds.

    Attributes:
        error: the standard error for other seeds and other test examples.
        df: degrees of freedom of the error.
        values: the averaged values, one per seed.
        example_error: the standard error of these runs if only the test examples are drawn again.
        std: sample standard deviation of the values; None for one seed, because one run has no spread.
    """

    mean: float
    error: float
    df: float
    values: tuple[float, ...] = ()
    example_error: float = 0.0
    std: float | None = None

    @property
    def n(self) -> int:
        """The number of seeds."""
        return len(self.values)

    @property
    def certain(self) -> bool:
        """Whether the spread is unknown: there is one value, or all are equal up to rounding."""
        return self.n == 1 or self.error <= 1e-9 * max(abs(self.mean), 1e-300)

    @property
    def p(self) -> float:
        """Two-sided p-value of Student's t for a mean of zero; 0 or 1 if the values have no spread."""
        if not self.error:
            return float(self.mean == 0)
        from scipy.special import stdtr

        return float(2 * stdtr(self.df, -abs(self.mean) / self.error))

    def half(self, level: float = LEVEL) -> float:
        """Half the width of the confidence interval."""
        return t_quantile(self.df, level) * self.error if self.error else 0.0

    def interval(self, level: float = LEVEL, within: Bounds = ANY, new: bool = False) -> Bounds:
        """The confidence interval of the mean.

        It is cut at `within`, the possible values of the score; it covers the mean as often as the whole interval does.
        With `new`, the prediction interval of one run with a new seed: mean ± t sd sqrt(1 + 1/n), n - 1 degrees of freedom.
        """
        half = self.half(level) * (math.sqrt(self.n + 1) if new else 1.0)
        return max(self.mean - half, within[0]), min(self.mean + half, within[1])

    @property
    def shows(self) -> float:
        """The smallest true mean above zero that a one-sided test at 5 % shows with a chance of 80 %."""
        return (t_quantile(self.df, 0.9) + t_quantile(self.df, 0.6)) * self.error

    @property
    def printed(self) -> Bounds | None:
        """The 95 % interval to print: `interval`, or with fewer than `FEWEST` values the one over test examples, if known."""
        return self.interval() if self.n >= FEWEST else over_examples(self.mean, self.example_error)

    def text(self, decimals: int = 2) -> str:
        spread = "" if self.std is None else f" ±{self.std:.{decimals}f}"
        return f"{self.mean:.{decimals}f}{spread}"


@dataclass(frozen=True)
class Noise:
    """Standard errors over test examples of a mean over runs, or of a difference of two.

    Attributes:
        whole: that of these runs; it is the whole error if there is one run.
        common: the part that further runs would share. The rest differs from run to run, so the spread over runs has it.
    """

    whole: float = 0.0
    common: float = 0.0


SILENT = Noise()


def mean_of(values: Sequence[float], noise: Noise = SILENT) -> Mean:
    """The mean of values, one per seed, with its error for other seeds and other test examples.

    Args:
        values: at least one; with a single value, the spread over seeds is unknown and counts as zero.

    The variance over seeds and the common one over examples are added. The degrees of freedom are those of Satterthwaite
    1946: only the variance over seeds is uncertain, because there are hundreds of examples. Raises ValueError without values.
    """
    n, finite = len(values), all(map(math.isfinite, values))
    mean = statistics.fmean(values) if finite else math.nan
    std = None if n == 1 else statistics.stdev(values) if finite else math.nan
    over_seeds = (std or 0.0) ** 2 / n
    total = over_seeds + (noise.common if n > 1 else noise.whole) ** 2
    df = (n - 1) * (total / over_seeds) ** 2 if over_seeds else math.inf
    return Mean(mean, math.sqrt(total), min(df, 1e6), tuple(values), noise.whole, std)


Runs = Mapping[int, float]  # seed -> score


def difference_of(a: Runs, b: Runs, paired: bool, noise: Noise = SILENT) -> Mean:
    """The mean of `a` minus that of `b`, with its error for other runs and other test examples.

    Args:
        a, b: runs as from `compared`; if not paired, at least two each.

    If paired, the `values` of the result are the differences seed by seed; otherwise, differences from the mean of the
    larger sample. Source: Welch 1947.
    """
    if paired:
        return mean_of([a[s] - b[s] for s in a], noise)
    mine, theirs = mean_of([*a.values()]), mean_of([*b.values()])
    parts = [mean.error**2 for mean in (mine, theirs)]
    total = sum(parts) + noise.common**2
    spread = sum(v * v / (mean.n - 1) for v, mean in zip(parts, (mine, theirs)))
    values = [x - theirs.mean for x in a.values()] if mine.n <= theirs.n else [mine.mean - x for x in b.values()]
    df = min(total**2 / spread, 1e6) if spread else 1e6
    return Mean(mine.mean - theirs.mean, math.sqrt(total), df, tuple(values), noise.whole)


def compared(a: Runs, b: Runs, same: bool) -> tuple[Runs, Runs, bool]:
    """The runs of two rows that are compared, and whether seed by seed: if the same seeds are alike, or a row has one run."""
    if same or min(len(a), len(b)) < 2:
        common = sorted(a.keys() & b.keys())
        return {s: a[s] for s in common}, {s: b[s] for s in common}, True
    return {s: a[s] for s in sorted(a)}, {s: b[s] for s in sorted(b)}, False


def alike(rows: Collection[Runs]) -> bool:
    """Whether runs with the same seed are alike: an F test at `ALIKE` of seeds beside rows, without interaction.

    Args:
        rows: those of a table in one score. Seeds may be missing in some.
    """
    cells = [(r, s, y) for r, runs in enumerate(rows) for s, y in runs.items() if math.isfinite(y)]
    if len(cells) < 4:
        return False
    of_rows, of_seeds, y = (np.array(of) for of in zip(*cells))
    dummies = [(of[:, None] == np.unique(of)).astype(float) for of in (of_rows, of_seeds)]

    def left(columns: np.ndarray) -> tuple[float, int]:
        fit, _, rank, _ = np.linalg.lstsq(columns, y, rcond=None)
        return float(np.square(y - columns @ fit).sum()), int(rank)

    (alone, fewer), (both, more) = left(dummies[0]), left(np.hstack(dummies))
    if more == fewer or more == len(y) or alone <= 1e-18 * float(np.square(y).sum()):
        return False
    from scipy.special import fdtrc

    ratio = (alone - both) / (more - fewer) / max(both / (len(y) - more), 1e-300)
    return bool(fdtrc(more - fewer, len(y) - more, ratio) < ALIKE)


def over_examples(mean: float, error: float, within: Bounds = ANY) -> Bounds | None:
    """The 95 % interval of a mean if only the test examples are drawn again, cut at `within`; None for an error of 0.

    Args:
        error: standard error over test examples (`Noise.whole`).
    """
    return Mean(mean, error, 1e6).interval(within=within) if error else None


def brackets(ends: Bounds, decimals: int, sign: str = "", shift: float = 0.0) -> str:
    """An interval minus `shift` as text: `[low, high]`."""
    return f"[{ends[0] - shift:{sign}.{decimals}f}, {ends[1] - shift:{sign}.{decimals}f}]"


def interval(ends: Bounds | None, n: int, decimals: int) -> str:
    """The 95 % interval of a difference over `n` seeds as text with a space in front, or an empty string without `ends`."""
    return "" if ends is None else f" {brackets(ends, decimals, '+')}{OVER if n < FEWEST else ''}"


# ---- several comparisons


def holm(p_values: Mapping[int, float]) -> dict[int, float]:
    """Adjust the p-values of a family of comparisons: a result below x is significant at x for the whole family.

    Source: Holm 1979.
    """
    order = sorted(p_values, key=p_values.__getitem__)
    scaled = [min(1.0, (len(order) - rank) * p_values[key]) for rank, key in enumerate(order)]
    return dict(zip(order, itertools.accumulate(scaled, max)))


# ---- the sampling of test examples


def noise_of(a: np.ndarray, b: np.ndarray | None = None, paired: bool = False) -> Noise:
    """The errors over test examples of a row's mean over seeds, or of its difference from another row's.

    Args:
        a, b: the values of each example: [seeds, examples] for a mean, or the statistics of `corpus_score`, [seeds,
            examples, 10 or 2]. The examples are the same. Without `b`, the errors are those of `a` itself.
        paired: `a` and `b` have the same seeds, in order, and are compared seed by seed.
    """
    runs = [x if x.ndim == 2 else _linear(x) for x in (a, b) if x is not None]
    if paired:
        runs = [runs[0] - runs[1]]
    covariance = np.atleast_2d(np.cov(np.concatenate(runs))) / a.shape[1]  # of single runs, [runs, runs]
    edges = np.cumsum([0, *map(len, runs)])
    blocks = [[covariance[i:j, k:m] for k, m in itertools.pairwise(edges)] for i, j in itertools.pairwise(edges)]
    own = [blocks[i][i] for i in range(len(runs))]
    across = 2 * blocks[0][1].mean() if len(runs) > 1 else 0.0
    whole = sum(c.mean() for c in own) - across
    shared = sum((c.sum() - c.trace()) / (len(c) * (len(c) - 1)) if len(c) > 1 else c.mean() for c in own) - across
    return Noise(math.sqrt(max(whole, 0.0)), math.sqrt(max(shared, 0.0)))


def in_unit(values: Sequence[float] | np.ndarray, score: float) -> np.ndarray:
    """The values of the examples, [examples], in the unit of their mean `score`: shares become per cent if it is in per cent."""
    each = np.asarray(values, float)
    return each * (100 if abs(100 * each.mean() - score) < abs(each.mean() - score) else 1)


def _linear(examples: np.ndarray) -> np.ndarray:
    """Values whose mean over examples varies as `corpus_score` does to first order: [seeds, examples, k] -> [seeds, examples].

    An order without hits has a constant smoothed precision, so its hits have no slope.
    """
    sums = examples.sum(1)
    score = corpus_score(sums)[:, None]
    if sums.shape[-1] == 2:
        slopes = np.hstack((np.ones_like(score), -score)) / sums[:, 1:].clip(1)
    else:
        hits, totals, (ours, reference) = sums[:, :4], sums[:, 4:8], np.split(sums[:, 8:], 2, -1)
        short = (ours < reference) / ours.clip(1)  # the brevity penalty counts
        each = (np.where(hits > 0, 1, 0) / hits.clip(1), -1 / totals.clip(1))
        slopes = score * np.hstack((*(part / 4 for part in each), short * reference / ours.clip(1), -short))
    return examples.shape[1] * np.einsum("sek,sk->se", examples, slopes)


def corpus_score(sums: np.ndarray) -> np.ndarray:
    """The score of summed statistics: `corpus_bleu` of [..., 10], or the ratio of [..., 2] (F1)."""
    return corpus_bleu(sums) if sums.shape[-1] == 10 else sums[..., 0] / sums[..., 1].clip(1)


def corpus_bleu(sums: np.ndarray) -> np.ndarray:
    """sacrebleu's corpus BLEU in per cent, with its default smoothing, from summed statistics [..., 10].

    The statistics are 4 n-gram hits, 4 n-gram totals, output length and reference length.
    """
    from sacrebleu.metrics import BLEU

    counts = sums.reshape(-1, 10).astype(int).tolist()
    scores = [BLEU.compute_bleu(of[:4], of[4:8], of[8], of[9], smooth_method="exp").score for of in counts]
    return np.array(scores).reshape(sums.shape[:-1])
