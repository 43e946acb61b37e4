"""A store of grid features: one memory-mapped array and a JSON file with checksums. Writing can be resumed.

    features.npy    [keys, rows * columns, channels]
    store.json      the layout, and of each finished shard (a range of keys) its sha256 and unreadable images; with a checksum
    .verified.json  size, times and inode of the array when all its shards were last found correct

VQA-v2 at 14 x 14 x 2048 in half precision takes 0.8 MB per image, or 99 GB for the 123,287 images of train and val. A
shard is listed after its rows are written; images of unfinished shards are listed in `bad` and never read. To prepare or
train a cell, open the store with `verified`, which hashes the array only if it was modified since it was last verified.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repro.files import broken_seal, sealed
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import locked, publish_file, remembered
from tasks.data.progress import Progress
from tasks.data.read.formats import damaged, parse_json, read_text

ARRAY, STORE, STAMP = "features.npy", "store.json", ".verified.json"
SETTLED_NS = 2 * 10**9
AGAIN = "choose an empty folder, or delete this one, and extract the features again"
Compute = Callable[[Sequence[str]], tuple[np.ndarray, dict[str, str]]]  # keys -> features, unreadable keys with reasons


@dataclass(frozen=True)
class Layout:
    """Layout of a store. `extractor` identifies how features are computed (model, sha256 of weights, preprocessing)."""

    extractor: str
    grid: tuple[int, int]
    channels: int
    keys: tuple[str, ...]
    shard_size: int = 512
    dtype: str = "float16"

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.keys), self.grid[0] * self.grid[1], self.channels

    def shards(self) -> dict[str, slice]:
        """Name of each shard -> the numbers of its keys."""
        starts = range(0, len(self.keys), self.shard_size)
        return {f"shard-{i:05d}": slice(start, start + self.shard_size) for i, start in enumerate(starts)}


def write(folder: Path, layout: Layout, compute: Compute, progress: Progress) -> FeatureStore:
    """Compute the shards missing from `folder`, one by one. A later call continues.

    Raises DataError if the folder holds a store with another layout.
    """

    def tell(shards: dict[str, Any]) -> None:
        publish_file(folder / STORE, json.dumps(sealed({"layout": asdict(layout), "shards": shards})))

    with locked(folder / ".store.lock"):
        if not ((folder / STORE).is_file() and (folder / ARRAY).is_file()):
            np.lib.format.open_memmap(folder / ARRAY, "w+", np.dtype(layout.dtype), layout.shape)
            tell({})
        store = FeatureStore(folder, "r+")
        if differs := ", ".join(k for k, v in asdict(layout).items() if getattr(store.layout, k) != v):
            what, where = "the folder holds features of another kind", f"{folder / STORE}: {differs} differ"
            raise DataError(what, where, AGAIN, STORE, differs)
        if store.shards:
            progress.say(f"{len(store.shards)} of {len(layout.shards())} shards exist already")
        for name in progress.over(store.missing, "extracting features"):
            rows = layout.shards()[name]
            store.array[rows], bad = compute(layout.keys[rows])
            store.array.flush()
            store.shards[name] = {"sha256": _sha256(store.array[rows]), "bad": bad}
            tell(store.shards)
    return FeatureStore(folder)


def verified(folder: Path) -> FeatureStore:
    """Open a store after checking that its array has not changed since it was written.

    It is not hashed if its size, times and inode are those in `.verified.json`. Raises the errors of `FeatureStore`.
    """
    store = FeatureStore(folder)
    told = (store.folder / ARRAY).stat()
    if time.time_ns() - max(told.st_mtime_ns, told.st_ctime_ns) <= SETTLED_NS:
        store.check()  # an array that has just been written may change again within the same clock tick
    else:
        now = [store.sha256, told.st_size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino]
        remembered(store.folder / STAMP, str(now), store.check)
    return store


class FeatureStore:
    """An open store. Features are looked up by image number; the array is memory-mapped and never loaded as a whole.

    Raises:
        DataUnavailable: there is no store.
        DataError: it is damaged. Missing shards are not an error: their images are listed in `bad`.
    """

    kind = "features"

    def __init__(self, folder: Path, mode: Any = "r") -> None:
        self.folder, self.path = Path(folder), str(Path(folder).resolve())
        head, path = self.folder / STORE, self.folder / ARRAY
        if not head.exists():
            step = "make one: python scripts/extract_features.py --help"
            raise DataUnavailable("there is no feature store", str(folder), step)
        told = parse_json(read_text(head), head)
        if why := broken_seal(told) if isinstance(told, dict) else "does not describe a store":
            raise damaged(head, f"it {why}", "a store of this version", step=AGAIN)
        whole = {"grid": tuple(told["layout"]["grid"]), "keys": tuple(told["layout"]["keys"])}
        self.layout, self.shards = Layout(**told["layout"] | whole), told["shards"]
        self.grid, self.channels = self.layout.grid, self.layout.channels
        self.index = {key: i for i, key in enumerate(self.layout.keys)}
        self.missing = [name for name in self.layout.shards() if name not in self.shards]
        self.bad: dict[str, str] = {key: why for one in self.shards.values() for key, why in one["bad"].items()}
        for name in self.missing:
            self.bad |= dict.fromkeys(self.layout.keys[self.layout.shards()[name]], f"its shard {name} is missing")
        hashes = sorted((name, one["sha256"]) for name, one in self.shards.items())
        self.sha256 = hashlib.sha256(json.dumps([asdict(self.layout), hashes]).encode()).hexdigest()
        expected = f"{self.layout.dtype} {list(self.layout.shape)}"
        try:
            self.array: Any = np.load(path, mmap_mode=mode)
        except Exception as error:  # numpy parses the header as Python tokens
            raise damaged(path, f"not an array ({error})", expected, step=AGAIN) from error
        if (found := f"{self.array.dtype} {list(self.array.shape)}") != expected:
            raise damaged(path, f"an array {found}", expected, step=AGAIN, value=self.array.shape)

    def check(self) -> None:
        """Raise DataError unless every shard has its sha256; this reads all data."""
        for name, told in self.shards.items():
            if _sha256(self.array[self.layout.shards()[name]]) != told["sha256"]:
                found = f"{name} is not what was written"
                raise damaged(self.folder / ARRAY, found, "its sha256", step=AGAIN, value=name)

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Features of the images with these numbers, float16 [len(numbers), rows * columns, channels]."""
        return np.array(self.array[numbers])


def _sha256(rows: np.ndarray) -> str:
    return hashlib.sha256(rows).hexdigest()  # type: ignore[arg-type]
