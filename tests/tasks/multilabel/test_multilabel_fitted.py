"""From arrays to a kept model and its scores."""

import numpy as np
import pytest

from repro.options import plain, read
from repro.protocol import parameters
from tasks.cells import multilabel as cells
from tasks.data import DataError, DataSet
from tasks.data.records import Labelled
from tasks.data.sets import synthetic
from tasks.multilabel import encode, fitted
from tasks.multilabel.options import Encode, Task

TUNE = {"penalties": [0.1, 0.001], "thresholds": [0.1, 0.2, 0.3], "folds": 2}
TINY = {"fit": {"iterations": 20}, "tune": TUNE | {"parameters": {"sparsehourglass": {"q": [0.1, 1.0]}}}}
PAIRS = [("softmax", "log"), ("sparsemax", "huber"), ("sparsemax", "hinge"), ("sparsehourglass", "hinge")]
LABELS = [f"class {i}" for i in range(5)]


def task(**more):
    return plain(read(Task, TINY | more, "task"))


def dataset(splits, name="tiny", labels=LABELS):
    about, fingerprint = {"labels": labels}, {s: f"{name} {s}" for s in splits}
    return DataSet(name, "features", fingerprint, lambda progress: splits, "by hand", about=about)


def documents(sizes):
    made = synthetic.generate("mean_labels", 2, sizes, 5, 6, 100, 1)
    mean, scale = made["train"][0].mean(0), made["train"][0].std(0)
    return {split: Labelled((x - mean) / scale, y) for split, (x, y) in made.items()}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(train and dev, test) of documents with five classes."""
    root = tmp_path_factory.mktemp("tiny")
    data = dataset(documents({"train": 60, "dev": 20, "test": 30}))
    encoded = encode.encode(data, Encode(), root)
    return encoded, encode.encode_test(data, encoded.folder, root)


SET = [
    (["mapping=sparsehourglass", "mapping.q=10"], "q", 10),
    (["mapping=sparsehourglass", "mapping.q=1.0"], "q", 1),  # the page's own value, but set
    (["mapping=sparsegen_lin", "mapping.lam=-1"], "lam", -1),
    (["mapping=custom", "mapping.name=sparsehourglass", "+mapping.q=3"], "q", 3),
    (["mapping={q: 3}", "mapping=sparsehourglass"], "q", 3),
    (["mapping=sparsehourglass", "mapping.q=7", "+mapping.at.output={name: sparsehourglass, q: 3}"], "q", 3),
    (["mapping=sparsehourglass", "task.tune.parameters.sparsehourglass.q=[3]"], "q", None),
    (["mapping=sparsegen_lin"], "lam", None),
]


@pytest.mark.parametrize(("overrides", "name", "value"), SET)
def test_a_parameter_that_is_set_is_used_and_any_other_is_searched(composed, tiny, overrides, name, value):
    config = composed(["task=multilabel", *overrides, "task.tune.penalties=[0.1]", "task.fit.iterations=3"])
    choice, metrics = fitted.fit(config["task"], config["mapping"], tiny[0], seed=1)
    used = choice.output.params[name]
    if value is not None:
        assert used == value and f"selected/{name}" not in metrics
    else:
        assert used == metrics[f"selected/{name}"]
        assert parameters(config, cells)[name] == "chosen on dev"
        assert parameters(config, cells, [metrics, {"selected/other": 1.0}])[name] == f"{used:g} chosen on dev"


@pytest.mark.parametrize(("mapping", "loss"), PAIRS)
def test_a_kept_model_scores_as_before(tiny, tmp_path, mapping, loss):
    encoded, test = tiny
    choice, _ = fitted.fit(task(loss=loss), {"name": mapping}, encoded, seed=1)
    fitted.save(choice, tmp_path)
    again = fitted.load(tmp_path)
    np.testing.assert_array_equal(again.model.weights, choice.model.weights)
    assert again.output == choice.output and again.threshold == choice.threshold
    first, second = fitted.score(choice, test, "other", keep=3), fitted.score(again, test, "other", keep=3)
    assert first.metrics == second.metrics and first.predictions == second.predictions
    assert len(first.predictions) == len(test.splits["test"].labels) > 3, "F1 is recorded for each document"
    assert ["references" in record for record in first.predictions[:4]] == [True, True, True, False]
    assert all(name.startswith("other/") for name in first.metrics)
    if loss == "huber":  # without dev, the seed draws the parts of the cross validation
        encoded = encode.encode(dataset(documents({"train": 60, "test": 30}), "nodev"), Encode(), tmp_path / "nodev")
        a, b, c = (fitted.fit(task(loss=loss), {"name": mapping}, encoded, s)[1]["dev/f1"] for s in (1, 1, 2))
        assert a == b != c


def test_a_test_set_has_the_same_classes_and_the_constant_prediction_is_the_best_one_on_train(tiny, tmp_path):
    encoded, test = tiny
    encode.keep_encoding(encoded.folder, tmp_path)
    kept = encode.open_encoded(tmp_path)
    assert not kept.splits and kept.labels == LABELS
    other = Labelled(np.zeros((2, 3)), np.ones((2, 5), bool))
    for documents_, labels in ((test.splits["test"], [*LABELS[:4], "x"]), (other, LABELS)):
        with pytest.raises(DataError, match="not a test set for this model"):
            encode.encode_test(dataset({"test": documents_}, f"{labels[-1]}", labels), encoded.folder, tmp_path)
    found = fitted.baselines(kept, test)["constant"]
    train, true = encoded.splits["train"].labels, test.splits["test"].labels
    best = {"train": -1.0}
    for mask in range(1, 32):  # all sets of labels, not the most frequent ones alone
        guess = np.array([bool(mask >> i & 1) for i in range(5)])
        f1 = [2 * (y & guess).sum() / (y.sum() + guess.sum() * len(y)) for y in (train, true)]
        if f1[0] > best["train"]:
            best = {"train": f1[0], "test": f1[1], "labels": guess.sum()}
    assert found["test/f1"] == pytest.approx(best["test"]) and found["test/labels"] == best["labels"]
