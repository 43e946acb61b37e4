"""What a table claims: significance, the best row or why there is none, rows that still learn."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.claims.claim import UNIFORM
from repro.convergence import CONVERGED, LEARNING, Convergence
from repro.identity import Results
from repro.protocol import Metric
from repro.statistics import Mean
from repro.tables import findings, footers, screen
from repro.tables.blocks import Block, Row, Table, Value

METRICS = {"bleu": Metric("bleu", "BLEU points", 1, 1, None, "", None)}
SOFTMAX, CLEAR = (30.0, 31.0, 32.0), (40.0, 41.1, 42.0)
OF = "other rows that converged with 3 runs or more."
FEW = "No best row: fewer than two rows have converged with 3 runs or more."


def row(label, scores, state=CONVERGED, baseline=False, better=1):
    rest = {}, {}, {}, {}, {}, 1.0, {}, ""
    found = [Results("", Path(), {"test/bleu": score}, *rest, {"seed": s}) for s, score in enumerate(scores, 1)]
    values = [Value("test/bleu", scores, 1, better)]
    return Row(label, "", values, [], [], found, baseline, Convergence(state))


def found(*rows):
    """(the sentence, the rows whose score is marked as the best, the rows whose difference is decided, the block)"""
    block = Block("FR-EN", ["BLEU"], rows=list(rows))
    findings.find(block, METRICS)
    best, decided = ([r.label for r in rows if is_so(r)] for is_so in (lambda r: r.values[0].best, lambda r: r.decided))
    return block.finding, best, decided, block


@pytest.mark.parametrize("first", [False, True])
def test_one_clear_winner(first):
    clear, other = row("entmax", CLEAR), row("softmax", SOFTMAX)
    said, best, decided, _ = found(
        *((clear, other) if first else (other, clear)), row("lead", (12.0,), baseline=True), row(UNIFORM, (50.0,) * 3)
    )
    assert said == f"Best: entmax (41.0 ±1.0 BLEU), significantly better than 1 of 1 {OF}"
    assert best == ["entmax"] and decided == [other.label if first else "entmax", UNIFORM], "which is not ranked"


OTHERS, TOP = [("softmax", SOFTMAX), ("a", SOFTMAX), ("b", SOFTMAX)], ("entmax", (31.0, 32.2, 32.7))
LOW = (20.0, 21.1, 22.0)
BEST = {
    # p = .022 against each of the others: below 5 %, but not times the six pairs of four rows
    "clear": ([OTHERS[0], TOP], 1, ["entmax"], "better than 1 of 1 "),
    "after the fact": ([*OTHERS, TOP], 1, [], "better than none of 3 "),
    "above some": ([OTHERS[0], ("entmax", (30.4, 30.9, 32.3)), ("sum", LOW)], 1, [], "has the best mean, but"),
    "lower is better": ([OTHERS[0], ("entmax", LOW)], -1, ["entmax"], ""),
    "the same difference": ([OTHERS[0], ("entmax", (40.0, 41.0, 42.0))], 1, [], "better than none of 1 "),
    "no row": ([], 1, [], ""),
    "no score": ([("softmax", ())], 1, [], ""),
    "one row": ([OTHERS[0]], 1, [], "No best row: fewer than two rows have a score."),
}


@pytest.mark.parametrize("rows, better, best, told", BEST.values(), ids=BEST)
def test_the_best_row(rows, better, best, told):
    said, marked, *_ = found(*(row(label, scores, better=better) for label, scores in rows))
    assert marked == best and told in said and (said == "") == (rows in ([], [("softmax", ())]))


def test_rows_that_have_not_converged_decide_nothing():
    high, low = row("sparsemax", CLEAR, LEARNING), row("entmax", (20.0, 21.1, 22.0))
    said, best, decided, _ = found(row("softmax", SOFTMAX), high, low)
    assert best == ["softmax"] and "better than 1 of 1 " in said and decided == ["entmax"]
    assert found(row("softmax", SOFTMAX, LEARNING), high)[:3] == (FEW, [], [])


def test_the_subtitle_says_how_far_the_runs_are_evidence():
    def told(*rows):
        return footers.evidence([found(*rows)[3]])

    one, first = row("entmax", CLEAR[:1]), row("softmax", SOFTMAX)
    assert told(one) == "one run: shows that it works, ranks nothing"
    assert told(row("softmax", SOFTMAX[:2]), one) == "1 to 2 runs a row: shows that it works, ranks nothing"
    assert told(first, row("entmax", CLEAR)).startswith("3 runs each; *: differs from the first row (p < 0.05,")
    assert told(first, row("entmax", SOFTMAX)) == "3 runs each: no difference from the first row is significant"
    learns = row("softmax", SOFTMAX, LEARNING)
    assert told(learns, one) == "1 to 3 runs a row; not tested against the first row, which may not have converged"


def test_a_screen_shows_differences_with_intervals_of_one_kind():
    """Over runs with a star if significant; over test examples if no row has enough runs, which the legend says."""
    first, clear = row("softmax", SOFTMAX), row("entmax", CLEAR)
    block = found(first, clear)[3]
    assert screen.columns(block)[-1].texts == ["", "+10.0 [+9.9, +10.2]*"]
    clear.gain = Mean(10.0, 1.0, 1e6, (10.0,), 1.0)
    difference = screen.columns(block)[-1]
    assert (difference.texts[1], difference.header) == ("+10.0 [+8.0, +12.0]*", "first row [95 %]")
    table = Table("", "", "", [block], [])
    assert screen.legend(table) == [screen.EXAMPLES]
    other = row("other", CLEAR)
    other.gain = Mean(1.0, 0.1, 2, (1.0, 1.1, 0.9))
    block.rows.append(other)
    assert screen.columns(block)[-1].texts[1:] == ["+10.0*", "+1.0 [+0.6, +1.4]"] and screen.legend(table) == []
