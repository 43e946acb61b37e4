"""Decide whether training had converged, based on the dev score that selects the best epoch.

A row of a table with three cells or more was still learning if the mean of their curves is shown to rise (`of_row`).
A cell alone had converged if the best epoch was not the last one, or if the last epoch improved the best score by less
than the score's noise. With fewer than `FEWEST` epochs, or for a model at chance, it is unknown. A training whose attention collapsed, or whose loss rose again, has not converged (`collapsed`, `diverged`),
whatever its best epoch. The noise is the scatter of the last `WINDOW` dev scores around a smooth curve. It is computed from
third differences, which remove any parabola and have variance 20 s^2 if the scatter is s. (Fitting a straight line
would count the bend of a learning curve as noise. The sampling of dev examples adds no noise, because every epoch is
evaluated on the same examples.)
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repro.protocol import Metric
from repro.statistics import FEWEST as RUNS
from repro.statistics import interval, mean_of

FEWEST = 3  # with fewer epochs, an early best epoch proves nothing
CONSTANT = ("constant", "majority", "most frequent answer")  # baselines that always give the same answer: chance
WINDOW = 5  # number of epochs that determine the noise; with fewer, scatter and trend look the same
CONVERGED, LEARNING, UNKNOWN = "converged", "still learning", "convergence not known"
STUCK = "training failed to learn"
WORST = (STUCK, UNKNOWN, LEARNING, CONVERGED)  # from worst to best; a row has the worst state of its cells
READ = ("train/loss", "dev/ppl", "dev/accuracy", "dev/attention_support", "dev/attention_zeros")  # beside the dev score
ONE_WORD = 1.3  # mean number of words with weight; up to it, at least 70 % of the steps have all weight on one word
LEARNED = 80.0  # % of dev predictions right, from which on attention to one word is what was to be learned
GAIN = 5.0  # points of accuracy by which an epoch, or the epochs before the collapse, shows learning
BEFORE = 0.85  # share of the accuracy; if reached before the attention narrowed, it narrowed because it had learned
RISE = 1.2  # factor on the lowest train loss, and RISE - 1 nats or bits more, from which on training has diverged
NO_GRADIENT = {"hardmax": {}, "top_k": {"k": 1}}  # mappings that attend to one word by definition
SMALL_SCALE = 0.02


@dataclass(frozen=True)
class Convergence:
    """`state` is CONVERGED, LEARNING, UNKNOWN, STUCK, or "" for a family without epochs; `why` is the reason."""

    state: str
    why: str = ""
    advice: str = ""

    @property
    def text(self) -> str:
        """The text that a table shows."""
        said = {CONVERGED: "yes", LEARNING: "still learning", UNKNOWN: "not known", STUCK: "no"}.get(self.state, "")
        return f"{said}: {self.why}" if said else ""

    @property
    def converged(self) -> bool:
        """Whether the cell may be compared or marked as best; this is always true for a family without epochs."""
        return self.state in (CONVERGED, "")


def of(cell: Any) -> Convergence:
    """The convergence of a finished cell, from its results (`repro.identity.Results`)."""
    metrics: Mapping[str, Metric] = cell.family.METRICS
    if "best_epoch" not in metrics:
        return Convergence("")
    metric, epochs = metrics.get(cell.best_metric), (cell.config.get("train") or {}).get("max_epochs")
    verdict = judge(cell.scores_by_epoch, cell.metrics.get("best_epoch"), epochs, metric)
    if stuck := _stuck(cell.curves, cell.scores_by_epoch, cell.config, metric):
        return stuck
    if verdict.state == CONVERGED and _at_chance(cell, metric):
        return Convergence(UNKNOWN, f"{verdict.why}, no better than a constant answer")
    return verdict


def _stuck(
    curves: Mapping[str, Sequence[float]], scores: Sequence[float], config: Mapping[str, Any], metric: Metric | None
) -> Convergence | None:
    """STUCK, if the attention of the kept epoch has collapsed or the training diverged; otherwise None."""
    if told := diverged(curves):
        return Convergence(STUCK, told, "Lower optim.lr or set optim.clip.")
    first = collapsed(curves, config)
    if not first or not scores or not all(map(math.isfinite, scores)):
        return None
    signed = [((metric.better if metric else 1) or 1) * score for score in scores]
    best = signed.index(max(signed))
    if best + 1 < first or curves["dev/attention_support"][best] > ONE_WORD or curves["dev/accuracy"][best] >= LEARNED:
        return None
    where = one_word(curves["dev/attention_support"][best])
    return Convergence(STUCK, f"attention {where} of steps since epoch {first}", advice(config))


def judged(curves: Mapping[str, Sequence[float]], metric: str) -> dict[str, list[float]]:
    """The columns that `of` reads: for records. Columns with a value that is not finite are left out."""
    known = {key: [*curves.get(key, ())] for key in dict.fromkeys((f"dev/{metric}", *READ))}
    return {key: column for key, column in known.items() if column and all(map(math.isfinite, column))}


def one_word(support: float) -> str:
    """The least share of steps with all weight on one word, as text; a step of another kind has two words or more.

    A mean below 1 is that of a model with a sink, which takes the attention that no word gets.
    """
    share = f"at least {100 * (2 - support):.0f} %" if support > 1 else "100 %"
    return f"on one word{' or on none' * (support < 1)} in {share}"


def collapsed(curves: Mapping[str, Sequence[float]], config: Mapping[str, Any]) -> int | None:
    """The first of the last epochs (from 1) that have all weight on one word in most steps, if that kept the model from learning.

    With all weight on one word, a sparse mapping passes no gradient to the scores, so the attention stays where it was
    before it had learned. The same picture is right where one word is to be found. So the last two epochs must have it,
    bring little and predict less than `LEARNED` % right, and most of what was learned must have come after the attention
    narrowed, or nothing before. A classifier, which learns from one right word, must have learned nothing at all.
    """
    node = config.get("mapping") or {}
    if (own := NO_GRADIENT.get(str(node.get("name")))) is not None and own.items() <= node.items():
        return None
    names = ("attention_support", "attention_zeros", "accuracy")
    support, zeros, accuracy = (curves.get(f"dev/{name}") or [] for name in names)
    epochs = len(support)
    if epochs < 2 or {len(zeros), len(accuracy)} != {epochs} or not all(map(math.isfinite, [*support, *accuracy])):
        return None
    first = epochs
    while first and support[first - 1] <= ONE_WORD and zeros[first - 1] >= 0.5:  # there was a choice of words
        first -= 1
    if epochs - first < 2 or accuracy[-1] >= LEARNED or accuracy[-1] - accuracy[-2] >= GAIN:
        return None
    began, now = accuracy[first], max(accuracy[first:])
    if "dev/ppl" in curves:  # one prediction per step; a classifier makes one per text
        stuck = began - accuracy[0] < GAIN or began < BEFORE * now
    else:
        stuck = now - accuracy[0] < GAIN
    return first + 1 if stuck else None


def diverged(curves: Mapping[str, Sequence[float]]) -> str:
    """A text, if the loss on the training data, which overfitting only lowers, is well above its lowest value at the end."""
    losses = curves.get("train/loss") or []
    if len(losses) < 2 or not all(map(math.isfinite, losses)):
        return ""
    lowest = min(losses)
    if losses[-1] <= RISE * lowest + RISE - 1:
        return ""
    return f"diverged: train/loss rose from {lowest:.3g} in epoch {losses.index(lowest) + 1} to {losses[-1]:.3g}"


def advice(config: Mapping[str, Any]) -> str:
    """What to set, of the keys that the model and the mapping have, against attention that collapsed."""
    model, mapping = config.get("model") or {}, config.get("mapping") or {}
    keys = []
    if (scale := model.get("score_scale")) is not None and scale > SMALL_SCALE:
        keys.append(f"model.score_scale={SMALL_SCALE:g} (it is {scale:g})")
    elif (gamma := mapping.get("gamma")) is not None:
        keys.append(f"a larger mapping.gamma (it is {gamma:g})")
    rate = (config.get("optim") or {}).get("lr")
    keys.append(f"a lower optim.lr (it is {rate:g})" if isinstance(rate, int | float) else "a lower optim.lr")
    return f'Set {" or ".join(keys)}; see "Delayed learning" in docs/guides/training.md.'


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
    signed = [sign * s for s in scores] if all(map(math.isfinite, scores)) else []
    if signed:
        best_epoch, epochs = signed.index(max(signed)) + 1, len(signed)  # among equal scores, the first is the best
    elif best_epoch is None or epochs is None or not 1 <= best_epoch <= epochs:
        return Convergence(UNKNOWN, "the best epoch is not recorded")
    when = f"best epoch {best_epoch:.0f} of {epochs}"
    if epochs < FEWEST:
        return Convergence(UNKNOWN, f"{when}, fewer than {FEWEST}")
    if best_epoch < epochs:
        return Convergence(CONVERGED, when)
    if not signed:
        return Convergence(UNKNOWN, f"{when}, no curve")
    if epochs < WINDOW:
        return Convergence(LEARNING, f"{when}, too few epochs to know the noise")
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
            return Convergence(state, _merged(told), next((c.advice for c in cells if c.state == state), ""))
    return Convergence(UNKNOWN, "no finished cell")


def of_row(cells: Sequence[Any]) -> Convergence:
    """The convergence of a row, from its cells' results (`repro.identity.Results`); claims and tables share this rule.

    Each curve has a least-squares slope over its last `FEWEST` epochs; the mean slope is tested against zero, one-sided
    at 2.5 %. So one more epoch of one cell proves nothing, and more cells make smaller slopes detectable. A row with
    fewer than three cells, or without curves, has the worst state of its cells.
    """
    whole, curves = together([cell.converged for cell in cells]), [cell.scores_by_epoch for cell in cells]
    complete = all(len(curve) >= FEWEST and all(map(math.isfinite, curve)) for curve in curves)
    if len(curves) < RUNS or not complete or whole.state not in (LEARNING, CONVERGED):
        return whole
    metric: Metric | None = cells[0].family.METRICS.get(cells[0].best_metric)
    sign, decimals = ((metric.better or 1), metric.decimals + 1) if metric else (1, 3)
    slope = mean_of([(curve[-1] - curve[-FEWEST]) / (FEWEST - 1) for curve in curves])
    low, _ = sorted(sign * end for end in slope.interval())
    rise = f"{slope.mean:+.{decimals}f}{interval(slope.interval(), slope.n, decimals)} an epoch at the end"
    return Convergence(LEARNING if low > 0 else CONVERGED, rise)


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
        read: Any = np.genfromtxt(folder / "curves.csv", delimiter=",", names=True, deletechars="", encoding="utf-8")
    except (OSError, ValueError):
        return {}
    return {name: np.atleast_1d(read[name]).tolist() for name in read.dtype.names or ()}
