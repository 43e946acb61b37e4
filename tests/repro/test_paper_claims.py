"""A paper's claim is supported or contradicted only where the interval of paired differences says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_table import SOFTMAX, TUNED

from repro.plan.experiment import ExperimentError
from repro.tables import build as tables
from repro.tables.claims import CONTRADICTED, OPEN, SUPPORTED, Claim, decide, differences, outcomes, read, trend
from tasks.config import compose

BASE = Claim("as good", "section 4", "fake", ("tuned",), "test/bleu", "equivalence", "softmax", 1.0)


@pytest.mark.parametrize(
    "kind, margin, runs, word",
    [
        ("equivalence", 1.0, (0.2, -0.1, 0.1), SUPPORTED), ("equivalence", 1.0, (0.2, -2.0, 2.0), OPEN),
        ("equivalence", 1.0, (2.0, 2.1, 1.9), CONTRADICTED), ("equivalence", 1.0, (-2.0, -2.1, -1.9), CONTRADICTED),
        ("noninferiority", 1.0, (-0.2, 0.1, -0.1), SUPPORTED), ("noninferiority", 1.0, (5.0, 5.1, 5.2), SUPPORTED),
        ("noninferiority", 1.0, (-2.0, -2.1, -1.9), CONTRADICTED), ("noninferiority", 1.0, (-1.1, -0.9, -1.0), OPEN),
        ("superiority", 0.0, (0.2, 0.3, 0.25), SUPPORTED), ("superiority", 0.0, (0.2, -0.3, 0.25), OPEN),
        ("superiority", 0.0, (-0.2, -0.3, -0.25), CONTRADICTED), ("superiority", 0.5, (0.2, 0.3, 0.25), CONTRADICTED),
        ("superiority", 0.0, (9.0,), OPEN), ("superiority", 0.0, (), OPEN), ("superiority", 0.0, (0.2, float("nan")), OPEN),
        ("superiority", 0.0, (0.2, 0.2, 0.2), OPEN),
    ],
)  # fmt: skip
def test_outcomes(kind, margin, runs, word):
    claim = replace(BASE, test=kind, margin=margin)
    assert decide(runs, claim).word == word
    assert decide([-r for r in runs], replace(claim, direction="lower")).word == word, (
        "the other way is the mirror image"
    )


def test_the_interval_is_that_of_a_paired_t_test():
    from scipy import stats as reference

    a, b = [30.0, 31.0, 29.5, 30.5], [30.4, 31.1, 30.2, 30.6]
    found = decide([y - x for x, y in zip(a, b)], replace(BASE, test="superiority", margin=0.0))
    low, high = reference.ttest_rel(b, a).confidence_interval(0.9)
    assert (found.low, found.high, found.n) == (pytest.approx(low), pytest.approx(high), 4)
    assert found.text(2).startswith("inconclusive (+0.33 [-0.01, +0.66], n = 4)")


def test_differences_are_paired_by_seed_and_pooled_over_columns():
    scores = {
        "a": {"softmax": {1: 1.0, 2: 2.0, 3: 9.0}, "tuned": {2: 2.5, 1: 1.2}},
        "b": {"softmax": {1: 1.0, 2: 1.0}, "tuned": {1: 2.0, 2: 1.5}, "other": {1: 0.0}},
    }
    assert differences(BASE, "tuned", scores)["a"] == pytest.approx({1: 0.2, 2: 0.5})
    assert set(outcomes(BASE, scores)) == {("tuned", "a"), ("tuned", "b")}
    assert set(outcomes(replace(BASE, columns=("b*",)), scores)) == {("tuned", "b")}
    (pooled,) = outcomes(replace(BASE, pooled=True), scores).values()
    assert (pooled.effect, pooled.n) == (pytest.approx(((0.2 + 1.0) / 2 + (0.5 + 0.5) / 2) / 2), 2)
    assert outcomes(replace(BASE, rows=("nobody",)), scores) == {}


def test_a_trend_is_page_s_test():
    up = [{s: r + s / 10 for s in (1, 2, 3)} for r in range(4)]
    assert trend(up, BASE).word == SUPPORTED and trend(up[::-1], BASE).word == CONTRADICTED
    assert trend(up, replace(BASE, direction="lower")).word == CONTRADICTED
    mixed = [up[0], up[2], up[1]]
    assert (
        trend(mixed, BASE).word == OPEN
        and trend(up[:2], BASE).word == OPEN
        and trend([{1: 0.0}] * 4, BASE).word == OPEN
    )
    claim = replace(BASE, test="trend", rows=("r0", "r1", "r2", "r3"))
    rows = {f"r{i}": r for i, r in enumerate(up)}
    (found,) = outcomes(claim, {"a": rows}).values()
    assert found.word == SUPPORTED and outcomes(claim, {"a": {"r0": {1: 1.0}}}) == {}


def test_a_table_shows_its_claims(made):
    # tuned minus softmax: 3 and 4 with the two seeds
    def told(**options):
        built = tables.build(*made(SOFTMAX | TUNED, **options), claims=[replace(BASE, test="superiority", margin=0.0)])
        return [f for f in built.footers if f.startswith("Claim")]

    assert told() == [
        "Claim: “as good” (section 4; test/bleu against softmax, higher): tuned: supported (+3.50 [+0.34, +6.66], n = 2)."
    ]
    (line,) = told(best={0: 3.0})
    assert line.endswith("tuned: inconclusive (convergence not recorded)."), "softmax may still have been learning"
    both = [replace(BASE, rows=("tuned", "softmax"), against="softmax")]
    (line,) = [
        f for f in tables.build(*made(SOFTMAX | TUNED, best={0: 3.0}), claims=both).footers if f.startswith("Claim")
    ]
    assert line.endswith(": all rows: inconclusive (convergence not recorded).")
    other = [replace(BASE, experiment="another"), replace(BASE, metric="test/nothing")]
    assert not any(f.startswith("Claim") for f in tables.build(*made(), claims=other).footers)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"tset": "trend"}, r"claim 1\.tset is unknown \(did you mean 'test'\?\)"), ({"rows": []}, "rows must be given"),
        ({"test": "equality"}, "allowed: equivalence, noninferiority, superiority, trend"),
        ({"direction": "up"}, "allowed: higher, lower"), ({"margin": 0}, "needs a margin above 0"), ({"against": ""}, "needs the row"),
    ],
)  # fmt: skip
def test_a_page_that_is_wrong_is_refused(change, said):
    one = {
        "claim": "c",
        "place": "p",
        "experiment": "e",
        "rows": ["r"],
        "metric": "m",
        "test": "equivalence",
        "margin": 1.0,
        "against": "x",
    }
    assert read({"claims": [one]}, "page") == [Claim("c", "p", "e", ("r",), "m", "equivalence", "x", 1.0)]
    with pytest.raises(ExperimentError, match=said):
        read({"claims": [one | change]}, "page")


@pytest.mark.parametrize("paper", compose.names_in("claims"))
def test_the_shipped_claims_name_rows_columns_and_metrics_that_exist(paper):
    from fnmatch import fnmatch

    for claim in compose.claims(paper):
        page = compose.page("experiment", claim.experiment)
        labels = {row["label"] for row in page["rows"]}
        assert {*claim.rows, claim.against} <= labels and page["paper"] == paper
        assert all(any(fnmatch(key, pattern) for key in page["columns"]) for pattern in claim.columns)
        assert any(claim.metric == s["metric"] for column in page["columns"].values() for s in column["show"])
    assert compose.claims("nobody1999") == []
