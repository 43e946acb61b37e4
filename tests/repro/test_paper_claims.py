"""A paper's claim is supported or contradicted only if the intervals of the differences show it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from made_table import SOFTMAX, TUNED, examples
from scipy import stats

from repro import statistics
from repro.claims.claim import UNIFORM, Change, Claim
from repro.claims.decide import Evidence, outcome_of
from repro.claims.outcome import CONTRADICTED, EXCLUDED, OPEN, SUPPORTED, UNTESTED
from repro.errors import ConfigError
from repro.protocol import Metric
from repro.tables import build as tables
from tasks.config import compose

BLEU = "test/bleu"
TESTED = Claim("as good", "section 4", "fake", ("tuned",), (BLEU,), "equivalence", ("softmax",), 1.0, profile="demo")
BASE = TESTED


def tried(claim, scores, error=0.0, doubts=None, better=0, same=True, **more):
    """The outcome for scores whose runs with the same seed are alike, or are not."""
    known, noise = {claim.metrics[0]: scores, **more}, statistics.Noise(error, error)
    metrics = {name: Metric(name, "", better, 2, None, "") for name in (m.rpartition("/")[2] for m in known)}
    pairs = {(m, c) for m, of in known.items() for c in of} if same else ()
    return outcome_of(claim, Evidence(known, lambda *_: noise, doubts or {}, metrics, alike=pairs))


def of_runs(claim, runs, **options):
    """The outcome for differences `runs`, one per seed, in column `a`."""
    seeds = range(len(runs))
    return tried(claim, {"a": {"softmax": dict.fromkeys(seeds, 0.0), "tuned": dict(zip(seeds, runs))}}, **options)


BETTER, WORSE, SAME = (0.2, 0.3, 0.25), (-2.0, -2.1, -1.9), (0.2, -0.1, 0.1)
LEFT_OPEN = [(9.0, 9.1), (9.0,), (0.2, float("nan")), (0.2, 0.2, 0.2)]
OUTCOMES = [
    ("equivalence", 1.0, SUPPORTED, [SAME]),
    ("equivalence", 1.0, OPEN, [(0.2, -2.0, 2.0)]),
    ("equivalence", 1.0, CONTRADICTED, [(2.0, 2.1, 1.9), WORSE]),
    ("noninferiority", 1.0, SUPPORTED, [(-0.2, 0.1, -0.1), (5.0, 5.1, 5.2)]),
    ("noninferiority", 1.0, CONTRADICTED, [WORSE]),
    ("noninferiority", 1.0, OPEN, [(-1.1, -0.9, -1.0)]),
    ("superiority", 0.1, SUPPORTED, [BETTER]),
    ("superiority", 0.1, OPEN, [(0.2, -0.3, 0.25)]),
    ("superiority", 0.1, CONTRADICTED, [(-0.2, -0.3, -0.25), WORSE]),
    ("superiority", 0.5, EXCLUDED, [(-0.2, -0.3, -0.25)]),  # worse, but by less than a gain would have to be
    ("superiority", 0.5, EXCLUDED, [(0.01, -0.01, 0.0)]),
    ("superiority", 0.5, OPEN, [(0.1, 0.11, 0.09)]),
    ("superiority", 1.0, OPEN, LEFT_OPEN),
]


@pytest.mark.parametrize("kind, margin, word, runs", [(*of, one) for *of, runs in OUTCOMES for one in runs])
def test_outcomes(kind, margin, word, runs):
    claim = replace(BASE, test=kind, margin=margin)
    assert of_runs(claim, runs).outcome == word
    assert of_runs(replace(claim, direction="lower"), [-r for r in runs]).outcome == word, "the mirror image"


@pytest.mark.parametrize(
    "printed, word", [(None, EXCLUDED), (0.5, OPEN), (0.1, OPEN), (2.0, EXCLUDED), (-1.0, EXCLUDED)]
)
def test_a_gain_counts_from_half_the_effect_of_the_paper_and_at_least_half_the_margin(printed, word):
    """One-sided, the gain is below .35: .5 is excluded, and .25, half the paper's .5 or half the margin, is not."""
    claim = replace(BASE, test="superiority", margin=0.5, printed=printed)
    assert of_runs(claim, (0.1, 0.3, 0.2, -0.2)).outcome == word
    mirrored = replace(claim, direction="lower", printed=printed and -printed)
    assert of_runs(mirrored, (-0.1, -0.3, -0.2, 0.2)).outcome == word
    small = of_runs(replace(claim, printed=0.1), (0.01, -0.01, 0.0))
    assert small.outcome == EXCLUDED, "half of .1 is too small to ask for"


@pytest.mark.parametrize("kind", ["equivalence", "noninferiority"])
def test_a_loss_as_large_as_the_paper_s_own_contradicts_nothing(kind):
    runs = (-1.5, -1.6, -1.7)
    claim = replace(BASE, test=kind)
    assert of_runs(claim, runs).outcome == CONTRADICTED
    assert of_runs(replace(claim, printed=-2.0), runs).outcome == OPEN
    assert of_runs(replace(claim, printed=2.0), runs).outcome == CONTRADICTED, "the paper's is on the other side"


def test_the_smallest_effect_that_shows_is_shown_in_four_of_five_simulated_experiments():
    rng = np.random.RandomState(0)
    runs = rng.normal(0, 0.6, (4000, 5))
    of = [statistics.mean_of(list(one)) for one in runs]
    true = float(np.mean([one.shows for one in of]))
    shown = [one.mean + true - (one.mean - one.interval(0.9)[0]) > 0 for one in of]
    assert np.mean(shown) == pytest.approx(0.8, abs=0.05)
    for kind, printed in (("superiority", 0.9), ("noninferiority", None), ("equivalence", None)):
        claim = replace(BASE, test=kind, margin=1.2, printed=printed)
        found = [of_runs(claim, (one + claim.truth).tolist()) for one in runs[:400]]
        power = np.mean([one.outcome == SUPPORTED for one in found])
        assert power == pytest.approx(np.mean([one.chance for one in found]), abs=0.08) and 0.7 < power < 0.99, kind
        needs = int(np.median([one.needs for one in found]))
        more = [of_runs(claim, one.tolist()) for one in rng.normal(claim.truth, 0.6, (400, needs))]
        assert 0.7 < np.mean([one.outcome == SUPPORTED for one in more]) <= max(0.9, power + 0.02), kind


def test_the_runs_that_a_claim_needs_show_all_its_comparisons_in_four_of_five_simulated_experiments():
    """Two rows with 3 and 4 runs against one with 12, which needs no more."""
    rng = np.random.RandomState(0)
    claim = replace(TESTED, rows=("tuned", "sparse"), against=("softmax",), test="noninferiority", margin=1.0)

    def drawn(tuned, sparse, softmax=12):
        sizes = {"tuned": tuned, "sparse": sparse, "softmax": softmax}
        rows = {row: dict(enumerate(rng.normal(30, 0.6, n).tolist())) for row, n in sizes.items()}
        return tried(claim, {"a": rows}, same=False)

    needs = int(np.median([drawn(3, 4).needs for _ in range(100)]))
    assert 3 < needs < 12
    assert np.mean([drawn(needs, needs).outcome == SUPPORTED for _ in range(400)]) == pytest.approx(0.8, abs=0.12)


def test_runs_are_compared_without_pairs_and_all_of_them_count():
    mine, theirs = [30.4, 31.1, 30.2], [30.0, 31.0, 29.5, 30.5, 30.1]
    scores = {"a": {"tuned": dict(enumerate(mine)), "softmax": dict(enumerate(theirs))}}
    (part,) = tried(replace(TESTED, test="superiority"), scores, same=False).parts
    low, high = stats.ttest_ind(mine, theirs, equal_var=False).confidence_interval(0.95)
    assert (part.low, part.high, part.seeds) == (pytest.approx(low), pytest.approx(high), "3 and 5")
    turned = {"a": {"tuned": dict(enumerate(mine[::-1])), "softmax": {s + 7: v for s, v in enumerate(theirs)}}}
    again = tried(replace(TESTED, test="superiority"), turned, same=False)
    assert again.part.low == pytest.approx(low), "names of seeds mean nothing"
    used = []
    evidence = Evidence({BLEU: scores}, lambda *of: used.append(of) or statistics.Noise(9.0, 0.5))
    assert outcome_of(TESTED, evidence).part.low < low
    (of,) = used
    assert (*of[:4], *map(list, of[4:6]), of[6]) == ("a", BLEU, "tuned", "softmax", [0, 1, 2], [0, 1, 2, 3, 4], False)


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
    noise, pairs = {"a": statistics.Noise(0.3, 0.3), "b": statistics.Noise(0.4, 0.4)}, {(BLEU, "a"), (BLEU, "b")}
    known = Evidence({BLEU: three}, lambda column, *_: noise[column], alike=pairs)
    (part,) = outcome_of(replace(BASE, pooled=True), known).parts
    (alone,) = outcome_of(replace(BASE, pooled=True), replace(known, alike={(BLEU, "a")})).parts
    assert (part.others, alone.others) == (0, 3), "pooled runs are paired if they are alike in every column"
    shared = statistics.Noise(0.25, 0.25)  # of a mean of two: sqrt(.3^2 + .4^2) / 2
    expected = statistics.mean_of((0.1, 0.3, 0.2), shared)
    assert (part.low, part.high) == pytest.approx(expected.interval(0.95))
    nothing = tried(replace(BASE, columns=("c*",)), scores)
    assert (nothing.outcome, nothing.parts, nothing.part.why, nothing.part.n) == (UNTESTED, (), "no finished cells", 0)


def test_a_claim_is_not_tested_if_a_row_or_column_that_it_names_was_not_run():
    near = dict(enumerate((0.1, 0.0, -0.1, 0.05)))
    scores = {"a": {"softmax": dict.fromkeys(near, 0.0), "tuned": near}}
    assert tried(BASE, scores).outcome == SUPPORTED
    for claim in (replace(BASE, rows=("tuned", "nobody")), replace(BASE, columns=("a", "b"))):
        for same in (True, False):
            found = tried(claim, scores, same=same)
            assert (found.outcome, found.part.why, len(found.parts)) == (UNTESTED, "not run", 2)
            assert [p.outcome for p in found.parts] == [SUPPORTED, UNTESTED] and not found.counts
    assert (tried(BASE, {"a": {"softmax": {}, "tuned": near}}).outcome) == UNTESTED
    old = (Change(SUPPORTED, "why", seeds=(0, 1, 2, 3)),)
    assert not tried(replace(BASE, rows=("nobody",), history=old), scores).seen, "nothing was analysed again"
    apart = tried(BASE, {"a": {"softmax": {1: 0.0}, "tuned": {2: 0.1}}})
    assert (apart.outcome, apart.part.why) == (OPEN, "no pair of seeds"), "both were run"
    far = {"a": scores["a"] | {"other": {s: 3 + v for s, v in near.items()}}}
    assert tried(replace(BASE, rows=("other", "nobody")), far).outcome == CONTRADICTED, "one row is enough for that"


def test_rows_are_compared_as_ratios():
    scores = {"a": {"softmax": {1: 10.0, 2: 20.0, 3: 40.0}, "tuned": {1: 11.0, 2: 21.6, 3: 43.6}}}
    ratio = replace(BASE, ratio=True, test="noninferiority", direction="lower", margin=25.0)
    percent = {s: 100 * math.log(scores["a"]["tuned"][s] / scores["a"]["softmax"][s]) for s in (1, 2, 3)}
    found = tried(ratio, scores, error=5.0)
    assert found.outcome == SUPPORTED and found.part.differences == pytest.approx(percent)
    assert tried(replace(ratio, margin=9.0), scores).outcome == OPEN


# kind of claim, runs -> row that still learns -> outcome
LEARNING = {
    ("superiority", BETTER): {"tuned": SUPPORTED, "softmax": OPEN, "other": SUPPORTED},
    ("superiority", WORSE): {"tuned": OPEN, "softmax": CONTRADICTED},
    ("equivalence", SAME): {"tuned": OPEN, "softmax": OPEN},
    ("equivalence", WORSE): {"softmax": OPEN},
    ("noninferiority", WORSE): {"softmax": CONTRADICTED},
}
DOUBTED = [(*of, learning, word) for of, rows in LEARNING.items() for learning, word in rows.items()]


@pytest.mark.parametrize("kind, runs, learning, word", DOUBTED)
def test_a_row_that_still_learns_leaves_a_claim_open_where_training_could_undo_the_outcome(kind, runs, learning, word):
    claim = replace(BASE, test=kind, margin=0.1 if kind == "superiority" else 1.0)
    doubts = {"a": {learning: "still learning"}}
    found = of_runs(claim, runs, doubts=doubts, better=1)
    assert (found.outcome, found.part.why) == (word, "still learning" if word == OPEN else "")
    lower = of_runs(replace(claim, direction="lower"), [-r for r in runs], doubts=doubts, better=-1)
    assert lower.outcome == word, "the mirror image"
    either_way = of_runs(claim, runs, doubts=doubts)  # a score that training may move
    assert either_way.outcome == (word if learning == "other" else OPEN)
    assert of_runs(replace(claim, convergence=False), runs, doubts=doubts).outcome != OPEN


def test_the_worth_of_attention_is_measured_in_its_own_score_and_blocks_only_support():
    seeds = range(3)
    for runs, uniform, word in ((SAME, 60.0, SUPPORTED), (SAME, 68.0, OPEN), (WORSE, 68.0, CONTRADICTED)):
        scores = {"a": {"softmax": dict.fromkeys(seeds, 0.5), "tuned": {s: 0.5 + r for s, r in zip(seeds, runs)}}}
        claim = replace(BASE, worth=3.0, worth_metric="test/accuracy")
        worth = {"test/accuracy": {"a": {"softmax": {0: 70.0}, UNIFORM: {0: uniform}}}}
        assert tried(claim, scores, **worth).outcome == word


def test_a_claim_about_several_rows_holds_for_each_or_not_at_all():
    seeds, runs = range(4), ((0.1, 0.0, -0.1, 0.05), (3.0, 3.1, 2.9, 3.0), (3.0, -3.0, 1.0, -1.0))
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


def test_a_trend_over_a_grid_takes_the_columns_as_blocks():
    falling = {"a": [9.0, 7.0, 8.0, 3.0, 2.0], "b": [19.0, 18.0, 17.0, 16.0, 15.0]}
    values = ["-1", "-0.5", "0", "0.5", "10"]
    scores = {c: {v: {1: y} for v, y in reversed(list(zip(values, of)))} for c, of in falling.items()}
    claim = replace(BASE, test="trend", against=(), grid="lam", direction="lower")
    found = tried(claim, scores)
    assert stats.page_trend_test([of[::-1] for of in falling.values()]).pvalue < 0.01
    assert (found.outcome, found.part.n, found.part.effect) == (SUPPORTED, 2, -5.5), "sorted by value, not by name"
    assert tried(replace(claim, direction="higher"), scores).outcome == CONTRADICTED
    assert tried(claim, {"a": scores["a"]}).outcome == OPEN, "one block"
    one = {v: {**at, 2: at[1]} for v, at in scores["a"].items()}
    assert tried(claim, {"a": one}).outcome == SUPPORTED, "two seeds are two blocks"
    assert tried(claim, {"a": one, "b": {"7": {1: 0.0}}}).outcome == UNTESTED, "no value in common"


def test_in_most_cases_is_a_sign_test_over_columns():
    claim = replace(BASE, test="most", pooled=True, columns=("*",))

    def settings(better, worse):
        gaps = [0.1] * better + [-5.0] * worse
        return {f"c{i}": {"softmax": {1: 0.0, 2: 0.0}, "tuned": {1: gap, 2: gap}} for i, gap in enumerate(gaps)}

    for better, worse, word in ((21, 2, SUPPORTED), (12, 11, OPEN), (2, 21, CONTRADICTED)):
        found = tried(claim, settings(better, worse))
        ends = stats.binomtest(better, 23).proportion_ci(0.95)
        assert (found.outcome, found.part.n) == (word, 23)
        assert (found.part.low, found.part.high) == pytest.approx((100 * ends.low, 100 * ends.high))
    assert (tried(claim, settings(1, 0)).outcome, tried(claim, settings(1, 0)).part.n) == (OPEN, 1), "one column"


def test_an_effect_in_some_columns_can_be_compared_with_that_in_others():
    scores = {
        c: {"softmax": dict.fromkeys((1, 2, 3), 0.0), "tuned": {s: gain + s / 50 for s in (1, 2, 3)}}
        for c, gain in (("few2", 0.5), ("few3", 0.7), ("many8", 0.2))
    }
    claim = replace(BASE, test="superiority", margin=0.1, columns=("few*",), than=("many*",))
    (part,) = tried(claim, scores, error=0.3).parts
    noise = statistics.Noise(0, math.sqrt(2 * 0.15**2 + 0.3**2))
    expected = statistics.mean_of((0.4, 0.4 + 1e-9, 0.4 - 1e-9), noise).interval(0.95)
    assert part.effect == pytest.approx(0.4) and (part.low, part.high) == pytest.approx(expected, rel=1e-3)


def test_measures_that_disagree_decide_nothing():
    up, down = ({"a": {"softmax": dict.fromkeys(range(3), 0.0), "tuned": dict(enumerate(r))}} for r in (BETTER, WORSE))
    claim = replace(BASE, test="superiority", margin=0.1, metrics=(BLEU, "test/other"))
    assert tried(claim, up, **{"test/other": up}).outcome == SUPPORTED
    assert tried(claim, down, **{"test/other": down}).outcome == CONTRADICTED
    found = tried(claim, up, **{"test/other": down})
    assert (found.outcome, found.part.why) == (OPEN, "the measures disagree")


def test_an_outcome_that_a_change_made_counts_only_if_new_seeds_confirm_it():
    old = Change(OPEN, "the margin was too large", seeds=(0, 1, 2))
    claim = replace(BASE, test="superiority", margin=0.1)
    more = (*BETTER, 0.3, 0.2, 0.4)
    histories = ((), (old, replace(old, outcome=SUPPORTED)), (old,))
    found = [of_runs(replace(claim, history=history), BETTER) for history in histories]
    assert {o.outcome for o in found} == {SUPPORTED}
    assert [(o.seen, o.counts) for o in found] == [(False, True), (False, True), (True, False)]
    failed = replace(claim, margin=0.5, history=(replace(old, outcome=CONTRADICTED),))
    again = of_runs(failed, (-0.2, -0.3, -0.25))
    assert (again.outcome, again.counts) == (EXCLUDED, True)
    new = of_runs(replace(claim, history=(old,)), more)
    assert (new.seen, new.confirmed, new.counts) == (True, True, True)
    assert not of_runs(replace(claim, history=(old,)), (*BETTER, 0.3, -0.2, 0.0)).counts
    rows = {UNIFORM: {0: -1.0}, "softmax": dict.fromkeys(range(6), 0.0), "tuned": dict(enumerate(more))}
    worth = tried(replace(claim, history=(old,), worth=0.1), {"a": rows})
    assert worth.counts, "uniform attention need not be run again"
    unknown = of_runs(replace(claim, history=(replace(old, seeds=()),)), more)
    assert unknown.seen and not unknown.counts, "which seeds had been seen is not known"
    open_now = of_runs(replace(claim, history=(replace(old, outcome=SUPPORTED),)), (0.2, -0.3, 0.25))
    assert (open_now.outcome, open_now.seen, open_now.confirmed) == (OPEN, True, False), "no run confirms what is open"


def test_a_setting_in_which_attention_is_worth_little_decides_nothing():
    seeds = (1, 2, 3)
    rows = {"softmax": dict.fromkeys(seeds, 30.0), "tuned": dict(zip(seeds, (30.1, 29.9, 30.2)))}
    claim = replace(BASE, worth=3.0)
    assert "no row of uniform attention" in tried(claim, {"a": rows}).part.why
    little = tried(claim, {"a": rows | {UNIFORM: dict.fromkeys(seeds, 28.0)}})
    assert (little.outcome, little.part.why) == (OPEN, "softmax is not 3 better than uniform attention (+2.0)")
    assert tried(claim, {"a": rows | {UNIFORM: dict.fromkeys(seeds, 27.0)}}).outcome == SUPPORTED
    # of the seeds that both rows have: 30 - 28 for seed 2, though the means are 6 apart
    apart = {"softmax": {1: 36.0, 2: 30.0, 3: 36.0}, "tuned": {1: 36.0, 2: 30.2, 3: 36.1}, UNIFORM: {2: 28.0}}
    assert tried(claim, {"a": apart}).part.why == "softmax is not 3 better than uniform attention (+2.0)"
    # the reference was not run: that is why, not the uniform row
    assert tried(claim, {"a": {"tuned": rows["tuned"], UNIFORM: {1: 28.0}}}).part.why == "not run"


def test_a_table_shows_its_claims(made):
    # tuned minus softmax: 3, 4 and 3.2 with the three seeds
    claim = replace(BASE, test="superiority")
    third = {(0, None, 3): (61.0, 30.0), (1, 0.0, 3): (50.0, 30.0), (1, 0.5, 3): (66.0, 33.2)}

    def told(*claims, **options):
        built = tables.build(*made(SOFTMAX | TUNED | third, **options), claims=claims)
        assert [o.claim for o in built.claims] == [c for c in claims if (c.experiment, c.profile) == ("fake", "demo")]
        return built.tested

    (line,) = told(claim)
    asked, found = "“as good” (section 4; test/bleu against softmax, higher)", "tuned: +3.40 [+1.12, +5.68], n = 3"
    assert line.startswith(f"Claim 0 supported: {asked}. {found}.")
    (line,) = told(claim, best={0: 3.0})
    assert line.endswith("n = 3; convergence not known."), "softmax may still have been learning"
    assert told(replace(claim, experiment="another"), replace(claim, profile="cpu")) == []
    (none,) = tables.build(*made(SOFTMAX | TUNED), claims=[replace(claim, metrics=("train/loss",))]).claims
    assert (none.outcome, none.part.why) == (UNTESTED, "no finished cell has train/loss")
    with pytest.raises(ConfigError, match=r"claim 7, test/blue: 'blue' is not measured .did you mean 'bleu'"):
        told(replace(claim, id=7, metrics=("test/bleu", "test/blue")))
    with pytest.raises(ConfigError, match="hansards/aer: 'hansards' is not a test set here"):
        told(replace(claim, worth_metric="hansards/aer"))
    of_words, both = replace(claim, metrics=("test/attention_support",)), (None, examples)
    built = [tables.build(*made(SOFTMAX | TUNED | third, examples=one), claims=[of_words]) for one in both]
    alone, wider = (one.claims[0].part.high - one.claims[0].part.low for one in built)
    assert wider > alone + 0.01, "the error over the test examples that both rows have counts"


SHIPPED = compose.claims()
# of the claims that a test decides, one of each kind is fast: with one row and with several, with a printed effect and without
DECIDABLE = [c for c in SHIPPED if not c.told and c.test not in ("trend", "most")]
KINDS = {(c.test, len(c.rows) > 1, bool(c.printed)): c.id for c in DECIDABLE}
SIMULATED = [pytest.param(c, marks=() if c.id in KINDS.values() else pytest.mark.slow, id=str(c.id)) for c in DECIDABLE]


@pytest.mark.parametrize("claim", SIMULATED)
@pytest.mark.parametrize("shared", [0.0, 0.8], ids=["seeds that differ", "seeds that are alike"])
def test_a_true_effect_of_the_paper_s_size_is_contradicted_in_at_most_five_per_cent(claim, shared):
    """200 simulated tables with the truth at the effect that the paper prints, or at the edge of what the claim says.

    Runs with the same seed correlate by `shared`, and all runs of a row share an error of the test examples, which is known.
    """
    rng, spread, trials = np.random.RandomState(claim.id), 0.6 * max(claim.margin, abs(claim.printed or 0)), 200
    edge = {"superiority": 0.0, "noninferiority": -claim.margin, "equivalence": claim.margin}[claim.test]
    true, wrong, sampling = claim.printed or claim.sign * edge, 0, 0.2 * spread
    claim = replace(claim, columns=("c",), metrics=claim.metrics[:1], worth=0.0, than=())
    noise = statistics.Noise(9.0, math.sqrt(2) * sampling)
    for _ in range(trials):
        means = dict.fromkeys(claim.rows, (true, 3)) | dict.fromkeys(claim.against, (0.0, 5))
        of_seed = rng.normal(0, spread * math.sqrt(shared), 5)
        runs = {
            row: mean + rng.normal(0, sampling) + of_seed[:n] + rng.normal(0, spread * math.sqrt(1 - shared), n)
            for row, (mean, n) in means.items()
        }
        rows = {row: dict(enumerate(of.tolist())) for row, of in runs.items()}
        alike = {(claim.metrics[0], "c")} if statistics.alike([*rows.values()]) else ()
        known = Evidence({claim.metrics[0]: {"c": rows}}, lambda *_: noise, alike=alike)
        wrong += outcome_of(claim, known).outcome == CONTRADICTED
    assert wrong / trials <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / trials), wrong
