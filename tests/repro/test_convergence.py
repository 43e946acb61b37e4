"""Converged: the best epoch is not the last, or the last gain of the selected score is below its noise.

A row still learns if its mean curve is shown to rise; more seeds make that surer, not likelier.
"""

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from repro.convergence import CONVERGED, LEARNING, UNKNOWN, Convergence, judge, noise, of, read_curves, together
from repro.protocol import Metric
from repro.tables.blocks import Row
from repro.tables.findings import doubt, learning

ACCURACY = Metric("accuracy", "%", 1, 1, 1.0, "", "mean")
LOSS = replace(ACCURACY, name="loss", unit="nats", better=-1, decimals=3)
KNOWN = {"accuracy": ACCURACY, "loss": LOSS, "best_epoch": replace(ACCURACY, name="best_epoch", better=0)}


@pytest.mark.parametrize(
    "scores, state, why",
    [
        ([60.0, 70.0, 69.0], CONVERGED, "best epoch 2 of 3"),
        ([60.0, 70.0, 71.0], LEARNING, "best epoch 3 of 3, too few epochs to know the noise"),
        ([16.1, 33.7], UNKNOWN, "best epoch 2 of 2, fewer than 3"),
        ([16.0, 16.2, 16.0, 16.1, 33.7], LEARNING, "last gain 17.50 not below noise 2.72"),
        ([60.0, 70.0, 69.6, 69.9, 69.5, 70.1], CONVERGED, "last gain 0.10 below noise 0.35"),
        ([60.0, 68.0, 72.0, 74.0, 75.0], LEARNING, "last gain 1.00 not below noise 0.35"),  # smooth: it has no noise
        ([float("nan"), 70.0], UNKNOWN, "the best epoch is not recorded"),
        ([70.0], UNKNOWN, "best epoch 1 of 1, fewer than 3"),
    ],
)
def test_a_curve_says_whether_it_has_converged(scores, state, why):
    assert judge(scores, None, None, ACCURACY) == Convergence(state, why)
    lower = [-s for s in scores]
    assert judge(lower, None, None, replace(ACCURACY, better=-1)) == Convergence(state, why), "lower is better"


LOST = "the best epoch is not recorded"
NO_CURVE = [(4.0, 6, CONVERGED, "best epoch 4 of 6"), (1.0, 2, UNKNOWN, "best epoch 1 of 2, fewer than 3")]
NO_CURVE += [(6.0, 6, UNKNOWN, "best epoch 6 of 6, no curve")]
NO_CURVE += [(*lost, UNKNOWN, LOST) for lost in ((None, 6), (3.0, None), (7.0, 6), (float("nan"), 6))]


@pytest.mark.parametrize("best, epochs, state, why", NO_CURVE)
def test_without_a_curve_only_an_earlier_best_epoch_shows_it(best, epochs, state, why):
    assert judge((), best, epochs, ACCURACY) == Convergence(state, why)


def test_noise_is_the_scatter_around_any_parabola():
    rng = random.Random(1)
    curve = [60 + 3 * t - 0.01 * t * t + rng.gauss(0, 0.5) for t in range(2000)]
    assert noise(curve) == pytest.approx(0.5, rel=0.1)
    assert noise([1.0, 4.0, 9.0, 16.0, 25.0]) == 0


def cell(folder, by="accuracy", epochs=3, known=KNOWN, **more):
    """What `of` reads of a cell's results."""
    facts = {"metrics": {}, "baselines": {}, "tests": {}, "scores_by_epoch": read_curves(folder).get(f"dev/{by}", [])}
    family, config = SimpleNamespace(METRICS=known), {"train": {"max_epochs": epochs}}
    return SimpleNamespace(**facts | {"best_metric": by, "family": family, "config": config} | more)


def test_a_cell_is_judged_by_the_score_that_picks_its_epoch(tmp_path):
    """The loss rose while the accuracy rose: the accuracy was asked for, and it was still rising."""
    (tmp_path / "curves.csv").write_text("epoch,dev/loss,dev/accuracy\n1,1.0,16.1\n2,1.2,33.7\n3,1.3,40.1\n")
    best = {"best_epoch": 3.0}
    assert of(cell(tmp_path, metrics=best)).state == LEARNING
    assert of(cell(tmp_path, "loss", metrics=best)) == Convergence(CONVERGED, "best epoch 1 of 3")
    assert of(cell(tmp_path, "bleu", metrics=best)).state == UNKNOWN
    assert of(cell(tmp_path / "none", metrics=best)) == Convergence(UNKNOWN, "best epoch 3 of 3, no curve")
    bare = of(cell(tmp_path, "None", None))
    assert bare.state == UNKNOWN and not bare.converged
    assert of(cell(tmp_path, known={})) == Convergence("") and Convergence("").converged, "a fit without epochs"


@pytest.mark.parametrize(
    ("system", "score", "chance", "n", "by", "state"),
    [
        ("majority", 49.0, 50.0, 1000, "accuracy", UNKNOWN), ("majority", 53.1, 50.0, 1000, "accuracy", UNKNOWN),
        ("majority", 53.2, 50.0, 1000, "accuracy", CONVERGED),  # two standard errors are 3.16
        ("constant", 53.1, 50.0, None, "accuracy", CONVERGED), ("most frequent answer", 50.0, 50.0, None, "accuracy", UNKNOWN),
        ("bag of words", 49.0, 50.0, 1000, "accuracy", CONVERGED),  # which has learned
        ("constant", 1.0, 0.9, 1000, "loss", UNKNOWN), ("constant", 0.8, 0.9, 1000, "loss", CONVERGED),
    ],
)  # fmt: skip
def test_of_a_model_at_chance_it_is_not_known(tmp_path, system, score, chance, n, by, state):
    trivial, tests = {f"test/{by}": chance, "test/text": "always x"}, {"test": {"sizes": {"test": n}}} if n else {}
    facts = {"metrics": {f"test/{by}": score}, "baselines": {system: trivial}, "tests": tests}
    found = of(cell(tmp_path, by, scores_by_epoch=[2.0, 1.0, 2.0], **facts))
    assert found.state == state and ("no better than a constant answer" in found.text) is (state == UNKNOWN)
    assert found.text.startswith("yes" if state == CONVERGED else "not known")


def test_a_row_has_converged_when_all_its_cells_have():
    done, more = Convergence(CONVERGED, "best epoch 4 of 6"), Convergence(LEARNING, "x")
    lost = Convergence(UNKNOWN, "y")
    assert together([done, done]) == done and together([done, more]) == more and together([more, lost, done]) == lost
    assert together([done, Convergence(CONVERGED, "best epoch 5 of 6")]).why == "best epoch 4, 5 of 6"
    assert together([more, Convergence(LEARNING, "z")]).why == "e.g. x"
    assert together([Convergence("")]).converged and not together([]).converged


RISING, REST = [40.0, 41.0, 42.0, 43.0, 44.0], [40.0, 43.0, 44.0, 44.1, 43.9]
SPREAD, FALLING = [[c + s / 9 for c in RISING] for s in range(3)], [[-v * s for v in RISING] for s in (1, 1.1, 1)]
LEARNS = [([RISING] * 3, 1), (SPREAD, 1), (FALLING, -1), ([RISING], 1)]
RESTS = [([REST] * 3, 1), ([RISING] * 3, -1), ([REST, REST, RISING], 1)]


@pytest.mark.parametrize("curves, sign, learns", [*((*one, True) for one in LEARNS), *((*one, False) for one in RESTS)])
def test_a_row_still_learns_if_its_mean_curve_is_shown_to_rise(curves, sign, learns):
    assert learning(curves, sign) is learns


def test_a_row_that_has_converged_is_rarely_doubted_and_one_that_learns_is_found():
    rng = np.random.RandomState(0)

    def doubted(slope, seeds):
        noise = rng.normal(0, 0.1, (500, seeds, 6)) + slope * np.arange(6)
        return np.mean([learning(curves.tolist(), 1) for curves in noise])

    assert doubted(0.0, 3) < 0.05 and doubted(0.0, 9) < 0.05, "more seeds do not make it worse"
    assert doubted(0.3, 3) > 0.6 and doubted(0.3, 9) > 0.99


def test_what_a_claim_may_doubt(tmp_path):
    (tmp_path / "curves.csv").write_text("epoch,dev/loss,dev/accuracy\n1,3.0,16.1\n2,1.2,33.7\n3,1.3,40.1\n")

    def doubted(state, by, folder=tmp_path):
        return doubt(Row("", "", [], [], [], [cell(folder, by)] * 2, convergence=state))

    judged, none = Convergence(CONVERGED, "best epoch 2 of 3"), tmp_path / "none"
    assert doubted(judged, "accuracy") == LEARNING, "the curve of the score that picks the epoch decides"
    assert doubted(Convergence(LEARNING), "loss") == LEARNING, "a loss that falls"
    assert doubted(judged, "loss", none) == doubted(Convergence(""), "loss", none) == "", "one without epochs"
    for state in (LEARNING, UNKNOWN):
        assert doubted(Convergence(state), "loss", none) == state, "no curve"
    assert doubted(Convergence(UNKNOWN, "no better than a constant answer"), "accuracy") == UNKNOWN
