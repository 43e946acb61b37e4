"""What `draw` adds to the end of a run: sentences that follow the numbers, and the attention for one test example."""

from __future__ import annotations

import dataclasses
import re

import pytest
from made_report import ROWS, Made

from repro.plan.experiment import ExperimentError, read
from repro.protocol import Metric
from repro.tables.blocks import Row, Value
from repro.tables.build import build
from repro.tables.claims import UNIFORM
from repro.tables.convergence import CONVERGED, LEARNING, Convergence
from tasks.commands import closing
from tasks.config import compose

ACCURACY = Metric("accuracy", "%", 1, 1, None, "share of right answers", "mean")


def row(label, score, zeros=0.0, state=CONVERGED, runs=1):
    values = [Value("test/accuracy", [float(score)] * runs, 1), Value("test/attention_zeros", [zeros])]
    return Row(label, "", values, [], [], convergence=Convergence(state))


@pytest.fixture
def said(monkeypatch):
    """`said(rows, p)`: the sentences, if the test over the examples gives `p`."""

    def make(*rows, p=0.01):
        monkeypatch.setattr(closing, "by_examples", lambda first, other, metric, known: p)
        return closing.findings(rows, "acc.", ACCURACY)

    return make


def test_the_sentences_follow_the_numbers(said):
    first, uniform, sparse, last = said(row("softmax", 90), row(UNIFORM, 40), row("sparsemax", 91, 0.786))
    assert first == "softmax has 90.0 acc.; 0% of its attention weights are exactly zero."
    assert uniform == "Attention matters: uniform attention has 40.0 acc., 50.0 less than softmax (more than chance); 0% of its attention weights are exactly zero."  # fmt: skip
    assert sparse == "sparsemax has 91.0 acc., 1.0 more than softmax (more than chance); 79% of its attention weights are exactly zero."  # fmt: skip
    assert last.startswith("One run per row; with seeds=1,2,3")


@pytest.mark.parametrize("score, p, told", [(85, 0.06, "5.0 less than softmax (which may be chance)"), (95, 0.01, "5.0 more than softmax (more than chance)")])  # fmt: skip
def test_an_effect_that_is_not_there_is_denied(said, score, p, told):
    assert said(row("softmax", 90), row(UNIFORM, score), p=p)[1].startswith(
        f"This run does not show that attention matters: uniform attention has {score}.0 acc., {told}"
    )


def test_the_more_rows_the_more_a_difference_must_show(said):
    rows = [row("softmax", 90), *(row(str(i), 80) for i in range(5))]
    assert "more than chance" in said(*rows[:5], p=0.012)[1] and "may be chance" in said(*rows, p=0.012)[1]


def test_what_proves_less_is_said(said):
    lines = said(row("softmax", 90, state=LEARNING, runs=2), row("sparsemax", 88, runs=2), p=None)
    assert "(which was not tested)" in lines[1] and len(lines) == 3
    assert lines[-1] == "Training had not converged: softmax. A longer training may change the differences."


@pytest.fixture
def drawn(tmp_path):
    """`drawn(labels)`: what is printed of an experiment that draws these rows; the outputs for one example are right."""
    made = Made(tmp_path)
    (best,) = [e["index"] for e in closing.heat.heat_maps(*_read(made), "test")][1:2]
    for r in range(len(ROWS)):
        level = made.level(r)
        level.write_predictions(
            [x | {"output": x["references"][0] if x["index"] == best else "quite off"} for x in level.predictions()]
        )
        level.finish()

    def make(labels):
        made.plan.experiment = dataclasses.replace(made.plan.experiment, draw=tuple(labels))
        return best, closing.text(build(made.plan, made.store), made.plan)

    return make


def _read(made):
    lines = closing.lines_of(build(made.plan, made.store).blocks[0], dict.fromkeys(ROWS, 0))
    return lines, closing.predictions_of(lines, "test")


def test_the_rows_that_an_experiment_names_are_drawn_for_the_best_example_of_the_report(drawn, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    best, text = drawn(ROWS[1:])
    about, *pictures = text.split("\n\n")[1:]
    assert about == f"Attention for a test example: plain words {best}\nReference: reference plain words"
    assert [picture.partition(": reference plain words\n")[0] for picture in pictures[:-1]] == list(ROWS[1:])
    assert all(len(re.findall(r"^ +(?:out|put|</s>) [░▒▓█· ]+$", picture, re.M)) == 3 for picture in pictures[:-1])
    assert pictures[-1] == "· exactly no weight  ░ above 0  ▒ from 0.25  ▓ from 0.5  █ from 0.75\n"
    assert "\033" not in text and max(map(len, "\n".join(pictures).splitlines())) <= 80


def test_rows_that_are_not_run_are_not_drawn(drawn):
    assert drawn(["nobody"])[1].endswith("\n\nNo row is left to draw: nobody.\n")


def test_a_drawn_row_is_a_row_of_the_experiment():
    page = compose.page("experiment", "demo") | {"draw": ["softmax", "sparsmax"]}
    with pytest.raises(ExperimentError, match=r"draw names 'sparsmax', which is no row .did you mean 'sparsemax'"):
        read(page, "demo", "demo")
