"""`scripts/data.py`: list, fetch, verify and show data sets; `scripts/extract_features.py`: features of images."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.launch.display import cut, fitted, width
from tasks import data
from tasks.config.request import Request
from tasks.data.cache import is_whole
from tasks.data.images import features as stored_features


def main(what: str, names: Sequence[str], root: str, options: Mapping[str, Any], overrides: Sequence[str] = ()) -> int:
    """List, fetch, verify or show data sets, as scripts/data.py describes. Returns exit status 0.

    Without `mirror` or `path` in `options`, SPARSE_ATTENTION_MIRROR is the mirror of the data sets that have one, as in
    `configs/data`.

    Raises:
        ValueError: a name is unknown, a name is needed but missing, or an override does not set an option of the data.
        DataError: data are unavailable, or do not have the expected content.
    """
    if overrides:
        keys = Request.read(overrides).keys
        if wrong := [key for key in keys if not key.startswith("data.")]:
            raise ValueError(f"{wrong[0]}= is unknown here; options of the data set are set as data.KEY=VALUE")
        options = {**options, **{key.removeprefix("data."): one.value for key, one in keys.items()}}
    known = data.manifest_names()
    if unknown := [name for name in names if name not in known]:
        raise ValueError("; ".join(problem for name in unknown for problem in data.problems({"name": name})))
    if what == "list":
        for name in names or known:
            manifest = data.load_manifest(name)
            ways = ", ".join(source["kind"] for source in manifest.get("sources", ())) or manifest["kind"]
            line = f"{name:20s} {ways:12s} {manifest['title']}"
            print(f"{fitted(line)}\n{fitted(manifest['get'], '  ')}" if names else cut(line, width()))
        if not names:
            print("python scripts/data.py list NAME says how to get a set")
        return 0
    if not names:
        raise ValueError(f"{what} needs the name of a data set; python scripts/data.py list prints them")
    for name in names:
        if name not in data.set_names():
            print(data.fetch_vectors(name, root, data.Progress(), fetching=what == "fetch"))
            continue
        chosen = {k: v for k, v in options.items() if v is not None}
        mirror = os.environ.get("SPARSE_ATTENTION_MIRROR")
        if mirror and not chosen and not data.problems({"name": name, "mirror": mirror}):
            chosen = {"mirror": mirror}
        print(getattr(data, what)(name, root, chosen, data.Progress()))
    return 0


def extract(path: Path, backbone: str, weights: str | None, size: int, check: bool, **options: Any) -> str:
    """Compute features for all images that appear in questions, or only `check` them; returns one line about the store.

    The arguments are those of `features.backbone` and `features.extract`. Raises DataError if images or features are
    missing or damaged, ValueError if the backbone is unknown.
    """
    from tasks.data import features

    progress, folder = data.Progress(), path / "features"
    if not check:
        found = data.open_data({"name": "vqa2", "path": str(path)}, path, progress)
        source = found.about["images"].source
        if source is None:
            step = "put train2014.zip and val2014.zip, or the folders, there"
            raise data.DataUnavailable("the images are missing", str(path), step)
        keys = sorted({question.image for split in found.read(progress).values() for question in split})
        model = features.backbone(backbone, weights, size)
        features.extract(source, keys, model, folder, progress, **options)
    store = stored_features(folder)
    if check and not is_whole(folder):
        raise data.DataError(f"{folder} is damaged", "its checksums", "delete it and extract the features again")
    return f"{folder}: {len(store.index):,} images, {len(store.bad)} images without features"
