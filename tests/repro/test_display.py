"""What is said of running cells: their place in the table, and no guess at the time before one has ended."""

from __future__ import annotations

import pytest

from repro import plan as plans
from repro.cell import Outcome
from repro.launch import display
from repro.launch.pool import Event


@pytest.fixture
def ran(experiment, tools):
    (plan,) = plans.make([experiment()], tools)
    return list(plan.cells.values())


def test_a_cell_is_named_by_its_row_and_column_of_the_table(ran):
    assert display.name(ran[0]) == "fake: plain, A, seed 1"
    assert any("lam=0.5, B, seed 2" in display.name(cell) for cell in ran)


def test_no_time_is_guessed_before_a_cell_has_ended(ran, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    shown = display.Display(4)
    now[0] = 30.0
    shown.show(Event(ran[0], "stage", "training", 0.9))
    shown.show(Event(ran[1], "stage", "training", 0.5))
    assert shown.remaining() is None and shown._left_text() == ""
    shown.show(Event(ran[0], "end", outcome=Outcome(ran[0].cell_id, "done", seconds=30.0)))
    assert shown.remaining() == pytest.approx(30.0 * 2.5 / 1.5), "one whole and one half of four"
