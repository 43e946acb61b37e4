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


# (paper, task) -> the settings that the paper states or, for a toolkit or code that it names, that this has
OPENNMT = "OpenNMT-py's defaults; one direction; 2 x 500; input feeding; neither; 1; .3; not divided; beam 5; SGD at 1; halving"
OPENNMT += "; batches of 64; 13 epochs; only in decoding; as in OpenNMT-py of 2017; `model.mask_padding=false`"
OPENNMT += "; given attention; model.mask_padding=false"
SUMS = "50,000 words; by a solver with tolerance 1e-2; `mapping.solver=pgd`; a solver with tolerance 1e-2; the printed composition"
SNLI = "as in the code of Martins & Astudillo 2016; GloVe 300-d; fixed; all words; 100 units; dropout .1; no words replaced"
SNLI += "; l2 chosen on dev; 3e-4; no clipping; batches of 25; 200 epochs; 570,000 pairs of sentences; SNLI; the printed composition"
IMDB = (
    "IMDB; biLSTM; sigma^2 = softplus(w'v); GloVe 840B; fixed; all words and whole documents; of 128 units; no dropout"
)
VQA = "VQA-v2; 14 x 14; MCAN; the challenge's server; test-dev and test-standard; ResNet-152 features; of 6 layers; 6 layers"
BEST = "that with the best accuracy"
STATED = {
    ("niculae2017", "translation"): f"{OPENNMT}; {SUMS}",
    ("niculae2017", "summarization"): f"{OPENNMT}; {SUMS}; 4M headlines",
    ("niculae2017", "snli"): SNLI,
    ("laha2018", "translation"): f"{OPENNMT}; 50,000 words; NMT-Benchmark; {BEST}",
    ("laha2018", "summarization"): f"{OPENNMT}; 50,000 words; Gigaword; {BEST}",
    ("laha2018", "multilabel"): "",
    ("peters2018", "snli_esim"): "SNLI",
    ("martins2020", "translation"): "IWSLT 2017; bidirectional; sizes not stated",
    ("martins2020", "imdb"): f"{IMDB}; AdamW at 1e-3; batches of 16; 10 epochs",
    (
        "martins2020",
        "vqa",
    ): f"{VQA}; 512 units; dropout .1; pretrained 300-d; 1e-4; 1e-4 in steps; batches of 64; 13 epochs; spaCy's",
    # of whose text we have none: by its code
    (
        "malaviya2018",
        "translation",
    ): f"{OPENNMT}; both directions; beam 10; BPE; IWSLT 2014; METEOR 1.5; chosen among 0; .2; ...; 1; its choice was not found",
}
# what a deviation says that the paper does not state begins with one of these words
SILENT = {
    ("niculae2017", "translation"): "data: |gpu, paper: Moses|The epoch",
    ("niculae2017", "summarization"): "The epoch",
}
SILENT |= {("laha2018", "translation"): "gpu, paper: Moses", ("martins2020", "imdb"): "data: |model: |encode: |optim: "}
SILENT |= {("martins2020", "vqa"): "data: random|optim: |GloVe "}
SILENT["martins2020", "translation"] = (
    "model: (one matrix|initial|dropout|padding)|joint BPE|optim: |scores |beam 4|gpu, paper: Moses|Source|The epoch"
)
QUOTED = re.compile(r" \((paper: |(?=the paper does not state it))((?:[^()]|\([^()]*\))*)\)")


def untrue(text: str, paper: str, task: str) -> list[str]:
    """What a deviation says of a paper's task that is not true, or that the paper does state."""
    stated, found = STATED.get((paper, task), "").split("; "), []
    for one in QUOTED.finditer(text):
        said = one[2]
        if re.match(f"the paper|{footers.NOT_STATED}", said):
            subject = text[: one.start()].split(". ")[-1]
            found += [] if re.match(SILENT.get((paper, task), "never"), subject) else [said]
            said = re.sub(f"^(the paper does not state it|{footers.NOT_STATED})(, the benchmark.*)?(, )?", "", said)
        found += [p for p in re.split("[,;] ", said) if p and p.removeprefix("in its code ") not in stated]
    return found


STATING = [(name, p) for name in compose.names_in("experiment") for p in compose.page("experiment", name)["profiles"]]


@pytest.mark.parametrize(
    "name, profile",
    [pytest.param(*e, id="-".join(e), marks=[] if e[1] == "demo" else pytest.mark.slow) for e in STATING],
)
def test_a_deviation_says_only_what_its_paper_states(name, profile):
    """Below the tables of all experiments; tables of no paper name none."""
    one = compose.experiment(name, profile)
    one = replace(one, seeds=one.seeds[:1])
    texts = {task: compose.page("deviations", task) for task in compose.names_in("deviations")}
    slots = [c.with_data(Prepared("", "", test=TestSet("test", "", ""))) for c in reproduce.outline([one])[0].slots]
    for task in dict.fromkeys(slot.task for slot in slots):
        plan = Plan(one, [slot for slot in slots if slot.task == task])
        printed = [*one.deviations, *footers.of_settings(plan, plan.slots), *footers.of_tasks(texts, plan)]
        assert [(text, bad) for text in printed for bad in untrue(text, one.paper, task)] == []
        named = [text for text in printed if re.search(r"\([a-z]+\d{4}[,:] ", text)]
        assert named == [], "a paper's name in brackets is written as `paper` or left out"
