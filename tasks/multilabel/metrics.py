"""Metrics of multilabel predictions."""

from collections.abc import Iterator

import numpy as np

from repro.protocol import Metric, Scorer, Scores


def f1_counts(predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """``2 tp`` and ``2 tp + fp + fn``, `[..., 2]`, of bool `[..., documents, classes]`; F1 is the ratio of their sums."""
    return np.stack((2 * (predicted & true).sum((-2, -1)), predicted.sum((-2, -1)) + true.sum((-2, -1))), -1)


def micro_f1(predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Micro-averaged F1, ``2 tp / (2 tp + fp + fn)`` over documents and classes; 0 if no label is true or predicted.

    Args:
        predicted, true: bool `[..., documents, classes]`; the result has the leading dimensions, `[...]`.
    """
    hits, total = np.moveaxis(f1_counts(predicted, true), -1, 0)
    return np.where(total > 0, hits / np.maximum(total, 1), 0.0)


def jensen_shannon(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """``KL(p || m) / 2 + KL(q || m) / 2``, ``m = (p + q) / 2``, in nats: `[..., classes]` -> `[...]`, at most log 2."""
    from scipy.special import rel_entr  # a model is loaded without

    m = (p + q) / 2
    return np.maximum((rel_entr(p, m).sum(-1) + rel_entr(q, m).sum(-1)) / 2, 0.0)


def proportions(labels: np.ndarray) -> np.ndarray:
    """eta = y / ||y||_1: labels `[..., classes]`, at least one per document -> distributions of the same shape."""
    return labels / labels.sum(-1, keepdims=True)


def divergence(predicted: np.ndarray, p: np.ndarray, labels: np.ndarray) -> float:
    return float(jensen_shannon(p, proportions(labels)).mean())


def _measured() -> Iterator[tuple[Metric, Scorer | None]]:
    """The metrics and their scorers, which take predicted bool [n, K], p [n or 1, K] and labels bool [n, K]."""
    f1 = Metric("f1", "F1 (0-1)", 1, 3, 0.01, "F1: micro-averaged over documents and classes", "f1")
    yield f1, lambda predicted, p, labels: micro_f1(predicted, labels)
    between = "JSD: between rho(z) and y/|y|, natural logarithm, mean over documents"
    yield Metric("jsd", "nats", -1, 4, 0.01, between), divergence
    scaled = "JSD/K: divided by the number of classes (scaling of Martins & Astudillo's script)"
    jsd_label = Metric("jsd_label", "nats", -1, 5, 0.001, scaled)
    yield jsd_label, lambda predicted, p, labels: divergence(predicted, p, labels) / labels.shape[1]
    count = Metric("labels", "labels", 0, 2, None, "labels: mean number of predicted labels")
    yield count, lambda predicted, p, labels: predicted.sum(1).mean()
    true = Metric("true_labels", "labels", 0, 2, None, "true labels: mean number of a document's labels")
    yield true, lambda predicted, p, labels: labels.sum(1).mean()
    yield Metric("penalty", "", 0, 9, None, "penalty chosen on dev"), None
    yield Metric("threshold", "share", 0, 3, None, "p0 chosen on dev"), None
    yield Metric("q", "", 0, 2, None, "q of sparsehourglass, chosen on dev"), None
    yield Metric("lam", "", 0, 2, None, "lambda, chosen on dev"), None
    yield Metric("alpha", "", 0, 2, None, "alpha of entmax, chosen on dev"), None
    yield Metric("gamma", "", 0, 2, None, "gamma, chosen on dev"), None
    yield Metric("objective", "", 0, 4, None, "objective at the end of the last fit"), None
    yield Metric("iterations", "iterations", 0, 0, None, "iterations of the last fit"), None
    yield Metric("seconds", "s", 0, 1, None, "processor time of all fits"), None


MEASURED: Scores = {metric.name: (metric, scorer) for metric, scorer in _measured()}
