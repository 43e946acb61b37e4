"""`scripts/extract_features.py`: compute grid features for the images of VQA v2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.data import DataUnavailable, Progress, features, open_data
from tasks.data.feature_store import FeatureStore


def extract(path: Path, backbone: str, weights: str | None, size: int, check: bool, **options: Any) -> str:
    """Compute features for all images that appear in questions, or only `check` them; returns one line about the store.

    The arguments are those of `features.backbone` and `features.extract`. Raises DataError if images or features are
    missing or damaged, ValueError if the backbone is unknown.
    """
    progress, folder = Progress(), path / "features"
    if not check:
        found = open_data({"name": "vqa2", "path": str(path)}, path, progress)
        source = found.about["images"].source
        if source is None:
            step = "put train2014.zip and val2014.zip, or the folders, there"
            raise DataUnavailable("the images are missing", str(path), step)
        keys = sorted({question.image for split in found.read(progress).values() for question in split})
        model = features.backbone(backbone, weights, size)
        features.extract(source, keys, model, folder, progress, **options)
    store = FeatureStore(folder)
    if check:
        store.check()
    n = len(store.layout.keys)
    return f"{folder}: {n:,} images, {len(store.missing)} shards missing, {len(store.bad)} images without features"
