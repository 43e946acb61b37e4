"""Parallel text files read on demand: one sentence per line, millions of lines, little memory."""

import io
import mmap
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import sha256_of
from tasks.data.progress import Progress
from tasks.data.read import formats
from tasks.data.records import Mapped, Pair, View, clean


class FileLines(View):
    """The lines of a file as bytes, without "\\n", by number. The file is memory-mapped, or unpacked if compressed.

    Args:
        offsets: [lines + 1] int64, the byte at which each line starts, and the end of the last one.
    """

    unpack = True  # whether a file that looks compressed is

    def __init__(self, path: Path, offsets: np.ndarray) -> None:
        self.path, self.offsets = path, offsets
        self._bytes: mmap.mmap | bytes | None = None

    def content(self) -> mmap.mmap | bytes:
        """All bytes of the file."""
        if self._bytes is None:
            with formats.opened(self.path, self.unpack) as stream:
                plain = isinstance(stream, io.BufferedReader) and stream.peek(1)  # an empty file cannot be mapped
                self._bytes = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if plain else stream.read()
        return self._bytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def record(self, i: int) -> Any:
        """The bytes of line i; a subclass returns what they represent."""
        return self.content()[self.offsets[i] : self.offsets[i + 1]].removesuffix(b"\n")

    def __getstate__(self):  # a memory map cannot be sent to a worker process, which opens it again
        return self.__dict__ | {"_bytes": None}


class Lines(FileLines):
    """The lines of a UTF-8 file by number.

    The whole file is checked at once, with the errors of `tasks.data.read.formats.numbered`.
    """

    def __init__(self, path: Path) -> None:
        deque(formats.numbered(path), maxlen=0)
        with formats.opened(path) as stream:
            lengths = np.fromiter(map(len, stream), dtype=np.int64)
        super().__init__(path, np.concatenate([np.zeros(1, dtype=np.int64), lengths.cumsum()]))

    def record(self, i: int) -> str:
        return formats.decode(super().record(i), self.path, byte=int(self.offsets[i])).removesuffix("\r")


def same_length(files: Sequence[Path], lines: Sequence[Sequence[str]]) -> None:
    """Raise DataError, naming the files, if they have different numbers of lines."""
    if len({len(one) for one in lines}) > 1:
        counts = "; ".join(f"{path}: {len(one):,}" for path, one in zip(files, lines))
        step = "get all of them again, from the same release"
        raise DataError("parallel files have different numbers of lines", counts, step)


def paired(files: Sequence[Path]) -> Mapped:
    """The pairs in parallel files: of sources, and of one or more references; an empty line means that a reference is missing.

    Raises DataError if the files have different numbers of lines.
    """
    sides = [Lines(path) for path in files]
    same_length(files, sides)
    return Mapped(range(len(sides[0])), partial(_pair, sides))


def _pair(sides: Sequence[Sequence[str]], i: int) -> Pair:
    source, *references = (clean(lines[i]) for lines in sides)
    return Pair(source, tuple(filter(None, references)) or ("",))


def find_file(places: Sequence[Path], names: Sequence[str], get: str) -> Path:
    """The first file with one of the `names`, plain or with .gz added, in one of the `places`.

    Raises DataError, with `get` as the next step, if there is no such file.
    """
    for folder in places:
        for name in names:
            for path in (folder / name, folder / f"{name}.gz"):
                if path.exists() or path.is_symlink():
                    return path
    raise DataUnavailable(f"{names[0]} is missing", ", ".join(str(folder) for folder in places), get)


def line_pairs(
    places: Sequence[Path], names: Mapping[str, Sequence[Sequence[str]]], get: str, progress: Progress
) -> tuple[dict[str, Mapped], dict[str, list[str]]]:
    """The pairs of each split in parallel files, and the sha256 of these files.

    Args:
        names: split -> for its source, and for each of its references, the names that the file may have.
    Raises:
        DataError: as in `find_file` and `paired`.
    """
    splits, hashes = {}, {}
    for split, sides in names.items():
        files = [find_file(places, side, get) for side in sides]
        progress.step(f"verifying {' and '.join(path.name for path in files)}")
        splits[split], hashes[split] = paired(files), [sha256_of(path) for path in files]
    return splits, hashes
