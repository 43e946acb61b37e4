"""What the sentences that open a table say, and what they never say."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.identity import Found
from repro.protocol import Metric
from repro.tables import findings, render
from repro.tables.blocks import Block, Row, Value
from repro.tables.claims import UNIFORM
from repro.tables.convergence import CONVERGED, LEARNING, Convergence

METRICS = {"bleu": Metric("bleu", "BLEU points", 1, 1, None, "", None)}
SOFTMAX = (30.0, 31.0, 32.0)


def row(label, scores, zeros=None, state=CONVERGED, baseline=False, better=1):
    values = [Value("test/bleu", scores, 1, better), Value("test/attention_zeros", [] if zeros is None else [zeros])]
    found = [Found("", Path(), {"test/bleu": score}, {}, {}, {}, {}, {}, 1.0, {}) for score in scores]
    seeds = list(range(1, len(scores) + 1))
    return Row(label, "", values, [], [], found, baseline, Convergence(state), seeds)


def found(*rows, label="FR-EN; stands for WMT"):
    block = Block(label, ["BLEU", "zeros"], rows=list(rows))
    findings.find(block, METRICS)
    return block


def decided(block):
    return [row.label for row in block.rows if row.decided]


def test_rows_within_the_noise_are_not_ranked():
    block = found(row("softmax", SOFTMAX), row("sparsemax", (30.5, 30.2, 32.6)), row("fusedmax", (29.6, 31.9, 31.2)))
    assert block.best == "" and block.findings == [
        "No ranking: softmax, sparsemax and fusedmax are within 0.2 BLEU, and one standard deviation over seeds is 1.2 (n = 3).",
        "To decide: more seeds; with n = 3, differences below 2.2 BLEU do not show.",
    ]
    (title, _, body), *_ = render.further(block)
    assert title == "BLEU minus softmax: mean [95 % interval]"
    assert body == [["sparsemax", "3", "+0.1 [-1.8, +2.0]", "no"], ["fusedmax", "3", "-0.1 [-2.3, +2.1]", "no"]]


@pytest.mark.parametrize("first", [False, True])
def test_one_clear_winner(first):
    clear, other = row("entmax", (40.0, 41.1, 42.0)), row("softmax", SOFTMAX)
    block = found(*((clear, other) if first else (other, clear)), row("lead", (12.0,), baseline=True))
    assert block.best == "entmax"
    assert block.findings == ["Best: entmax (41.0 ±1.0 BLEU, n = 3), shown to be better than every other row."]
    assert [(r.label, v.metric) for r in block.rows for v in r.values if v.best] == [("entmax", "test/bleu")], "is bold"
    assert decided(block) == [other.label if first else "entmax"]


def test_a_winner_picked_after_the_fact_pays_for_every_pair():
    """The difference has p = .022 against each of the others: below 5 %, but not times the six pairs of four rows."""
    others = [row(name, SOFTMAX) for name in ("softmax", "a", "b")]
    top = (31.0, 32.2, 32.7)
    assert found(others[0], row("entmax", top)).best == "entmax"
    block = found(*others, row("entmax", top))
    assert block.best == "" and block.findings[0].startswith("No ranking: the four rows are within 1.0 BLEU, ")


def test_rows_below_the_best_are_named_though_no_row_is_the_best():
    block = found(row("softmax", SOFTMAX), row("entmax", (30.4, 30.9, 32.3)), row("sum", (20.0, 21.1, 22.0)))
    assert block.best == "" and block.findings[0] == (
        "No single best row: softmax and entmax are within 0.2 BLEU, and one standard deviation over seeds is 1.0 (n = 3); "
        "worse than entmax: sum."
    )


def test_a_lower_score_is_better_where_the_metric_says_so():
    assert found(row("softmax", SOFTMAX, better=-1), row("entmax", (20.0, 21.1, 22.0), better=-1)).best == "entmax"


def test_uniform_attention_says_what_attention_is_worth_and_is_not_ranked():
    rows = row("softmax", SOFTMAX), row("sparsemax", (30.5, 30.2, 32.6))
    worth = lambda uniform: found(*rows, row(UNIFORM, uniform)).footers[0]  # noqa: E731
    assert (
        worth((25.0, 26.1, 27.0))
        == "Worth of attention: 5.0 (uniform attention against softmax: -5.0 [-5.1, -4.8], n = 3)."
    )
    assert worth((30.5, 30.2, 32.6)).startswith("Worth of attention: not decided (")
    assert worth((35.0, 36.1, 37.0)).startswith("Worth of attention: nothing (")
    best = found(*rows, row(UNIFORM, (40.0, 41.1, 42.0)))
    assert best.best == "" and best.findings[0].startswith("No ranking: softmax and sparsemax are within ")


@pytest.mark.parametrize(
    "error, told",
    [(0.5, " in one run: 50.0 (uniform attention against softmax: -50.0 [-51.0, -49.0] over test examples, n = 1)."),
     (30.0, ": not decided (uniform attention against softmax: -50.0 [-108.8, +8.8] over test examples, n = 1)."),
     (0.0, ": not decided (uniform attention against softmax: -40.0, n = 1).")],
)  # fmt: skip
def test_one_run_shows_what_attention_is_worth_over_its_test_examples(monkeypatch, error, told):
    monkeypatch.setattr("repro.tables.paired.error", lambda *_: error)
    assert found(row("softmax", (90.0, 70.0)), row(UNIFORM, (40.0,))).footers == [f"Worth of attention{told}"]


def test_one_seed_proves_no_ranking():
    block = found(row("softmax", (30.0,)), row("sparsemax", (40.0,), 0.93))
    assert block.findings == [
        "No ranking: softmax and sparsemax are within 10.0 BLEU, with one run per row.",
        "Sparsity: sparsemax gives 93 % of the positions no weight; BLEU against softmax: +10.0 (n = 1; no difference shown).",
        "To decide: three seeds per row.",
    ]


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_get_an_interval_over_test_examples_and_no_decision(monkeypatch, seeds):
    """t from two seeds would print [-53.5, +73.5]; an interval that leaves out zero decides nothing without the seeds."""
    monkeypatch.setattr("repro.tables.paired.error", lambda *_: 2.0)
    other = (35.0, 46.0)[:seeds]
    block = found(row("softmax", SOFTMAX[:seeds]), row("sparsemax", other))
    (title, _, body), *_ = render.further(block)
    told = ["1", "+5.0 [+1.1, +8.9]"] if seeds == 1 else ["2", "+10.0 [+6.1, +13.9]"]
    assert "[95 % interval over test examples]" in title and body == [["sparsemax", *told, "no"]]


def test_rows_that_have_not_converged_decide_nothing():
    high = row("sparsemax", (40.0, 41.1, 42.0), state=LEARNING)
    block = found(row("softmax", SOFTMAX), high, row("entmax", (20.0, 21.1, 22.0)))
    assert block.best == "softmax" and block.findings[0].endswith(" Not ranked: sparsemax (still learning).")
    assert decided(block) == ["entmax"]
    block = found(row("softmax", SOFTMAX, state=LEARNING), high)
    assert block.findings == [
        "No ranking: softmax and sparsemax are within 10.0 BLEU; none is known to have converged.",
        "To decide: longer training.",
    ]
    block = found(row("softmax", SOFTMAX, state=LEARNING), row("entmax", (20.0,)))
    assert block.findings[0].endswith(", with too few runs of some rows; one is not known to have converged.")
    assert block.findings[1] == "To decide: three seeds per row and longer training."


def test_rows_worse_than_the_first_are_named_though_nothing_is_ranked(monkeypatch):
    """Two seeds decide a difference if both, and the test examples, agree."""
    monkeypatch.setattr("repro.tables.paired.error", lambda *_: 0.1)
    rows = row("softmax", (30.0, 31.0)), row("a", (20.0, 21.1)), row("b", (25.0, 26.1)), row("c", (30.2, 30.9))
    assert found(*rows).findings[0] == (
        "No ranking: the four rows are within 10.0 BLEU, with two runs per row; shown to be worse than softmax: a and b."
    )


def test_a_baseline_that_no_row_beats():
    block = found(
        row("softmax", SOFTMAX), row("entmax", (20.0, 21.1, 22.0)), row("lead baseline", (31.0,), baseline=True)
    )
    assert block.best == "" and block.findings[0] == (
        "No ranking: no row is better than the lead baseline (31.0 BLEU); softmax is the nearest (31.0 ±1.0 BLEU, n = 3)."
    )


def test_the_same_difference_with_every_seed_is_no_evidence():
    block = found(row("softmax", SOFTMAX), row("entmax", (40.0, 41.0, 42.0)))
    assert block.best == "" and decided(block) == []


def test_no_sparse_row_and_several():
    dense = found(row("softmax", SOFTMAX, 0.0), row("entmax", (30.5, 30.2, 32.6), 0.001))
    assert "Sparsity: no row gives a position a weight of exactly zero." in dense.findings
    several = found(row("a", SOFTMAX, 0.5), row("b", (10.0, 11.0, 12.5), 0.71), row("c", (10.0, 11.0, 12.5), 0.82))
    assert several.findings[1] == (
        "Sparsity: three rows give 50 to 82 % of the positions no weight; BLEU against a: -19.8 (n = 3; 2 of 2 differences shown)."
    )


def test_many_rows_are_counted():
    rows = [row(f"r{i}", (30.0 + 0.1 * i, 31.0, 32.0 - 0.3 * i)) for i in range(2)]
    learning = [row(f"l{i}", SOFTMAX, state=LEARNING) for i in range(5)]
    left = "l0 (still learning), l1 (still learning), l2 (still learning) and 2 more"
    assert found(*rows, *learning).findings[0].endswith(f" Not ranked: {left}.")


def test_few_columns_open_the_table_and_many_are_counted():
    clear, noise = (40.0, 41.1, 42.0), (30.5, 30.2, 32.6)
    made = lambda *tops: [found(row("softmax", SOFTMAX), row("entmax", top)) for top in tops]  # noqa: E731
    (alone,) = made(noise)
    assert findings.opening([alone])[0].startswith("No ranking: ") and alone.findings == []
    two = findings.opening(made(noise, clear))
    assert [text[:12] for text in two] == ["FR-EN: No ra", "FR-EN: Best:", "To decide: m"]
    few = [found(row("softmax", (30.0,)), row("entmax", (top,))) for top in (31.0, 30.5)]
    assert [text[:12] for text in findings.opening(few)] == ["FR-EN: No ra"] * 2 + ["To decide: t"], (
        "once for both columns"
    )
    four = made(noise, clear, clear, clear)
    assert findings.opening(four) == ["Ranking: entmax is shown to be the best row in 3 of 4 columns; in 1, no row is."]
    assert four[0].findings, "each column keeps its own"
    assert findings.opening(made(*[noise] * 4)) == ["Ranking: no row is shown to be the best in any of 4 columns."]


def test_a_table_without_scores_says_nothing():
    assert found().findings == [] and found(row("softmax", ())).findings == []
    assert found(row("softmax", SOFTMAX)).findings == ["No ranking: one row has a score."]
