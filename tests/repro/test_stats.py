"""Spread and significance against scipy."""

import itertools

import numpy as np
import pytest
from scipy import stats

from repro import statistics as st
from repro.tables.blocks import Value


def test_the_interval_of_a_mean_is_scipy_s():
    values = [27.1, 26.4, 28.0, 27.7]
    found = st.mean_of(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.mean - found.half(), found.mean + found.half()) == pytest.approx((low, high))
    assert st.brackets(found.interval(), 3) == f"[{low:.3f}, {high:.3f}]"
    assert st.brackets(found.interval(), 2, "+", 27.0) == f"[{low - 27:+.2f}, {high - 27:+.2f}]"
    wide = st.mean_of([1.0, 2.0, 12.0])
    assert wide.interval()[0] < 0 and wide.interval(within=(0, 100)) == (0, wide.interval(0.95)[1])
    cut = st.brackets(wide.interval(within=(0, 6)), 1, "+", 3.0)
    assert cut == "[-3.0, +3.0]", "the bounds of a difference are shifted with it"
    assert st.mean_of([1.0]).interval() == (1.0, 1.0) and Value("m", [1.0, 2.0]).prediction() == ""


def test_with_fewer_than_three_seeds_the_interval_is_over_test_examples():
    """Of two seeds that differ by 15, Student's t is more than four times as wide."""
    mean, error = 30.0, 2.0
    noise = st.Noise(error, error)
    found = st.mean_of([mean - 7.5, mean + 7.5], noise)
    assert found.printed == pytest.approx((mean - 1.96 * error, mean + 1.96 * error), abs=0.01)
    assert np.ptp(found.interval(0.95)) > 4 * np.ptp(found.printed)
    three = st.mean_of([mean, mean + 1, mean + 2], noise)
    assert three.printed == three.interval(0.95)
    assert st.over_examples(99.0, 2.0, (0, 100))[1] == 100 and st.over_examples(99.0, 0.0) is None
    assert st.interval((-1.0, 2.0), 3, 1) == " [-1.0, +2.0]" and st.interval(None, 1, 1) == ""
    assert st.interval((-1.0, 2.0), 2, 1) == " [-1.0, +2.0] over test examples"
    assert st.mean_of([mean], noise).certain and st.mean_of([mean, mean + 1]).printed is None


@pytest.mark.parametrize("kind", ["short output", "long output", "F1"])
def test_the_error_of_a_score_of_sums_is_a_bootstrap_s(kind):
    """The lengths of the outputs differ, so that the brevity penalty varies; four words in a row never hit."""
    rng, n = np.random.default_rng(3), 300
    length = rng.integers(5, 15, n)[:, None]
    totals = length - [0, 1, 2, 3]
    hits = rng.binomial(totals, np.array([0.6, 0.3, 0.1, 0.0]) * rng.uniform(0.5, 1.5, (n, 1)))
    reference = length + rng.integers(0, 4, (n, 1)) * (1 if kind == "short output" else -1)
    rows = (
        hits[:, [0]] * [2, 0] + totals[:, [0]] * [0, 3]
        if kind == "F1"
        else np.hstack((hits, totals, length, reference))
    )
    drawn = rng.multinomial(n, [1 / n] * n, 5000) @ rows
    scores = drawn[:, 0] / drawn[:, 1] if kind == "F1" else st.corpus_bleu(drawn)
    assert st.noise_of(rows[None].astype(float)).whole == pytest.approx(scores.std(), rel=0.04)


@pytest.mark.parametrize("paired", [False, True])
def test_the_noise_of_single_runs_over_examples_is_counted_once(paired):
    """Simulated: the printed error is that of drawing runs and examples again; adding the whole noise is too wide."""
    rng, n, examples = np.random.default_rng(11), 5, 60
    gaps, errors, old = [], [], []
    for _ in range(600):
        of_row, of_run = rng.normal(0, 1, (2, 1, examples)), rng.normal(0, 3, (2, n, examples))  # each run has its own
        runs = of_row + of_run + rng.normal(0, 0.1, (2, n, 1))
        a, b = (dict(enumerate(of)) for of in runs.mean(2))
        noise = st.noise_of(*runs, paired=paired)
        found = st.difference_of(a, b, paired, noise)
        gaps.append(found.mean)
        errors.append(found.error**2)
        old.append(found.error**2 + noise.whole**2 - noise.common**2)
    assert np.mean(errors) == pytest.approx(np.var(gaps), rel=0.15) and np.mean(old) > 1.4 * np.var(gaps)


def test_seeds_are_alike_where_an_f_test_of_them_beside_the_rows_says_so(monkeypatch):
    """test_paper_claims.py simulates what is then concluded."""
    rows = np.random.default_rng(3).normal(size=(4, 10)) * np.sqrt(0.2)
    rows += np.random.default_rng(4).normal(size=10) * np.sqrt(0.8) + np.arange(4)[:, None]
    table = [dict(enumerate(of)) for of in rows]
    uneven = [{s: v for s, v in of.items() if s % (i + 2)} for i, of in enumerate(table)]
    assert st.alike(uneven) and not st.alike([{1: 2.0}, {2: 3.0}]) and not st.alike([{1: 1.0, 2: 1.0}] * 2)
    left = rows - rows.mean(0) - rows.mean(1)[:, None] + rows.mean()
    f = np.var(rows.mean(0), ddof=1) * 4 / (np.square(left).sum() / 27)
    for close, same in ((0.99, False), (1.01, True)):  # on both sides of the test's own p-value
        monkeypatch.setattr(st, "ALIKE", stats.f.sf(f, 9, 27) * close)
        assert st.alike(table) is same


def test_the_degrees_of_freedom_are_welch_s_for_an_error_that_is_known():
    """A second sample so large that its variance is certain has the error over test examples."""
    values, other = np.array([27.1, 26.4, 28.0]), np.tile([-1.0, 1.0], 10**6) * 400
    found = st.mean_of(values.tolist(), st.Noise(9.0, float(stats.sem(other))))
    welch = stats.ttest_ind(values, other, equal_var=False).confidence_interval(0.95)
    assert found.interval(0.95) == pytest.approx(welch, rel=1e-5) and 2.1 < found.df < 50


def test_holm_s_correction_is_the_closed_test_of_bonferroni_s():
    """Marcus, Peritz & Gabriel 1976: a hypothesis is rejected when every set of hypotheses that holds it is."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        p = dict(enumerate(rng.random(5) ** 3))
        sets = [s for k in range(1, 6) for s in itertools.combinations(p, k)]
        for i, adjusted in st.holm(p).items():
            assert adjusted == pytest.approx(max(min(1.0, len(s) * min(p[j] for j in s)) for s in sets if i in s))
    assert st.holm({}) == {}
