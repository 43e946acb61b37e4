"""Visual question answering cells: train a model, answer the questions of a test set, and score the answers."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from repro.protocol import Evaluation, Monitor, Prepared, TestSet, Training, metrics_of
from tasks.cells import _training
from tasks.data import DataSet, open_data
from tasks.data.images import ImageError
from tasks.vqa import encode, options
from tasks.vqa.metrics import MEASURED, baselines, evaluation
from tasks.vqa.predict import answer

RECIPE = (2, 1)
METRICS = _training.TRAINING | metrics_of(MEASURED)
EVALUATION_KEYS = _training.evaluation_keys(options)
SHOWN = 160  # largest side, in pixels, of an image in a report
PRELOAD = (*_training.PRELOAD, "PIL.Image")


def prepare(config: Mapping[str, Any], progress: Any) -> Prepared:
    data = _training.opened(config, progress)
    settings = _training.options_of(options, config, "encode")
    encoded = encode.encode(data, settings, config["paths"]["data"], progress)
    short = (*encode.vectors_shortfall(settings), *encode.features_shortfall(encoded.image_spec))
    facts = _facts(data, encoded) | {"vocabulary": [len(encoded.words), len(encoded.answers)]}
    return _training.prepared(config, data, encoded, facts, _test, progress, short)


def _facts(data: DataSet, encoded: encode.Encoded) -> dict[str, Any]:
    handled = {k: n for k, n in encoded.counts.items() if n}
    notes = ["Handled: " + "; ".join(f"{n:,} {k}" for k, n in handled.items()) + "."] if handled else []
    return _training.facts(
        data, encoded.sha256, {s: len(part) for s, part in encoded.splits.items()}, notes, counts=handled
    )


def prepare_test(config: Mapping[str, Any], encoding: Path, progress: Any, name: str | None = None) -> TestSet:
    data = _training.opened(config, progress)
    return _test(config, data, encode.open_encoded(encoding), name or config["data"]["name"], progress)


def _test(config: Mapping[str, Any], data: DataSet, encoding: encode.Encoded, name: str, progress: Any) -> TestSet:
    test = encode.encode_test(data, encoding.folder, config["paths"]["data"], progress)
    asked = encoding.splits["train"].questions if "train" in encoding.splits else None
    trivial = baselines(asked, test.splits["test"].questions, name) if asked else {}
    return TestSet(name, test.sha256, str(test.folder), _facts(data, test), data.shortfalls, trivial)


def train(config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Monitor) -> Training:
    questions = len(encode.open_encoded(prepared.folder).splits["train"])
    return _training.train(
        "vqa", config, prepared, folder, monitor, METRICS, ("questions", questions), encode.keep_encoding
    )


def pictures(config: Mapping[str, Any]) -> Callable[[str], bytes] | None:
    """A function that returns the image of a test record for reports, key -> small PNG; None if there are no images."""
    images = open_data(config["data"], config["paths"]["data"]).about["images"]
    if images.source is None:
        return None

    def picture(key: str) -> bytes:
        from PIL import Image

        try:
            shown = Image.open(io.BytesIO(images.source.read(key))).convert("RGB")
        except (ImageError, OSError):
            return b""
        shown.thumbnail((SHOWN, SHOWN))
        raw = io.BytesIO()
        shown.save(raw, "PNG")
        return raw.getvalue()

    return picture


def load(config: Mapping[str, Any], folder: Path) -> tuple[Any, encode.Encoded]:
    """Load the trained model of a cell and its encoding."""
    kept = encode.open_encoded(folder / _training.ENCODING)
    return _training.load_model("vqa", config, folder, kept), kept


def evaluate(config: Mapping[str, Any], folder: Path, test: TestSet, monitor: Monitor) -> Evaluation:
    (model, _), data = load(config, folder), encode.open_encoded(test.folder)
    split = data.splits["test"]
    answers = answer(
        model, data, split, config["decode"]["batch_size"], config["task"]["keep_attention"],
        lambda share: monitor.stage("answering", share),
    )  # fmt: skip
    return evaluation(split.questions, answers, test.name)
