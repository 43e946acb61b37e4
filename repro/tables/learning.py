"""Whether a row was still learning when its training ended, so that a claim may not count its scores as final.

A single cell is judged by its last gain (`repro.convergence`). With several seeds, the mean curve is more informative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from repro.convergence import CONVERGED, FEWEST, LEARNING, Convergence, dev_scores
from repro.protocol import Metric
from repro.tables.statistics import mean_of


def learning(curves: Sequence[Sequence[float]], sign: int) -> bool:
    """Whether a row's mean curve significantly rises (or falls, with `sign` -1) over its last `FEWEST` epochs.

    Each seed's curve, [epochs], has a least-squares slope; the mean slope is tested against zero, one-sided at 2.5 %. So
    one more epoch of one seed proves nothing, and more seeds make smaller slopes detectable.
    Raises ValueError if a curve has fewer than `FEWEST` epochs.
    """
    if any(len(curve) < FEWEST for curve in curves):
        raise ValueError(f"a slope needs {FEWEST} epochs, got {min(map(len, curves))}")
    mean = mean_of([sign * (curve[-1] - curve[-FEWEST]) / (FEWEST - 1) for curve in curves])
    return mean.mean > 0 if mean.certain else mean.interval()[0] > 0


def doubt(row: Convergence, cells: Sequence[Any], name: str, known: Mapping[str, Metric]) -> str:
    """Why a claim may not count a row's scores as those of the end of training, or an empty string.

    Args:
        row: the convergence of the row's table.
        cells: the results of its seeds (`repro.identity.Results`), which have the dev score `name` in their folders.
        known: the metrics of its family.
    """
    curves = [dev_scores(found.folder, name) for found in cells]
    if row.state not in (LEARNING, CONVERGED) or not all(
        len(c) >= FEWEST and all(map(math.isfinite, c)) for c in curves
    ):
        return "" if row.converged else row.state
    better = known[name].better if name in known else 1
    return LEARNING if learning(curves, better or 1) else ""
