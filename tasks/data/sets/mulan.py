"""Birds, Emotions, Scene and Yeast from Mulan's collection, in the published train and test files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.config.options import stated
from tasks.data.acquire import sources
from tasks.data.dataset import DataSet, Manifest
from tasks.data.manifests import mirror, mirror_files, mirror_hashes
from tasks.data.progress import Progress
from tasks.data.read.labelled import label_names, labelled_set, read_arff

KIND = "features"


@dataclass
@stated("data/birds")
class Options:
    """Mulan's published train and test files."""

    mirror: str | None = mirror()


def load(manifest: Manifest, options: Options, root: Path, progress: Progress) -> DataSet:
    """Load <name>-train.arff and <name>-test.arff, and the names of the labels from <name>.xml."""
    name, hashes = manifest["name"], mirror_hashes(manifest)
    files = mirror_files(manifest, options.mirror or sources.found(manifest, root))
    labels = label_names(files[f"{name}.xml"])
    splits = {s: read_arff(files[f"{name}-{s}.arff"], labels) for s in ("train", "test")}
    train, test = (hashes[f"{name}-{s}.arff"] for s in splits)
    return labelled_set(manifest, manifest["title"], splits, labels, {"train": train, "test": [train, test]})
