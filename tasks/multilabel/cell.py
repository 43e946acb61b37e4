"""One cell: a data set, a mapping with its loss, a seed. Selection on dev, then the scores of the test documents."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sparse_attention.repro.protocol import Prepared, Result
from tasks.data.progress import NullProgress
from tasks.multilabel.check import grid_of, output_of
from tasks.multilabel.check import problems as problems
from tasks.multilabel.data import Multilabel, load
from tasks.multilabel.metrics import jensen_shannon, micro_f1, proportions
from tasks.multilabel.model import Output, Solver
from tasks.multilabel.selection import folds, predict, refitted, select

PRELOAD = (
    "tasks.multilabel.selection",
    "tasks.multilabel.synthetic",
    "scipy.optimize",
    "scipy.io.arff",
    "sklearn.datasets",
)

SIGNATURES = {
    "f1": "F1: micro-averaged over documents and classes",
    "jsd": "JSD: between rho(z) and y/|y|, natural logarithm, mean over documents",
    "jsd_label": "JSD/K: the same, divided by the number of classes (scaling of Martins & Astudillo's script)",
    "labels": "labels: mean number of predicted labels",
}


def prepare(config: Mapping[str, Any], progress: Any) -> Prepared:
    """Generate or read the data. Raises `tasks.data.errors.DataError` when it cannot be had."""
    data = load(config["task"]["data"], progress)
    sizes = {split: len(y) for split, y in data.labels.items()}
    facts = {
        "name": data.name, "provenance": data.provenance, "demo": data.demo, "notes": list(data.notes), "pairs": sizes,
        "classes": len(data.names), "features": data.features["train"].shape[1], "sha256": data.sha256,
        "cardinality": {s: round(float(y.sum(1).mean()), 3) for s, y in data.labels.items()},
    }  # fmt: skip
    return Prepared(data.sha256, facts, {"constant": constant(data)})


def run(config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Any) -> Result:
    """Fit the grid's paths, choose on dev, score the test documents."""
    started = time.process_time()
    task = config["task"]
    monitor.stage("data", 0.0)
    data = load(task["data"], NullProgress())
    train, test = ((data.features[s], data.labels[s]) for s in ("train", "test"))
    fixed = "dev" in data.labels
    pairs = (
        [(train, (data.features["dev"], data.labels["dev"]))]
        if fixed
        else folds(train, task["tune"]["folds"], config["seed"])
    )
    grid, solver = grid_of(config), Solver(**task["fit"])
    choice = select(pairs, output_of(config), grid, solver, lambda share: monitor.stage("selection", 0.9 * share))
    model = refitted(train, choice, grid, solver)
    scores = model.scores(test[0])
    metrics = {f"test/{k}": v for k, v in _scores(choice.output, scores, test[1], choice.threshold).items()}
    metrics |= {"dev/f1": choice.f1, "selected/penalty": choice.penalty, "train/objective": model.objective}
    metrics |= {"train/iterations": model.iterations, "train/seconds": time.process_time() - started}
    if choice.output.dense:
        metrics["selected/threshold"] = choice.threshold
    metrics |= {f"selected/{name}": float(choice.output.params[name]) for name in grid.parameters}
    records = _records(data, scores, choice, task["keep_predictions"])
    return Result(metrics, {f"test/{k}": v for k, v in SIGNATURES.items()}, records)


def _scores(output: Output, scores: np.ndarray, labels: np.ndarray, threshold: float) -> dict[str, float]:
    predicted = predict(output, scores, threshold)
    divergence = float(jensen_shannon(output.distribution(scores), proportions(labels)).mean())
    return {
        "f1": micro_f1(predicted, labels), "jsd": divergence, "jsd_label": divergence / labels.shape[1],
        "labels": float(predicted.sum(1).mean()), "true_labels": float(labels.sum(1).mean()),
    }  # fmt: skip


def _records(data: Multilabel, scores: np.ndarray, choice, keep: int) -> list[dict[str, Any]]:
    p = choice.output.distribution(scores[:keep])
    on = p > choice.threshold
    names = np.array(data.names)
    return [
        {
            "set": "test", "index": i, "source": f"test document {i}", "references": ["; ".join(names[data.labels["test"][i]])],
            "output": "; ".join(names[on[i]]), "probabilities": np.round(p[i], 4).tolist(),
        }
        for i in range(len(p))
    ]  # fmt: skip


def constant(data: Multilabel) -> dict[str, float]:
    """The best constant prediction: the k most frequent labels, k by F1 on train; as a distribution, the mean eta of train."""
    train, test = data.labels["train"], data.labels["test"]
    order = (-train.mean(0)).argsort(kind="stable")
    guesses = np.zeros((len(order), len(order)), dtype=bool)
    for k in range(len(order)):
        guesses[k, order[: k + 1]] = True
    best = max(guesses, key=lambda guess: micro_f1(np.broadcast_to(guess, train.shape), train))
    divergence = float(jensen_shannon(proportions(train).mean(0)[None], proportions(test)).mean())
    return {
        "test/f1": micro_f1(np.broadcast_to(best, test.shape), test), "test/labels": float(best.sum()), "test/jsd": divergence,
        "test/jsd_label": divergence / test.shape[1], "test/true_labels": float(test.sum(1).mean()),
    }  # fmt: skip
