"""Plans before any data: what counts as done, and the assumed hours of the rest."""

from __future__ import annotations

from dataclasses import replace

import fake_family
import pytest

from repro import cell as cells
from repro import plan as plans
from repro.results import estimate as estimates


@pytest.fixture
def estimate(experiment, tools, store, monkeypatch):
    def make(overrides=(), change=lambda page: None):
        one = experiment(change)
        (slots,) = plans.outline([one], tools, overrides)
        return estimates.estimate([(one.columns[w.column].label, w) for w in slots], store)

    monkeypatch.setattr(fake_family, "prepare", lambda *_: pytest.fail("a plan looks at no data"))
    return make


def test_nothing_is_known(estimate, monkeypatch):
    told = estimate()
    assert (told.total.cells, told.total.done, told.total.hours) == (16, 0, pytest.approx(16 * 0.05))
    text = told.text("A plan")
    assert "assumed, 0.05 hours each" in text
    assert text.splitlines()[-1].startswith("16 cells: 0 done, 16 to run; about 48 minutes of cells")
    monkeypatch.setattr(estimates, "ASSUMED_HOURS", {})  # a profile of your own: an hour for each cell
    told = estimate()
    assert told.total.hours == pytest.approx(16) and "assumed, 1 hours each" in told.text("A plan")


def test_done_by_configuration(experiment, tools, store, estimate, monkeypatch):
    one = experiment()
    (slots,) = plans.outline([one], tools)
    monkeypatch.undo()
    assert cells.run(cells.prepare(slots[0]), store).state == "done"
    monkeypatch.setattr(fake_family, "prepare", lambda *_: pytest.fail("a plan looks at no data"))
    told = estimate()
    assert told.total.done == 1 and told.shares["A"].done == 1 and told.shares["B"].done == 0
    assert len(set(told.keys)) == 16 and len(told.left) == 15 and set(told.left) < set(told.keys)
    # other data, another recipe, or an evaluation that is missing: not done
    assert estimate(["data.content=b"]).total.done == 0
    with monkeypatch.context() as patch:
        patch.setattr(fake_family, "RECIPE", (2, 1))
        assert estimate().total.done == 0
    assert estimate().total.done == 1
    assert estimate(change=lambda page: page["columns"]["a"].update(evaluate=["duc"])).total.done == 0


def test_the_hours_of_a_paper_profile_are_by_the_epoch(experiment, tools, store):
    (slots,) = plans.outline([experiment(profile="paper")], tools, ["train.max_epochs=2"])
    data = slots[0].config["data"]["name"]
    told = estimates.estimate([("x", w) for w in slots], store, estimates.Rates({data: 0.5}))
    assert told.total.hours == pytest.approx(told.total.cells * 2 * 0.5)
    assert told.sources == {f"assumed, 0.5 hours an epoch of {data} on one GPU": told.total.cells}


def test_the_hours_of_an_epoch_are_those_of_finished_cells_or_of_the_setting(experiment, tools, store, monkeypatch):
    (slots,) = plans.outline([experiment()], tools, ["train.max_epochs=3"])
    rates = estimates.Rates(others={"fake_demo": (1000, 360)}, slowness=lambda: 2.0)
    assert estimates.hours(slots[0].config, rates) == (
        pytest.approx(0.6),
        "assumed, 12 minutes an epoch of fake_demo on one core",
    )
    few = {**slots[0].config, "data": {"name": "invented", "limits": {"train": 500}}}
    assert estimates.hours(few, rates)[0] == pytest.approx(0.3)
    longer = {"train": slots[0].config["train"] | {"max_epochs": 4}}
    ended = [cells.run(cells.prepare(replace(w, config={**w.config, **longer})), store).state for w in slots[:2]]
    assert ended == ["done", "done"]
    known = estimates.records.read(store).records
    assert len(known) == 2 and {r.config["mapping"]["name"] for r in known} == {"softmax"}
    paces = estimates._paces([replace(r, seconds=seconds) for r, seconds in zip(known, (300, 500))])
    kind = "2 finished cell(s) of fake"
    assert estimates.hours(slots[0].config, rates, paces) == (
        pytest.approx(300 / 3600),
        f"measured, 2 minutes an epoch in {kind}",
    )
    monkeypatch.setattr(estimates, "_paces", lambda known: paces)
    told = estimates.estimate([("x", w) for w in slots], store, rates)
    assert told.total.hours == pytest.approx(16 * 300 / 3600), (
        "another mapping takes as long, before one of its own has ended"
    )
    assert "about 1.3 hours of cells (measured)" in told.text("")
    assert estimates.hours({**slots[0].config, "data": {"name": "other"}}, rates, paces)[1].startswith("assumed")


def test_gpu_hours(estimate, tools, experiment, store):
    def on(device, profile):
        compose = lambda o, u=(): (c := tools.compose(o, u)) | {"runtime": c["runtime"] | {"device": device}}  # noqa: E731
        (slots,) = plans.outline([experiment(profile=profile)], replace(tools, compose=compose))
        return estimates.estimate([("x", w) for w in slots], store).total

    assert on("cpu", "demo").gpu_hours == 0
    assert on("cuda", "demo").gpu_hours == pytest.approx(on("cuda", "demo").hours) != 0
    assert on("cpu", "paper").gpu_hours == pytest.approx(4 * estimates.ASSUMED_HOURS["paper"])
