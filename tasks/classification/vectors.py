"""Pretrained word vectors in GloVe's text format: one word and its numbers a line, separated by spaces."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import numpy as np

from tasks.data.errors import DataError
from tasks.data.progress import Progress


def read_vectors(path: Path, wanted: Container[str], progress: Progress) -> tuple[list[str], np.ndarray]:
    """The wanted words that the file has, in its order, and their vectors [found, dim] float32.

    The number of dimensions is read from the first line; a head line of two numbers (word2vec's format) is skipped.
    Words of GloVe 840B may contain spaces: the numbers are taken from the end of the line.

    Raises:
        DataError: a line without the expected numbers, or no wanted word in the file.
    """
    words: list[str] = []
    rows: list[np.ndarray] = []
    seen: set[str] = set()
    dim: int | None = None
    with (
        open(path, encoding="utf-8", newline="\n", errors="replace") as stream,
        progress.bar(None, f"reading {path.name}") as bar,
    ):
        for number, line in enumerate(stream, 1):
            if number % 100_000 == 0:
                bar.advance(100_000)
            parts = line.rstrip("\r\n").rstrip(" ").split(" ")
            if dim is None:
                if len(parts) == 2:
                    continue
                dim = len(parts) - 1
            word = " ".join(parts[:-dim])
            if word not in wanted or word in seen:
                continue
            try:
                rows.append(np.array(parts[-dim:], dtype=np.float32))
            except ValueError as error:
                raise DataError(
                    f"{path.name}, line {number}, holds no vector of {dim} numbers", str(error), "fetch the file again"
                ) from error
            words.append(word)
            seen.add(word)
    if not words:
        raise DataError(
            f"{path.name} has no word of the texts", str(path), "check task.encode.vectors and task.encode.lowercase"
        )
    return words, np.stack(rows)
