"""Cells of ratings: train by a plain loop, and measure the squared error. Without fairseq."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tasks.ratings import options

from repro.protocol import Evaluation, Metric, Monitor, Prepared, TestSet, Training
from tasks.cells import _training
from tasks.classification import encode
from tasks.classification.predict import collate
from tasks.config import models
from tasks.data import DataSet
from tasks.data.records import Prediction

RECIPE = (1, 1)
METRICS = {"loss": Metric("loss", "squared classes", -1, 3, None, "squared error, mean over texts")}
METRICS |= {"error": Metric("error", "classes", -1, 3, None, "absolute error, mean over texts")}
EVALUATION_KEYS = ("decode", "task.deviations")
PRELOAD = ("tasks.ratings.models.weighed",)
HUB, WAYS, EXAMPLE = "text-classification", ("predict",), 'model.predict(["..."])[0].output'
NO_GRAPH = "is a toy"


def prepare(config: Mapping[str, Any], progress: Any) -> Prepared:
    data, how = _training.opened(config, progress), _training.options_of(options, config, "encode")
    encoded = encode.encode(data, how, config["paths"]["data"], progress)
    return _training.prepared(config, data, encoded, _test, progress)


def _test(config: Mapping[str, Any], data: DataSet, encoding: encode.Encoded, name: str, progress: Any) -> TestSet:
    test = encode.encode_test(data, encoding.folder, config["paths"]["data"], progress)
    return _training.test_set(
        data, test, name, {"always 0": {f"{name}/error": float(test.splits["test"].labels.mean())}}
    )


prepare_test = partial(_training.prepare_test, encode, _test)
load = partial(_training.load, "ratings", encode)


def train(config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Monitor) -> Training:
    torch.manual_seed(config["seed"])
    encoded, size = encode.open_encoded(prepared.folder), config["train"]["batch_size"]
    model, split = models.build("ratings", config["model"], config["mapping"], encoded), encoded.splits["train"]
    model.to(config["runtime"]["device"])
    optimizer = torch.optim.Adam(model.parameters(), config["optim"]["lr"])
    for epoch in range(config["train"]["max_epochs"]):
        monitor.stage("epoch", epoch / config["train"]["max_epochs"])
        for rows in torch.randperm(len(split)).split(size):
            optimizer.zero_grad()
            _errors(model, split, rows.tolist()).square().mean().backward()
            optimizer.step()
    _training.save_weights(model, folder)
    encode.keep_encoding(prepared.folder, folder / _training.ENCODING)
    return Training({"dev/loss": float(_tested(model, encoded.splits["dev"]).square().mean())})


def evaluate(config: Mapping[str, Any], folder: Path, test: TestSet, monitor: Monitor) -> Evaluation:
    model, _ = load(config, folder)
    errors = _tested(model, encode.open_encoded(test.folder).splits["test"])
    return Evaluation({f"{test.name}/error": float(errors.mean())})


def predict(used: Any, texts: Any, *, nbest: int = 1) -> list[Prediction]:
    from tasks.data.records import Example

    about = {"classes": used.encoding.classes, "fields": ["text"]}
    with used.as_test_set([Example((text,), 0) for text in texts], about) as test, torch.no_grad():
        rated = _rated(used.model, test.splits["test"], range(len(texts)))
    return [Prediction(f"{value:.3f}", value) for value in rated.tolist()]


def _rated(model: torch.nn.Module, split: encode.EncodedSplit, rows: Any) -> torch.Tensor:
    (tokens,), _ = collate(split, rows)
    return model(tokens.to(next(model.parameters()).device)).cpu()


def _errors(model: torch.nn.Module, split: encode.EncodedSplit, rows: Any) -> torch.Tensor:
    return (_rated(model, split, rows) - torch.from_numpy(split.labels[list(rows)])).abs()


@torch.no_grad()
def _tested(model: torch.nn.Module, split: encode.EncodedSplit) -> torch.Tensor:
    return _errors(model, split, range(len(split)))
