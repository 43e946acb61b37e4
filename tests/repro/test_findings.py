"""The sentence on a table: the best row, or why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.convergence import CONVERGED, LEARNING, Convergence
from repro.identity import Results
from repro.protocol import Metric
from repro.tables import findings, render
from repro.tables.blocks import Block, Row, Value
from repro.tables.claims import UNIFORM

METRICS = {"bleu": Metric("bleu", "BLEU points", 1, 1, None, "", None)}
SOFTMAX, CLEAR, NOISE = (30.0, 31.0, 32.0), (40.0, 41.1, 42.0), (30.5, 30.2, 32.6)
OF = "other rows that converged with 3 seeds or more (p < 0.05, paired over seeds and test examples)."
FEW = "No best row: fewer than two rows have converged with 3 seeds or more."


def row(label, scores, state=CONVERGED, baseline=False, better=1):
    found = [Results("", Path(), {"test/bleu": score}, {}, {}, {}, {}, {}, 1.0, {}) for score in scores]
    seeds = list(range(1, len(scores) + 1))
    values = [Value("test/bleu", scores, 1, better)]
    return Row(label, "", values, [], [], found, baseline, Convergence(state), seeds)


def found(*rows):
    """(the sentence, the rows whose score is marked as the best, the rows whose difference is decided, the block)"""
    block = Block("FR-EN", ["BLEU"], rows=list(rows))
    findings.find(block, METRICS)
    best, decided = ([r.label for r in rows if is_so(r)] for is_so in (lambda r: r.values[0].best, lambda r: r.decided))
    return block.finding, best, decided, block


def test_rows_within_the_noise_are_not_ranked():
    said, best, _, block = found(row("softmax", SOFTMAX), row("sparsemax", NOISE), row("fusedmax", (29.6, 31.9, 31.2)))
    why = "has the best mean, but is shown to be better than none of 2"
    assert best == [] and said == f"No best row: sparsemax (31.1 ±1.3 BLEU, n = 3) {why} {OF}"
    (title, _, body), *_ = render.further(block)
    assert title == "BLEU minus softmax: mean [95 % interval]"
    assert body == [["sparsemax", "3", "+0.1 [-1.8, +2.0]", "no"], ["fusedmax", "3", "-0.1 [-2.3, +2.1]", "no"]]


@pytest.mark.parametrize("first", [False, True])
def test_one_clear_winner(first):
    clear, other = row("entmax", CLEAR), row("softmax", SOFTMAX)
    said, best, decided, _ = found(
        *((clear, other) if first else (other, clear)), row("lead", (12.0,), baseline=True), row(UNIFORM, (50.0,) * 3)
    )
    assert said == f"Best: entmax (41.0 ±1.0 BLEU, n = 3), shown to be better than 1 of 1 {OF}"
    assert best == ["entmax"] and decided == [other.label if first else "entmax", UNIFORM], "which is not ranked"


OTHERS, TOP = [("softmax", SOFTMAX), ("a", SOFTMAX), ("b", SOFTMAX)], ("entmax", (31.0, 32.2, 32.7))
LOW = (20.0, 21.1, 22.0)


@pytest.mark.parametrize(
    "rows, better, best, told",
    [
        # p = .022 against each of the others: below 5 %, but not times the six pairs of four rows
        ([OTHERS[0], TOP], 1, ["entmax"], "better than 1 of 1 "),
        ([*OTHERS, TOP], 1, [], "better than none of 3 "),
        (
            [OTHERS[0], ("entmax", (30.4, 30.9, 32.3)), ("sum", LOW)],
            1,
            [],
            "entmax (31.2 ±1.0 BLEU, n = 3) has the best mean, but",
        ),
        ([OTHERS[0], ("entmax", LOW)], -1, ["entmax"], ""),
        ([OTHERS[0], ("entmax", (40.0, 41.0, 42.0))], 1, [], "better than none of 1 "),
        ([], 1, [], ""),
        ([("softmax", ())], 1, [], ""),
        ([OTHERS[0]], 1, [], "No best row: fewer than two rows have a score."),
    ],
    ids=[
        "clear",
        "after the fact",
        "above some",
        "lower is better",
        "the same difference",
        "no row",
        "no score",
        "one row",
    ],
)
def test_the_best_row(rows, better, best, told):
    said, marked, *_ = found(*(row(label, scores, better=better) for label, scores in rows))
    assert marked == best and told in said and (said == "") == (rows in ([], [("softmax", ())]))


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_get_an_interval_over_test_examples_and_no_decision(monkeypatch, seeds):
    """t from two seeds would print [-53.5, +73.5]; an interval that leaves out zero decides nothing without the seeds."""
    monkeypatch.setattr("repro.tables.paired.error", lambda *_: 2.0)
    said, best, _, block = found(row("softmax", SOFTMAX[:seeds]), row("sparsemax", (35.0, 46.0)[:seeds]))
    (title, _, body), *_ = render.further(block)
    told = ["1", "+5.0 [+1.1, +8.9]"] if seeds == 1 else ["2", "+10.0 [+6.1, +13.9]"]
    assert "[95 % interval over test examples]" in title and body == [["sparsemax", *told, "no"]]
    assert said == FEW and best == []


def test_rows_that_have_not_converged_decide_nothing():
    high, low = row("sparsemax", CLEAR, LEARNING), row("entmax", (20.0, 21.1, 22.0))
    said, best, decided, _ = found(row("softmax", SOFTMAX), high, low)
    assert best == ["softmax"] and "better than 1 of 1 " in said and decided == ["entmax"]
    assert found(row("softmax", SOFTMAX, LEARNING), high)[:3] == (FEW, [], [])


def test_a_baseline_that_no_row_beats():
    said, best, *_ = found(row("softmax", SOFTMAX), row("entmax", NOISE), row("lead baseline", (33.0,), baseline=True))
    assert best == [] and said == (
        "No best row: none is better than the lead baseline (33.0 BLEU); the nearest is entmax (31.1 ±1.3 BLEU, n = 3)."
    )
