"""DUC 2004, task 1: 500 documents with four references."""

from __future__ import annotations

from pathlib import Path

from tasks.data.dataset import DataSet
from tasks.data.duc import DucOptions as Options
from tasks.data.duc import load_duc
from tasks.data.progress import Progress

KIND = "pairs"


def load(options: Options, root: Path, progress: Progress) -> DataSet:
    """A test set alone."""
    return load_duc("duc2004", options)
