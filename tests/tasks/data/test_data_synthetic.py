"""The generator against scikit-learn's own and against the laws of the paper's three settings; Mulan's files."""

import numpy as np
import pytest
from made_mirror import LABELS
from mirror_stand_in import write_wheels
from scipy import stats
from sklearn.datasets import make_multilabel_classification

from tasks.data import NullProgress, load_manifest, problems
from tasks.data.sets import features, synthetic


def test_probabilities_are_scikit_learns_and_draws_without_replacement_successive():
    sizes = {"n_samples": 3, "n_features": 7, "n_classes": 5, "n_labels": 2}
    *_, p_c, p_w_c = make_multilabel_classification(**sizes, random_state=4, return_distributions=True)
    ours = synthetic.distributions(5, 7, 4)
    np.testing.assert_array_equal(ours[0], p_c)
    np.testing.assert_array_equal(ours[1], p_w_c)
    # P(first two classes = {a, b}) = p_a p_b / (1 - p_a) + p_b p_a / (1 - p_b): drawing one after the other
    p = np.array([0.5, 0.3, 0.2])
    _, labels = synthetic.documents(np.full(40_000, 2), 1, p, np.full((2, 3), 0.5), np.random.default_rng(3))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        expected = p[a] * p[b] * (1 / (1 - p[a]) + 1 / (1 - p[b]))
        assert (labels[:, a] & labels[:, b]).mean() == pytest.approx(expected, abs=0.01)


LABELS_OF = [("mean_labels", 2, {1, 2, 3}), ("mean_labels", 9, {8, 9, 10})]
LABELS_OF += [("label_range", 0, {5}), ("label_range", 4, set(range(1, 10)))]


@pytest.mark.parametrize(("setting", "value", "allowed"), LABELS_OF)
def test_numbers_of_labels_are_uniform_on_the_papers_set(setting, value, allowed):
    drawn = synthetic.label_counts(setting, value, 9000, 10, np.random.default_rng(0))
    found, counts = np.unique(drawn, return_counts=True)
    assert set(found) == allowed
    assert len(found) == 1 or stats.chisquare(counts).pvalue > 1e-3


def test_poisson_numbers_of_labels_are_conditioned_on_the_possible():
    drawn = synthetic.label_counts("length", 200, 20_000, 10, np.random.default_rng(0))
    law = stats.poisson(5).pmf(np.arange(1, 11))
    counts = np.bincount(drawn, minlength=11)
    assert counts[0] == 0 and len(counts) == 11
    assert stats.chisquare(counts[1:], 20_000 * law / law.sum()).pvalue > 1e-3


@pytest.mark.parametrize(("setting", "value", "mean"), [("length", 400, 400), ("mean_labels", 3, 2000)])
def test_words_of_a_document(setting, value, mean):
    x, _ = synthetic.generate(setting, value, {"train": 400}, 10, 6, 2000, 1)["train"]
    assert x.sum(1).mean() == pytest.approx(mean, abs=5 * np.sqrt(mean / 400))


def test_the_data_set_is_the_generator_standardised_by_train(read, opened):
    made = synthetic.generate("mean_labels", 3, {"train": 40, "dev": 10, "test": 20}, 10, 6, 50, 2)
    options = {"value": 3, "sizes": {"train": 40, "dev": 10, "test": 20}, "features": 6, "length": 50, "seed": 2}
    splits = read("synthetic", **options)
    mean, scale = made["train"][0].mean(0), made["train"][0].std(0)
    for split, (x, y) in made.items():
        np.testing.assert_allclose(splits[split].features, (x - mean) / scale)
        np.testing.assert_array_equal(splits[split].labels, y)
    assert opened("synthetic").shortfalls == ()
    assert "40 of 1,200 training documents" in opened("synthetic", **options).shortfalls
    for wrong, said in (
        ({"setting": "mean"}, "is invalid"),
        ({"value": 20}, "no number of labels within 1..10"),
        ({"setting": "length", "value": 0}, "at least 1 word"),
    ):
        assert said in problems({"name": "synthetic", **wrong})[0]
    assert not problems({"name": "synthetic", "setting": "label_range", "value": 0})


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


def test_yeast_from_a_wheel(tmp_path, monkeypatch, opened):
    write_wheels(tmp_path)
    monkeypatch.setattr(features, "verify", lambda *a, **k: None)
    monkeypatch.setattr(features, "TRAIN", 24)
    monkeypatch.setattr(features, "fetch_wheel", lambda *a, **k: tmp_path)
    found = opened("yeast_river")
    splits = found.read(NullProgress())
    for split, count in (("train", 24), ("test", 16)):
        assert splits[split].features.shape == splits[split].labels.shape == (count, 2)
        assert (splits[split].labels.sum(1) == 1).all()
    assert found.about["labels"] == ["Class1", "Class2"]
    assert load_manifest("yeast_river")["note"] in found.notes
