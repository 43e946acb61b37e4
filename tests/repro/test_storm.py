"""The short form of tests/crash_test.py, and that it would see a difference."""

from __future__ import annotations

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
