"""The short form of tests/crash_test.py, and that it would see a difference."""

from __future__ import annotations

import runpy

import pytest
import storm

from repro import cell as cells
from repro.files import read_json, write_json


@pytest.mark.slow
def test_after_a_storm_every_number_is_that_of_an_undisturbed_run(tmp_path):
    assert storm.run(tmp_path, seconds=15, rows=1) == []


@pytest.mark.slow
def test_many_cells_under_a_kill_every_second_are_trained_once_each(tmp_path):
    assert storm.many(tmp_path, cells=200) == []


def test_a_difference_would_be_seen(cell, store):
    cells.run(cell(), store)
    before = storm.numbers(store)
    assert len(before) == 2
    path = cell().entry(store).path("metrics.json")
    told = read_json(path)
    write_json(path, told | {"metrics": told["metrics"] | {"dev/score": 0.1 + 1e-12}})
    assert storm.numbers(store) != before


def test_the_command_runs_what_is_asked_and_ends_with_1_when_anything_differs(monkeypatch, root, tmp_path, capsys):
    command, asked = runpy.run_path(str(root / "tests" / "crash_test.py"))["main"], []
    monkeypatch.setattr(storm, "run", lambda *given, **more: asked.append((*given, more)) or [])
    monkeypatch.setattr(storm, "many", lambda *given, **more: asked.append((*given, more)) or ["a score"])
    new = tmp_path / "new"
    assert command(["--minutes", "0.5", "--seed", "7", "--folder", str(new)]) == 0
    assert asked == [(new.resolve(), 30.0, {"seed": 7})] and new.is_dir()
    assert command(["--many"]) == 1 and asked[1][1] == {"seed": 1} and not asked[1][0].exists()
    end = "differences from the undisturbed run"
    assert capsys.readouterr().out.splitlines() == [f"0 {end}", "a score", f"1 {end}"]
    assert command([]) == 0 and asked[2][1:] == (300.0, {"seed": 1})
