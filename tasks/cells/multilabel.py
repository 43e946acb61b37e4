"""Multilabel classification cells: fit a linear model, select on dev, evaluate on the test documents. No fairseq."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repro.protocol import Evaluation, Monitor, Prepared, TestSet, Training, metrics_of
from tasks.cells import _training
from tasks.data import DataSet
from tasks.multilabel import encode, fitted, options
from tasks.multilabel.metrics import MEASURED

RECIPE = (2, 1)
METRICS = metrics_of(MEASURED)
EVALUATION_KEYS = _training.evaluation_keys(options)
PRELOAD = ("tasks.multilabel.fitted", "scipy.optimize", "scipy.io.arff", "sklearn.datasets")


def prepare(config: Mapping[str, Any], progress: Any) -> Prepared:
    data = _training.opened(config, progress)
    encoded = encode.encode(data, _training.options_of(options, config, "encode"), config["paths"]["data"], progress)
    facts = _facts(data, encoded) | {"classes": len(encoded.labels), "features": encoded.features}
    return _training.prepared(config, data, encoded, facts, _test, progress)


def _facts(data: DataSet, encoded: encode.Encoded) -> dict[str, Any]:
    report = encoded.report
    return _training.facts(data, encoded.sha256, report["sizes"], cardinality=report["cardinality"])


def prepare_test(config: Mapping[str, Any], encoding: Path, progress: Any, name: str | None = None) -> TestSet:
    data = _training.opened(config, progress)
    return _test(config, data, encode.open_encoded(encoding), name or config["data"]["name"], progress)


def _test(config: Mapping[str, Any], data: DataSet, encoding: encode.Encoded, name: str, progress: Any) -> TestSet:
    test = encode.encode_test(data, encoding.folder, config["paths"]["data"], progress)
    return TestSet(
        name, test.sha256, str(test.folder), _facts(data, test), data.shortfalls, fitted.baselines(encoding, test, name)
    )


def train(config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Monitor) -> Training:
    monitor.stage("data", 0.0)
    encoded = encode.open_encoded(prepared.folder)
    choice, metrics = fitted.fit(
        config["task"], config["mapping"], encoded, config["seed"], lambda share: monitor.stage("selection", share)
    )
    fitted.save(choice, folder)
    encode.keep_encoding(prepared.folder, folder / _training.ENCODING)
    return Training(metrics)


def load(config: Mapping[str, Any], folder: Path) -> tuple[Any, encode.Encoded]:
    """Load the fitted model of a cell, with the settings selected on dev, and its encoding."""
    return fitted.load(folder), encode.open_encoded(folder / _training.ENCODING)


def evaluate(config: Mapping[str, Any], folder: Path, test: TestSet, monitor: Monitor) -> Evaluation:
    monitor.stage("testing", 0.0)
    return fitted.score(
        load(config, folder)[0], encode.open_encoded(test.folder), test.name, config["task"]["keep_predictions"]
    )
