"""Spread and significance against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sparse_attention.repro.stats import Summary, paired_randomization, summarize


def exact(a, b) -> float:
    return stats.permutation_test(
        (np.asarray(a), np.asarray(b)), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples",
        vectorized=True, n_resamples=np.inf,
    ).pvalue  # fmt: skip


@pytest.mark.parametrize("shift", [0.0, 0.4, 0.8, 1.5])
@pytest.mark.parametrize("ties", [False, True])
def test_p_value_agrees_with_the_exact_test(shift, ties):
    rng = np.random.default_rng(int(10 * shift))
    a, b = rng.normal(shift, 1.0, 11), rng.normal(0.0, 1.0, 11)
    if ties:
        a, b = a.round(), b.round()
        a[:4] = b[:4]
    trials = 20_000
    theirs, mine = exact(a, b), paired_randomization(a, b, trials=trials)
    error = 4 * math.sqrt(theirs * (1 - theirs) / trials) + 1 / trials
    assert abs(mine - theirs) <= error
    assert paired_randomization(b, a, trials=trials) == pytest.approx(mine, abs=2 * error)


def test_p_value_at_the_ends():
    assert paired_randomization([1, 2, 3], [1, 2, 3]) == 1.0
    assert paired_randomization([], []) == 1.0
    assert paired_randomization(range(100, 200), range(100), trials=500) == pytest.approx(1 / 501)
    assert paired_randomization([1.0], [0.0], trials=500) == 1.0  # a single pair can show nothing


def test_p_value_is_reproducible_and_depends_on_the_pairs():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0.3, 1, 40).tolist(), rng.normal(0, 1, 40).tolist()
    assert paired_randomization(a, b) == paired_randomization(a, b)
    assert paired_randomization(a, b) != paired_randomization(a, b[::-1])


def test_false_alarms_are_as_rare_as_promised():
    rng = np.random.default_rng(2)
    draws = [paired_randomization(rng.normal(size=20), rng.normal(size=20), trials=199) for _ in range(400)]
    share = np.mean(np.array(draws) < 0.05)
    assert 0.01 < share < 0.09  # 400 draws at 5 %: standard error 1.1 %


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="3 and 2"):
        paired_randomization([1, 2, 3], [1, 2])


def test_summary_is_mean_and_sample_deviation():
    values = [27.1, 26.4, 28.0]
    found = summarize(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.std == pytest.approx(np.std(values, ddof=1))
    assert found.n == 3
    assert found.text() == "27.17 ±0.80" and found.text(1) == "27.2 ±0.8"


def test_one_run_has_no_spread():
    assert summarize([3.14159]) == Summary(3.14159, None, 1)
    assert summarize([3.14159]).text() == "3.14"
    with pytest.raises(ValueError, match="no values"):
        summarize([])
