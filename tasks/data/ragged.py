"""Rows of different lengths on disk: ids as two arrays, tokens as lines of a text file; both read on demand."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np


class Ragged:
    """Rows of ids of different lengths: `flat` [sum of lengths] and `offsets` [rows + 1]."""

    def __init__(self, flat: np.ndarray, offsets: np.ndarray) -> None:
        self.flat, self.offsets = flat, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        """Row i, [length]; a view of the array on disk."""
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        i %= len(self)
        return self.flat[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """[rows] int64."""
        return np.diff(self.offsets)


class TokenLines:
    """Lines of space-separated tokens in a file, read on demand; `offsets` [rows + 1] are the bytes where lines start."""

    def __init__(self, path: Path, offsets: np.ndarray) -> None:
        self.path, self.offsets = path, offsets
        self._map: mmap.mmap | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> list[str]:
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        i %= len(self)
        start, end = int(self.offsets[i]), int(self.offsets[i + 1]) - 1
        if start == end:
            return []
        if self._map is None:
            with open(self.path, "rb") as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map[start:end].decode("utf-8").split(" ")

    def __getstate__(self):  # a memory map cannot travel to a worker process; it is opened again there
        return {"path": self.path, "offsets": self.offsets, "_map": None}


def write_tokens(
    folder: Path, name: str, rows: Iterable[Sequence[str]], index: Mapping[str, int], unknown: int
) -> float:
    """Write rows of tokens and their ids (`unknown` for those not in `index`) as `open_tokens` reads them.

    Returns:
        the share of unknown tokens.
    """
    ids, offsets, lines = array("i"), array("q", [0]), array("q", [0])
    with open(folder / f"{name}.txt", "wb") as stream:
        for row in rows:
            ids.extend(index.get(token, unknown) for token in row)
            offsets.append(len(ids))
            stream.write((" ".join(row) + "\n").encode("utf-8", "replace"))
            lines.append(stream.tell())
    flat = np.array(ids, dtype=np.int32)
    np.save(folder / f"{name}.ids.npy", flat)
    np.save(folder / f"{name}.offsets.npy", np.array(offsets, dtype=np.int64))
    np.save(folder / f"{name}.lines.npy", np.array(lines, dtype=np.int64))
    return float((flat == unknown).mean()) if len(flat) else 0.0


def open_tokens(folder: Path, name: str) -> tuple[Ragged, TokenLines]:
    """Ids (mapped into memory) and tokens of what `write_tokens` wrote."""

    def load(part: str) -> np.ndarray:
        return np.asarray(np.load(folder / f"{name}.{part}.npy", mmap_mode="r"))

    return Ragged(load("ids"), load("offsets")), TokenLines(folder / f"{name}.txt", load("lines"))
