"""Image sources, and images as model input: pixels decoded once into one array, precomputed features, or no images.

A source lists keys and returns the image of each key. An image that cannot be read raises `DataError`. Code that reads
many images counts these errors and continues, since a set of a million images contains a few truncated files.
"""

import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.acquire.sources import BROKEN, zipped
from tasks.data.cache import META, cached_folder, is_whole, read_meta
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.progress import Progress
from tasks.data.read.formats import damaged

SUFFIXES = (".png", ".jpg", ".jpeg")


def coco_key(name: str) -> str | None:
    """The image_id that the questions use, e.g. "COCO_train2014_000000228478.jpg" -> "228478"; None for other names."""
    found = re.search(r"(\d{12})\.jpe?g$", name)
    return str(int(found.group(1))) if found else None


def path_key(name: str) -> str | None:
    """The last folder (ignoring folders named "images") and the stem, e.g. "data/train/images/7.png" -> "train/7"."""
    if not name.lower().endswith(SUFFIXES):
        return None
    folders = [p for p in Path(name).parts[:-1] if p != "images"]
    return f"{folders[-1]}/{Path(name).stem}" if folders else Path(name).stem


class Files:
    """Images in folders and zip archives, found by name.

    Args:
        places: folders (searched recursively) or archives; if several contain a key, the first one is used.
        key: maps a file name to a key, or to None to ignore the file.
    Raises:
        DataUnavailable: one of the places does not exist.
        DataError: an archive is damaged, or none of the places contains an image.
    """

    def __init__(self, places: Sequence[Path], key: Callable[[str], str | None]) -> None:
        self._where: dict[str, tuple[Path, str, int]] = {}  # key -> place, name within the place, bytes
        self._open: dict[Path, zipfile.ZipFile] = {}
        for place in places:
            if place.is_dir():
                files = sorted(p for p in place.rglob("*") if p.is_file())
                listed = [(str(p.relative_to(place.parent)), p.stat().st_size) for p in files]
            else:
                listed = zipped(place)
            for name, size in listed:
                found = key(name)
                if found is not None:
                    self._where.setdefault(found, (place, name, size))
        if not self._where:
            where = ", ".join(map(str, places)) or "no folder given"
            step = "correct data.path, or see the manifest of the data set"
            raise DataError("there is no image", where, step)

    def keys(self) -> list[str]:
        return list(self._where)

    def fingerprint(self) -> str:
        """Hash of file names and sizes, not of contents: it changes if the images may have changed."""
        text = json.dumps([[k, place.name, name, size] for k, (place, name, size) in self._where.items()])
        return hashlib.sha256(text.encode()).hexdigest()

    def read(self, key: str) -> bytes:
        """The file's bytes. Raises DataError if there is no such file or it cannot be read."""
        if key not in self._where:
            raise DataError(f"there is no image with key {key!r}")
        place, name, _ = self._where[key]
        try:
            if place.is_dir():
                return (place.parent / name).read_bytes()
            if place not in self._open:
                self._open[place] = zipfile.ZipFile(place)
            return self._open[place].read(name)
        except BROKEN as error:
            raise DataError(f"{place}: {name}: {type(error).__name__}: {error}") from error


def decode(raw: bytes, size: tuple[int, int]) -> np.ndarray:
    """Decode an image file to uint8 [height, width, 3], resized (bilinear) to `size` = (height, width).

    Raises DataError if it cannot be decoded completely.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(raw)) as image:
            image.load()  # a truncated file fails here, not at open
            colour = image.convert("RGB")
            if colour.size != (size[1], size[0]):
                colour = colour.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            return np.asarray(colour)
    except Exception as error:  # Pillow's plugins raise anything from SyntaxError to struct.error
        raise DataError(f"cannot be decoded ({type(error).__name__}: {error})") from error


class Stored:
    """Images as one memory-mapped array [N, ...], in the order of their keys, in a folder with its checksum.

    `bad` lists the images that could not be read, which are all zero. Raises DataError if the folder is damaged.

    Args:
        kind: "pixels", uint8 [N, height, width, 3] in a folder of `decode_all`; or "features", float16
            [N, rows * columns, channels] in one of `tasks.data.features.extract`.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        known, file = read_meta(folder), folder / f"{kind}.npy"
        try:
            self.array = np.load(file, mmap_mode="r")
            self.bad, self.sha256 = dict(known["bad"]), known["files"][file.name]
            self.index = {key: i for i, key in enumerate(known["keys"])}
            down, across = known.get("grid", self.array.shape[1:3])
        except Exception as error:  # numpy parses the header of an array as Python tokens
            step = "delete the folder and make it again"
            raise damaged(file, f"its data are damaged ({error})", f"{len(known)} entries", step=step) from error
        self.kind, self.grid, self.channels = kind, (int(down), int(across)), self.array.shape[-1]
        self.path = f"../{folder.name}" if kind == "pixels" else str(folder.resolve())

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """The images with these numbers, [len(numbers), ...]."""
        return np.array(self.array[numbers])


class Blank:
    """No images: each image is replaced by four positions of zeros, to test what the questions alone reveal."""

    kind, grid, channels, sha256, path = "features", (2, 2), 1, "blank", "none"

    def __init__(self, keys: Sequence[str]) -> None:
        self.index, self.bad = dict.fromkeys(keys, 0), {}

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        return np.zeros((len(numbers), 4, 1), np.float16)


# Images as model input, looked up by row. Their attributes: kind (pixels or features); grid and channels, the shape of one
# image; index (key -> row); bad (key -> why it cannot be read); sha256; and path, for `open_images`: relative to a folder
# of encoded data if the images are in the same cache, otherwise absolute.
Images = Stored | Blank


@dataclass(frozen=True)
class ImageInput:
    """The `about["images"]` of a set of questions; call it with keys to get `Images`.

    input: pixels (read by the model's CNN), features (from a store) or none (questions only).
    size: (height, width) of pixels.
    source: None if the images are missing.
    """

    input: str
    size: tuple[int, int]
    source: Files | None
    store: Path | None = None

    def __call__(self, keys: Sequence[str], root: Path, progress: Progress) -> Images:
        """Raises DataUnavailable if there are no images, and DataError if they are damaged."""
        if self.input == "none":
            return Blank(keys)
        if self.input == "features":
            assert self.store is not None  # the sets without features have no such choice
            return features(self.store)
        if self.source is None:
            step = "download the images, or set data.input=none to learn from questions alone"
            raise DataUnavailable("the questions come without images", "data.path, data.mirror", step)
        return decode_all(self.source, keys, self.size, root, progress)


def open_images(record: Mapping[str, str], folder: Path) -> Images:
    """Open the images recorded as {"kind": ..., "path": ...} in an encoded `folder`."""
    if record["path"] == Blank.path:
        return Blank(())
    path = Path(os.path.normpath(folder / record["path"]))
    if record["kind"] == "features":
        return features(path)
    if not is_whole(path):
        raise DataUnavailable("the decoded images are missing or damaged", str(path), "prepare the data again")
    return Stored(path, "pixels")


def features(folder: Path) -> Stored:
    """Open features of images. They are not hashed: `scripts/data.py features --check` does. Raises DataUnavailable."""
    if not (folder / META).is_file():
        step = "make one: python scripts/data.py features --help"
        raise DataUnavailable("there is no feature store", str(folder), step)
    return Stored(folder, "features")


def decode_all(source: Files, keys: Sequence[str], size: tuple[int, int], root: Path, progress: Progress) -> Stored:
    """Decode `keys` once. The array is in a folder of the cache at `root`, with its checksum.

    Corrupt and missing images become black, are listed in `bad`, and are reported once. Raises DataError if more than
    half of the images cannot be read, because this points to another problem.
    """

    def build(folder: Path) -> dict[str, Any]:
        bad: dict[str, str] = {}
        array = np.lib.format.open_memmap(folder / "pixels.npy", "w+", np.uint8, (len(keys), *size, 3))
        for i, key in enumerate(progress.over(keys, "decoding images")):
            try:
                array[i] = decode(source.read(key), size)
            except DataError as error:
                bad[key] = str(error)
        array.flush()
        what = f"{len(bad)} of {len(keys)} images cannot be read"
        if 2 * len(bad) > len(keys):
            key, why = next(iter(bad.items()))
            raise DataError(what, f"{key}: {why}", "check data.path and the archives")
        if bad:
            progress.say(f"{what} and count as black: {', '.join(list(bad)[:5])}")
        return {"bad": bad, "keys": list(keys)}

    key = [source.fingerprint(), list(keys), list(size), 2]
    return Stored(cached_folder(root, "pixels", key, build, progress), "pixels")
