"""Fits, stores and evaluates a linear model together with the choices made for it on development data.

Chosen are the penalty, the mapping's parameter (q or lambda), and the threshold p0 of softmax, by micro-F1. Ties are
broken in favour of the larger penalty and the smaller threshold.
"""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from repro.protocol import Evaluation, scored
from tasks.data.progress import Done, untold
from tasks.multilabel.encode import Encoded
from tasks.multilabel.metrics import MEASURED, f1_counts, micro_f1, proportions
from tasks.multilabel.models import linear
from tasks.multilabel.models.linear import Fit, Output, output_of
from tasks.multilabel.options import Solver

WEIGHTS, CHOICE = "weights.safetensors", "choice.json"
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

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """As of a torch module."""
        return [("weights", torch.from_numpy(self.model.weights))]


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
    train: Split, pairs: Sequence[Pair], output: Output, tune: Mapping[str, Any], solver: Solver, done: Done = untold
) -> Choice:
    """The best point of the grid by micro-F1 on the dev parts, pooled over `pairs`, with its model.

    Args:
        train: all training documents; in a cross-validation, the model of the chosen point is fitted again on these.
        pairs: pairs of (train, dev): a single one (a fixed dev set), or those of `folds`.
        tune: the node `task.tune`; each fit starts from that of the next larger penalty.
        done: called with the share of fits completed.
    """
    searched, penalties = tune["parameters"].get(output.mapping, {}), tune["penalties"]
    points = (dict(zip(searched, values)) for values in product(*searched.values()))
    outputs = [replace(output, params={**output.params, **point}) for point in points]
    true = np.concatenate([dev[1] for _, dev in pairs])
    tried = np.asarray(tune["thresholds"] if output.dense else [0.0])  # a sparse mapping has the threshold zero
    best: Choice | None = None
    for number, candidate in enumerate(outputs):
        models: list[list[Fit]] = []  # [pair][penalty]
        for position, (part, _) in enumerate(pairs):
            models.append(path(part, candidate, penalties, solver))
            done((number + (position + 1) / len(pairs)) / len(outputs))
        for place, penalty in enumerate(penalties):
            scores = np.concatenate([fits[place].scores(dev[0]) for fits, (_, dev) in zip(models, pairs)])
            f1 = micro_f1(candidate.distribution(scores) > tried[:, None, None], true)
            if best is None or f1.max() > best.f1:
                best = Choice(candidate, penalty, float(tried[f1.argmax()]), float(f1.max()), models[0][place])
    if len(pairs) == 1:
        return best
    upto = penalties[: penalties.index(best.penalty) + 1]
    return replace(best, model=path(train, best.output, upto, solver)[-1])


def path(train: Split, output: Output, penalties: Sequence[float], solver: Solver) -> list[Fit]:
    """Fits for all penalties, each started from the previous fit."""
    made: list[Fit] = []
    for penalty in penalties:
        start = made[-1].weights if made else None
        made.append(linear.fit(train[0], proportions(train[1]), output, penalty, solver, start))
    return made


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
    choice = select(train, pairs, output, tune, solver, done)
    metrics = {"dev/f1": choice.f1, "selected/penalty": choice.penalty, "train/objective": choice.model.objective}
    metrics |= {"train/iterations": choice.model.iterations, "train/seconds": time.process_time() - started}
    if choice.output.dense:
        metrics["selected/threshold"] = choice.threshold
    searched = tune["parameters"].get(output.mapping, {})
    return choice, metrics | {f"selected/{name}": float(choice.output.params[name]) for name in searched}


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
    """Metrics of the split "test", with prefix `name`, and a record of each document; the first `keep` include the labels."""
    documents = test.splits["test"]
    scores, labels = choice.model.scores(documents.features), documents.labels
    predicted = predict(choice.output, scores, choice.threshold)
    p = choice.output.distribution(scores)
    metrics = _scores(predicted, p, labels, name)
    names = np.array(test.labels)
    counts = f1_counts(predicted[:, None], labels[:, None])  # [documents, 2]
    records = [{"set": name, "index": i, "sentence": {"f1_statistics": one}} for i, one in enumerate(counts.tolist())]
    for i, record in enumerate(records[:keep]):
        gold, output = ("; ".join(names[row[i]]) for row in (labels, predicted))
        record |= {"source": f"test document {i}", "references": [gold], "output": output}
        record |= {"probabilities": np.round(p[i], 4).tolist()}
    return Evaluation(metrics, {k: MEASURED[k.rsplit("/", 1)[1]][0].signature for k in metrics}, records)


def baselines(encoding: Encoded, test: Encoded, name: str = "test") -> dict[str, dict[str, float]]:
    """Scores of the constant prediction that fits the training labels best."""
    constant, labels = encoding.report["constant"], test.splits["test"].labels
    guess, eta = np.array(constant["labels"]), np.array(constant["eta"])
    return {"constant": _scores(np.broadcast_to(guess, labels.shape), eta[None], labels, name)}


def _scores(predicted: np.ndarray, p: np.ndarray, labels: np.ndarray, name: str) -> dict[str, float]:
    """Metrics from predicted bool [n, K], p [n or 1, K] and labels bool [n, K]."""
    return {f"{name}/{key}": value for key, value in scored(MEASURED, predicted, p, labels).items()}
