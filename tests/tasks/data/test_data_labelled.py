"""Mulan's files, and Yeast out of a wheel."""

from __future__ import annotations

import gzip
import hashlib

import numpy as np
import pytest

from tasks.data import DataError, NullProgress
from tasks.data.labelled import label_names, read_arff
from tasks.data.sets import yeast_river

# Sizes and cardinalities of the files as counted by others: train, test, labels; labels per document.
SETS = {"birds": (179, 172, 19), "scene": (1211, 1196, 6), "emotions": (391, 202, 6), "yeast": (1500, 917, 14)}
CARDINALITY = {"scene": (1.062, 1.086), "emotions": (1.813, 1.975)}


@pytest.mark.parametrize("name", SETS)
def test_real_files(name, testdata, opened):
    found = opened(name, mirror=str(testdata))
    splits = found.read(NullProgress())
    assert (len(splits["train"]), len(splits["test"]), len(found.about["labels"])) == SETS[name]
    assert all(part.labels.any(1).all() for part in splits.values()) and bool(found.shortfalls) == (name == "yeast")
    x = splits["train"].features
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(x.std(0), 1, atol=1e-9)
    for split, expected in zip(("train", "test"), CARDINALITY.get(name, ())):
        assert splits[split].labels.sum(1).mean() == pytest.approx(expected, abs=6e-4)


def test_the_reader_agrees_with_the_text_of_the_file(testdata):
    """First and last data line of Birds: numbers as printed, one indicator per location, labels by the names of the XML file."""
    folder = testdata / "multilabel" / "birds"
    names = label_names(folder / "birds.xml")
    assert "Swainson's Thrush" in names and len(names) == 19
    x, y = read_arff(folder / "birds-train.arff", names)
    text = (folder / "birds-train.arff").read_text().split("@data")[1].split("\n")
    lines = [line.split(",") for line in text if line.strip()]
    assert x.shape == (322, 258 + 1 + 12) and y.shape == (322, 19)
    for row in (0, -1):
        np.testing.assert_allclose(x[row, :259], [float(v) for v in lines[row][:259]])
        assert x[row, 259:].sum() == 1
        np.testing.assert_array_equal(y[row], [v.strip() == "1" for v in lines[row][260:]])


def test_a_file_that_lacks_its_labels_or_values_is_refused(tmp_path):
    path = tmp_path / "a.arff"
    path.write_text("@relation r\n@attribute x numeric\n@attribute y {0,1}\n@data\n1.5,1\n?,0\n")
    with pytest.raises(DataError, match="lacks labels"):
        read_arff(path, ("z",))
    with pytest.raises(DataError, match="missing values"):
        read_arff(path, ("y",))


def test_yeast_from_a_wheel(tmp_path, monkeypatch, testdata, opened):
    """The reader of the package's file, on a file of that format made from Mulan's."""
    whole = (testdata / "multilabel" / "yeast" / "yeast.arff").read_text().splitlines()
    header = [line.split()[1] for line in whole if line.lower().startswith("@attribute")]
    start = next(i for i, line in enumerate(whole) if line.lower().startswith("@data"))
    rows = [line for line in whole[start + 1 :] if line.strip()]
    path = tmp_path / "river" / "datasets" / "yeast.csv.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress("\n".join([",".join(header), *rows, ""]).encode()))
    manifest = {
        "name": "yeast_river", "package": "river", "version": "0", "title": "Yeast", "note": "split of our own",
        "files": [{"path": "river/datasets/yeast.csv.gz", "bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}],
    }  # fmt: skip
    monkeypatch.setattr(yeast_river, "load_manifest", lambda name: manifest)
    monkeypatch.setattr(yeast_river, "fetch_wheel", lambda *a, **k: tmp_path)
    found = opened("yeast_river")
    splits = found.read(NullProgress())
    assert {s: part.labels.shape for s, part in splits.items()} == {"train": (1500, 14), "test": (917, 14)}
    assert sum(int(part.labels.sum()) for part in splits.values()) == sum(
        int(line.split(",")[i]) for line in rows for i in range(-14, 0)
    )
    assert "split of our own" in found.notes
