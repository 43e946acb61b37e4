"""Two rows are compared on the seeds and the test examples that both have: against scipy, sacrebleu and sums by hand."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from repro.files import write_json
from repro.identity import Results
from repro.protocol import Metric
from repro.statistics import corpus_bleu
from repro.tables import paired
from repro.tables.blocks import Row

SCORE, BLEU = (Metric(name, "points", 1, 2, None, "", test) for name, test in (("score", "mean"), ("bleu", "bleu")))
# seed -> index of a test example -> its value, in a row and in another
OURS = {1: {0: 1.0, 1: 2.0, 2: 4.0, 9: 8.0}, 2: {0: 3.0, 1: 2.5, 2: 0.0, 9: 5.0}, 4: {0: 9.0, 1: 9.0, 2: 2.0, 9: 1.0}}
THEIRS = {1: {0: 0.5, 1: 2.5, 2: 1.0, 7: 6.0}, 2: {0: 2.0, 1: 1.0, 2: 0.5, 7: 1.0}, 3: {0: 5.0, 1: 0.0, 2: 7.0, 7: 0.0}}


@pytest.fixture
def row(store):
    """`row(examples)`: a row whose score is the mean of its examples, or `scores`: seed -> score."""
    folders = itertools.count()

    def make(examples, scores=None, key="score", full="test/score"):
        found = []
        for seed, values in examples.items():
            level = store.entry("toy", "softmax", f"{next(folders)}").evaluation("e")
            level.write_predictions({"index": i, "sentence": {key: v}} for i, v in values.items())
            write_json(level.path("metrics.json"), {"metrics": {"a": 1.0}})
            level.finish()
            score = np.mean([*values.values()]) if scores is None else scores.get(seed)
            metrics = {} if score is None else {full: score}
            found.append(Results("", Path(), metrics, {}, {}, {}, {}, {}, 1.0, {"test": level}, "", {"seed": seed}))
        return Row("", "", [], [], [], found)

    return make


def whole(ours, theirs, seeds, metric=SCORE, full="test/score"):
    return paired.noise(ours, theirs, full, metric, seeds, seeds, True).whole


def values(examples, seeds=(1, 2), indices=(0, 1, 2)):
    return np.array([[examples[s][i] for i in indices] for s in seeds])


@pytest.mark.parametrize("unit", [1, 100], ids=["unit of the score", "shares of a score in per cent"])
def test_a_difference_is_of_the_seeds_and_examples_that_both_have(row, unit):
    shares = [{s: {i: v / unit for i, v in of.items()} for s, of in rows.items()} for rows in (OURS, THEIRS)]
    scores = [{s: np.mean([*of.values()]) for s, of in rows.items()} for rows in (OURS, THEIRS)]
    ours, theirs = map(row, shares, scores)
    error = stats.sem((values(OURS) - values(THEIRS)).mean(0))
    assert whole(ours, theirs, (1, 2)) == pytest.approx(error)
    unpaired = paired.noise(ours, theirs, "test/score", SCORE, (1, 2), (1, 2), False)
    assert unpaired.whole == pytest.approx(error), "the values of an example vary together, paired or not"
    found = paired.difference(ours, theirs, "test/score", SCORE, True)
    differences = [scores[0][s] - scores[1][s] for s in (1, 2)]
    assert found.values == pytest.approx(differences) and found.mean == pytest.approx(np.mean(differences))
    gaps = np.cov(values(OURS) - values(THEIRS)) / 3  # over examples, [seeds, seeds]: what both seeds share is counted
    assert found.error == pytest.approx(math.sqrt(stats.sem(differences) ** 2 + max(gaps[0, 1], 0)))
    assert found.example_error == pytest.approx(error)
    apart = paired.difference(ours, theirs, "test/score", replace(SCORE, test=None), False)
    every = [[*of.values()] for of in scores]
    assert apart.interval() == pytest.approx(stats.ttest_ind(*every, equal_var=False).confidence_interval(0.95))
    runs = [[of[s] for s in (1, 2)] for of in scores]
    same = paired.difference(ours, theirs, "test/score", replace(SCORE, test=None), True)
    assert same.p == pytest.approx(stats.ttest_rel(*runs).pvalue)


def test_a_seed_without_the_score_counts_in_no_part(row):
    scores = {1: 3.0, 2: 4.0}
    three = {**OURS, 3: OURS[4]}
    ours, theirs = row(three, scores), row(THEIRS, {**scores, 3: 9.0})
    expected = stats.sem((values(OURS) - values(THEIRS)).mean(0))
    assert whole(ours, theirs, (1, 2)) == pytest.approx(expected)
    expected = stats.sem(values(OURS, indices=[*OURS[1]]).mean(0))
    assert paired.value(ours.results, "test/score", SCORE).error == pytest.approx(expected)


def test_without_common_seeds_or_examples_nothing_is_compared(row):
    ours, elsewhere = row({1: OURS[1], 2: OURS[2]}), row({1: {7: 1.0, 8: 2.0}, 2: {7: 1.5, 8: 0.0}})
    assert whole(ours, elsewhere, (1, 2)) == 0
    assert paired.difference(ours, elsewhere, "test/score", SCORE, True).example_error == 0
    for same in (True, False):
        assert paired.difference(row({1: OURS[1]}), row({1: {7: 1.0}}), "test/score", SCORE, same) is None
        assert paired.difference(row({1: OURS[1]}), row({2: OURS[2]}), "test/score", SCORE, same) is None
    assert paired.difference(ours, row({3: OURS[1], 4: OURS[2]}), "test/score", SCORE, True) is None
    ragged = row({1: OURS[1], 2: {i: v for i, v in OURS[2].items() if i < 2}})  # with seed 2, only examples 0 and 1
    of_both = stats.sem((values(OURS, indices=(0, 1)) - values(THEIRS, indices=(0, 1))).mean(0))
    assert whole(ragged, row({1: THEIRS[1], 2: THEIRS[2]}), (1, 2)) == pytest.approx(of_both)
    for shared, expected in (({0: 2.0, 5: 1.0}, 0), ({0: 2.0, 1: 1.0}, 1)):  # one example in common, and two
        assert whole(row({1: OURS[1]}), row({1: shared}), (1,)) == pytest.approx(expected)
    untested = Metric("score", "points", 1, 2, None, "", None)
    assert whole(ours, ours, (1, 2), untested) == 0


@pytest.mark.parametrize("seeds, known", [((1,), True), ((1, 2), True), ((1, 2, 4), False)])
def test_a_value_of_few_seeds_has_the_error_over_its_examples(row, seeds, known):
    one = row({s: OURS[s] for s in seeds})
    found = paired.value(one.results, "test/score", SCORE, "missing")
    expected = stats.sem(values(OURS, seeds, (0, 1, 2, 9)).mean(0)) if known else 0
    assert (found.error, found.note) == (pytest.approx(expected), "")
    assert found.runs == [np.mean([*OURS[s].values()]) for s in seeds]
    for few, expected in (({0: 2.0}, 0), ({0: 2.0, 1: 4.0}, 1)):
        assert paired.value(row({1: few}).results, "test/score", SCORE).error == expected
    nothing = paired.value(row({1: OURS[1]}, {}).results, "test/score", SCORE, "missing")
    assert (nothing.runs, nothing.error, nothing.note) == ([], 0, "missing")


def test_bleu_is_compared_as_the_mean_over_seeds_of_sacrebleu_s_score(row):
    """One seed has half of the words, so that the score of both seeds' sums is another; no order of four words is hit."""
    rng = np.random.default_rng(2)
    lengths = np.array([[6] * 8, [12] * 8])[..., None]
    totals = lengths - np.arange(4)
    hits = ([p, p / 2, p / 6, 0] for p in (0.6, 0.5))
    a, b = (np.concatenate([rng.binomial(totals, p), totals, lengths, lengths + 1], -1) for p in hits)
    scores = [corpus_bleu(rows.sum(1)) for rows in (a, b)]  # of [seeds, sentences, 10]
    each = [{s: dict(enumerate(of.tolist())) for s, of in enumerate(rows)} for rows in (a, b)]
    rows = [row(examples, dict(enumerate(of)), "bleu_statistics", "test/bleu") for examples, of in zip(each, scores)]
    drawn = rng.integers(0, 8, (600, 8))
    again = [[corpus_bleu(of[:, i].sum(1)).mean() for i in drawn] for of in (a, b)]
    error = whole(*rows, (0, 1), BLEU, "test/bleu")
    assert error == pytest.approx(np.std(np.subtract(*again)), rel=0.15)
    assert paired.value(rows[0].results, "test/bleu", BLEU).error == pytest.approx(np.std(again[0]), rel=0.15)
