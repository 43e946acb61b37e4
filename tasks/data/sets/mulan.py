"""Multi-label sets: Birds, Emotions, Scene and Yeast in Mulan's published files, and Yeast from a wheel.

yeast_river has all 2,417 genes of Yeast, from the wheel of river, with our own split.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from tasks.config.options import stated
from tasks.data.acquire import sources
from tasks.data.acquire.pip import fetch_wheel
from tasks.data.dataset import DataSet, Loader, Manifest
from tasks.data.files import verify
from tasks.data.manifests import mirror, mirror_files, mirror_hashes
from tasks.data.progress import Progress
from tasks.data.read.formats import damaged, read_text, table
from tasks.data.read.labelled import labelled_set, plain, read_arff

KIND = "features"


@dataclass
@stated("data/birds")
class Mulan:
    """Mulan's published train and test files."""

    mirror: str | None = mirror()


def load_mulan(manifest: Manifest, options: Mulan, root: Path, progress: Progress) -> DataSet:
    """Load <name>-train.arff and <name>-test.arff, and the names of the labels from <name>.xml."""
    name, hashes = manifest["name"], mirror_hashes(manifest)
    files = mirror_files(manifest, options.mirror or sources.found(manifest, root))
    labels = label_names(files[f"{name}.xml"])
    splits = {s: read_arff(files[f"{name}-{s}.arff"], labels) for s in ("train", "test")}
    train, test = (hashes[f"{name}-{s}.arff"] for s in splits)
    return labelled_set(manifest, manifest["title"], splits, labels, {"train": train, "test": [train, test]})


def label_names(path: Path) -> tuple[str, ...]:
    """Names of the classes in Mulan's XML file, in file order. Raises DataError if it is not XML or has no labels."""
    expected = "<labels> with <label name=..> elements"
    try:
        root = ElementTree.fromstring(read_text(path))
    except ElementTree.ParseError as error:
        raise damaged(path, f"not valid XML ({error})", expected, line=error.position[0]) from error
    names = [plain(node.get("name", "")) for node in root.iter() if node.tag.endswith("label")]
    if not names or not all(names) or len(set(names)) < len(names):
        raise damaged(path, f"{len(names)} labels, {len(set(filter(None, names)))} different names", expected)
    return tuple(names)


# The sizes of the published split. The package has the rows in the order of Mulan's whole file, but not the split.
TRAIN, SPLIT_SEED = 1500, 0


@dataclass
class Nothing:
    """There are no options."""


def load_river(manifest: Manifest, options: Nothing, root: Path, progress: Progress) -> DataSet:
    """Load 1,500 training and 917 test genes with 14 labels."""
    folder = fetch_wheel(manifest["package"], str(manifest["version"]), root, progress)
    entry = manifest["files"][0]
    path = folder / entry["path"]
    verify(path, entry["sha256"], entry["bytes"], retry=f"delete {folder} and run the same command again")
    rows = []
    for number, row in table(path, ()):
        try:
            rows.append([float(cell) for cell in row.values()])
        except ValueError as error:
            raise damaged(path, f"not a row of numbers ({error})", "numbers", line=number) from error
    header = list(row)
    is_label = np.array([name.startswith("Class") for name in header])
    genes = np.array(rows)[np.random.default_rng(SPLIT_SEED).permutation(len(rows))]
    splits = {s: (t[:, ~is_label], t[:, is_label] == 1) for s, t in (("train", genes[:TRAIN]), ("test", genes[TRAIN:]))}
    names = tuple(name for name in header if name.startswith("Class"))
    return labelled_set(manifest, manifest["title"], splits, names, dict.fromkeys(splits, entry["sha256"]))


SETS = {name: Loader(KIND, Mulan, load_mulan) for name in ("birds", "emotions", "scene", "yeast")}
SETS["yeast_river"] = Loader(KIND, Nothing, load_river)
