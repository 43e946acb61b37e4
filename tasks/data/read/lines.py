"""Parallel text files read on demand: one sentence per line, millions of lines, little memory."""

from __future__ import annotations

import codecs
import io
import mmap
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tasks.data.errors import DataError, DataUnavailable
from tasks.data.read import formats
from tasks.data.records import Pair, View, clean

_BLOCK = 1 << 24


class Lines(View):
    """The lines of a UTF-8 file by number. The file is memory-mapped; only a compressed file is read into memory.

    Raises:
        DataError: the whole file is checked at once, with the same errors as `tasks.data.read.formats.numbered`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()
        self._check()

    def _open(self) -> None:
        self._bytes: mmap.mmap | bytes = self._load()
        ends = [np.empty(0, dtype=np.int64)]
        for start, block in self._blocks():
            ends.append(np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n")) + start)
        found = np.concatenate(ends)
        if len(self._bytes) and (len(found) == 0 or found[-1] != len(self._bytes) - 1):
            found = np.append(found, len(self._bytes))  # the last line has no line end
        self._ends = found
        self._starts = np.concatenate([[0], found[:-1] + 1]) if len(found) else found

    def _load(self) -> mmap.mmap | bytes:
        with formats.opened(self.path) as stream:
            if isinstance(stream, io.BufferedReader) and stream.peek(1):  # a plain file that is not empty
                return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            return stream.read()

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        for start in range(0, len(self._bytes), _BLOCK):
            yield start, self._bytes[start : start + _BLOCK]

    def _check(self) -> None:
        decoder, met, held = codecs.getincrementaldecoder("utf-8")(), Counter[str](), ""
        formats.check_kind(self.path, self._bytes[:8])
        for start, block in self._blocks():
            try:
                text = held + decoder.decode(block, final=start + len(block) == len(self._bytes))
            except UnicodeDecodeError:
                text = "\0"
            if "\0" in text:  # decoding the lines from here on raises the error with its line
                for i in range(max(int(np.searchsorted(self._ends, start)) - 1, 0), len(self)):
                    self[i]
            held = "\r" if text.endswith("\r") else ""  # perhaps the first half of a line end
            met.update(formats.odd(text.removesuffix("\r")))
        met.update(formats.odd(held))
        blank = re.search(rb"[^\s]", self._bytes) is None
        formats.check_lines(self.path, len(self), blank, met)

    def __len__(self) -> int:
        return len(self._ends)

    def record(self, i: int) -> str:
        start = int(self._starts[i])
        return formats.decode(self._bytes[start : self._ends[i]], self.path, line=i + 1, byte=start).removesuffix("\r")

    def __getstate__(self):  # a memory map cannot be sent to a worker process, which opens it again
        return {"path": self.path}

    def __setstate__(self, state) -> None:
        self.path = state["path"]
        self._open()


def same_length(files: Sequence[Path], lines: Sequence[Sequence[str]]) -> None:
    """Raise DataError, naming the files, if they have different numbers of lines."""
    if len({len(one) for one in lines}) > 1:
        counts = "; ".join(f"{path}: {len(one):,}" for path, one in zip(files, lines))
        step = "get all of them again, from the same release"
        raise DataError("parallel files have different numbers of lines", counts, step)


class LinePairs(View):
    """Pairs from parallel files.

    Args:
        source: file of sources.
        references: one or more files of references; an empty line means that this reference is missing.

    Raises:
        DataError: the files have different numbers of lines.
    """

    def __init__(self, source: Path, references: Sequence[Path]) -> None:
        self.source, self.references = Lines(source), [Lines(path) for path in references]
        same_length((source, *references), (self.source, *self.references))

    def __len__(self) -> int:
        return len(self.source)

    def record(self, i: int) -> Pair:
        texts = [clean(lines[i]) for lines in self.references]
        return Pair(clean(self.source[i]), tuple(t for t in texts if t) or ("",))


def find_file(places: Sequence[Path], names: Sequence[str], get: str) -> Path:
    """The first file with one of the `names`, plain or with .gz added, in one of the `places`.

    Raises:
        DataError: there is no such file; the next step is `get`.
    """
    for folder in places:
        for name in names:
            for path in (folder / name, folder / f"{name}.gz"):
                if path.exists() or path.is_symlink():
                    return path
    raise DataUnavailable(f"{names[0]} is missing", ", ".join(str(folder) for folder in places), get)


def folder_of(path: str | None, get: str) -> Path:
    """`data.path` as an existing folder; DataUnavailable, with `get` as the next step, if it is not set or missing."""
    if path is None:
        raise DataUnavailable("this set must be downloaded by hand", "data.path is not set", get)
    if not Path(path).is_dir():
        there = "is not a folder" if Path(path).exists() else "does not exist"
        raise DataUnavailable(f"the folder {path} {there}", f"data.path={path}", get)
    return Path(path)
