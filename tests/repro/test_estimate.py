"""Plans before any data: what counts as done, the assumed hours of the rest; what is said of running cells."""

import os
from dataclasses import replace
from types import SimpleNamespace

import fake_family
import pytest

from repro import cell as cells
from repro import plan as plans
from repro.cell import Outcome
from repro.launch import display
from repro.launch.pool import Event
from repro.results import estimate as estimates


@pytest.fixture
def estimate(experiment, tools, store, monkeypatch):
    def make(overrides=(), change=lambda page: None):
        one = experiment(change)
        slots = plans.outline([one], tools, overrides)[0].slots
        return estimates.estimate([(one.columns[w.column].label, w) for w in slots], store)

    monkeypatch.setattr(fake_family, "prepare", lambda *_: pytest.fail("a plan looks at no data"))
    return make


def test_nothing_is_known(estimate, monkeypatch):
    told = estimate()
    assert (told.total.cells, told.total.done, told.total.hours) == (16, 0, pytest.approx(16 * 0.05))
    text = told.text("A plan")
    assert "assumed, 0.05 hours each" in text
    assert text.splitlines()[-1].startswith("16 cells: 0 done, 16 to run; about 48 min of cells")
    monkeypatch.setattr(estimates, "ASSUMED_HOURS", {})  # a profile of your own: an hour for each cell
    told = estimate()
    assert told.total.hours == pytest.approx(16) and "assumed, 1 hours each" in told.text("A plan")


def test_done_by_configuration(experiment, tools, store, estimate, monkeypatch):
    one = experiment()
    slots = plans.outline([one], tools)[0].slots
    monkeypatch.undo()
    assert cells.run(cells.prepare(slots[0]), store).state == "done"
    monkeypatch.setattr(fake_family, "prepare", lambda *_: pytest.fail("a plan looks at no data"))
    told = estimate()
    assert told.total.done == 1 and told.shares["A"].done == 1 and told.shares["B"].done == 0
    # other data, another recipe, or an evaluation that is missing: not done
    assert estimate(["data.content=b"]).total.done == 0
    with monkeypatch.context() as patch:
        patch.setattr(fake_family, "RECIPE", (2, 1))
        assert estimate().total.done == 0
    assert estimate().total.done == 1
    assert estimate(change=lambda page: page["columns"]["a"].update(evaluate=["duc"])).total.done == 0


@pytest.mark.parametrize("share, minutes", [("auto", 1.25), (2, 1.5), (1, 2)])
def test_the_time_on_a_gpu_is_by_the_update(experiment, tools, store, share, minutes):
    """2 epochs of 5 updates of 3 s, and 30 s besides: 1 minute a cell; two at a time take 1.5 minutes, four 2.5."""
    slots = plans.outline([experiment(profile="paper")], tools, ["train.max_epochs=2"])[0].slots
    task, data = (slots[0].config[node]["name"] for node in ("task", "data"))
    for slot in slots:
        slot.config["train"]["batch_size"], slot.config["runtime"]["workers_per_device"] = 20, share
    given = {"examples": {data: 90}, "start": 30.0, "slowed": 0.5, "together": 8}
    told = estimates.estimate([("x", w) for w in slots], store, estimates.Rates({task: 3.0}, **given))
    assert told.total.cells == 4 and told.total.hours == pytest.approx(4 / 60)
    assert told.gpu_minutes(told.total) == pytest.approx(2 * minutes)
    at_once = {"auto": " with 4 cells at a time on a GPU", 2: " with 2 cells at a time on a GPU", 1: ""}[share]
    text = told.text("").splitlines()
    assert text[-1].endswith(f"{2 * minutes:.1f} GPU-minutes{at_once}") and text[1].endswith("GPU-minutes")
    assert f"3000 ms an update of {task}, measured on an H200" in next(iter(told.sources))
    counted = estimates.Rates(counted={task: 3.0}, **given)
    slots[0].config["data"]["limits"] = {"train": 20}
    told = f"assumed, 3000 ms an update of {task}, by the operations it starts, not timed on an H200"
    assert estimates.hours(slots[0].config, counted) == (pytest.approx(36 / 3600), told)


def test_the_hours_of_an_epoch_are_those_of_finished_cells_or_of_the_setting(experiment, tools, store, monkeypatch):
    slots = plans.outline([experiment()], tools, ["train.max_epochs=3"])[0].slots
    rates = estimates.Rates(others={"fake_demo": (1000, 360)}, slowness=lambda: 2.0)
    told = "assumed, 12 min an epoch of fake_demo on one core"
    assert estimates.hours(slots[0].config, rates) == (pytest.approx(0.6), told)
    few = {**slots[0].config, "data": {"name": "invented", "limits": {"train": 500}}}
    assert estimates.hours(few, rates)[0] == pytest.approx(0.3)
    longer = {"train": slots[0].config["train"] | {"max_epochs": 4}}
    ended = [cells.run(cells.prepare(replace(w, config={**w.config, **longer})), store).state for w in slots[:2]]
    assert ended == ["done", "done"]
    known = estimates.records.read(store).records
    assert len(known) == 2 and {r.config["mapping"]["name"] for r in known} == {"softmax"}
    paces = estimates._paces([replace(r, seconds=seconds) for r, seconds in zip(known, (300, 500))])
    told = "measured, 2 min an epoch in 2 finished cell(s) of fake"
    assert estimates.hours(slots[0].config, rates, paces) == (pytest.approx(300 / 3600), told)
    monkeypatch.setattr(estimates, "_paces", lambda known: paces)
    told = estimates.estimate([("x", w) for w in slots], store, rates)
    assert told.total.hours == pytest.approx(16 * 300 / 3600), "before one of its own has ended, as another mapping"
    assert "about 80 min of cells (measured)" in told.text("")
    assert estimates.hours({**slots[0].config, "data": {"name": "other"}}, rates, paces)[1].startswith("assumed")


def test_gpu_hours(estimate, tools, experiment, store):
    def on(device, profile):
        compose = lambda o, u=(): (c := tools.compose(o, u)) | {"runtime": c["runtime"] | {"device": device}}  # noqa: E731
        slots = plans.outline([experiment(profile=profile)], replace(tools, compose=compose))[0].slots
        return estimates.estimate([("x", w) for w in slots], store).total

    assert on("cpu", "demo").gpu_hours == 0
    assert on("cuda", "demo").gpu_hours == pytest.approx(on("cuda", "demo").hours) != 0
    assert on("cpu", "paper").gpu_hours == pytest.approx(4 * estimates.ASSUMED_HOURS["paper"])


@pytest.fixture
def ran(experiment, tools):
    (plan,) = fake_family.planned([experiment()], tools)
    return list(plan.cells.values())


def test_the_time_left_begins_as_expected_and_becomes_what_is_measured(ran, monkeypatch, capsys):
    """Four cells of 100 seconds, one of 200 as expected; half of the first one is of an earlier run, and they take twice as long."""
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    shown = display.Display(dict(zip((cell.cell_id for cell in ran[:4]), (200.0, 100.0, 100.0, 100.0))), workers=2)
    now[0] = 30.0
    assert shown.remaining() == pytest.approx(500 / 2) and shown.total == 4
    shown.show(Event(ran[0], "stage", "training", 0.5))
    shown.show(Event(ran[1], "stage", "training", 0.0))
    assert shown.total == 4 and shown.remaining() == pytest.approx(400 / 2), "what another run had done is not left"
    now[0] = 130.0
    shown.show(Event(ran[0], "stage", "training", 0.75))
    shown.show(Event(ran[1], "stage", "training", 0.5))
    pace = (display.TRUST + 50 + 50) / (display.TRUST + 100 + 100)
    assert shown.remaining() == pytest.approx((50 + 50 + 200) / pace / 2)
    assert capsys.readouterr().err == "", "a file has a line a cell"
    shown.show(Event(ran[0], "end", outcome=Outcome(ran[0].cell_id, "done", seconds=100.0)))
    shown.show(Event(ran[2], "end", outcome=Outcome(ran[2].cell_id, "failed", error="x")))
    pace = (display.TRUST + 100 + 50) / (display.TRUST + 100 + 100)
    assert shown.remaining() == pytest.approx((50 + 100) / pace / 2)  # a failed cell is not left
    shown.show(Event(ran[1], "end", outcome=Outcome(ran[1].cell_id, "done", seconds=100.0)))
    assert shown.remaining() == pytest.approx(100), "one worker has nothing to do"
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 3 and "[3/4] done" in said
    monkeypatch.setattr(display.sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    shown.show(Event(ran[3], "stage", "epoch 3/9", 0.0, {"loss": 1.5}))
    (line,) = capsys.readouterr().err.split("\r\033[K")[1:]
    assert line.startswith("  3/4 done, 1 failed; about ") and " | epoch 3/9, loss 1.5: fake: " in line
    assert len(line) == 79, "cut before the last column"
    shown.show(Event(ran[3], "end", outcome=Outcome(ran[3].cell_id, "done", seconds=100.0)))
    assert "[4/4]" not in capsys.readouterr().err, "a cell that is done adds no line to a terminal"
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(display.os, "get_terminal_size", lambda file: os.terminal_size((72, file)))
    assert display.width(SimpleNamespace(fileno=lambda: 40)) == 72
