"""Emotions: moods of music (6 labels; 391 and 202 pieces)."""

from __future__ import annotations

from pathlib import Path

from tasks.data.dataset import DataSet
from tasks.data.progress import Progress
from tasks.data.read.labelled import MulanOptions as Options
from tasks.data.read.labelled import load_mulan

KIND = "features"


def load(options: Options, root: Path, progress: Progress) -> DataSet:
    """Mulan's published train and test files, from a mirror."""
    return load_mulan("emotions", options, root)
