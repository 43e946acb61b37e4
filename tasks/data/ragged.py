"""Rows of different lengths on disk: ids as two arrays, tokens as lines of a text file. Both are read on demand."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tasks.data.read.lines import FileLines
from tasks.data.records import View


class Ragged(View):
    """Rows of ids with different lengths: `flat` [sum of lengths] and `offsets` [rows + 1]."""

    def __init__(self, flat: np.ndarray, offsets: np.ndarray) -> None:
        self.flat, self.offsets = flat, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def record(self, i: int) -> np.ndarray:
        """Row i, [length]: a view of the array on disk."""
        return self.flat[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """[rows] int64."""
        return np.diff(self.offsets)


class TokenLines(FileLines):
    """Lines of space-separated tokens in a file, read on demand."""

    unpack = False  # the first token may be anything

    def record(self, i: int) -> list[str]:
        line = super().record(i).decode("utf-8")
        return line.split(" ") if line else []


def write_tokens(
    folder: Path, name: str, rows: Iterable[Sequence[str]], index: Mapping[str, int], unknown: int
) -> float:
    """Write rows of tokens and their ids (`unknown` if not in `index`), in the format that `open_tokens` reads.

    Returns the share of unknown tokens. Ids and text are written as they arrive. Only `index` and two numbers per row
    are kept in memory.
    """
    offsets, lines, missing, raw = array("q", [0]), array("q", [0]), 0, folder / f"{name}.ids"
    with open(raw, "wb") as flat, open(folder / f"{name}.txt", "wb") as stream:
        for row in rows:
            ids = array("i", [index.get(token, unknown) for token in row])
            flat.write(ids)
            missing += ids.count(unknown)
            offsets.append(offsets[-1] + len(row))
            lines.append(lines[-1] + stream.write((" ".join(row) + "\n").encode("utf-8", "replace")))
    whole = np.memmap(raw, np.int32, "r") if offsets[-1] else np.empty(0, np.int32)
    np.save(folder / f"{name}.ids.npy", whole)
    raw.unlink()
    np.save(folder / f"{name}.offsets.npy", np.frombuffer(offsets, dtype=np.int64))
    np.save(folder / f"{name}.lines.npy", np.frombuffer(lines, dtype=np.int64))
    return missing / offsets[-1] if offsets[-1] else 0.0


def open_tokens(folder: Path, name: str) -> tuple[Ragged, TokenLines]:
    """The ids (memory-mapped) and the tokens that `write_tokens` wrote."""

    def load(part: str) -> np.ndarray:
        return np.asarray(np.load(folder / f"{name}.{part}.npy", mmap_mode="r"))

    return Ragged(load("ids"), load("offsets")), TokenLines(folder / f"{name}.txt", load("lines"))
