"""Corpora through the Hugging Face `datasets` package, when it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tasks.data.errors import DataUnavailable
from tasks.data.progress import Progress
from tasks.seq2seq.corpus import Pair, Request, clean

NAMES = {"train": "train", "dev": "validation", "test": "test"}


def available() -> bool:
    """Whether the `datasets` package is installed."""
    return importlib.util.find_spec("datasets") is not None


def text_pair(source: str, target: str) -> Callable[[Mapping[str, Any]], Pair]:
    """Row -> pair for a data set whose rows hold two texts under these names."""
    return lambda row: Pair(clean(row[source]), (clean(row[target]),))


def translation_pair(source: str, target: str) -> Callable[[Mapping[str, Any]], Pair]:
    """Row -> pair for a data set of rows {"translation": {language: text}}."""
    return lambda row: Pair(clean(row["translation"][source]), (clean(row["translation"][target]),))


def load(
    name: str, config: str | None, pair: Callable[[Mapping[str, Any]], Pair], request: Request, progress: Progress
) -> dict[str, list[Pair]]:
    """Splits of a hub data set as pairs, up to the request's limits.

    Raises:
        DataError: it cannot be fetched or read; the message keeps the package's own.
    """
    import datasets

    progress.say(f"loading {name} through the datasets package")
    splits = {}
    try:
        loaded = datasets.load_dataset(name, config, cache_dir=str(Path(request.root) / "huggingface"))
        for split, theirs in NAMES.items():
            rows, limit = loaded[theirs], request.limits.get(split)
            count = len(rows) if limit is None else min(len(rows), int(limit))
            splits[split] = [pair(rows[i]) for i in range(count)]
    except Exception as error:  # the package raises many kinds, its own and the network's
        raise DataUnavailable(
            f"{name} could not be loaded through the datasets package",
            f"{type(error).__name__}: {error}",
            f"get the files of {request.name} by hand and set data.path=FOLDER",
        ) from error
    return splits
