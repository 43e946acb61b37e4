"""What is said of running cells: their place in the table, how often, and the time that is left."""

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


def test_the_time_left_is_told_within_the_first_minute(ran, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    shown = display.Display(4)
    now[0] = 30.0
    assert shown.remaining() is None, "nothing is done yet"
    shown.show(Event(ran[0], "stage", "training", 0.9))
    shown.show(Event(ran[1], "stage", "training", 0.5))
    assert shown.remaining() == pytest.approx(30.0 * 2.6 / 1.4)
    now[0] = 10.0
    assert shown.remaining() is None and shown._left_text() == "", "what starting took would decide"
    now[0] = 61.0
    shown.show(Event(ran[0], "stage", "training", 0.9))
    assert "0/4 done; about 2 min left | " in capsys.readouterr().err
    now[0] = 30.0
    shown.show(Event(ran[0], "end", outcome=Outcome(ran[0].cell_id, "done", seconds=30.0)))
    assert shown.remaining() == pytest.approx(30.0 * 2.5 / 1.5), "one whole and one half of four"


def test_what_is_not_a_terminal_gets_a_line_a_minute(ran, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    shown = display.Display(2)
    for now[0] in range(5, 605, 5):
        for cell in ran[:2]:
            shown.show(Event(cell, "stage", "epoch 3/9", 0.3, {"loss": 1.5}))
    said = capsys.readouterr().err.splitlines()
    assert 8 <= len(said) <= 10 and all(line.count("epoch 3/9, loss 1.5") == 2 for line in said[1:])
