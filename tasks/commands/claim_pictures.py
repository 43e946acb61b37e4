"""The pictures of claims, as standalone SVG files: differences with intervals, and the chances of being better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repro.report.figures import COLOURS, GRID, INK, Dot, _dots, _matplotlib, standalone
from repro.tables.decide import Outcome, Part


def differences(one: Outcome, labels: Mapping[str, str], salt: str) -> str:
    """What tests a claim: a small dot a run, the mean, its 95 % interval; the differences that count as equal are grey.

    Args:
        labels: metric -> its name, for a claim with several metrics.
    """
    claim = one.claim
    most = claim.test == "most"  # then each dot is a setting
    dots = [
        Dot(_label(part, one, labels), 0, *_ends(part, most), list((part.columns if most else part.differences).values()))
        for part in one.parts if len(part.differences) > 1
    ]  # fmt: skip
    low, high = sorted(claim.sign * end for end in claim.equal)
    with _matplotlib(salt) as drawing_of:
        drawing = drawing_of(figsize=(6.4, 1.0 + 0.3 * len(dots)), layout="constrained")
        axes = drawing.add_subplot()
        axes.axvline(0, color=INK, lw=0.8)
        if low < high:
            axes.axvspan(low, high, color=GRID, alpha=0.6, lw=0)
        _dots(axes, dots, COLOURS[1])
        unit = "F1" if most else claim.unit or claim.metrics[0]
        grey = "; grey: counts as equal" if low < high else ""
        axes.set_xlabel(f"{unit}{claim.compared(' minus that of ' if claim.value is None else ' minus ')}{grey}")
        _arrow(axes, claim.sign)
        return standalone(drawing, f"claim {claim.id}: {one.outcome}")


def _ends(part: Part, most: bool) -> tuple[float, tuple[float, float] | None]:
    if most:
        return sum(part.columns.values()) / len(part.columns), None
    return part.effect, (part.low, part.high) if part.low == part.low else None


def _label(part: Part, one: Outcome, labels: Mapping[str, str]) -> str:
    several = len(one.claim.metrics) > 1
    against = f"against {part.against}" if len(one.claim.against) > 1 else ""
    return ", ".join(
        filter(None, (part.row, part.column, labels.get(part.metric, part.metric) if several else "", against))
    )


def _arrow(axes: Any, sign: int) -> None:
    """An arrow in the direction of the claim, above the plot."""
    start, text = (0.78, "as claimed →") if sign > 0 else (0.02, "← as claimed")
    axes.text(start, 1.02, text, transform=axes.transAxes, color=INK, va="bottom")


@dataclass(frozen=True)
class Chance:
    """The chance, from 0 to 1, that a run of a row is better than a run of another, on average over tasks; its 95 % interval."""

    row: str
    tasks: tuple[str, ...]
    mean: float
    low: float
    high: float


def chance(row: str, runs: Mapping[str, tuple[Sequence[float], Sequence[float]]], draws: int = 4000) -> Chance:
    """The chance that a row is better than another.

    Args:
        runs: task -> the scores of the row's runs and of the other's; higher is better.
        draws: number of bootstrap samples of the runs, drawn again within each task.

    Source: the probability of improvement of Agarwal et al. 2021 (rliable), with the percentile interval of its
    stratified bootstrap. Raises ValueError without tasks.
    """
    if not runs:
        raise ValueError(f"{row!r} has no runs beside the other's")
    rng, drawn, exact = np.random.RandomState(1), np.zeros(draws), 0.0
    for a, b in runs.values():
        one, other = np.asarray(a, float), np.asarray(b, float)
        wins = (one[:, None] > other) + 0.5 * (one[:, None] == other)  # [runs, runs of the other]
        picked = (rng.randint(0, len(x), (draws, len(x), 1)) for x in (one, other))
        i, j = next(picked), next(picked).swapaxes(1, 2)
        drawn += wins[i, j].mean((1, 2)) / len(runs)
        exact += float(wins.mean()) / len(runs)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Chance(row, tuple(runs), exact, float(low), float(high))


def chances(found: Sequence[Chance], salt: str) -> str:
    """The chance of each row that one of its runs is better than one of softmax, with its 95 % interval."""
    dots = [
        Dot(f"{one.row} ({', '.join(one.tasks)})", 0, 100 * one.mean, (100 * one.low, 100 * one.high)) for one in found
    ]
    with _matplotlib(salt) as drawing_of:
        drawing = drawing_of(figsize=(6.4, 1.0 + 0.3 * len(dots)), layout="constrained")
        axes = drawing.add_subplot()
        axes.axvline(50, color=INK, lw=0.8)
        _dots(axes, dots)
        axes.set_xlim(-3, 103)
        axes.set_xlabel("chance that a run is better than one of softmax, % (line: 95 % interval; 50: as good)")
        _arrow(axes, 1)
        return standalone(drawing, "chance of being better than softmax")
