"""Fits, stores and evaluates a linear model together with the choices made for it."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from repro.protocol import Evaluation, scored
from tasks.data.progress import Done, untold
from tasks.multilabel.encode import Encoded
from tasks.multilabel.metrics import MEASURED
from tasks.multilabel.models.linear import Fit, Output, output_of
from tasks.multilabel.options import Solver
from tasks.multilabel.selection import Choice, Grid, folds, predict, select

WEIGHTS, CHOICE = "weights.safetensors", "choice.json"


def fit(
    task: Mapping[str, Any], mapping: Mapping[str, Any], encoded: Encoded, seed: int, done: Done = untold
) -> tuple[Choice, dict[str, float]]:
    """Fit the models of the grid and choose the best on dev.

    If there is no dev split, the choice is made by cross-validation, and the model is then fitted on all documents.

    Args:
        task, mapping: the nodes of the configuration.
        encoded: an encoding with the split train and, if there is one, dev.
        seed: seed of the random parts for cross-validation.
        done: called with the share of fits completed.

    Returns:
        the choice with its model, and its metrics.
    """
    started = time.process_time()
    splits = {name: (split.features, split.labels) for name, split in encoded.splits.items()}
    tune, train = task["tune"], splits["train"]
    pairs = [(train, splits["dev"])] if "dev" in splits else folds(train, tune["folds"], seed)
    output, solver = output_of(task, mapping), Solver(**task["fit"])
    grid = Grid(tune["penalties"], tune["thresholds"], tune["parameters"].get(output.mapping, {}))
    choice = select(train, pairs, output, grid, solver, done)
    metrics = {"dev/f1": choice.f1, "selected/penalty": choice.penalty, "train/objective": choice.model.objective}
    metrics |= {"train/iterations": choice.model.iterations, "train/seconds": time.process_time() - started}
    if choice.output.dense:
        metrics["selected/threshold"] = choice.threshold
    return choice, metrics | {f"selected/{name}": float(choice.output.params[name]) for name in grid.parameters}


def save(choice: Choice, folder: Path) -> None:
    """Write the weights and the choices."""
    told = dataclasses.asdict(choice)
    fitted = told.pop("model")
    save_file({"weights": np.ascontiguousarray(fitted.pop("weights"))}, folder / WEIGHTS)
    (folder / CHOICE).write_text(json.dumps(told | {"fit": fitted}, indent=1), encoding="utf-8")


def load(folder: Path) -> Choice:
    """Load a choice written by `save`."""
    told = json.loads((folder / CHOICE).read_text(encoding="utf-8"))
    model = Fit(weights=load_file(folder / WEIGHTS)["weights"], **told.pop("fit"))
    return Choice(**told | {"output": Output(**told["output"]), "model": model})


def score(choice: Choice, test: Encoded, name: str = "test", keep: int = 0) -> Evaluation:
    """Metrics of the split "test", with prefix `name`, and a record of each of its first `keep` documents."""
    documents = test.splits["test"]
    scores, labels = choice.model.scores(documents.features), documents.labels
    predicted = predict(choice.output, scores, choice.threshold)
    p = choice.output.distribution(scores)
    metrics = _scores(predicted, p, labels, name)
    names = np.array(test.labels)
    records: list[dict[str, Any]] = []
    for i in range(min(keep, len(labels))):
        gold, output = ("; ".join(names[row[i]]) for row in (labels, predicted))
        record = {"set": name, "index": i, "source": f"test document {i}", "references": [gold], "output": output}
        records.append(record | {"probabilities": np.round(p[i], 4).tolist()})
    return Evaluation(metrics, {k: MEASURED[k.rsplit("/", 1)[1]][0].signature for k in metrics}, records)


def baselines(encoding: Encoded, test: Encoded, name: str = "test") -> dict[str, dict[str, float]]:
    """Scores of the constant prediction that fits the training labels best."""
    constant, labels = encoding.report["constant"], test.splits["test"].labels
    guess, eta = np.array(constant["labels"]), np.array(constant["eta"])
    return {"constant": _scores(np.broadcast_to(guess, labels.shape), eta[None], labels, name)}


def _scores(predicted: np.ndarray, p: np.ndarray, labels: np.ndarray, name: str) -> dict[str, float]:
    """Metrics from predicted bool [n, K], p [n or 1, K] and labels bool [n, K]."""
    return {f"{name}/{key}": value for key, value in scored(MEASURED, predicted, p, labels).items()}
