"""`scripts/data.py`: list, fetch, verify and show data sets; compute features of images."""

import os
from functools import partial
from pathlib import Path
from typing import Literal


def list_(*names: str) -> None:
    """List data sets, or say how to get those that are named. Raises DataError if a name is unknown."""
    from repro.launch.display import cut, fitted, width
    from tasks import data

    for name in names or data.manifest_names():
        manifest = data.load_manifest(name)
        ways = ", ".join(source["kind"] for source in manifest.get("sources", ())) or manifest["kind"]
        line = f"{name:20s} {ways:12s} {manifest['title']}"
        print(f"{fitted(line)}\n{fitted(manifest['get'], '  ')}" if names else cut(line, width()))
    if not names:
        print("python scripts/data.py list NAME says how to get a set")


def _each(what: Literal["fetch", "verify", "show"], *names: str, overrides: list[str], root: str = "") -> None:
    """Fetch, verify or show data sets; the overrides set their options.

    Without overrides, SPARSE_ATTENTION_MIRROR is the mirror of the data sets that have one, as in `configs/data`.

    Raises:
        ValueError: no name is given, or an override is no option of a data set.
        DataError: a name is unknown, data are unavailable, or do not have the expected content.
    """
    from tasks import data
    from tasks.config.request import Request

    keys = Request.read(overrides).keys
    if wrong := [key for key in keys if not key.startswith("data.")]:
        raise ValueError(f"{wrong[0]}= is unknown here; options of the data set are set as data.KEY=VALUE")
    options = {key.removeprefix("data."): one.value for key, one in keys.items()}
    if not names:
        raise ValueError(f"{what} needs the name of a data set; python scripts/data.py list prints them")
    root = root or os.environ.get("SPARSE_ATTENTION_DATA") or "data/cache"
    for name in names:
        mirror = {"mirror": os.environ.get("SPARSE_ATTENTION_MIRROR")}
        mirrored = mirror["mirror"] and not options and not data.problems({"name": name, **mirror})
        print(getattr(data, what)(name, root, mirror if mirrored else options, data.Progress()))


fetch, verify, show = partial(_each, "fetch"), partial(_each, "verify"), partial(_each, "show")


def features(
    *,
    path: Path,
    weights: str | None = None,
    size: int = 448,
    batch_size: int = 16,
    device: Literal["cpu", "cuda"] = "cpu",
    amp: bool = False,
    check: bool = False,
) -> None:
    """Compute features for all images that appear in questions, or only `check` them.

    The arguments are those of `tasks.data.features`. Raises DataError if images or features are missing or damaged.
    """
    from tasks import data
    from tasks.data import features as grids
    from tasks.data.cache import is_whole
    from tasks.data.images import features as stored_features
    from tasks.data.read.own import setting

    progress, folder = data.Progress(), path / "features"
    if not check:
        found = data.open_data({"name": "vqa2", "path": str(path)}, path, progress)
        source = found.about["images"].source
        if source is None:
            step = "put train2014.zip and val2014.zip, or the folders, there"
            raise data.DataUnavailable("the images are missing", str(path), step)
        keys = sorted({question.image for split in found.read(progress).values() for question in split})
        model = grids.resnet(weights, size)
        grids.extract(source, keys, model, folder, progress, batch_size=batch_size, device=device, amp=amp)
    store = stored_features(folder)
    if check and not is_whole(folder):
        raise data.DataError(f"{folder} is damaged", "its checksums", "delete it and extract the features again")
    print(f"{folder}: {len(store.index):,} images, {len(store.bad)} images without features")
    print(f"Next: python scripts/train.py task=vqa profile=paper {setting(path=str(path))}")
