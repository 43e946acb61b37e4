"""Decide whether the training of a cell had converged, based on the dev score that selects the best epoch.

Training had converged if the best epoch was not the last one, or if the last epoch improved the best score by less than
the score's noise. With fewer than `FEWEST` epochs, or for a model at chance, it is
unknown. The noise is the scatter of the last `WINDOW` dev scores around a smooth curve. It is computed from
third differences, which remove any parabola and have variance 20 s^2 if the scatter is s. (Fitting a straight line
would count the bend of a learning curve as noise. The sampling of dev examples adds no noise, because every epoch is
evaluated on the same examples.)
"""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.protocol import Metric

FEWEST = 3  # with fewer epochs, an early best epoch proves nothing
CONSTANT = ("constant", "majority", "most frequent answer")  # baselines that always give the same answer: chance
WINDOW = 5  # number of epochs that determine the noise; with fewer, scatter and trend look the same
CONVERGED, LEARNING, UNKNOWN = "converged", "still learning", "convergence not known"
WORST = (UNKNOWN, LEARNING, CONVERGED)  # from worst to best; a row has the worst state of its cells


@dataclass(frozen=True)
class Convergence:
    """`state` is CONVERGED, LEARNING, UNKNOWN, or "" for a family without epochs; `why` is the reason."""

    state: str
    why: str = ""

    @property
    def text(self) -> str:
        """The text that a table shows."""
        said = {CONVERGED: "yes", LEARNING: "still learning", UNKNOWN: "not known"}.get(self.state, "")
        return f"{said}: {self.why}" if said else ""

    @property
    def converged(self) -> bool:
        """Whether the cell may be compared or marked as best; this is always true for a family without epochs."""
        return self.state in (CONVERGED, "")


def of(cell: Any) -> Convergence:
    """The convergence of a finished cell, from its results (`repro.identity.Results`)."""
    known: Mapping[str, Metric] = cell.family.METRICS
    if "best_epoch" not in known:
        return Convergence("")
    metric, epochs = known.get(cell.best_metric), (cell.config.get("train") or {}).get("max_epochs")
    verdict = judge(cell.scores_by_epoch, cell.metrics.get("best_epoch"), epochs, metric)
    if verdict.state == CONVERGED and _at_chance(cell, metric):
        return Convergence(UNKNOWN, f"{verdict.why}, no better than a constant answer")
    return verdict


def _at_chance(cell: Any, metric: Metric | None) -> bool:
    """Whether a score on a test set is at most two standard errors (of a share of the examples) above a constant answer."""
    if metric is None:
        return False
    for system in CONSTANT:
        for full, chance in (cell.baselines.get(system) or {}).items():
            split, _, name = full.rpartition("/")
            if name != metric.name or full not in cell.metrics:
                continue
            low, high = metric.bounds
            n = ((cell.tests.get(split) or {}).get("sizes") or {}).get("test")
            known = n and math.isfinite(high - low)
            error = 2 * math.sqrt(max(chance - low, 0) * max(high - chance, 0) / n) if known else 0.0
            if (metric.better or 1) * (cell.metrics[full] - chance) <= error:
                return True
    return False


def judge(scores: Sequence[float], best_epoch: float | None, epochs: int | None, metric: Metric | None) -> Convergence:
    """The convergence of one training.

    Args:
        scores: the dev score of every epoch; empty if only the best epoch is known.
        best_epoch, epochs: the best epoch (counted from 1) and the number of epochs; used only if there are no scores.
        metric: the metric of the scores.
    """
    sign, decimals = (metric.better or 1, metric.decimals) if metric else (1, 2)
    if not scores or not all(map(math.isfinite, scores)):
        if best_epoch is None or epochs is None or not 1 <= best_epoch <= epochs:
            return Convergence(UNKNOWN, "the best epoch is not recorded")
        told = f"best epoch {best_epoch:.0f} of {epochs}"
        if epochs < FEWEST:
            return Convergence(UNKNOWN, f"{told}, fewer than {FEWEST}")
        return Convergence(CONVERGED, told) if best_epoch < epochs else Convergence(UNKNOWN, f"{told}, no curve")
    signed = [sign * s for s in scores]
    best = signed.index(max(signed)) + 1  # among equal scores, the first is the best
    told = f"best epoch {best} of {len(scores)}"
    if len(scores) < FEWEST:
        return Convergence(UNKNOWN, f"{told}, fewer than {FEWEST}")
    if best < len(scores):
        return Convergence(CONVERGED, told)
    if len(scores) < WINDOW:
        return Convergence(LEARNING, f"{told}, too few epochs to know the noise")
    gain, spread = signed[-1] - max(signed[:-1]), noise(signed[-WINDOW:])
    decimals += 1  # one more digit than the score, because gain and noise are small
    compared = f"last gain {gain:.{decimals}f} {'below' if gain < spread else 'not below'} noise {spread:.{decimals}f}"
    return Convergence(CONVERGED if gain < spread else LEARNING, compared)


def noise(scores: Sequence[float]) -> float:
    """Standard deviation of four or more scores around a smooth curve, computed from their third differences."""
    third = [d - 3 * c + 3 * b - a for a, b, c, d in zip(scores, scores[1:], scores[2:], scores[3:])]
    return math.sqrt(sum(t * t for t in third) / len(third) / 20)


def together(cells: Sequence[Convergence]) -> Convergence:
    """The convergence of a row: the worst state of its cells, with the reasons of the cells in that state."""
    for state in (*WORST, ""):
        if told := list(dict.fromkeys(c.why for c in cells if c.state == state)):
            return Convergence(state, _merged(told))
    return Convergence(UNKNOWN, "no finished cell")


def _merged(reasons: Sequence[str]) -> str:
    """Merge reasons, e.g. to `best epoch 4, 5 of 6`; if their kinds differ, the first is given as an example."""
    parts = [re.fullmatch(r"best epoch (\d+) of (.*)", why) for why in reasons]
    if all(parts) and len({p[2] for p in parts if p}) == 1:
        epochs = sorted(int(p[1]) for p in parts if p)
        return f"best epoch {', '.join(map(str, epochs))} of {parts[0][2]}"  # type: ignore[index]
    return f"{'e.g. ' * (len(reasons) > 1)}{reasons[0]}"


def read_curves(folder: Path) -> dict[str, list[float]]:
    """The columns of a cell's `curves.csv`; entries that are not numbers become NaN. Empty if unreadable."""
    try:
        with (folder / "curves.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error):
        return {}
    return {key: [_number(row.get(key)) for row in rows] for key in rows[0] if key} if rows else {}


def _number(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan
