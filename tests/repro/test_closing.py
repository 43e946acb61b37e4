"""What `draw` adds to the end of a run: the attention for one test example."""

from __future__ import annotations

import dataclasses
import re

import pytest
from made_report import ROWS, Made

from repro.report import examples
from repro.report.data import predictions_of
from repro.tables.build import build
from tasks.commands import driver


@pytest.fixture
def drawn(tmp_path):
    """`drawn(labels)`: what is printed of an experiment that draws these rows; the outputs for one example are right."""
    made = Made(tmp_path)
    (best,) = [e["index"] for e in examples.heat_maps(*_read(made), "test", None)][1:2]
    for r in range(len(ROWS)):
        level = made.level(r)
        told = [x | {"output": "quite off"} for x in level.predictions()]
        told[best]["output"] = told[best]["references"][0]
        level.write_predictions(told)
        level.finish()

    def make(labels):
        made.plan.experiment = dataclasses.replace(made.plan.experiment, draw=tuple(labels))
        return best, driver.drawings(build(made.plan, made.store), made.plan)

    return make


def _read(made):
    rows = build(made.plan, made.store).blocks[0].own
    return rows, predictions_of(rows, "test")


def test_the_rows_that_an_experiment_names_are_drawn_for_the_best_example_of_the_report(drawn, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    best, text = drawn(ROWS[1:])
    about, *pictures = text.split("\n\n")
    assert about == f"Attention for a test example: plain words {best}\nReference: reference plain words"
    assert [picture.partition(": reference plain words\n")[0] for picture in pictures[:-1]] == list(ROWS[1:])
    assert all(len(re.findall(r"^ +(?:out|put|</s>) [░▒▓█· ]+$", picture, re.M)) == 3 for picture in pictures[:-1])
    shades, look = pictures[-1].split("\n", 1)
    assert shades == "· exactly no weight  ░ above 0  ▒ from 0.25  ▓ from 0.5  █ from 0.75" and look.startswith(
        "What to see: "
    )
    assert "\033" not in text and max(map(len, "\n".join(pictures).splitlines())) <= 80


def test_rows_that_are_not_run_are_not_drawn(drawn):
    assert drawn(["nobody"])[1] == "No row is left to draw: nobody.\n"
