"""What a table shows: a sentence on its main score, and which row is the best or why none is.

- The difference from the first row is *decided* if its p-value is below 5 % after Holm's correction over the rows:
  Student's t over seeds and, where their scores are recorded, test examples (`paired.difference`).
- The *best* row has converged, has `FEWEST` seeds or more, and is decided to be above every other such row. Unless it
  is the first row, it was picked after the fact, so each p-value is multiplied by the number of all pairs of rows.
"""

import math
from collections.abc import Mapping

from repro.claims.claim import UNIFORM
from repro.protocol import Metric, metric_of
from repro.statistics import FEWEST, holm
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
    metric, same = metric_of(metrics, full), block.paired or paired.same_seeds(rows, full)
    for row in rows[1:]:
        row.gain = paired.difference(row, first, full, metric, same)
    if first.convergence.converged:
        gains = {i: row.gain for i, row in enumerate(rows) if row.gain and row.convergence.converged}
        for i, p in holm({i: gain.p for i, gain in gains.items() if not gain.certain}).items():
            rows[i].decided = p < SIGNIFICANT
    best, why = _ranked(block, at, rows, metric, same)
    if best is not None:
        best.values[at].best = True
    block.finding = f"{'No best row' if best is None else 'Best'}: {why}."


def _ranked(block: Block, at: int, scored: list[Row], metric: Metric, same: bool) -> tuple[Row | None, str]:
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
        gaps = [(row, paired.difference(row, best, first.values[at].metric, metric, same)) for row in others]
        behind = [row for row, gap in gaps if gap and not gap.certain and gap.p * pairs < SIGNIFICANT]
    count = f"{len(behind) or 'none'} of {len(others)} other rows that converged with {FEWEST} runs or more"
    if len(behind) < len(others):
        return None, f"{described(best)} has the best mean, but is significantly better than {count}"
    return best, f"{described(best)}, significantly better than {count}"
