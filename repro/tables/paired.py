"""Compare two rows of a table, paired over the test examples, and over seeds where they are alike (`repro.statistics`)."""

from collections.abc import Collection, Sequence
from functools import lru_cache, reduce

import numpy as np

from repro.claims.claim import UNIFORM
from repro.identity import Results
from repro.protocol import Metric
from repro.statistics import FEWEST, SILENT, Mean, Noise, alike, compared, difference_of, in_unit, noise_of
from repro.store import Damaged, Evaluation
from repro.tables.blocks import Row, Value


def _scores(row: Row, full: str) -> dict[int, float]:
    return {f.seed: f.metrics[full] for f in row.results if full in f.metrics}


def same_seeds(rows: Sequence[Row], full: str) -> bool:
    """Whether runs of these rows with the same seed are alike in the score `full`; uniform attention does not count."""
    return alike([_scores(row, full) for row in rows if row.label != UNIFORM])


def difference(row: Row, other: Row, full: str, metric: Metric, same: bool) -> Mean | None:
    """The mean of `row` minus `other` in the score `full`, with its error for other seeds and other test examples.

    None if there is nothing to compare, or only one seed and no per-example values.

    Args:
        same: whether runs with the same seed are alike.
    """
    a, b, seed_by_seed = compared(_scores(row, full), _scores(other, full), same)
    over_examples = noise(row, other, full, metric, a, b, seed_by_seed) if a and b else SILENT
    if len(a) < 2 and not over_examples.whole:
        return None
    return difference_of(a, b, seed_by_seed, over_examples)


def noise(
    row: Row, other: Row, full: str, metric: Metric, mine: Collection[int], theirs: Collection[int], paired: bool
) -> Noise:
    """The errors of the difference between two rows over test examples; 0 for a metric without such values.

    Args:
        mine, theirs: the seeds of `row` and of `other` that count.
        paired: whether they are compared seed by seed.
    """
    if metric.test is None:
        return SILENT
    of_both = ((row, mine), (other, theirs))
    runs = [sorted((f for f in r.results if f.seed in use), key=lambda f: f.seed) for r, use in of_both]
    a, b = _shared(runs, full, metric)
    return noise_of(a, b, paired) if min(a.ndim, b.ndim) > 1 and a.shape[1] > 1 else SILENT


def value(cells: Sequence[Results], full: str, metric: Metric, note: str = "") -> Value:
    """The score `full` of a row's cells; with fewer than `FEWEST` seeds, with its standard error over test examples.

    Args:
        note: text to show if no cell has the score.
    """
    runs = [f.metrics[full] for f in cells if full in f.metrics]
    few = 0 < len(runs) < FEWEST and metric.test is not None
    (examples,) = _shared([cells], full, metric) if few else [np.empty(0)]
    error = noise_of(examples).whole if examples.ndim > 1 and examples.shape[1] > 1 else 0.0
    return Value(full, runs, metric.decimals, metric.better, "" if runs else note, metric.bounds, error)


def _shared(rows: Sequence[Sequence[Results]], full: str, metric: Metric) -> list[np.ndarray]:
    """For each row's cells with a score, its values for the examples that all of them have, in its unit.

    Returns arrays [seeds, examples], or [seeds, examples, 10 or 2] for a corpus score; empty ones if there are no such examples.
    """
    split, _, name = full.partition("/")
    key = f"{name}_statistics" if metric.test != "mean" else name
    rows = [[one for one in cells if full in one.metrics] for cells in rows]
    found = [[_read(one.evaluations.get(split), key) for one in cells] for cells in rows]
    every = [index for of in found for index, _ in of]
    common = reduce(np.intersect1d, every) if all(found) else np.empty(0)
    if not common.size:
        return [np.empty(0) for _ in rows]
    made = []
    for cells, of in zip(rows, found):
        unit = in_unit if metric.test == "mean" else lambda values, _: values
        scaled = [(index, unit(values, one.metrics[full])) for one, (index, values) in zip(cells, of)]
        made.append(np.stack([values[np.searchsorted(index, common)] for index, values in scaled]))
    return made


@lru_cache(maxsize=256)
def _read(level: Evaluation | None, key: str) -> tuple[np.ndarray, np.ndarray]:
    """The test examples that have the score `key`, in order, [examples], and its values, [examples] or [examples, 10 or 2]."""
    try:
        known = sorted(level.values(key).items()) if level else []
    except Damaged:
        known = []
    return np.array([i for i, _ in known]), np.array([value for _, value in known], float)
