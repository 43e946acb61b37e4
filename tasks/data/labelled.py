"""Documents as vectors with labels: Mulan's ARFF files, and the form that every such set is given in.

Features have mean 0 and variance 1 on train, constant ones are left out; so are examples without a label, as in Laha et al.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from tasks.data.dataset import DataSet, make
from tasks.data.errors import DataError
from tasks.data.manifests import load_manifest, mirror_files, mirror_hashes
from tasks.data.records import Labelled
from tasks.options import text

Arrays = Mapping[str, tuple[np.ndarray, np.ndarray]]  # split -> features [n, d], labels [n, K]


@dataclass
class MulanOptions:
    """Mulan's published train and test files."""

    mirror: str | None = text(None, optional=True, help="folder of local copies, laid out as the manifest says")


def load_mulan(name: str, options: MulanOptions) -> DataSet:
    """A set of Mulan's collection: <name>-train.arff, <name>-test.arff, <name>.xml with the names of the labels."""
    manifest = load_manifest(name)
    files, hashes = mirror_files(manifest, options.mirror), mirror_hashes(manifest)
    names = label_names(files[f"{name}.xml"])
    splits = {s: read_arff(files[f"{name}-{s}.arff"], names) for s in ("train", "test")}
    train, test = (hashes[f"{name}-{s}.arff"] for s in ("train", "test"))
    return labelled_set(manifest, manifest["title"], splits, names, {"train": train, "test": [train, test]})


def labelled_set(
    manifest: Mapping[str, Any], provenance: str, splits: Arrays, names: tuple[str, ...], sources: Mapping[str, Any]
) -> DataSet:
    """A data set of arrays.

    Args:
        sources: as of `tasks.data.dataset.make`; test is standardised by train, so it is read from both.
    """
    kept = {s: (x[y.any(1)], y[y.any(1)]) for s, (x, y) in splits.items()}
    dropped = {s: len(splits[s][1]) - len(y) for s, (_, y) in kept.items()}
    notes = (
        [f"Examples without a label left out: {', '.join(f'{n} {s}' for s, n in dropped.items())}."]
        if any(dropped.values())
        else []
    )
    notes += [manifest["note"]] if manifest.get("note") else []
    records = standardised(kept)
    return make(
        manifest, "features", lambda progress: records, provenance, sources=sources, found={s: len(y) for s, (_, y) in kept.items()},
        notes=notes, about={"labels": list(names)},
    )  # fmt: skip


def standardised(splits: Arrays) -> dict[str, Labelled]:
    """Features with mean 0 and variance 1 on train, without those that are constant there."""
    train = splits["train"][0]
    mean, scale = train.mean(0), train.std(0)
    varies = scale > 1e-12 * np.abs(mean).clip(1)
    return {s: Labelled((x[:, varies] - mean[varies]) / scale[varies], y) for s, (x, y) in splits.items()}


def label_names(path: Path) -> tuple[str, ...]:
    """Names of the classes in Mulan's XML file, in its order."""
    root = ElementTree.parse(path).getroot()
    return tuple(_plain(node.get("name", "")) for node in root.iter() if node.tag.endswith("label"))


def read_arff(path: Path, labels: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Features `[n, d]` (nominal ones as indicators, two-valued 0/1 ones as numbers) and labels `[n, K]` of a dense ARFF file.

    Raises:
        DataError: not readable, a label that is no attribute, or missing values.
    """
    from scipy.io import arff

    try:
        rows, meta = arff.loadarff(path)
    except (ValueError, NotImplementedError, arff.ArffError) as error:
        raise DataError(
            f"{path.name} cannot be read as ARFF", f"{path}: {error}", "copy it again from its source"
        ) from error
    columns = {_plain(name): name for name in meta.names()}
    if missing := [name for name in labels if name not in columns]:
        raise DataError(
            f"{path.name} lacks labels of its XML file", f"{path}: {', '.join(missing)}", "copy both files again"
        )
    y = np.stack([rows[columns[name]] == b"1" for name in labels], 1)
    parts = []
    for plain, name in columns.items():
        if plain in labels:
            continue
        kind, values = meta[name]
        if kind == "numeric":
            parts.append(rows[name].astype(float))
        elif set(values) == {"0", "1"}:
            parts.append((rows[name] == b"1").astype(float))
        else:
            parts.extend((rows[name] == value.encode()).astype(float) for value in values)
    x = np.stack(parts, 1)
    if not np.isfinite(x).all():
        raise DataError(
            f"{path.name} has missing values", f"{path}: {int((~np.isfinite(x)).sum())} places", "impute them first"
        )
    return x, y


def _plain(name: str) -> str:
    """A name without ARFF's quotes and escapes."""
    return name.strip().strip("'\"").replace("\\'", "'").replace('\\"', '"')
