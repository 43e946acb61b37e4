"""Fertility cells: align pairs, train a tagger on the fertilities of source words, evaluate it on the test pairs."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from repro.protocol import Evaluation, Monitor, Prepared, TestSet, metrics_of
from tasks.cells import _training
from tasks.data import DataSet
from tasks.seq2seq import encode, fertility
from tasks.seq2seq.fertility import metrics, options

RECIPE = (1, 1)
METRICS = _training.TRAINING | metrics_of(metrics.MEASURED)
EVALUATION_KEYS = ("decode", "task.deviations")
LATER_KEYS = (*_training.LATER_KEYS, "model.forward_links")
HUB, WAYS, EXAMPLE = "token-classification", (), "model.model(tokens, lengths).argmax(-1)"
USED_BY = "translations trained with model.fertility=predicted"
NO_GRAPH = "only tags words for another model"
PRELOAD = _training.PRELOAD


def prepare(config: Mapping[str, Any], progress: Any) -> Prepared:
    data, root = _training.opened(config, progress), config["paths"]["data"]
    pairs = encode.encode(data, _training.options_of(options, config, "encode"), root, progress)
    pairs = fertility.aligned(pairs, root, progress, fertility.forward_links(config))
    return _training.prepared(config, data, pairs, _test, progress)


def _test(config: Mapping[str, Any], data: DataSet, encoding: encode.Encoded, name: str, progress: Any) -> TestSet:
    types = encoding.folder / fertility.TYPES
    test = encode.encode_test(data, encoding.folder, config["paths"]["data"], progress)
    trivial = {}
    if types.exists():
        split = test.splits["test"]
        true = fertility.counts(fertility.aligner_of(test), split, fertility.forward_links(config)).flat
        systems = {"always 1": np.ones(len(true)), "largest of the type": np.load(types)[np.asarray(split.source.flat)]}
        trivial = {s: {f"{name}/{k}": v for k, v in metrics.scores(x, true).items()} for s, x in systems.items()}
    return _training.test_set(data, test, name, trivial)


prepare_test = partial(_training.prepare_test, encode, _test)
train = partial(_training.train, "fertility", encode, METRICS, "tokens", lambda split: len(split.source.flat))
load = partial(_training.load, "fertility", encode)


def evaluate(config: Mapping[str, Any], folder: Path, test: TestSet, monitor: Monitor) -> Evaluation:
    (model, _), data = load(config, folder), encode.open_encoded(test.folder)
    monitor.stage("testing", 0.0)
    split = data.splits["test"]
    true = fertility.counts(fertility.aligner_of(data), split, fertility.forward_links(config))
    return metrics.evaluation(model, split, true, test.name, config["train"]["batch_size_valid"])
