"""A paper's claim is supported or contradicted only if the intervals of the paired differences show it."""

from __future__ import annotations

import math
from dataclasses import replace
from fnmatch import fnmatch

import numpy as np
import pytest
from made_table import SOFTMAX, TUNED

from repro.plan.experiment import ExperimentError
from repro.tables import build as tables
from repro.tables import statistics
from repro.tables.claims import CONTRADICTED, OPEN, SUPPORTED, UNIFORM, Claim, Pilot, outcome_of, read
from tasks.config import compose

BASE = Claim("as good", "section 4", "fake", ("tuned",), "test/bleu", "equivalence", "softmax", 1.0, profile="demo")


def tried(claim, scores, error=0.0, doubts=None):
    return outcome_of(claim, scores, lambda *_: error, doubts or {}, 2)


def of_runs(claim, runs, **options):
    """The outcome for differences `runs`, one per seed, in column `a`."""
    seeds = range(len(runs))
    return tried(claim, {"a": {"softmax": dict.fromkeys(seeds, 0.0), "tuned": dict(zip(seeds, runs))}}, **options)


@pytest.mark.parametrize(
    "kind, margin, runs, word",
    [
        ("equivalence", 1.0, (0.2, -0.1, 0.1), SUPPORTED), ("equivalence", 1.0, (0.2, -2.0, 2.0), OPEN),
        ("equivalence", 1.0, (2.0, 2.1, 1.9), CONTRADICTED), ("equivalence", 1.0, (-2.0, -2.1, -1.9), CONTRADICTED),
        ("noninferiority", 1.0, (-0.2, 0.1, -0.1), SUPPORTED), ("noninferiority", 1.0, (5.0, 5.1, 5.2), SUPPORTED),
        ("noninferiority", 1.0, (-2.0, -2.1, -1.9), CONTRADICTED), ("noninferiority", 1.0, (-1.1, -0.9, -1.0), OPEN),
        ("superiority", 0.1, (0.2, 0.3, 0.25), SUPPORTED), ("superiority", 0.1, (0.2, -0.3, 0.25), OPEN),
        ("superiority", 0.5, (-0.2, -0.3, -0.25), CONTRADICTED), ("superiority", 0.5, (0.01, -0.01, 0.0), CONTRADICTED),
        ("superiority", 0.5, (0.1, 0.11, 0.09), OPEN), ("superiority", 1.0, (9.0, 9.1), OPEN), ("superiority", 1.0, (9.0,), OPEN), ("superiority", 1.0, (), OPEN),
        ("superiority", 1.0, (0.2, float("nan")), OPEN), ("superiority", 1.0, (0.2, 0.2, 0.2), OPEN),
    ],
)  # fmt: skip
def test_outcomes(kind, margin, runs, word):
    claim = replace(BASE, test=kind, margin=margin)
    assert of_runs(claim, runs).outcome == word
    assert of_runs(replace(claim, direction="lower"), [-r for r in runs]).outcome == word, "the mirror image"


def test_without_an_error_of_the_examples_the_interval_is_that_of_a_paired_t_test():
    from scipy import stats as reference

    a, b = [30.0, 31.0, 29.5, 30.5], [30.4, 31.1, 30.2, 30.6]
    found = of_runs(replace(BASE, test="superiority"), [y - x for x, y in zip(a, b)])
    low, high = reference.ttest_rel(b, a).confidence_interval(0.95)
    part = found.part
    assert (part.low, part.high, part.n) == (pytest.approx(low), pytest.approx(high), 4)
    assert part.text(2) == f"{found.outcome} (+0.33 [-0.13, +0.78], n = 4)"


def test_the_sampling_of_examples_widens_the_interval_and_can_undo_a_decision():
    runs = (0.2, 0.3, 0.25)
    claim = replace(BASE, test="superiority", margin=0.1)
    assert of_runs(claim, runs).outcome == SUPPORTED and of_runs(claim, runs, error=0.2).outcome == OPEN
    # far more error from the examples than from the seeds: the normal distribution
    part = of_runs(claim, runs, error=0.2).part
    assert part.high - part.low == pytest.approx(2 * 1.96 * math.sqrt(0.2**2 + 0.05**2 / 3), rel=0.01)


def test_coverage_of_the_interval_with_both_sources_of_variation():
    rng, hits = np.random.RandomState(0), 0
    for _ in range(2000):
        of_examples = rng.normal(0, 0.5)
        low, high = statistics.mean_of(list(of_examples + rng.normal(0, 1.0, 4)), 0.5).interval(0.95)
        hits += low < 0 < high
    assert 0.935 < hits / 2000 < 0.985, hits


def test_power_is_the_share_of_simulated_experiments_that_support_the_claim():
    rng = np.random.RandomState(0)
    for kind, true, claim in (("equivalence", 0.0, BASE), ("superiority", 1.0, replace(BASE, test="superiority"))):
        won = sum(
            of_runs(claim, list(true + rng.normal(0, 0.3) + rng.normal(0, 0.6, 4)), error=0.3).outcome == SUPPORTED
            for _ in range(600)
        )
        assert claim.power(4, Pilot(0.6, 0.3)) == pytest.approx(won / 600, abs=0.06), kind
    assert BASE.power(30, Pilot(0.6, 0.3)) > 0.85 and BASE.power(30, Pilot(0.6, 2.0)) < 0.1


def test_an_outcome_names_what_it_lacks_the_power_and_the_seeds_that_would_decide():
    claim = replace(BASE, pilot=Pilot(0.6, 0.1))
    found = of_runs(claim, (0.9, -0.3))
    assert found.outcome == OPEN and found.power == round(claim.power(2, claim.pilot), 2)
    assert claim.power(found.needed, claim.pilot) >= 0.8 > claim.power(found.needed - 1, claim.pilot)
    assert of_runs(replace(BASE, pilot=Pilot(0.6, 5.0)), (0.9, -0.3)).needed is None
    assert of_runs(BASE, (0.9, -0.3)).power is None
    found = of_runs(replace(BASE, test="superiority", margin=0.5), (0.1, 0.11, 0.09))
    assert (found.outcome, found.part.why) == (OPEN, "better by less than the margin")


def test_differences_are_paired_by_seed_and_pooled_over_columns():
    scores = {
        "a": {"softmax": {1: 1.0, 2: 2.0, 3: 9.0}, "tuned": {2: 2.5, 1: 1.2}},
        "b": {"softmax": {1: 1.0, 2: 1.0}, "tuned": {1: 2.0, 2: 1.5}, "other": {1: 0.0}},
    }
    assert [p.column for p in tried(BASE, scores).parts] == ["a", "b"]
    assert tried(BASE, scores).parts[0].differences == pytest.approx({1: 0.2, 2: 0.5})
    assert [p.column for p in tried(replace(BASE, columns=("b*",)), scores).parts] == ["b"]
    (pooled,) = tried(replace(BASE, pooled=True), scores, error=0.1).parts
    assert (pooled.effect, pooled.n) == (pytest.approx(((0.2 + 1.0) / 2 + (0.5 + 0.5) / 2) / 2), 2)
    assert pooled.columns == pytest.approx({"a": 0.35, "b": 0.75})
    three = {c: {"softmax": dict.fromkeys((1, 2, 3), 0.0), "tuned": {1: 0.1, 2: 0.3, 3: 0.2}} for c in "ab"}
    errors = {("a", "test/bleu", "tuned", "softmax"): 0.3, ("b", "test/bleu", "tuned", "softmax"): 0.4}
    (part,) = outcome_of(replace(BASE, pooled=True), three, lambda *of: errors[of], {}, 2).parts
    expected = statistics.mean_of((0.1, 0.3, 0.2), 0.25).interval(0.95)  # of a mean of two: sqrt(.3^2 + .4^2) / 2
    assert (part.low, part.high) == pytest.approx(expected)
    nothing = tried(replace(BASE, columns=("c*",)), scores)
    assert (nothing.outcome, nothing.parts, nothing.part.why, nothing.part.n) == (OPEN, (), "no finished cells", 0)


def test_what_a_claim_names_and_nobody_ran_leaves_it_open():
    near = dict(enumerate((0.1, 0.0, -0.1, 0.05)))
    scores = {"a": {"softmax": dict.fromkeys(near, 0.0), "tuned": near}}
    assert tried(BASE, scores).outcome == SUPPORTED
    for claim in (replace(BASE, rows=("tuned", "nobody")), replace(BASE, columns=("a", "b"))):
        found = tried(claim, scores)
        assert (found.outcome, found.part.why, len(found.parts)) == (OPEN, "no pair of seeds", 2)
    far = {"a": scores["a"] | {"other": {s: 3 + v for s, v in near.items()}}}
    assert tried(replace(BASE, rows=("other", "nobody")), far).outcome == CONTRADICTED, "one row is enough for that"


def test_rows_are_compared_with_a_number_and_as_ratios():
    scores = {"a": {"softmax": {1: 10.0, 2: 20.0, 3: 40.0}, "tuned": {1: 11.0, 2: 21.6, 3: 43.6}}}
    few = replace(BASE, against="", value=100.0, test="superiority", direction="lower", margin=1.0)
    found = tried(few, scores, error=5.0)
    assert found.outcome == SUPPORTED and found.part.differences == pytest.approx({1: -89.0, 2: -78.4, 3: -56.4})
    assert tried(replace(few, value=20.0), scores).outcome == OPEN
    ratio = replace(BASE, ratio=True, test="noninferiority", direction="lower", margin=25.0)
    percent = {s: 100 * math.log(scores["a"]["tuned"][s] / scores["a"]["softmax"][s]) for s in (1, 2, 3)}
    found = tried(ratio, scores, error=5.0)
    assert found.outcome == SUPPORTED and found.part.differences == pytest.approx(percent)
    assert tried(replace(ratio, margin=9.0), scores).outcome == OPEN


def test_cost_and_sparsity_do_not_wait_for_convergence_and_worth_is_measured_in_its_own_score():
    runs = (0.2, -0.1, 0.1)
    doubts = {"a": {"tuned": "still learning"}}
    assert of_runs(BASE, runs, doubts=doubts).outcome == OPEN
    assert of_runs(replace(BASE, convergence=False), runs, doubts=doubts).outcome == SUPPORTED
    seeds = range(3)
    scores = {"a": {"softmax": dict.fromkeys(seeds, 0.5), "tuned": {s: 0.5 + r for s, r in zip(seeds, runs)}}}
    claim = replace(BASE, direction="lower", worth=3.0, worth_metric="test/accuracy")
    for uniform, word in ((60.0, SUPPORTED), (68.0, OPEN)):
        worth = {"a": {"softmax": {0: 70.0}, UNIFORM: {0: uniform}}}
        assert outcome_of(claim, scores, lambda *_: 0.0, {}, 2, worth).outcome == word


def test_a_claim_about_several_rows_holds_for_each_or_not_at_all():
    seeds = range(4)
    runs = ((0.1, 0.0, -0.1, 0.05), (3.0, 3.1, 2.9, 3.0), (3.0, -3.0, 1.0, -1.0))
    near, far, wide = (dict(zip(seeds, of_seeds)) for of_seeds in runs)
    claim = replace(BASE, rows=("near", "other"))

    def both(other):
        return tried(claim, {"a": {"softmax": dict.fromkeys(seeds, 0.0), "near": near, "other": other}})

    assert both(near).outcome == SUPPORTED
    assert (both(far).outcome, both(far).part.row) == (CONTRADICTED, "other")
    assert (both(wide).outcome, both(wide).part.row) == (OPEN, "other")
    # to contradict one of two comparisons takes 2.5 %: t = 3.1 with 3 degrees of freedom has p = .027
    edge = {s: 1.1 + v for s, v in zip(seeds, (0.0, 0.2, 0.4, 0.6))}
    alone = {"a": {"softmax": dict.fromkeys(seeds, 0.0), "other": edge}}
    assert tried(replace(BASE, rows=("other",)), alone).outcome == CONTRADICTED
    assert both(edge).outcome == OPEN


def test_a_trend_is_page_s_test():
    rows = [f"r{i}" for i in range(4)]
    up = {r: {s: i + s * i / 30 for s in (1, 2, 3)} for i, r in enumerate(rows)}
    claim = replace(BASE, test="trend", rows=tuple(rows), against="")
    found = tried(claim, {"a": up})
    assert found.outcome == SUPPORTED and found.part.row == "r0 < r1 < r2 < r3"
    assert found.part.effect == pytest.approx(3.2)
    assert tried(replace(claim, direction="lower"), {"a": up}).outcome == CONTRADICTED
    mixed = up | {"r1": up["r2"], "r2": {s: v + (-1) ** s for s, v in up["r1"].items()}, "r3": {1: 1.0, 2: 4.0, 3: 0.5}}
    assert tried(claim, {"a": mixed}).outcome == OPEN
    assert tried(replace(claim, rows=tuple(rows[:3])), {"a": up}).outcome == SUPPORTED, "three rows are enough"
    one = tried(claim, {"a": up | {"r1": {1: up["r1"][1]}}})  # p = 1 / 24 of a single block
    assert (one.outcome, one.part.n) == (OPEN, 3), "one seed in common to all rows"


def test_a_setting_in_which_attention_is_worth_little_decides_nothing():
    seeds = (1, 2, 3)
    rows = {"softmax": dict.fromkeys(seeds, 30.0), "tuned": dict(zip(seeds, (30.1, 29.9, 30.2)))}
    claim = replace(BASE, worth=3.0)
    assert "no row of uniform attention" in tried(claim, {"a": rows}).part.why
    little = tried(claim, {"a": rows | {UNIFORM: dict.fromkeys(seeds, 28.0)}})
    assert (little.outcome, little.part.why) == (OPEN, "attention is worth 2.0 here, less than 3")
    assert tried(claim, {"a": rows | {UNIFORM: dict.fromkeys(seeds, 27.0)}}).outcome == SUPPORTED
    # of the seeds that both rows have: 30 - 28 for seed 2, though the means are 5 apart
    apart = {"softmax": {1: 36.0, 2: 30.0}, "tuned": {1: 36.0, 2: 30.2}, UNIFORM: {2: 28.0}}
    assert tried(claim, {"a": apart}).part.why == "attention is worth 2.0 here, less than 3"
    # the reference was not run: that is why, not the uniform row
    assert tried(claim, {"a": {"tuned": rows["tuned"], UNIFORM: {1: 28.0}}}).part.why == "no pair of seeds"


def test_a_table_shows_its_claims(made):
    # tuned minus softmax: 3, 4 and 3.2 with the three seeds
    claim = replace(BASE, test="superiority")
    third = {(0, None, 3): (61.0, 30.0), (1, 0.0, 3): (50.0, 30.0), (1, 0.5, 3): (66.0, 33.2)}

    def told(*claims, **options):
        built = tables.build(*made(SOFTMAX | TUNED | third, **options), claims=claims)
        assert [o.claim for o in built.claims] == [c for c in claims if (c.experiment, c.profile) == ("fake", "demo")]
        return built.tested

    (line,) = told(claim)
    assert line.startswith(
        "Claim supported: “as good” (section 4; test/bleu against softmax, higher). tuned: +3.40 [+2.09, +4.71], n = 3."
    )
    (line,) = told(claim, best={0: 3.0})
    assert line.endswith("n = 3; convergence not known."), "softmax may still have been learning"
    assert told(replace(claim, experiment="another"), replace(claim, profile="cpu")) == []


@pytest.mark.parametrize(
    "change, said",
    [
        ({"tset": "trend"}, r"claim 1\.tset is unknown \(did you mean 'test'\?\)"), ({"rows": []}, "rows must be given"),
        ({"test": "equality"}, "allowed: equivalence, noninferiority, superiority, trend"),
        ({"direction": "up"}, "allowed: higher, lower"), ({"margin": 0}, "must be above 0"), ({"against": ""}, "needs either the row"),
        ({"value": 100.0}, "either the row"), ({"pilot": {"seed": 1.0}}, r"pilot\.seed is unknown"),
    ],
)  # fmt: skip
def test_a_file_with_errors_is_refused(change, said):
    one = {"claim": "c", "place": "p", "experiment": "e", "rows": ["r"], "metric": "m"}
    one |= {"test": "equivalence", "margin": 1.0, "against": "x"}
    assert read({"claims": [one]}, "page") == [Claim("c", "p", "e", ("r",), "m", "equivalence", "x", 1.0, paper="page")]
    with pytest.raises(ExperimentError, match=said):
        read({"claims": [one | change]}, "page")


@pytest.mark.parametrize("paper", compose.names_in("claims"))
def test_the_shipped_claims_name_rows_columns_and_metrics_that_exist(paper):
    for claim in compose.claims(paper):
        page = compose.page("experiment", claim.experiment)
        labels = {row["label"] for row in page["rows"]}
        assert {*claim.rows, claim.against} - {""} <= labels and page.get("paper", paper) == paper
        assert all(any(fnmatch(key, pattern) for key in page["columns"]) for pattern in claim.columns)
        shown = {s["metric"] for column in page["columns"].values() for s in column["show"]}
        assert {claim.metric, claim.worth_metric} - {""} <= shown
        assert claim.profile in page["profiles"]
    assert compose.claims("nobody1999") == []
