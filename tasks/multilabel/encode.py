"""Stores features and labels as arrays in a folder, opened by path; nothing needs to be encoded."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data import DataError, DataSet, Progress, content_sha256
from tasks.data.cache import keep, read_meta
from tasks.data.records import Labelled
from tasks.encoding import Build, encoders, split_of
from tasks.multilabel.metrics import micro_f1, proportions
from tasks.multilabel.options import Encode


@dataclass
class Encoded:
    """Splits of documents; `labels` are the names of the classes, `features` is the number of features.

    sha256 is the hash of the splits' content.
    """

    folder: Path
    labels: list[str]
    features: int
    splits: dict[str, Labelled]
    sha256: str
    report: dict[str, Any]


def _training(data: DataSet, options: Encode, root: Path, progress: Progress) -> tuple[Any, Build]:
    splits = ("train", "dev")  # a data set may lack a dev split
    return [data.name, [data.fingerprint.get(s) for s in splits]], partial(_build, data, splits, progress)


def _testing(data: DataSet, encoding: Path, root: Path, progress: Progress) -> tuple[Any, Build]:
    known = read_meta(encoding)

    def build(folder: Path) -> dict[str, Any]:
        made = _build(data, ("test",), progress, folder)
        if (made["labels"], made["features"]) != (known["labels"], known["features"]):
            here = f"{made['features']} features, classes {', '.join(made['labels'])}"
            model = f"the model knows {known['features']} features, classes {', '.join(known['labels'])}"
            what = f"{data.name} is not a test set for this model"
            raise DataError(what, f"{here}; {model}", "choose a data set with these")
        return made

    return [data.name, [data.fingerprint.get("test")], known["labels"], known["features"]], build


def open_encoded(folder: str | Path) -> Encoded:
    """Open a folder made by `encode`, `encode_test` or `keep_encoding`."""
    folder, meta = Path(folder), read_meta(folder)
    files = {s: [folder / f"{s}.{what}.npy" for what in ("features", "labels")] for s in meta["splits"]}
    splits = {s: Labelled(*map(np.load, pair)) for s, pair in files.items()}
    return Encoded(folder, meta["labels"], meta["features"], splits, meta["sha256"], meta["report"])


encode, encode_test = encoders(_training, _testing, open_encoded)
keep_encoding = keep


def _build(data: DataSet, wanted: Sequence[str], progress: Progress, folder: Path) -> dict[str, Any]:
    read = data.read(progress)
    split_of(data, read, wanted[0])
    splits = {s: read[s] for s in wanted if read.get(s) is not None and len(read[s])}
    for split, documents in splits.items():
        np.save(folder / f"{split}.features.npy", documents.features)
        np.save(folder / f"{split}.labels.npy", documents.labels)
    contents = [content_sha256(documents) for documents in splits.values()]
    report = {
        "sizes": {s: len(d) for s, d in splits.items()},
        "cardinality": {s: round(float(d.labels.sum(1).mean()), 3) for s, d in splits.items()},
        "constant": _constant(splits["train"].labels) if "train" in splits else None,
    }
    features, sha256 = splits[wanted[0]].features.shape[1], hashlib.sha256(" ".join(contents).encode()).hexdigest()
    made = {"name": data.name, "labels": list(data.about["labels"]), "features": features}
    return made | {"splits": list(splits), "sha256": sha256, "report": report}


def _constant(labels: np.ndarray) -> dict[str, list]:
    """The best constant prediction for `labels` [n, K].

    As labels, it predicts the k most frequent ones, with the k of the best micro-F1; as distribution, the mean of eta.
    """
    order = (-labels.mean(0)).argsort(kind="stable")
    guesses = order.argsort() <= np.arange(len(order))[:, None]  # row k: the k + 1 most frequent labels
    best = max(guesses, key=lambda guess: float(micro_f1(np.broadcast_to(guess, labels.shape), labels)))
    return {"labels": best.tolist(), "eta": proportions(labels).mean(0).tolist()}
