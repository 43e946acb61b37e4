"""Sentiment and entailment cells: train a classifier, classify a test set, and analyse the attention."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from repro.protocol import Evaluation, Monitor, Prepared, TestSet, metrics_of
from tasks.cells import _training
from tasks.classification import encode, options
from tasks.classification.faithfulness import faithfulness
from tasks.classification.metrics import MEASURED, baselines, score
from tasks.classification.predict import classified
from tasks.classification.predict import graph as graph
from tasks.classification.predict import predict as batches_of
from tasks.data import DataError, DataSet
from tasks.data.cache import read_meta
from tasks.data.read.formats import fields_of
from tasks.data.read.vectors import COUNTED

RECIPE = (2, 1)
METRICS = _training.TRAINING | metrics_of(MEASURED)
EVALUATION_KEYS = ("decode", "task.keep_attention", "task.scores", "task.deviations")
LATER_KEYS = (*_training.LATER_KEYS, "task.scores", "encode.subword", "model.scaled")
HUB, WAYS, EXAMPLE = "text-classification", ("classify",), 'model.classify(["..."])[0].output'
PRELOAD = _training.PRELOAD


def prepare(config: Mapping[str, Any], progress: Any) -> Prepared:
    data = _training.opened(config, progress)
    wanted, has = config["task"]["fields"], len(data.about["fields"])
    if has != wanted:
        what = f"data={data.name} has {has} text(s) per example, but task={config['task']['name']} reads {wanted}"
        raise DataError(what, data.provenance, "choose another data set")
    settings = _training.options_of(options, config, "encode")
    encoded = encode.encode(data, settings, config["paths"]["data"], progress)
    short, notes = encode.shortfalls(settings, encoded), [_vectors(config, encoded)]
    more = {"vocabulary": [len(encoded.vocabulary)], "unknown": encoded.report["unknown"]}
    return _training.prepared(config, data, encoded, _test, progress, short, notes=notes, **more)


def _vectors(config: Mapping[str, Any], encoded: encode.Encoded) -> str:
    """A note on the source of the word vectors."""
    if encoded.vectors is None:
        return "random word vectors"
    then = "fixed" if config["model"]["fixed_vectors"] else "trained further"
    if encoded.options.vectors == COUNTED:
        return f"word vectors of {encoded.vectors.shape[1]} counted in the training texts (PPMI, SVD), {then}"
    n, words = len(encoded.vectors), len(encoded.vocabulary)
    few = "; WARNING: few words have one, check encode.vectors and encode.lowercase" if 2 * n < words else ""
    return f"pretrained word vectors for {n:,} of {words:,} words, {then}{few}"


def _test(config: Mapping[str, Any], data: DataSet, encoding: encode.Encoded, name: str, progress: Any) -> TestSet:
    test = encode.encode_test(data, encoding.folder, config["paths"]["data"], progress)
    return _training.test_set(data, test, name, baselines(encoding, test, name))


prepare_test = partial(_training.prepare_test, encode, _test)
train = partial(_training.train, "classification", encode, METRICS, "examples", len)
load = partial(_training.load, "classification", encode)
predict = classified


def line(text: str, number: int, encoding: encode.Encoded) -> str | tuple[str, ...]:
    return fields_of(text, number, read_meta(encoding.folder)["fields"])


def evaluate(config: Mapping[str, Any], folder: Path, test: TestSet, monitor: Monitor) -> Evaluation:
    (model, _), data = load(config, folder), encode.open_encoded(test.folder)
    scores, split = config["task"].get("scores") or (), data.splits["test"]
    erases = "faithfulness" in scores
    part = 0.1 if erases else 1.0  # share of the time spent on predictions
    size = config["train"]["batch_size_valid"]
    batches = batches_of(model, split, size, lambda share: monitor.stage("testing", part * share))
    batches = list(batches) if erases else batches
    found = score(data, batches, test.name, config["task"]["keep_attention"], scores)
    if erases:
        more = faithfulness(model, split, batches, lambda share: monitor.stage("testing", part + (1 - part) * share))
        found.metrics |= {f"{test.name}/{name}": value for name, value in more.items()}
    return found
