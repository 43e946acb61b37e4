"""Visual question answering cells: train a model, answer the questions of a test set, and score the answers."""

import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from repro.protocol import Evaluation, Monitor, Prepared, TestSet, metrics_of
from tasks.cells import _training
from tasks.data import DataSet
from tasks.data.errors import DataError
from tasks.data.read.formats import fields_of
from tasks.vqa import encode, options
from tasks.vqa.metrics import MEASURED, baselines, evaluation
from tasks.vqa.predict import answers
from tasks.vqa.predict import graph as graph

RECIPE = (2, 1)
METRICS = _training.TRAINING | metrics_of(MEASURED)
EVALUATION_KEYS = ("decode", "task.keep_attention", "task.deviations")
LATER_KEYS = (*_training.LATER_KEYS, "encode.answers")
HUB, WAYS, EXAMPLE = "visual-question-answering", ("answer",), 'model.answer([("image.png", "...?")])[0].output'
SHOWN = 160  # largest side, in pixels, of an image in a report
PRELOAD = (*_training.PRELOAD, "PIL.Image")


def prepare(config: Mapping[str, Any], progress: Any) -> Prepared:
    data = _training.opened(config, progress)
    settings = _training.options_of(options, config, "encode")
    encoded = encode.encode(data, settings, config["paths"]["data"], progress)
    sizes = [len(encoded.words), len(encoded.answers)]
    short = encode.shortfalls(settings, encoded.image_spec)
    return _training.prepared(config, data, encoded, _test, progress, short, **_handled(encoded), vocabulary=sizes)


def _handled(encoded: encode.Encoded) -> dict[str, Any]:
    """A note on the special cases that occurred during encoding, and their counts."""
    counts = {k: n for k, n in encoded.counts.items() if n}
    notes = ["Handled: " + "; ".join(f"{n:,} {k}" for k, n in counts.items()) + "."] if counts else []
    return {"notes": notes, "counts": counts}


def _test(config: Mapping[str, Any], data: DataSet, encoding: encode.Encoded, name: str, progress: Any) -> TestSet:
    test = encode.encode_test(data, encoding.folder, config["paths"]["data"], progress)
    asked = encoding.splits["train"].questions if "train" in encoding.splits else None
    trivial = baselines(asked, test.splits["test"].questions, name) if asked else {}
    return _training.test_set(data, test, name, trivial, **_handled(test))


prepare_test = partial(_training.prepare_test, encode, _test)
train = partial(_training.train, "vqa", encode, METRICS, "questions", len)
load = partial(_training.load, "vqa", encode)
predict = answers


def line(text: str, number: int, encoding: encode.Encoded) -> str | tuple[str, ...]:
    return fields_of(text, number, ("image", "question"))


def pictures(config: Mapping[str, Any]) -> Callable[[str], bytes] | None:
    """A function that returns the image of a test record for reports, key -> small PNG; None if there are no images."""
    images = _training.opened(config).about["images"]
    if images.source is None:
        return None

    def picture(key: str) -> bytes:
        from PIL import Image

        try:
            shown = Image.open(io.BytesIO(images.source.read(key))).convert("RGB")
        except (DataError, OSError):
            return b""
        shown.thumbnail((SHOWN, SHOWN))
        raw = io.BytesIO()
        shown.save(raw, "PNG")
        return raw.getvalue()

    return picture


def evaluate(config: Mapping[str, Any], folder: Path, test: TestSet, monitor: Monitor) -> Evaluation:
    (model, _), data = load(config, folder), encode.open_encoded(test.folder)
    size, keep = config["decode"]["batch_size"], config["task"]["keep_attention"]
    return evaluation(model, data, size, test.name, keep, partial(monitor.stage, "answering"))
