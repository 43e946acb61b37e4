"""What is said of running cells: their place in the table, how often, and the time that is left."""

from __future__ import annotations

import fake_family
import pytest

from repro.cell import Outcome
from repro.launch import display
from repro.launch.pool import Event


@pytest.fixture
def ran(experiment, tools):
    (plan,) = fake_family.planned([experiment()], tools)
    return list(plan.cells.values())


def test_a_cell_is_named_by_its_row_and_column_of_the_table(ran):
    assert display.name(ran[0]) == "fake: plain, A, seed 1"
    assert any("lam=0.5, B, seed 2" in display.name(cell) for cell in ran)


def test_the_time_left_begins_as_expected_and_becomes_what_is_measured(ran, monkeypatch, capsys):
    """Four cells of 100 seconds, one of 200 as expected; half of the first one is of an earlier run, and they take twice as long."""
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    shown = display.Display({"a": 200.0, "b": 100.0, ran[2].cell_id: 100.0, ran[3].cell_id: 100.0}, workers=2)
    now[0] = 30.0
    assert shown.remaining() == pytest.approx(500 / 2) and shown.total == 4
    shown.expect({ran[0].cell_id: 200.0, ran[1].cell_id: 100.0}, ["a", "b"])
    shown.show(Event(ran[0], "stage", "training", 0.5))
    shown.show(Event(ran[1], "stage", "training", 0.0))
    assert shown.total == 4 and shown.remaining() == pytest.approx(400 / 2), "what another run had done is not left"
    now[0] = 130.0
    shown.show(Event(ran[0], "stage", "training", 0.75))
    shown.show(Event(ran[1], "stage", "training", 0.5))
    pace = (display.TRUST + 50 + 50) / (display.TRUST + 100 + 100)
    assert shown.remaining() == pytest.approx((50 + 50 + 200) / pace / 2)
    assert "0/4 done; about 7 min left | " in capsys.readouterr().err
    shown.show(Event(ran[0], "end", outcome=Outcome(ran[0].cell_id, "done", seconds=100.0)))
    shown.show(Event(ran[2], "end", outcome=Outcome(ran[2].cell_id, "failed", error="x")))
    pace = (display.TRUST + 100 + 50) / (display.TRUST + 100 + 100)
    assert shown.remaining() == pytest.approx((50 + 100) / pace / 2), (
        "a failed cell is not left, and says nothing of the pace"
    )
    shown.show(Event(ran[1], "end", outcome=Outcome(ran[1].cell_id, "done", seconds=100.0)))
    assert shown.remaining() == pytest.approx(100), "one worker has nothing to do"
    assert "[3/4] done" in capsys.readouterr().err


def test_where_nothing_is_expected_the_pace_is_measured_first(ran, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    shown = display.Display({ran[0].cell_id: 1.0})
    shown.show(Event(ran[0], "stage", "training", 0.2))
    now[0] = 15.0
    shown.show(Event(ran[0], "stage", "training", 0.4))
    assert shown.remaining() is None and shown._left_text() == "", "too little is done to say"
    now[0] = 30.0
    shown.show(Event(ran[0], "stage", "training", 0.6))
    assert shown.remaining() == pytest.approx(30.0)


def test_what_is_not_a_terminal_gets_a_line_a_minute(ran, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    shown = display.Display({cell.cell_id: 1.0 for cell in ran[:2]})
    for now[0] in range(5, 605, 5):
        for cell in ran[:2]:
            shown.show(Event(cell, "stage", "epoch 3/9", 0.3, {"loss": 1.5}))
    said = capsys.readouterr().err.splitlines()
    assert 8 <= len(said) <= 10 and all(line.count("epoch 3/9, loss 1.5") == 2 for line in said[1:])
