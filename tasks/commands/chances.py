"""The chance that a run of a mapping is better than one of softmax, over tasks, and its picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from repro.report import draw
from repro.report.draw import INK, Dot
from repro.tables.blocks import Table
from repro.tables.claims import UNIFORM
from repro.tables.statistics import FEWEST

# table -> its task, the score and its name, and the row that the others are compared with
TASKS = {
    "evidence_translation": ("translation", "test/bleu", "BLEU", "softmax"),
    "evidence_snli": ("entailment", "test/accuracy", "points of accuracy", "softmax"),
    "evidence_headlines": ("headlines", "test/rouge1_f", "ROUGE-1", "softmax"),
    "evidence_imdb": ("reviews", "test/accuracy", "points of accuracy", "discrete softmax"),
}


@dataclass(frozen=True)
class Chance:
    """The chance, from 0 to 1, that a run of a row is better than a run of another, on average over tasks; its 95 % interval.

    runs: how many of the row there are, by task.
    """

    row: str
    tasks: tuple[str, ...]
    runs: tuple[int, ...]
    mean: float
    low: float
    high: float

    @property
    def interval(self) -> str:
        return "(all runs)" if self.low == self.high else f"[{self.low:.0%}, {self.high:.0%}]"


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
    return Chance(row, tuple(runs), tuple(len(a) for a, _ in runs.values()), exact, float(low), float(high))


def chances(tables: Iterable[Table]) -> list[Chance]:
    """For each row with `FEWEST` runs or more beside softmax: the chance that a run is better, over the tasks that it ran on."""
    runs: dict[str, dict[str, tuple[Sequence[float], Sequence[float]]]] = {}
    for table in tables:
        task, metric, _, against = TASKS.get(table.name, ("", "", "", ""))
        block = table.blocks[0]
        scored = {
            row.label: [f.metrics[metric] for f in row.results if metric in f.metrics]
            for row in block.rows
            if task and not row.baseline
        }
        for row, scores in scored.items():
            if row not in (against, UNIFORM) and min(len(scores), len(scored.get(against, []))) >= FEWEST:
                runs.setdefault(row, {})[task] = (scores, scored[against])
    return sorted((chance(row, of) for row, of in runs.items()), key=lambda one: (-len(one.tasks), -one.mean))


def picture(by_row: Sequence[Chance]) -> str:
    """The chance of each row, with its 95 % interval, as an SVG file."""
    dots = [
        Dot(f"{one.row} ({', '.join(one.tasks)})", 0, 100 * one.mean, (100 * one.low, 100 * one.high)) for one in by_row
    ]
    with draw.canvas((6.4, 1.05 + 0.3 * len(dots))) as figure:
        axes = figure.add_subplot()
        axes.axvline(50, color=INK, lw=0.8)
        draw.dots(axes, dots)
        axes.set_xlim(-3, 103)
        axes.set_title("better →", loc="right", fontsize=7.5)
        axes.set_xlabel("pairs of runs in which it is better than softmax, %")
        return draw.svg(figure, "chance of being better than softmax")
