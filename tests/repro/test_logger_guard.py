"""Loggers beside a cell: what they hear, and that trouble with them is nobody else's."""

import time
from dataclasses import replace

import pytest

from repro import cell as cells


class Logger:
    name, timeout = "mine", 0.3

    def __init__(self, raises="", hangs=""):
        self.raises, self.hangs, self.told, self.ended, self.rows = raises, hangs, [], [], []

    def _told(self, what):
        self.told.append(what)
        if what == self.hangs:
            time.sleep(60)
        if what == self.raises:
            raise RuntimeError("no network")

    def start(self):
        self._told("start")

    def curve(self, rows):
        self.rows = rows
        self._told("curve")

    def finish(self, found, state):
        self.ended.append((found, state))
        self._told("finish")


def test_what_a_logger_says_at_its_start_is_told_once(cell, store):
    logger, told = Logger(), []
    logger.said = "kept offline"
    cells.run(cell(), store, loggers=lambda _: [logger], forward=lambda *of: told.append(of))
    assert told.count(("note", "logger mine: kept offline")) == 1


@pytest.mark.parametrize("behaviour, state", [("measure", "done"), ("raise", "failed")])
def test_loggers_hear_the_curve_and_the_end(cell, store, behaviour, state):
    logger = Logger()
    cells.run(cell(task__behaviour=behaviour), store, loggers=lambda _: [logger])
    assert [s for _, s in logger.ended] == [state]
    found = logger.ended[0][0]
    assert (found is not None and "test/score" in found.metrics) == bool(logger.rows) == (state == "done")


@pytest.mark.parametrize("how, why", [("raises", "RuntimeError: no network"), ("hangs", "it took longer than 0.3 s")])
@pytest.mark.parametrize("where", ["start", "curve", "finish"])
def test_a_logger_in_trouble_costs_its_timeout_once_and_nothing_else(cell, store, where, how, why):
    bad, good, said = Logger(**{how: where}), Logger(), []
    mine = cell()
    started = time.monotonic()
    outcome = cells.run(mine, store, forward=lambda *message: said.append(message), loggers=lambda _: [bad, good])
    assert outcome.state == "done" and mine.done(store) and time.monotonic() - started < 5
    note = f"logger mine failed in {where} and is switched off: {why}"
    assert [m[1] for m in said if m[0] == "note" and "logger" in m[1]] == [note]
    assert mine.entry(store).path("log.txt").read_text().count(note) == 1
    assert bad.told[-1] == where and good.told == ["start", "curve", "finish"]


def test_a_failed_cell_with_a_failing_logger_says_its_own_failure(cell, store):
    outcome = cells.run(cell(task__behaviour="raise"), store, loggers=lambda _: [Logger(raises="finish")])
    assert outcome.state == "failed" and "cat" in outcome.error and "network" not in outcome.error


def test_loggers_that_cannot_be_made_do_not_fail_the_cell(cell, store):
    said = []
    assert cells.run(cell(), store, forward=lambda *m: said.append(m), loggers=lambda _: 1 / 0).state == "done"
    assert ("note", "no loggers: ZeroDivisionError: division by zero") in said


def test_who_asked_first_travels_with_the_folder_and_is_no_part_of_the_identity(cell, store):
    asked = {"sweep": "s", "row": "plain lam=0.5", "column": "a"}
    mine = replace(cell(), origin=asked)
    assert mine.training_id == cell().training_id and mine.label == "plain lam=0.5, a"
    assert cells.run(mine, store).state == "done" and cells.finished(mine.entry(store).folder).origin == asked
