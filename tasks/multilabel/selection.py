"""Selects on development data: the penalty, the mapping's parameter (q or lambda), and the threshold p0 of softmax.

The criterion is micro-F1. Ties are broken in favour of the larger penalty and the smaller threshold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.data.progress import Done, untold
from tasks.multilabel.metrics import micro_f1, proportions
from tasks.multilabel.models.linear import Fit, Output, fit
from tasks.multilabel.options import Solver

Split = tuple[np.ndarray, np.ndarray]  # features, labels
Pair = tuple[Split, Split]  # train, dev


@dataclass(frozen=True)
class Choice:
    """The selected output (with its parameter), penalty and threshold, their dev F1, and the model."""

    output: Output
    penalty: float
    threshold: float
    f1: float
    model: Fit


@dataclass(frozen=True)
class Grid:
    """The grid that is searched.

    penalties: from large to small; each fit starts from the previous one. thresholds: values of p0. parameters: the
    mapping's parameters and their values.
    """

    penalties: Sequence[float]
    thresholds: Sequence[float]
    parameters: Mapping[str, Sequence[Any]]

    def outputs(self, output: Output) -> Iterator[Output]:
        names = list(self.parameters)
        for values in itertools.product(*(self.parameters[n] for n in names)):
            yield replace(output, params={**output.params, **dict(zip(names, values))})


def predict(output: Output, scores: np.ndarray, threshold: float) -> np.ndarray:
    """Predicted labels, bool `[..., classes]`: probability above zero, or above `threshold` for a dense mapping."""
    return output.distribution(scores) > (threshold if output.dense else 0.0)


def folds(train: Split, number: int, seed: int) -> list[tuple[Split, Split]]:
    """(train, dev) pairs of cross-validation over a random order of the training documents."""
    x, y = train
    parts = np.array_split(np.random.default_rng(seed).permutation(len(y)), number)
    everything = np.arange(len(y))
    return [tuple((x[i], y[i]) for i in (np.setdiff1d(everything, part), part)) for part in parts]  # type: ignore[misc]


def select(
    train: Split, pairs: Sequence[Pair], output: Output, grid: Grid, solver: Solver, done: Done = untold
) -> Choice:
    """The best point of the grid by micro-F1 on the dev parts, pooled over `pairs`, with its model.

    Args:
        train: all training documents; in a cross-validation, the model of the chosen point is fitted again on these.
        pairs: pairs of (train, dev): a single one (a fixed dev set), or those of `folds`.
        done: called with the share of fits completed.
    """
    outputs = list(grid.outputs(output))
    true = np.concatenate([dev[1] for _, dev in pairs])
    best: Choice | None = None
    for number, candidate in enumerate(outputs):
        models: list[list[Fit]] = []  # [pair][penalty]
        for position, (part, _) in enumerate(pairs):
            models.append(path(part, candidate, grid.penalties, solver))
            done((number + (position + 1) / len(pairs)) / len(outputs))
        for place, penalty in enumerate(grid.penalties):
            scores = np.concatenate([fits[place].scores(dev[0]) for fits, (_, dev) in zip(models, pairs)])
            threshold, f1 = _threshold(candidate, scores, true, grid.thresholds)
            if best is None or f1 > best.f1:
                best = Choice(candidate, penalty, threshold, f1, models[0][place])
    assert best is not None
    if len(pairs) == 1:
        return best
    upto = grid.penalties[: grid.penalties.index(best.penalty) + 1]  # each fit starts from the previous one
    return replace(best, model=path(train, best.output, upto, solver)[-1])


def path(train: Split, output: Output, penalties: Sequence[float], solver: Solver) -> list[Fit]:
    """Fits for all penalties, each started from the previous fit."""
    made: list[Fit] = []
    for penalty in penalties:
        start = made[-1].weights if made else None
        made.append(fit(train[0], proportions(train[1]), output, penalty, solver, start))
    return made


def _threshold(
    output: Output, scores: np.ndarray, true: np.ndarray, thresholds: Sequence[float]
) -> tuple[float, float]:
    """The best threshold and its micro-F1; a sparse mapping has the threshold zero."""
    tried = np.asarray(thresholds if output.dense else [0.0])
    f1 = micro_f1(output.distribution(scores) > tried[:, None, None], true)
    return float(tried[f1.argmax()]), float(f1.max())
