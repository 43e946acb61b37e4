"""A store of grid features: memory-mapped shards with checksums. Each shard is written once; writing can be resumed.

    store.json             format, extractor, grid, channels, dtype, keys per shard and their order
    shard-00000.npy        [keys, rows * columns, channels]
    shard-00000.json       sha256 of the array, bytes, the shard's unreadable images, checksum of the record and layout
    .verified.json         size, times and inode of each array when its sha256 was last found correct

VQA-v2 at 14 x 14 x 2048 in half precision takes 0.8 MB per image, or 99 GB for the 123,287 images of train and val. A
shard's record is written after its array; a shard without a record is treated as missing. An incomplete store can be
read. To prepare or train a cell, open the store with `verified`, which rehashes only arrays modified since they were
last verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.errors import DataError, DataUnavailable
from tasks.data.files import locked, publish_file, sha256_of
from tasks.data.progress import NullProgress, Progress
from tasks.data.read.formats import check_fields, damaged, parse_json, read_text

FORMAT = 1
STAMPS = ".verified.json"
SETTLED_NS = 2 * 10**9
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
    def shards(self) -> int:
        return -(-len(self.keys) // self.shard_size)

    def shard_keys(self, number: int) -> tuple[str, ...]:
        return self.keys[number * self.shard_size : (number + 1) * self.shard_size]


def write(folder: Path, layout: Layout, compute: Compute, progress: Progress | None = None) -> FeatureStore:
    """Compute the shards missing from `folder`, one by one. A later call continues; processes can share the work.

    Raises:
        DataError: the folder holds a store with another layout, or `compute` returns features of the wrong shape.
    """
    progress = progress or NullProgress()
    head = {"format": FORMAT, **asdict(layout), "grid": list(layout.grid), "keys": list(layout.keys)}
    with locked(folder / ".store.lock"):
        if (folder / "store.json").is_file():
            known = _head(folder)
            if known != head:
                differs = ", ".join(k for k in head if known.get(k) != head[k])
                where, step = f"{folder}/store.json: {differs} differ", "choose an empty folder, or delete this one"
                raise DataError("the folder holds features of another kind", where, step, "store.json", differs)
        else:
            with publish_file(folder / "store.json") as temporary:
                temporary.write_text(json.dumps(head), encoding="utf-8")
    missing = [n for n in range(layout.shards) if _record(folder, n) is None]
    if len(missing) < layout.shards:
        progress.say(f"{layout.shards - len(missing)} of {layout.shards} shards are there already")
    with progress.bar(sum(len(layout.shard_keys(n)) for n in missing), "extracting features") as bar:
        for number in missing:
            with locked(folder / f".{_name(number)}.lock"):
                if _record(folder, number) is None:  # another process may have written it meanwhile
                    _write_shard(folder, layout, number, compute)
            bar.advance(len(layout.shard_keys(number)))
    return FeatureStore(folder)


def _write_shard(folder: Path, layout: Layout, number: int, compute: Compute) -> None:
    keys = layout.shard_keys(number)
    features, bad = compute(keys)
    expected = (len(keys), layout.grid[0] * layout.grid[1], layout.channels)
    if features.shape != expected:
        step = "correct the layout or the extractor"
        raise DataError(f"features of shape {features.shape}", f"expected {expected}", step, value=features.shape)
    with publish_file(folder / f"{_name(number)}.npy") as temporary:
        with open(temporary, "wb") as stream:
            np.save(stream, features.astype(layout.dtype))
        record = {"sha256": sha256_of(temporary), "bytes": temporary.stat().st_size, "bad": bad}
    record["record"] = _checksum(layout, number, record)
    with publish_file(folder / f"{_name(number)}.json") as temporary:
        temporary.write_text(json.dumps(record), encoding="utf-8")


def verified(folder: Path) -> FeatureStore:
    """Open a store after checking that its bytes have not changed since they were written.

    Every array is hashed the first time. Later calls hash only the arrays whose size, times or inode differ from
    `.verified.json`. If the folder is read-only, all arrays are hashed on each call. Raises the same errors as
    `FeatureStore`.
    """
    stamps, path = {}, Path(folder) / STAMPS
    with contextlib.suppress(OSError, ValueError, TypeError):
        stamps = dict(json.loads(path.read_text(encoding="utf-8")))
    store = FeatureStore(folder, stamps)
    if store.stamps != stamps:
        with contextlib.suppress(DataError), publish_file(path) as temporary:
            temporary.write_text(json.dumps(store.stamps), encoding="utf-8")
    return store


class FeatureStore:
    """An open store. Features are looked up by image number; arrays are memory-mapped and never loaded as a whole.

    Args:
        folder: a folder written by `write`.
        stamps: check the sha256 of every shard except those with this stamp (see `verified`); {} checks all, which reads
            all data; None checks only the sizes.
    Raises:
        DataUnavailable: there is no store.
        DataError: a shard is damaged. Missing shards are not an error: their images are listed in `bad` and read as
            zeros.
    """

    kind = "features"

    def __init__(self, folder: Path, stamps: Mapping[str, Any] | None = None) -> None:
        self.folder = Path(folder)
        self.path = str(self.folder.resolve())
        if not (self.folder / "store.json").exists():
            step = "make one: python scripts/extract_features.py --help"
            raise DataUnavailable("there is no feature store", str(folder), step)
        head = _head(self.folder)
        if head.pop("format") != FORMAT:
            raise DataError("the feature store is of another format", str(folder), "extract the features again")
        self.layout = Layout(**head | {"grid": tuple(head["grid"]), "keys": tuple(head["keys"])})
        self.grid, self.channels = self.layout.grid, self.layout.channels
        self.index = {key: i for i, key in enumerate(self.layout.keys)}
        self.bad: dict[str, str] = {}
        self.missing: list[int] = []
        self._maps: dict[int, np.ndarray] = {}
        self.stamps = None if stamps is None else dict(stamps)
        digest = hashlib.sha256(json.dumps(head).encode())
        for number in range(self.layout.shards):
            record = self._check(number)
            if record is None:
                self.missing.append(number)
                self.bad |= {key: f"its shard {_name(number)} is missing" for key in self.layout.shard_keys(number)}
            else:
                self.bad |= record["bad"]
            digest.update((record["sha256"] if record else "missing").encode())
        self.sha256 = digest.hexdigest()

    def _check(self, number: int) -> dict[str, Any] | None:
        path, record = self.folder / f"{_name(number)}.npy", _record(self.folder, number)
        if record is None:
            return None
        retry = _again(path)
        if path.stat().st_size != record["bytes"]:
            where = f"{path}: expected {record['bytes']:,} bytes, got {path.stat().st_size:,}"
            raise DataError(f"{path.name} is damaged", where, retry, path.name, path.stat().st_size)
        if record.get("record") not in (None, _checksum(self.layout, number, record)):
            what = f"{path.with_suffix('.json')} or store.json is not what was written"
            raise DataError(f"the record of {path.name} is damaged", what, retry)
        if self.stamps is not None and self.stamps.get(path.name) != (stamp := _stamp(path, record["sha256"])):
            if sha256_of(path) != record["sha256"]:
                where = f"{path}: its sha256 is not the recorded one"
                raise DataError(f"{path.name} is damaged", where, retry, path.name)
            # an array that has just been written may change again within the same clock tick
            if time.time_ns() - max(stamp[1:3]) > SETTLED_NS:
                self.stamps[path.name] = stamp
        return record

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Features of the images with these numbers, float16 [len(numbers), rows * columns, channels].

        Images in `bad` are all zero.
        """
        cells = self.grid[0] * self.grid[1]
        out = np.zeros((len(numbers), cells, self.channels), self.layout.dtype)
        for place, number in enumerate(np.asarray(numbers).tolist()):
            shard, row = divmod(number, self.layout.shard_size)
            array = self._map(shard)
            if array is not None:
                out[place] = array[row]
        return out

    def _map(self, shard: int) -> np.ndarray | None:
        if shard in self.missing:
            return None
        if shard not in self._maps:
            path, layout = self.folder / f"{_name(shard)}.npy", self.layout
            shape = (len(layout.shard_keys(shard)), self.grid[0] * self.grid[1], self.channels)
            expected, step = f"{layout.dtype} {list(shape)}", _again(path)
            try:
                array = np.load(path, mmap_mode="r")
            except (OSError, ValueError, EOFError) as error:
                raise damaged(path, f"not an array ({error})", expected, step=step) from error
            if array.shape != shape or array.dtype != layout.dtype:
                told = f"an array {array.dtype} {list(array.shape)}"
                raise damaged(path, told, expected, step=step, value=array.shape)
            self._maps[shard] = array
        return self._maps[shard]


def _again(path: Path) -> str:
    return f"delete {path.with_suffix('.json')} and run the extraction again"


def _stamp(path: Path, sha256: str) -> list[Any]:
    told = path.stat()
    return [told.st_size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino, sha256]


def _checksum(layout: Layout, number: int, record: Mapping[str, Any]) -> str:
    """Checksum of a shard's record, together with the keys and the layout of its array."""
    keys, form = layout.shard_keys(number), [layout.extractor, layout.grid, layout.channels, layout.dtype]
    told = [keys, form, record["sha256"], record["bytes"], record["bad"]]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _head(folder: Path) -> dict[str, Any]:
    path = folder / "store.json"
    fields = {"format": int, "extractor": str, "dtype": str, **dict.fromkeys(("grid", "keys"), list)}
    fields |= dict.fromkeys(("channels", "shard_size"), int)
    head = check_fields(parse_json(read_text(path), path), fields, path)
    sizes = (*head["grid"], head["channels"], head["shard_size"])
    whole = set(head) == set(fields) and len(head["grid"]) == 2 and all(isinstance(n, int) and n > 0 for n in sizes)
    if not whole or head["dtype"] not in ("float16", "float32") or not all(isinstance(k, str) for k in head["keys"]):
        raise damaged(path, "it does not describe a store", ", ".join(fields), step="extract the features again")
    return head


def _name(number: int) -> str:
    return f"shard-{number:05d}"


def _record(folder: Path, number: int) -> dict[str, Any] | None:
    """The record of a finished shard, or None if the record or its array is missing."""
    try:
        record = json.loads((folder / f"{_name(number)}.json").read_text(encoding="utf-8"))
        whole = {"sha256", "bytes", "bad"} <= set(record) and isinstance(record["bad"], dict)
    except (OSError, ValueError, TypeError):
        return None
    return record if whole and (folder / f"{_name(number)}.npy").is_file() else None
