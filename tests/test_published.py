"""The printed numbers that tables compare with: whole, consistent, with the sums of another transcription."""

import itertools
import re
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from functools import cache

import pytest
import yaml

from repro.identity import Cell
from repro.plan import Plan
from repro.plan import published as pub
from repro.protocol import Prepared, TestSet
from repro.tables import footers
from repro.tables.verdict import barriers
from tasks.commands import reproduce
from tasks.config import compose

TABLES = compose.names_in("published")
EXPERIMENTS = [name for name in compose.names_in("experiment") if "published" in compose.page("experiment", name)]
COMPARED = [name for name in EXPERIMENTS if "paper" in compose.page("experiment", name)["profiles"]]


@cache
def ours(name: str) -> dict:
    return yaml.safe_load((compose.CONFIGS / "published" / f"{name}.yaml").read_text(encoding="utf-8"))


def key(record: dict) -> tuple[str, str, str]:
    return record["mapping"], record["dataset"], record["metric"]


@pytest.mark.parametrize("name", TABLES)
def test_numbers_are_those_of_the_paper(name):
    """Sums over every row and column are those of another transcription, which the page carries: no single slip passes."""
    columns, rows = defaultdict(Decimal), defaultdict(Decimal)
    for record in ours(name)["results"]:
        value = Decimal(str(record["value"]))
        columns[f"{record['dataset']} {record['metric']}"] += value
        rows[record["mapping"]] += value
    totals = ours(name)["totals"]
    for found, stated in ((columns, totals["columns"]), (rows, totals["rows"])):
        assert {k: float(v) for k, v in found.items()} == stated


@pytest.mark.parametrize("name", TABLES)
def test_every_number_has_the_decimals_of_its_table(name):
    records = ours(name)["results"]
    assert len({record["decimals"] for record in records}) == 1, "a table prints all its numbers alike"
    for record in records:
        value = record["value"]
        assert 0 < value < 100 and float(f"{value:.{record['decimals']}f}") == value, key(record)


def shown_numbers(name: str) -> set[tuple[str, str, str]]:
    """The printed numbers that an experiment shows; each must exist. A row without `published` is not in the paper."""
    page = compose.page("experiment", name)
    records = compose.published(page["published"])
    used = set()
    printed = [row for row in page["rows"] if "published" in row]
    for column, row in itertools.product(page["columns"].values(), printed):
        for group, metric in ((g, m) for g in column.get("published", []) for m in g["metrics"]):
            found = records.get((row["published"], group["dataset"], metric))
            assert found is not None, f"{row['label']}, {group['dataset']}, {metric}: no printed number"
            used.add((row["published"], group["dataset"], metric))
    return used


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_row_and_column_finds_its_printed_number(name):
    shown = shown_numbers(name)
    assert shown
    if name in TABLES:
        assert shown == {key(r) for r in ours(name)["results"]}, "every printed number has a place"


@pytest.mark.parametrize("name", COMPARED)
def test_a_row_is_what_the_page_says_and_a_number_is_held_against_the_score_that_it_is(name):
    """DUC is scored by recall at 75 bytes, in every column that shows its numbers."""
    page = compose.page("experiment", name)
    published = ours(page["published"])
    sets, rows = published["datasets"], published["rows"]
    for group in (g for column in page["columns"].values() for g in column.get("published", ())):
        known = sets.get(group["dataset"]) or {}
        for metric, against in zip(group["metrics"], group["against"]):
            assert known.get(metric) in (None, against.partition("/")[2])
            assert known or sets == {}, f"{name}: what is {group['dataset']} by our names?"
    for row in (row for row in page["rows"] if row.get("published")):
        said = rows[row["published"]]
        stated = dict(o.removeprefix("+").split("=", 1) for o in row.get("overrides", ()))
        assert said["mapping"] == row["mapping"] and stated == {k: str(said[k]) for k in stated}
    assert {r["mapping"] for r in published["results"]} == set(rows)


@cache
def wanted(name: str) -> list[Cell]:
    return reproduce.outline([compose.experiment(name, "paper")])[0].slots


def test_every_declared_deviation_of_a_row_bars_its_verdict():
    """At profile paper, of all experiments: those that a table prints, each for the rows that it concerns."""
    seen = set()
    for name in COMPARED:
        one = compose.experiment(name, "paper")
        slots = [cell.with_data(Prepared("", "", test=TestSet("test", "", ""))) for cell in wanted(name)]
        barred = set()
        for slot in slots:
            row, column = one.rows[slot.row], one.columns[slot.column]
            declared = footers.declared(Plan(one, slots), [slot])
            why = barriers(one, column, row, pub.Published(1.0, 1, "", ""), "test/x", [slot], {}, (), declared)
            mine = [*one.deviations, *(footers.of_paper(d, one.paper) for d in slot.config["task"]["deviations"])]
            others = [text for text in mine if re.match("with ", text) and f"with {slot.mapping}" not in text]
            groups = {o.split("=")[0] for o in (*column.overrides, *row.overrides)}  # of which another file was chosen
            others += [text for text in mine if text.split(":")[0] in groups]
            told = [text for text in mine if f"deviation: {text}" in why]
            assert told == [text for text in mine if text not in others], (name, row.label)
            barred |= {*mine} - {*others}
        assert barred == {*one.deviations, *footers.of_settings(Plan(one, slots), slots)}, "what is printed"
        seen |= barred
    assert len(seen) >= 5 and set(TABLES) <= set(EXPERIMENTS)


STATING = [(name, p) for name in compose.names_in("experiment") for p in compose.page("experiment", name)["profiles"]]


@pytest.mark.parametrize(
    "name, profile",
    [pytest.param(*e, id="-".join(e), marks=[] if e[1] == "demo" else pytest.mark.slow) for e in STATING],
)
def test_a_deviation_names_no_paper_but_its_table_s_own(name, profile):
    """Below the tables of all experiments; `footers.of_paper` writes what a paper states as "(paper: ...)"."""
    one = compose.experiment(name, profile)
    one = replace(one, seeds=one.seeds[:1])
    texts = {task: compose.page("deviations", task) for task in compose.names_in("deviations")}
    slots = [c.with_data(Prepared("", "", test=TestSet("test", "", ""))) for c in reproduce.outline([one])[0].slots]
    for task in dict.fromkeys(slot.task for slot in slots):
        plan = Plan(one, [slot for slot in slots if slot.task == task])
        printed = [*one.deviations, *footers.of_settings(plan, plan.slots), *footers.of_tasks(texts, plan)]
        named = [text for text in printed if re.search(r"\([a-z]+\d{4}[,:] ", text)]
        assert named == [], "a paper's name in brackets is written as `paper` or left out"
