"""Metrics, objective and selection against scikit-learn, scipy and a convex solver; a kept model and its scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from repro.options import plain, read
from repro.protocol import parameters
from tasks.cells import multilabel as cells
from tasks.data import DataError, DataSet
from tasks.data.records import Labelled
from tasks.data.sets import synthetic
from tasks.multilabel import encode, fitted
from tasks.multilabel.fitted import folds, path, select
from tasks.multilabel.metrics import jensen_shannon, micro_f1, proportions
from tasks.multilabel.models.linear import Output, fit
from tasks.multilabel.options import Encode, Solver, Task


def documents(n=60, mean=3, classes=5, seed=0, length=100):
    x, y = synthetic.generate("mean_labels", mean, {"train": n}, classes, classes, length, seed)["train"]
    return (x - x.mean(0)) / x.std(0), y


def test_micro_f1_is_scikit_learns_and_jensen_shannon_scipys_squared_distance():
    random = np.random.default_rng(0)
    predicted, true = random.random((4, 30, 6)) < 0.3, random.random((30, 6)) < 0.4
    expected = [f1_score(true, p, average="micro") for p in predicted]
    np.testing.assert_allclose(micro_f1(predicted, true), expected, rtol=1e-12)
    assert micro_f1(np.zeros((2, 3), bool), np.zeros((2, 3), bool)) == 0
    p, q = random.dirichlet(np.ones(6), 20), random.dirichlet(np.ones(6), 20)
    p[:10, :3], q[5:, 2:5] = 0, 0
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    np.testing.assert_allclose(jensen_shannon(p, q), jensenshannon(p, q, axis=1) ** 2, atol=1e-12)
    assert jensen_shannon(np.array([1.0, 0]), np.array([0, 1.0])) == pytest.approx(np.log(2))


def test_the_log_loss_is_logistic_regression():
    """With one label per document the objective is scikit-learn's multinomial logistic regression."""
    random = np.random.default_rng(0)
    x, k = random.standard_normal((80, 4)), random.integers(0, 3, 80)
    penalty = 0.05
    ours = fit(x, np.eye(3)[k], Output("softmax", {}, "log"), penalty, Solver(iterations=500, tolerance=1e-14))
    theirs = LogisticRegression(C=1 / (penalty * 80), tol=1e-10, max_iter=2000).fit(x, k)
    p = Output("softmax", {}, "log").distribution(ours.scores(x))
    np.testing.assert_allclose(p, theirs.predict_proba(x), atol=1e-5)


MEANS = [("sparsemax", {}, 2), ("sparsegen_lin", {"lam": 0.5}, 2)]
MEANS += [("sparsehourglass", {"q": 0.1}, 2), ("sparsehourglass", {"q": 10.0}, 4)]


@pytest.mark.parametrize(("mapping", "params", "mean"), MEANS)
def test_hinge_objective_against_a_convex_solver(mapping, params, mean):
    """The double sums of Eq. 7 and 8, written pair by pair, minimised by an interior-point method.

    L-BFGS stops a little early at kinks: the bound is 1 %, and 3 % where 4 of 5 labels are on: little
    else than kinks.
    """
    cvxpy = pytest.importorskip("cvxpy")
    x, y = documents(n=40, mean=mean)
    eta, penalty, k = proportions(y), 0.01, y.shape[1]
    w, b = cvxpy.Variable((x.shape[1], k)), cvxpy.Variable((1, k))
    z = x @ w + np.ones((len(x), 1)) @ b
    width = 1 - params.get("lam", 0.0)
    total = cvxpy.sum(z, axis=1)
    q = params.get("q")
    terms = []
    for i in range(k):
        for j in range(k):
            both, only = np.flatnonzero(y[:, i] & y[:, j]), np.flatnonzero(y[:, i] & ~y[:, j])
            if i != j and len(both):
                terms.append(cvxpy.sum(cvxpy.abs(z[both, i] - z[both, j])) / width)
            if len(only):
                inverse = 1.0 if q is None else (cvxpy.abs(total[only]) + k * q) / (1 + k * q)
                bound = cvxpy.multiply(eta[only, i], inverse) if q is not None else eta[only, i]
                terms.append(cvxpy.sum(cvxpy.pos(bound - (z[only, i] - z[only, j]) / width)))
    problem = cvxpy.Problem(cvxpy.Minimize(sum(terms) / len(x) + penalty / 2 * cvxpy.sum_squares(w)))
    problem.solve(solver=cvxpy.CLARABEL)
    found = fit(x, eta, Output(mapping, params, "hinge"), penalty, Solver(iterations=300, tolerance=1e-9))
    assert found.objective > problem.value * (1 - 1e-5)
    assert found.objective < problem.value * (1.03 if mean == 4 else 1.01)


def test_a_start_at_zero_is_no_trap():
    """Where most labels are on, zero is a kink at which the line search fails, at the loss of a constant output.

    The optimum is .6466 by an interior-point method (Clarabel, the double sums written as in the test above).
    """
    x, y = documents(n=100, mean=9, classes=10, length=2000, seed=1)
    output, eta = Output("sparsemax", {}, "hinge"), proportions(y)
    constant = float(output.value(torch.zeros(y.shape, dtype=torch.float64), torch.as_tensor(eta)))
    assert constant == pytest.approx((~y).sum(1).mean())
    assert fit(x, eta, output, 1e-3, Solver()).objective < 0.6466 * 1.03 < 0.9 * constant


def test_cross_validation_uses_every_document_once_and_fits_again_on_all():
    train = documents(n=50, mean=2)
    parts = folds(train, 5, seed=1)
    assert sorted(map(tuple, np.concatenate([dev[0] for _, dev in parts]))) == sorted(map(tuple, train[0]))
    for (a, _), (b, _) in parts:
        assert len(a) == 40 and len(b) == 10 and not {tuple(r) for r in a} & {tuple(r) for r in b}
    grid, solver = {"penalties": [0.1, 0.001], "thresholds": [0.2], "parameters": {}}, Solver()
    choice = select(train, parts, Output("sparsemax", {}, "huber"), grid, solver)
    expected = path(train, choice.output, grid["penalties"], solver)[grid["penalties"].index(choice.penalty)]
    np.testing.assert_allclose(choice.model.weights, expected.weights)


TUNE = {"penalties": [0.1, 0.001], "thresholds": [0.1, 0.2, 0.3], "folds": 2}
TINY = {"fit": {"iterations": 20}, "tune": TUNE | {"parameters": {"sparsehourglass": {"q": [0.1, 1.0]}}}}
PAIRS = [("softmax", "log"), ("sparsemax", "huber"), ("sparsemax", "hinge"), ("sparsehourglass", "hinge")]
LABELS = [f"class {i}" for i in range(5)]


def task(**more):
    return plain(read(Task, TINY | more, "task"))


def dataset(made, name="tiny", labels=LABELS):
    about, fingerprint = {"labels": labels}, {s: f"{name} {s}" for s in made}
    return DataSet(name, "features", fingerprint, lambda progress: made, "by hand", about=about)


def splits(sizes):
    made = synthetic.generate("mean_labels", 2, sizes, 5, 6, 100, 1)
    mean, scale = made["train"][0].mean(0), made["train"][0].std(0)
    return {split: Labelled((x - mean) / scale, y) for split, (x, y) in made.items()}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(train and dev, test) of documents with five classes."""
    root = tmp_path_factory.mktemp("tiny")
    data = dataset(splits({"train": 60, "dev": 20, "test": 30}))
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
        encoded = encode.encode(dataset(splits({"train": 60, "test": 30}), "nodev"), Encode(), tmp_path / "nodev")
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
