"""The skeleton of the families' `encode.py`: data are encoded into a folder of the cache, which is opened by its path.

The folder of train and dev has the encoding too, which is what a trained model needs to read further texts; a finished
cell keeps that part. A test set is encoded with it, and nothing is learned from a test set.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tasks.data import DataError, DataSet, NullProgress, Progress, Splits
from tasks.data.cache import cached_folder
from tasks.data.dataset import NOUNS

Encoded = TypeVar("Encoded")
Build = Callable[[Path], dict[str, Any]]  # fills an empty folder; returns its metadata
# (data, options or the folder of an encoding, root, progress) -> everything that the folder depends on, how it is filled
Plan = Callable[[DataSet, Any, Path, Progress], tuple[Any, Build]]


def encoders(
    training: Plan, testing: Plan, opened: Callable[[Path], Encoded]
) -> tuple[Callable[..., Encoded], Callable[..., Encoded]]:
    """The functions `encode` and `encode_test` of a family.

    Args:
        training, testing: what is to be done for train and dev, and for a test set.
        opened: the family's `open_encoded`.
    """

    def stored(plan: Plan, data: DataSet, how: Any, root: str | Path, progress: Progress | None, name: str) -> Encoded:
        progress = progress or NullProgress()
        return opened(cached_folder(root, name, *plan(data, how, Path(root), progress), progress))

    def encode(data: DataSet, options: Any, root: str | Path, progress: Progress | None = None) -> Encoded:
        """Encode train and dev, or open them if they are in the cache under `root`.

        Raises DataError if a split is empty, nothing can be learned from train, a file that the options name cannot be
        read, or the disk is full. Reading the data may raise further errors.
        """
        return stored(training, data, options, root, progress, data.name)

    def encode_test(data: DataSet, encoding: str | Path, root: str | Path, progress: Progress | None = None) -> Encoded:
        """Encode the test split with `encoding`, a folder of `encode` or `keep_encoding`.

        Raises DataError if there is no test record, or the data do not fit the encoding.
        """
        return stored(testing, data, Path(encoding), root, progress, f"{data.name}-test")

    return encode, encode_test


def split_of(data: DataSet, splits: Splits, split: str) -> Sequence[Any]:
    """The records of a split. Raises DataError if there are none."""
    records = splits.get(split, ())
    if not len(records):
        step = f"raise data.limits.{split}, or choose another data set"
        raise DataError(f"{data.name} has no {split} {NOUNS[data.kind]}", data.provenance, step)
    return records
