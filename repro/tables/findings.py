"""One sentence on the main score of a table: which row is the best, or why none is.

- The difference from the first row is *decided* if its p-value is below 5 % after Holm's correction over the rows:
  Student's t, paired over seeds and test examples (`paired.difference`).
- The *best* row has converged, has `FEWEST` seeds or more, and is decided to be above every other such row. Unless it
  is the first row, it was picked after the fact, so each p-value is multiplied by the number of all pairs of rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from repro.protocol import Metric, metric_of
from repro.tables import paired
from repro.tables.blocks import SIGNIFICANT, Block, Row
from repro.tables.claims import UNIFORM
from repro.tables.statistics import FEWEST, holm


def find(block: Block, metrics: Mapping[str, Metric]) -> None:
    """Set a block's finding, the best score, and each row's difference from the first row.

    Args:
        metrics: the metrics of the block's family.
    """
    if (at := block.main) is None:
        return
    scored = [row for row in block.rows if (s := row.values[at].summary) and math.isfinite(s.mean)]
    own = [row for row in scored if not row.baseline]
    if not own:
        return
    first, full = own[0], own[0].values[at].metric
    metric = metric_of(metrics, full)
    for row in own[1:]:
        row.gain = paired.difference(row, first, full, metric)
    fit = [(i, row.gain) for i, row in enumerate(own) if row.gain and row.convergence.converged]
    p = {i: gain.p for i, gain in fit if first.convergence.converged and not gain.certain}
    for i, value in holm(p).items():
        own[i].decided = value < SIGNIFICANT
    best, why = _ranked(block, at, own, [row for row in scored if row.baseline], metric)
    if best is not None:
        best.values[at].best = True
    block.finding = f"{'No best row' if best is None else 'Best'}: {why}."


def _ranked(block: Block, at: int, own: list[Any], baselines: list[Any], metric: Metric) -> tuple[Row | None, str]:
    """The best row, if there is one, and its score with the comparison that shows it, or why there is none."""
    first, names = own[0], {id(row): name for name, row in zip(block.names, block.rows)}

    def score(row: Any) -> float:
        return first.values[at].better * row.values[at].summary.mean

    def told(row: Any) -> str:
        of = row.values[at].summary
        n = "" if row.baseline else f", n = {of.n}"
        return f"{names[id(row)]} ({of.text(first.values[at].decimals)} {block.headers[at]}{n})"

    rows = [row for row in own if row.label != UNIFORM]
    if len(rows) < 2:
        return None, "fewer than two rows have a score"
    trivial = max(baselines, key=score, default=None)
    if trivial and score(trivial) >= score(top := max(rows, key=score)):
        return None, f"none is better than the {told(trivial)}; the nearest is {told(top)}"
    fit = [row for row in rows if row.convergence.converged and row.values[at].summary.n >= FEWEST]
    if len(fit) < 2:
        return None, f"fewer than two rows have converged with {FEWEST} seeds or more"
    best, pairs = max(fit, key=score), len(fit) * (len(fit) - 1) / 2
    others = [row for row in fit if row is not best]
    behind = [row for row in others if row.decided]
    if best is not first:
        gaps = [(row, paired.difference(row, best, first.values[at].metric, metric)) for row in others]
        behind = [row for row, gap in gaps if gap and not gap.certain and gap.p * pairs < SIGNIFICANT]
    of = f"{len(behind) or 'none'} of {len(others)} other rows that converged with {FEWEST} seeds or more"
    how = f"(p < {SIGNIFICANT}, paired over seeds and test examples)"
    if len(behind) < len(others):
        return None, f"{told(best)} has the best mean, but is shown to be better than {of} {how}"
    return best, f"{told(best)}, shown to be better than {of} {how}"
