"""Data sets through the Hugging Face `datasets` package."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.data.errors import DataUnavailable
from tasks.data.progress import Progress

SPLITS = {"train": "train", "dev": "validation", "test": "test"}  # ours -> its usual names


def load(name: str, config: str | None, root: Path, progress: Progress, get: str) -> Mapping[str, Any]:
    """Rows of a data set by its own split names.

    Raises:
        DataUnavailable: the package is not installed or cannot fetch the set (the message keeps the package's own); the next
            step is `get`.
    """
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise DataUnavailable(f"{name} needs its files or the datasets package", "neither is there", get) from error
    progress.say(f"loading {name} through the datasets package")
    try:
        return datasets.load_dataset(name, config, cache_dir=str(root / "huggingface"))
    except Exception as error:  # the package raises many kinds, its own and the network's
        raise DataUnavailable(
            f"{name} could not be loaded through the datasets package", f"{type(error).__name__}: {error}", get
        ) from error


def stamp(name: str, config: str | None, rows: Any) -> list[Any]:
    """What tells one split of the hub from another, for a fingerprint."""
    return ["hub", name, config, len(rows), getattr(rows, "_fingerprint", None)]
