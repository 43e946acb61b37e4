"""Multilabel classification cells: fit a linear model, select on dev, evaluate on the test documents. No fairseq."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from repro.protocol import Evaluation, Monitor, Prepared, TestSet, Training, metrics_of
from tasks.cells import _training
from tasks.data import DataSet
from tasks.multilabel import encode, fitted, options
from tasks.multilabel.metrics import MEASURED
from tasks.multilabel.predict import graph as graph
from tasks.multilabel.predict import line as line
from tasks.multilabel.predict import predict as predict

RECIPE = (2, 1)
METRICS = metrics_of(MEASURED)
EVALUATION_KEYS = ("decode", "task.keep_predictions", "task.deviations")
LATER_KEYS = _training.LATER_KEYS
HUB, WAYS, EXAMPLE = "tabular-classification", ("label",), "model.label(features)[0].output"
SEARCH = "task.tune.parameters"
PRELOAD = ("tasks.multilabel.fitted", "scipy.optimize", "sklearn.datasets")


def prepare(config: Mapping[str, Any], progress: Any) -> Prepared:
    data = _training.opened(config, progress)
    encoded = encode.encode(data, _training.options_of(options, config, "encode"), config["paths"]["data"], progress)
    sizes = {"classes": len(encoded.labels), "features": encoded.features}
    cardinality = encoded.report["cardinality"]
    return _training.prepared(config, data, encoded, _test, progress, cardinality=cardinality, **sizes)


def _test(config: Mapping[str, Any], data: DataSet, encoding: encode.Encoded, name: str, progress: Any) -> TestSet:
    test = encode.encode_test(data, encoding.folder, config["paths"]["data"], progress)
    trivial = fitted.baselines(encoding, test, name)
    return _training.test_set(data, test, name, trivial, cardinality=test.report["cardinality"])


prepare_test = partial(_training.prepare_test, encode, _test)


def train(config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Monitor) -> Training:
    monitor.stage("data", 0.0)
    encoded = encode.open_encoded(prepared.folder)
    done = partial(monitor.stage, "selection")
    choice, metrics = fitted.fit(config["task"], config["mapping"], encoded, config["seed"], done)
    fitted.save(choice, folder)
    encode.keep_encoding(prepared.folder, folder / _training.ENCODING)
    return Training(metrics)


def load(config: Mapping[str, Any], folder: Path) -> tuple[Any, encode.Encoded]:
    """Load the fitted model of a cell, with the settings selected on dev, and its encoding."""
    return fitted.load(folder), encode.open_encoded(folder / _training.ENCODING)


def evaluate(config: Mapping[str, Any], folder: Path, test: TestSet, monitor: Monitor) -> Evaluation:
    monitor.stage("testing", 0.0)
    documents = encode.open_encoded(test.folder)
    return fitted.score(fitted.load(folder), documents, test.name, config["task"]["keep_predictions"])
