"""What a table shows: a sentence on its main score, which row is the best or why none is; which rows were still learning.

- The difference from the first row is *decided* if its p-value is below 5 % after Holm's correction over the rows:
  Student's t, paired over seeds and, where their scores are recorded, test examples (`paired.difference`).
- The *best* row has converged, has `FEWEST` seeds or more, and is decided to be above every other such row. Unless it
  is the first row, it was picked after the fact, so each p-value is multiplied by the number of all pairs of rows.
- A row was *still learning* if its mean curve over seeds shows it; a cell alone is judged by its last gain
  (`repro.convergence`). A claim may not count the scores of such a row as final (`doubt`).
"""

import math
from collections.abc import Mapping, Sequence

from repro import convergence
from repro.claims.claim import UNIFORM
from repro.convergence import CONVERGED, LEARNING
from repro.protocol import Metric, metric_of
from repro.statistics import FEWEST, holm, mean_of
from repro.tables import paired
from repro.tables.blocks import SIGNIFICANT, Block, Row

UNRANKED = "fewer than two rows"


def find(block: Block, metrics: Mapping[str, Metric]) -> None:
    """Set a block's finding, the best score, and each row's difference from the first row.

    Args:
        metrics: the metrics of the block's family.
    """
    if (at := block.main) is None:
        return
    rows = [row for row in block.own if (score := row.values[at].summary) and math.isfinite(score.mean)]
    if not rows:
        return
    first, full = rows[0], rows[0].values[at].metric
    metric = metric_of(metrics, full)
    for row in rows[1:]:
        row.gain = paired.difference(row, first, full, metric)
    if first.convergence.converged:
        gains = {i: row.gain for i, row in enumerate(rows) if row.gain and row.convergence.converged}
        for i, p in holm({i: gain.p for i, gain in gains.items() if not gain.certain}).items():
            rows[i].decided = p < SIGNIFICANT
    best, why = _ranked(block, at, rows, metric)
    if best is not None:
        best.values[at].best = True
    block.finding = f"{'No best row' if best is None else 'Best'}: {why}."


def _ranked(block: Block, at: int, scored: list[Row], metric: Metric) -> tuple[Row | None, str]:
    """The best row, if there is one, and its score with the comparison that shows it, or why there is none."""
    first = scored[0]
    better = first.values[at].better

    def score(row: Row) -> float:
        return better * summary.mean if (summary := row.values[at].summary) else -math.inf

    def described(row: Row) -> str:
        return f"{row.name} ({row.values[at].text()} {block.headers[at]})"

    rows = [row for row in scored if row.label != UNIFORM]
    if len(rows) < 2:
        return None, f"{UNRANKED} have a score"
    top = max(rows, key=score)
    baseline = max((row for row in block.rows if row.baseline), key=score, default=None)
    if baseline and score(baseline) >= score(top):
        return None, f"none is better than the {described(baseline)}; the nearest is {described(top)}"
    fit = [row for row in rows if row.convergence.converged and len(row.values[at].runs) >= FEWEST]
    if len(fit) < 2:
        return None, f"{UNRANKED} have converged with {FEWEST} runs or more"
    best, pairs = max(fit, key=score), len(fit) * (len(fit) - 1) / 2
    others = [row for row in fit if row is not best]
    behind = [row for row in others if row.decided]
    if best is not first:
        gaps = [(row, paired.difference(row, best, first.values[at].metric, metric)) for row in others]
        behind = [row for row, gap in gaps if gap and not gap.certain and gap.p * pairs < SIGNIFICANT]
    count = f"{len(behind) or 'none'} of {len(others)} other rows that converged with {FEWEST} runs or more"
    if len(behind) < len(others):
        return None, f"{described(best)} has the best mean, but is significantly better than {count}"
    return best, f"{described(best)}, significantly better than {count}"


def learning(curves: Sequence[Sequence[float]], sign: int) -> bool:
    """Whether a row's mean curve is shown to rise, or to fall for a score with `sign` -1, over its last `convergence.FEWEST` epochs.

    Each seed's curve, [epochs], has a least-squares slope; the mean slope is tested against zero, one-sided at 2.5 %. So
    one more epoch of one seed proves nothing, and more seeds make smaller slopes detectable.
    """
    mean = mean_of([sign * (curve[-1] - curve[-convergence.FEWEST]) / (convergence.FEWEST - 1) for curve in curves])
    return mean.mean > 0 if mean.certain else mean.interval()[0] > 0


def doubt(row: Row) -> str:
    """Why a claim may not count the scores of a row with results as those of the end of training, or an empty string."""
    first, curves = row.results[0], [found.scores_by_epoch for found in row.results]
    if row.convergence.state not in (LEARNING, CONVERGED) or not all(
        len(c) >= convergence.FEWEST and all(map(math.isfinite, c)) for c in curves
    ):
        return "" if row.convergence.converged else row.convergence.state
    metric = first.family.METRICS.get(first.best_metric)
    return LEARNING if learning(curves, (metric.better if metric else 1) or 1) else ""
