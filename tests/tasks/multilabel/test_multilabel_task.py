"""Data files, the task's protocol from end to end, and the figures."""

from __future__ import annotations

import gzip
import hashlib

import numpy as np
import pytest

from sparse_attention.repro import cell as cells
from sparse_attention.repro.store import Store
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.progress import NullProgress
from tasks.multilabel import data as multilabel
from tasks.multilabel import figures
from tasks.multilabel.figures import CLAIMS, Point, differences, verdict

TINY = ["task=multilabel", "model=linear", "profile=demo", "task.data.sizes={train: 60, dev: 20, test: 30}", "task.data.length=100",
        "task.data.classes=5", "task.data.features=5", "task.data.value=2", "task.tune.penalties=[0.1,0.001]", "task.fit.iterations=20",
        "task.tune.parameters.sparsehourglass.q=[0.1,1.0]", "runtime.device=cpu"]  # fmt: skip
PAIRS = [("softmax", "log"), ("sparsemax", "huber"), ("sparsemax", "hinge"), ("sparsehourglass", "hinge")]
# Sizes and cardinalities of the files as counted by others: train, test, features, labels, labels per document.
SETS = {"birds": (179, 172, 19), "scene": (1211, 1196, 6), "emotions": (391, 202, 6), "yeast": (1500, 917, 14)}
CARDINALITY = {"scene": (1.062, 1.086), "emotions": (1.813, 1.975)}


@pytest.mark.parametrize("name", SETS)
def test_real_files(name, testdata):
    loaded = multilabel.load({"name": name, "mirror": str(testdata)}, NullProgress())
    assert (len(loaded.labels["train"]), len(loaded.labels["test"]), len(loaded.names)) == SETS[name]
    assert all(y.any(1).all() for y in loaded.labels.values())
    x = loaded.features["train"]
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(x.std(0), 1, atol=1e-9)
    for split, expected in zip(("train", "test"), CARDINALITY.get(name, ())):
        assert loaded.labels[split].sum(1).mean() == pytest.approx(expected, abs=6e-4)


def test_the_reader_agrees_with_the_text_of_the_file(testdata):
    """First and last data line of Birds: numbers as printed, one indicator per location, labels by the names of the XML file."""
    folder = testdata / "multilabel" / "birds"
    names = multilabel.label_names(folder / "birds.xml")
    assert "Swainson's Thrush" in names and len(names) == 19
    x, y = multilabel.read_arff(folder / "birds-train.arff", names)
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
        multilabel.read_arff(path, ("z",))
    with pytest.raises(DataError, match="missing values"):
        multilabel.read_arff(path, ("y",))


def test_a_missing_mirror_is_unavailable_and_an_unknown_name_is_not():
    with pytest.raises(DataUnavailable, match="local mirror"):
        multilabel.load({"name": "scene", "mirror": None}, NullProgress())
    with pytest.raises(DataError, match="allowed: synthetic, birds") as error:
        multilabel.load({"name": "bird"}, NullProgress())
    assert not isinstance(error.value, DataUnavailable)


def test_yeast_from_a_wheel(tmp_path, monkeypatch, testdata):
    """The reader of the package's file, on a file of that format made from Mulan's."""
    whole = (testdata / "multilabel" / "yeast" / "yeast.arff").read_text().splitlines()
    header = [line.split()[1] for line in whole if line.lower().startswith("@attribute")]
    start = next(i for i, line in enumerate(whole) if line.lower().startswith("@data"))
    rows = [line for line in whole[start + 1 :] if line.strip()]
    path = tmp_path / "river" / "datasets" / "yeast.csv.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress("\n".join([",".join(header), *rows, ""]).encode()))
    manifest = {
        "package": "river", "version": "0", "title": "Yeast", "note": "split of our own",
        "files": [{"path": "river/datasets/yeast.csv.gz", "bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}],
    }  # fmt: skip
    monkeypatch.setattr(multilabel, "load_manifest", lambda name: manifest)
    monkeypatch.setattr(multilabel, "fetch_wheel", lambda *a, **k: tmp_path)
    loaded = multilabel.load({"name": "yeast_river", "root": str(tmp_path)}, NullProgress())
    assert {s: y.shape for s, y in loaded.labels.items()} == {"train": (1500, 14), "test": (917, 14)}
    assert sum(int(y.sum()) for y in loaded.labels.values()) == sum(
        int(line.split(",")[i]) for line in rows for i in range(-14, 0)
    )
    assert "split of our own" in loaded.notes


@pytest.fixture(scope="module")
def tiny_store(composed, tmp_path_factory):
    """The four pairs trained on a tiny data set: (cells, store)."""
    store, made = Store(tmp_path_factory.mktemp("tiny")), []
    for mapping, loss in PAIRS:
        cell = cells.prepare(composed([*TINY, f"mapping={mapping}", f"task.loss={loss}"]), NullProgress())
        outcome = cells.run(cell, store)
        assert outcome.state == "done", outcome.error
        made.append(cell)
    return made, store


def test_a_cell_from_configuration_to_metrics(tiny_store):
    made, store = tiny_store
    assert len({c.cell_id for c in made}) == 4 and len({c.prepared.sha256 for c in made}) == 1
    for cell in made:
        found = cell.entry(store).metrics()
        scores = found["metrics"]
        assert scores["test/f1"] > 0.5 > scores["test/jsd"]
        assert scores["test/jsd_label"] == pytest.approx(scores["test/jsd"] / 5)
        assert 1 <= scores["test/labels"] <= 5 and scores["selected/penalty"] in (0.1, 0.001)
        assert set(found["signatures"]) == {"test/f1", "test/jsd", "test/jsd_label", "test/labels"}
        assert len(cell.entry(store).predictions()) == 30
    assert made[3].entry(store).metrics()["metrics"]["selected/q"] in (0.1, 1.0)
    objectives = {c.entry(store).metrics()["metrics"]["train/objective"] for c in made}
    assert len(objectives) == 4, "every loss must train another model"


def test_the_loss_the_data_and_the_seed_name_the_cell(composed, tiny_store):
    base = [*TINY, "mapping=sparsemax", "task.loss=hinge"]
    known = {c.cell_id for c in tiny_store[0]}
    ids = [cells.prepare(composed([*base, *more]), NullProgress()).cell_id
           for more in ([], ["task.loss=huber"], ["seed=2"], ["task.half_pairs=true"], ["task.data.value=3"])]  # fmt: skip
    assert len(set(ids)) == 5 and set(ids[:2]) <= known


def test_a_bad_pair_or_grid_is_refused_before_any_fit(composed):
    with pytest.raises(ValueError, match="does not go with"):
        cells.prepare(composed([*TINY, "mapping=softmax", "task.loss=hinge"]), NullProgress())
    with pytest.raises(ValueError, match="from large to small"):
        cells.prepare(composed([*TINY, "task.tune.penalties=[0.1,1.0]"]), NullProgress())


def point(row, setting, value, **scores):
    return Point(setting, value, row, {k: dict(enumerate(v, 1)) for k, v in scores.items()})


def test_claims_are_judged_on_the_differences_per_seed():
    claim = CLAIMS[0]
    made = []
    for value, low, high in ((2, (0.7, 0.8), (0.9, 0.9)), (9, (0.9, 0.9), (0.8, 0.9))):
        made += [
            point("sparsemax+huber", "mean_labels", value, f1=low),
            point("sparsemax+hinge", "mean_labels", value, f1=high),
        ]
    found = differences(made, claim)
    np.testing.assert_allclose(found["mean_labels", 2], [0.2, 0.1])
    np.testing.assert_allclose(found["mean_labels", 9], [-0.1, 0.0])
    assert verdict(found, 1)[:2] == ("does not hold", 1)  # one of two is not most
    assert verdict({k: v for k, v in found.items() if k[1] == 2}, 1) == ("holds", 1, pytest.approx(0.15))
    assert verdict(found, -1)[0] == "does not hold"
    assert "mean_labels 9 (-0.0500)" in figures.claims(made)


def test_figures_are_written_with_their_numbers(tmp_path):
    made = [
        point(row, setting, value, f1=(0.8 + 0.01 * i, 0.82), labels=(2.0, 2.1), jsd=(0.1, 0.2), true_labels=(2.0, 2.0))
        for i, (_, row) in enumerate([(0, "softmax+log"), (1, "sparsemax+huber")])
        for setting, value in (("mean_labels", 2), ("mean_labels", 3), ("length", 200))
    ]  # fmt: skip
    files = figures.draw(made, "f1", ("mean_labels", "length"), tmp_path / "figure5")
    assert [f.suffix for f in files] == [".png", ".svg"]
    svg = files[1].read_text()
    again = figures.draw(made, "f1", ("mean_labels", "length"), tmp_path / "figure5")[1].read_text()
    assert svg == again, "the same numbers give the same file"
    assert files[0].read_bytes()[:4] == b"\x89PNG"
    lines = figures.numbers(made).splitlines()
    assert len(lines) == 1 + 6 * 4 * 2
    assert "mean_labels,2,sparsemax+huber,f1,1,0.81" in lines
