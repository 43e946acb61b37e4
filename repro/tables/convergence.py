"""Whether the training of a cell had converged, by the dev score that picks its epoch.

It had when an epoch before the last was the best, or when the last epoch added less to the best score so far than the
score's own noise. The noise is what dev scores of neighbouring epochs scatter around a smooth curve: third differences
of the last `WINDOW` epochs remove any parabola, and of scatter s they have the variance 20 s^2. A line would count the
bend of a learning curve as noise; the sampling of dev examples is no noise here, for every epoch is measured on the same.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.protocol import Metric

WINDOW = 5  # epochs whose scatter is the noise; fewer do not tell scatter from trend
CONVERGED, LEARNING, UNKNOWN = "converged", "still learning", "convergence not recorded"
WORST = (UNKNOWN, LEARNING, CONVERGED)  # of several cells, the first of these speaks for all


@dataclass(frozen=True)
class Convergence:
    """`state`: CONVERGED, LEARNING, UNKNOWN, or "" for a family that has no epochs. `why` says by what."""

    state: str
    why: str = ""

    @property
    def text(self) -> str:
        """For a table."""
        said = {CONVERGED: "yes", LEARNING: "still learning", UNKNOWN: "not recorded"}.get(self.state, "")
        return f"{said}: {self.why}" if said else ""

    @property
    def converged(self) -> bool:
        """Whether the cell may be called best or be compared. A fit without epochs always may."""
        return self.state in (CONVERGED, "")


def of(
    config: Mapping[str, Any], metrics: Mapping[str, float], folder: Path, known: Mapping[str, Metric]
) -> Convergence:
    """The convergence of a finished cell.

    Args:
        config, metrics, folder: the cell's; `curves.csv` in the folder is read where it is there. known: the family's METRICS.
    """
    if "best_epoch" not in known:
        return Convergence("")
    train = config.get("train") or {}
    name = str(train.get("best_metric"))
    metric = known.get(name)
    scores = dev_scores(folder, name)
    return judge(scores, metrics.get("best_epoch"), train.get("max_epochs"), metric)


def judge(scores: Sequence[float], best_epoch: float | None, epochs: int | None, metric: Metric | None) -> Convergence:
    """The definition.

    Args:
        scores: the dev score of every epoch; empty where only the best epoch is known. metric: of the scores.
        best_epoch, epochs: counted from 1; used where there are no scores.
    """
    sign, decimals = (metric.better or 1, metric.decimals) if metric else (1, 2)
    if not scores or not all(map(math.isfinite, scores)):
        if best_epoch is None or epochs is None or not 1 <= best_epoch <= epochs:
            return Convergence(UNKNOWN, "the best epoch is not recorded")
        told = f"best epoch {best_epoch:.0f} of {epochs}"
        return Convergence(CONVERGED, told) if best_epoch < epochs else Convergence(UNKNOWN, f"{told}, no curve")
    signed = [sign * s for s in scores]
    best = signed.index(max(signed)) + 1  # of equal scores the first is kept
    told = f"best epoch {best} of {len(scores)}"
    if best < len(scores):
        return Convergence(CONVERGED, told)
    if len(scores) < WINDOW:
        return Convergence(LEARNING, f"{told}, too few epochs to know the noise")
    gain, spread = signed[-1] - max(signed[:-1]), noise(signed[-WINDOW:])
    decimals += 1  # one more than the score: the two are small
    compared = f"last gain {gain:.{decimals}f} {'below' if gain < spread else 'not below'} noise {spread:.{decimals}f}"
    return Convergence(CONVERGED if gain < spread else LEARNING, compared)


def noise(scores: Sequence[float]) -> float:
    """Standard deviation of scores around a smooth curve, from their third differences. Raises ValueError on fewer than four."""
    third = [d - 3 * c + 3 * b - a for a, b, c, d in zip(scores, scores[1:], scores[2:], scores[3:])]
    if not third:
        raise ValueError(f"noise needs four scores, got {len(scores)}")
    return math.sqrt(sum(t * t for t in third) / len(third) / 20)


def together(cells: Sequence[Convergence]) -> Convergence:
    """Of a row: every cell of it must have converged; the reasons of those in the worst state."""
    for state in (*WORST, ""):
        if told := list(dict.fromkeys(c.why for c in cells if c.state == state)):
            return Convergence(state, _merged(told))
    return Convergence(UNKNOWN, "no finished cell")


def _merged(told: Sequence[str]) -> str:
    """`best epoch 4, 5 of 6`; reasons of several kinds: the first, and how many more."""
    parts = [re.fullmatch(r"best epoch (\d+) of (.*)", why) for why in told]
    if all(parts) and len({p[2] for p in parts if p}) == 1:
        epochs = sorted(int(p[1]) for p in parts if p)
        return f"best epoch {', '.join(map(str, epochs))} of {parts[0][2]}"  # type: ignore[index]
    return told[0] + (f" (+{len(told) - 1})" if len(told) > 1 else "")


def dev_scores(folder: Path, metric: str) -> list[float]:
    """`dev/<metric>` of every epoch from `curves.csv`; what is no number is NaN; empty where the file or the column is absent."""
    try:
        with (folder / "curves.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error):
        return []
    name = f"dev/{metric}"
    return [_number(row[name]) for row in rows] if rows and name in rows[0] else []


def _number(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan
