"""`scripts/extract_features.py`: grid features of the images of VQA v2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.data import DataUnavailable, Progress, features, open_data
from tasks.data.feature_store import FeatureStore


def extract(path: Path, backbone: str, weights: str | None, size: int, check: bool, **options: Any) -> str:
    """Compute the features of the images that the questions ask about, or check those that are there; a sentence on the store.

    Args:
        path: folder of the data set. backbone, weights, size: as of `features.backbone`.
        check: verify every checksum and compute nothing. options: of `features.extract`.
    Raises:
        DataError: images or features that are missing or damaged. ValueError: an unknown backbone.
    """
    progress, folder = Progress(), path / "features"
    if not check:
        found = open_data({"name": "vqa2", "path": str(path)}, path, progress)
        source = found.about["images"].source
        if source is None:
            raise DataUnavailable(
                "the images are missing", str(path), "put train2014.zip and val2014.zip, or the folders, there"
            )
        keys = sorted({question.image for split in found.read(progress).values() for question in split})
        model = features.backbone(backbone, weights, size)
        features.extract(source, keys, model, folder, progress, **options)
    store = FeatureStore(folder, verify=check)
    n = len(store.layout.keys)
    return f"{folder}: {n:,} images, {len(store.missing)} shards missing, {len(store.bad)} images without features"
