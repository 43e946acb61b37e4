"""Parallel text files read on demand: one sentence a line, millions of lines, little memory."""

from __future__ import annotations

import gzip
import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tasks.data.errors import DataError, DataUnavailable
from tasks.data.records import Pair, clean


class Lines(Sequence[str]):
    """The lines of a UTF-8 file by number; the file is mapped, not read (a .gz file is read into memory)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes: mmap.mmap | bytes = self._load()
        ends = [np.empty(0, dtype=np.int64)]
        for start in range(0, len(self._bytes), 1 << 24):
            block = np.frombuffer(self._bytes[start : start + (1 << 24)], dtype=np.uint8)
            ends.append(np.flatnonzero(block == ord("\n")) + start)
        found = np.concatenate(ends)
        if len(self._bytes) and (len(found) == 0 or found[-1] != len(self._bytes) - 1):
            found = np.append(found, len(self._bytes))  # the last line has no line end
        self._ends = found
        self._starts = np.concatenate([[0], found[:-1] + 1]) if len(found) else found

    def _load(self) -> mmap.mmap | bytes:
        if self.path.suffix == ".gz":
            try:
                return gzip.decompress(self.path.read_bytes())
            except (OSError, EOFError) as error:
                raise DataError(
                    f"{self.path.name} is damaged", f"{self.path}: {error}", "get the file again"
                ) from error
        if self.path.stat().st_size == 0:
            return b""
        with open(self.path, "rb") as stream:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        return self._bytes[self._starts[i] : self._ends[i]].decode("utf-8", "replace")

    def __getstate__(self):  # a map cannot travel to a worker process; it is opened again there
        return {"path": self.path}

    def __setstate__(self, state) -> None:
        self.__init__(state["path"])


class LinePairs(Sequence[Pair]):
    """Pairs from parallel files.

    Args:
        source: file of sources.
        references: one file or several of references; an empty line means that a reference is missing there.

    Raises:
        DataError: the files have different numbers of lines.
    """

    def __init__(self, source: Path, references: Sequence[Path]) -> None:
        self.source, self.references = Lines(source), [Lines(path) for path in references]
        for lines in self.references:
            if len(lines) != len(self.source):
                raise DataError(
                    "parallel files have different numbers of lines",
                    f"{source}: {len(self.source):,}; {lines.path}: {len(lines):,}",
                    "get both files again, from the same release",
                )

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        texts = [clean(lines[i]) for lines in self.references]
        return Pair(clean(self.source[i]), tuple(t for t in texts if t) or ("",))


def find_file(places: Sequence[Path], names: Sequence[str], get: str) -> Path:
    """The first existing file called one of `names` (or that with .gz) in one of `places`.

    Raises:
        DataError: there is none; the next step is `get`.
    """
    for folder in places:
        for name in names:
            for path in (folder / name, folder / f"{name}.gz"):
                if path.is_file():
                    return path
    raise DataUnavailable(f"{names[0]} is missing", ", ".join(str(folder) for folder in places), get)


def folder_of(path: str | None, get: str) -> Path:
    """`data.path` as a folder that exists; DataUnavailable saying what to `get` when it is not set or missing."""
    if path is None:
        raise DataUnavailable("the set has to be got by hand", "data.path is not set", get)
    if not Path(path).is_dir():
        raise DataUnavailable(f"the folder {path} does not exist", f"data.path={path}", get)
    return Path(path)
