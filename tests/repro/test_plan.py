"""From rows, columns, grids and seeds to cells: all configurations checked first, each data set prepared once."""

import os
import time
from dataclasses import replace
from functools import partial

import fake_family
import pytest

from repro.errors import ConfigError


def made(one, tools, overrides=(), **options):
    (plan,) = fake_family.planned([one], tools, overrides, **options)
    return plan


def test_every_place_of_the_table_has_its_slots(experiment, tools):
    plan = made(experiment(), tools)
    assert len(plan.slots) == 2 * (1 + 3) * 2 == len(plan.cells)
    assert len(plan.at(0, 0)) == 2 and len(plan.at(1, 1)) == 6
    chosen = next(s for s in plan.at(1, 1) if s.point == (("mapping.lam", -1.0),) and s.seed == 2)
    assert chosen.config["mapping"]["name"] == "sparsegen_lin" and chosen.config["mapping"]["lam"] == -1
    assert chosen.config["task"]["shift"] == 5 and chosen.seed == 2
    assert chosen.config["profile"]["name"] == "demo" and chosen.label == "tuned lam=-1.0, B"
    assert set(plan.metrics(0)) == set(fake_family.METRICS)


def test_grid_by_column_and_the_mapping_s_own(experiment, tools):
    def change(page):
        page["rows"] = [page["rows"][0] | {"grids": {"small": {"lam": [0.5]}, "own": "own"}}]
        page["columns"]["a"]["grid"], page["columns"]["b"]["grid"] = "small", "own"

    plan = made(experiment(change), tools)
    small, own = ([s.point for s in plan.at(0, column) if s.seed == 1] for column in (0, 1))
    assert small == [(("mapping.lam", 0.5),)]
    assert own == [(("mapping.lam", 0.0),), (("mapping.lam", 0.5),)], "of the mapping's page"


def test_equal_cells_are_run_once_with_the_tests_of_all(experiment, tools):
    def change(page):
        page["columns"]["b"] = page["columns"]["a"] | {"evaluate": ["own"], "label": "B"}
        page["columns"]["a"]["evaluate"] = ["duc"]

    plan = made(experiment(change), tools)
    assert len(plan.slots) == 16 and len(plan.cells) == 8
    assert {tuple(t.name for t in c.tests) for c in plan.cells.values()} == {("test", "duc", "own")}
    assert [t.name for t in plan.at(0, 0)[0].tests] == ["test", "duc"]
    assert plan.at(0, 1)[0].further == {"own": {"name": "own", "content": "own"}}


@pytest.mark.parametrize("grid", ["own", {"lam": [0.1, 0.5], "mapping.more": [1, 2]}])
def test_a_grid_does_not_search_what_the_user_sets(experiment, tools, grid):
    """Every point would be the same cell, under the first point's name."""

    def change(page):
        page["rows"] = [page["rows"][0] | {"grids": {"g": grid}}]
        page["columns"]["a"]["grid"] = "g"

    rest = [()] if grid == "own" else [(("mapping.more", 1),), (("mapping.more", 2),)]
    slots = [s for s in made(experiment(change), tools, ["mapping.lam=0.3"]).at(0, 0) if s.seed == 1]
    assert [s.point for s in slots] == [(("mapping.lam", 0.3), *more) for more in rest]
    assert {s.config["mapping"]["lam"] for s in slots} == {0.3}


def test_values_keep_their_kind_in_overrides(experiment, tools):
    seen = []
    spying = replace(tools, compose=lambda *told: (seen.append([*map(list, told)]), tools.compose(told[0]))[1])

    def change(page):
        grids = {"g": {"a": [True, None, 0.5, "word"]}}
        page["rows"] = [{"label": "r", "mapping": "m", "overrides": ["c=1"], "grids": grids}]
        page["profiles"]["demo"] = {"columns": ["a"], "seeds": [3]}

    assert made(experiment(change), spying, ["z=1"]).overrides == ("z=1",)
    values = ("true", "null", "0.5", "word")
    of_all = [["profile=demo", "mapping=m", "c=1", f"mapping.a={v}", "seed=3", "z=1"] for v in values]
    assert seen == [[overrides, ["z=1"]] for overrides in of_all], "those of the user win, and are told apart"


def test_all_errors_are_collected_before_any_data(experiment, tools, tmp_path):
    def change(page):
        page["rows"] += [{"label": "third", "mapping": "m", "overrides": ["bad=2"]}]
        page["rows"][0]["overrides"] = ["bad=1"]
        page["columns"]["b"]["show"].append({"metric": "test/scroe", "label": "x"})

    trace = tmp_path / "trace"
    with pytest.raises(ConfigError) as caught:
        made(experiment(change), tools, [f"data.trace={trace}"])
    said = str(caught.value)
    assert "plain" in said and "third" in said and "tuned" not in said
    assert "no such key: bad" in said and "A table" in said
    assert "column b: test/scroe" in said and "did you mean 'score'" in said
    assert not trace.exists()


def test_a_grid_needs_a_select(experiment, tools):
    with pytest.raises(ConfigError, match="a: several grid points need a `select`"):
        made(experiment(lambda page: page["columns"]["a"].pop("select")), tools)


@pytest.mark.parametrize("workers", [1, 3])
def test_each_data_set_is_prepared_once(experiment, tools, tmp_path, workers):
    """One version of a data set after the other, because they share what is fetched; another one beside them."""

    def change(page, data):
        page["columns"]["b"]["overrides"] = data

    trace = tmp_path / "trace"
    data = (["data.content=b"], ["data.content=c", "data.name=other"])
    two = [experiment(partial(change, data=one)) for one in data]
    both = fake_family.planned(two, tools, [f"data.trace={trace}"], workers=workers)
    lines = [line.split() for line in trace.read_text().splitlines()]
    assert sorted(content for *_, content in lines) == ["a", "b", "c"] and [len(p.slots) for p in both] == [16, 16]
    by = {content: pid for pid, *_, content in lines}
    assert by["a"] == by["b"]
    assert (by["a"] == by["c"] == str(os.getpid())) == (workers == 1), "several at a time run in processes of their own"


def test_an_error_of_a_loader_is_raised(experiment, tools):
    one = experiment(lambda page: page["columns"]["b"]["overrides"].append("data.missing=1"))
    with pytest.raises(fake_family.DataMissing):
        made(one, replace(tools, unavailable=()))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_column_without_data_says_why_and_the_others_stay(experiment, tools, workers):
    one = experiment(lambda page: page["columns"]["b"]["overrides"].append("data.missing=1"))
    plan = made(one, tools, workers=workers)
    assert plan.unavailable == {1: "it is behind a licence"}
    assert {s.column for s in plan.slots} == {0} and len(plan.slots) == 8


def test_an_error_ends_the_preparation_of_the_other_data(experiment, tools, monkeypatch):
    def prepare(config, progress):
        time.sleep(60 * (config["data"]["content"] == "b"))
        raise ValueError("damaged")

    monkeypatch.setattr(fake_family, "prepare", prepare)
    first = experiment(lambda page: page["profiles"]["demo"].update(columns=["a"]))
    second = experiment(lambda page: page["columns"]["a"].update(overrides=["data.content=b", "data.name=other"]))
    started = time.monotonic()
    with pytest.raises(ValueError, match="damaged"):
        fake_family.planned([first, second], tools, workers=2)
    assert time.monotonic() - started < 30
