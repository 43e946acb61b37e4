"""Scores of multilabel predictions."""

from __future__ import annotations

import numpy as np


def micro_f1(predicted: np.ndarray, true: np.ndarray) -> float:
    """Micro-averaged F1, ``2 tp / (2 tp + fp + fn)`` over all documents and classes; 0 when nothing is true or predicted.

    Args:
        predicted, true: bool `[..., documents, classes]`; leading dimensions of `predicted` are not averaged: see `micro_f1s`.
    """
    return float(micro_f1s(predicted, true))


def micro_f1s(predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """:func:`micro_f1` of many predictions at once: `[..., documents, classes]` -> `[...]`."""
    hits = (predicted & true).sum((-2, -1))
    total = predicted.sum((-2, -1)) + true.sum((-2, -1))
    return np.where(total > 0, 2 * hits / np.maximum(total, 1), 0.0)


def jensen_shannon(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """``KL(p || m) / 2 + KL(q || m) / 2`` with ``m = (p + q) / 2``, natural logarithm: `[..., classes]` -> `[...]`, at most log 2."""
    m = (p + q) / 2

    def divergence(a: np.ndarray) -> np.ndarray:
        safe = np.where(a > 0, a, 1.0)
        return (np.where(a > 0, a, 0.0) * np.log(safe / np.where(m > 0, m, 1.0))).sum(-1)

    return np.maximum((divergence(p) + divergence(q)) / 2, 0.0)


def proportions(labels: np.ndarray) -> np.ndarray:
    """eta = y / ||y||_1: labels `[..., classes]` with at least one each -> distributions of that shape."""
    return labels / labels.sum(-1, keepdims=True)
