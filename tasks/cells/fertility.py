"""Fertility cells: align pairs, train a tagger on the fertilities of source words, evaluate it on the test pairs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from repro.protocol import Evaluation, Monitor, Prepared, TestSet, Training, metrics_of
from tasks.cells import _training
from tasks.data import DataSet
from tasks.fertility import metrics, options
from tasks.seq2seq import encode, fertility

RECIPE = (1, 1)
METRICS = _training.TRAINING | metrics_of(metrics.MEASURED)
EVALUATION_KEYS = _training.evaluation_keys(options)
PRELOAD = _training.PRELOAD


def prepare(config: Mapping[str, Any], progress: Any) -> Prepared:
    data, root = _training.opened(config, progress), config["paths"]["data"]
    pairs = encode.encode(data, _training.options_of(options, config, "encode"), root, progress)
    aligned = fertility.aligned(pairs, root, progress)
    facts = _training.facts(data, aligned.sha256, {s: len(part) for s, part in aligned.splits.items()})
    return _training.prepared(config, data, aligned, facts, _test, progress)


def prepare_test(config: Mapping[str, Any], encoding: Path, progress: Any, name: str | None = None) -> TestSet:
    data = _training.opened(config, progress)
    return _test(config, data, encode.open_encoded(encoding), name or config["data"]["name"], progress)


def _test(config: Mapping[str, Any], data: DataSet, encoding: encode.Encoded, name: str, progress: Any) -> TestSet:
    test = encode.encode_test(data, encoding.folder, config["paths"]["data"], progress)
    trivial = {}
    if (encoding.folder / fertility.TYPES).exists():
        split = test.splits["test"]
        true, of_type = (
            fertility.counts(fertility.aligner_of(test), split).flat,
            np.load(encoding.folder / fertility.TYPES),
        )
        systems = {"always 1": np.ones(len(true)), "largest of the type": of_type[np.asarray(split.source.flat)]}
        trivial = {s: {f"{name}/{k}": v for k, v in metrics.scores(x, true).items()} for s, x in systems.items()}
    return _training.test_set(data, test, name, trivial)


def train(config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Monitor) -> Training:
    words = len(encode.open_encoded(prepared.folder).splits["train"].source.flat)
    return _training.train(
        "fertility", config, prepared, folder, monitor, METRICS, ("tokens", words), encode.keep_encoding
    )


def load(config: Mapping[str, Any], folder: Path) -> tuple[Any, encode.Encoded]:
    """Load the trained tagger of a cell and its encoding."""
    kept = encode.open_encoded(folder / _training.ENCODING)
    return _training.load_model("fertility", config, folder, kept), kept


def evaluate(config: Mapping[str, Any], folder: Path, test: TestSet, monitor: Monitor) -> Evaluation:
    (model, _), data = load(config, folder), encode.open_encoded(test.folder)
    monitor.stage("testing", 0.0)
    split = data.splits["test"]
    true = fertility.counts(fertility.aligner_of(data), split)
    return metrics.evaluation(model, split, true, test.name, config["train"]["batch_size_valid"])
