"""Data sets through the Hugging Face `datasets` package."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.data.errors import DataError, DataUnavailable
from tasks.data.progress import Progress

SPLITS = {"train": "train", "dev": "validation", "test": "test"}  # ours -> its usual names


class Rows(Sequence[Mapping[str, Any]]):
    """Rows of one split, checked when they are read.

    Args:
        name: of the data set and split, for messages. fields: those that are read, with their types.
    Raises:
        DataError: a row that cannot be read, or lacks a field, or has one of another type; when it is read.
    """

    def __init__(self, rows: Any, name: str, fields: Mapping[str, type]) -> None:
        self.rows, self.name, self.fields = rows, name, fields

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i):
        try:
            row = self.rows[i]
        except IndexError:
            raise
        except Exception as error:  # Arrow's and the package's own
            raise self._wrong(i, f"cannot be read ({type(error).__name__}: {error})") from error
        for field, kind in self.fields.items():
            if not isinstance(row, Mapping) or not isinstance(row.get(field), kind):
                raise self._wrong(i, f"has no {field}, or one that is no {kind.__name__}")
        return row

    def _wrong(self, i: int, what: str) -> DataError:
        expected = ", ".join(f"{field} ({kind.__name__})" for field, kind in self.fields.items())
        return DataError(
            f"{self.name}, row {i}: it {what}", f"expected {expected}", "delete the downloaded copy and load it again"
        )


def load(
    name: str, config: str | None, root: Path, progress: Progress, get: str, fields: Mapping[str, type], splits: Mapping[str, str] = SPLITS
) -> dict[str, Rows]:  # fmt: skip
    """Rows of a data set by our split names.

    Args:
        fields: of a row that are read, with their types. splits: ours -> its names.

    Raises:
        DataUnavailable: the package is not installed or cannot fetch the set (the message keeps the package's own); the next
            step is `get`. DataError: a split is not there.
    """
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise DataUnavailable(f"{name} needs its files or the datasets package", "neither is there", get) from error
    progress.say(f"loading {name} through the datasets package")
    try:
        loaded = datasets.load_dataset(name, config, cache_dir=str(root / "huggingface"))
    except Exception as error:  # the package raises many kinds, its own and the network's
        raise DataUnavailable(
            f"{name} could not be loaded through the datasets package", f"{type(error).__name__}: {error}", get
        ) from error
    if missing := [theirs for theirs in splits.values() if theirs not in loaded]:
        raise DataError(f"{name} has no split {', '.join(missing)}", f"it has {', '.join(map(str, loaded))}", get)
    return {ours: Rows(loaded[theirs], f"{name}, {theirs}", fields) for ours, theirs in splits.items()}


def stamp(name: str, config: str | None, rows: Rows) -> list[Any]:
    """What tells one split of the hub from another, for a fingerprint."""
    return ["hub", name, config, len(rows), getattr(rows.rows, "_fingerprint", None)]
