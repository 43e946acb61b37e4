"""Mulan's files, and Yeast out of a wheel."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from made_mirror import LABELS

from tasks.data import NullProgress, load_manifest
from tasks.data.read.labelled import read_arff
from tasks.data.sets import features
from tasks.data.sets.features import label_names


@pytest.mark.parametrize("name", LABELS)
def test_mulans_files(name, mirror, opened):
    """12 and 9 examples, of which the last has no label; the constant is left out, the place has three indicators."""
    found = opened(name, mirror=str(mirror))
    splits = found.read(NullProgress())
    assert tuple(found.about["labels"]) == LABELS[name]
    count = len(LABELS[name])
    assert {s: part.labels.shape for s, part in splits.items()} == {"train": (11, count), "test": (8, count)}
    assert all(part.labels.any(1).all() for part in splits.values()) and found.shortfalls
    assert "Examples without a label left out: 1 train, 1 test." in found.notes
    x = splits["train"].features
    assert x.shape[1] == splits["test"].features.shape[1] == 2 + 3 + 1
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(x.std(0), 1, atol=1e-9)


def test_the_reader_agrees_with_the_text_of_the_file(mirror):
    """Each data line of Birds: numbers as printed, one indicator per place, labels by the names of the XML file."""
    folder = mirror / "multilabel" / "birds"
    names = label_names(folder / "birds.xml")
    assert names == LABELS["birds"] and "'" in names[1]
    x, y = read_arff(folder / "birds-train.arff", names)
    lines = [line.split(",") for line in (folder / "birds-train.arff").read_text().split("@data\n")[1].splitlines()]
    assert x.shape == (12, 7) and y.shape == (12, 2)
    np.testing.assert_array_equal(x[:, :3], [[float(v) for v in line[:3]] for line in lines])
    places = ("north", "south", "'far west'")
    np.testing.assert_array_equal(x[:, 3:6], [[p == line[3] for p in places] for line in lines])
    np.testing.assert_array_equal(x[:, 6], [float(line[4]) for line in lines])
    np.testing.assert_array_equal(y, [[v == "1" for v in line[5:]] for line in lines])


def test_yeast_from_a_wheel(tmp_path, monkeypatch, opened):
    """The reader of the package's file, on a file of that format."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 103)), rng.random((30, 14)) < 0.3
    y[:, 0] |= ~y.any(1)
    head = ",".join([*(f"Att{i + 1}" for i in range(103)), *LABELS["yeast"]])
    rows = [",".join([*map(repr, a), *(str(int(value)) for value in b)]) for a, b in zip(x.tolist(), y)]
    (file,) = load_manifest("yeast_river")["files"]
    path = tmp_path / file["path"]
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress("\n".join([head, *rows, ""]).encode()))
    monkeypatch.setattr(features, "verify", lambda *a, **k: None)
    monkeypatch.setattr(features, "TRAIN", 20)
    monkeypatch.setattr(features, "fetch_wheel", lambda *a, **k: tmp_path)
    found = opened("yeast_river")
    splits = found.read(NullProgress())
    assert {s: part.labels.shape for s, part in splits.items()} == {"train": (20, 14), "test": (10, 14)}
    assert sum(int(part.labels.sum()) for part in splits.values()) == y.sum()
    assert load_manifest("yeast_river")["note"] in found.notes
