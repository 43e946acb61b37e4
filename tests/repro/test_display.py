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
    """Four cells, of which the first is twice as much work as each other; 30 seconds pass before the first says anything."""
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    shown = display.Display({cell.cell_id: work for cell, work in zip(ran, (2.0, 1.0, 1.0, 1.0))})
    now[0] = 30.0
    assert shown.remaining() is None, "nothing is done yet"
    shown.show(Event(ran[0], "stage", "training", 0.1))
    shown.show(Event(ran[1], "stage", "training", 0.5))
    now[0] = 45.0
    shown.show(Event(ran[0], "stage", "training", 0.4))
    assert shown.remaining() is None and shown._left_text() == "", "too little is done to say"
    now[0] = 61.0
    shown.show(Event(ran[0], "stage", "training", 0.6))
    assert shown.remaining() == pytest.approx(31.0 * (0.8 + 0.5 + 2) / 1.0), "what another run had done is not counted"
    assert "0/4 done; about 2 min left | " in capsys.readouterr().err
    shown.show(Event(ran[0], "end", outcome=Outcome(ran[0].cell_id, "done", seconds=31.0)))
    assert shown.remaining() == pytest.approx(31.0 * 2.5 / 1.8)
    shown.show(Event(ran[2], "end", outcome=Outcome(ran[2].cell_id, "failed", error="x")))
    assert shown.remaining() == pytest.approx(31.0 * 1.5 / 1.8), (
        "a failed cell is not left, and says nothing of the pace"
    )


def test_what_is_not_a_terminal_gets_a_line_a_minute(ran, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    shown = display.Display({cell.cell_id: 1.0 for cell in ran[:2]})
    for now[0] in range(5, 605, 5):
        for cell in ran[:2]:
            shown.show(Event(cell, "stage", "epoch 3/9", 0.3, {"loss": 1.5}))
    said = capsys.readouterr().err.splitlines()
    assert 8 <= len(said) <= 10 and all(line.count("epoch 3/9, loss 1.5") == 2 for line in said[1:])
