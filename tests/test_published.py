"""The printed numbers that tables compare with: whole, consistent, as an independent reading of the papers has them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from repro.plan import published as pub
from tasks.commands import compare
from tasks.config import compose

FOLDER = compose.CONFIGS / "published"
TABLES = compose.names_in("published")
EXPERIMENTS = [name for name in compose.names_in("experiment") if "published" in compose.page("experiment", name)]
READ = Path(__file__).resolve().parents[2] / "shared" / "papers" / "published_results.yaml"


def ours(name: str) -> dict:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def read() -> list[dict]:
    if not READ.exists():
        pytest.skip(f"{READ.name} is not beside the repository")
    return yaml.safe_load(READ.read_text(encoding="utf-8"))["results"]


def key(record: dict) -> tuple[str, str, str]:
    return record["mapping"], record["dataset"], record["metric"]


def read_key(record: dict) -> tuple[str, str, str]:
    """The same of a record of the reading, which keeps the number of basis functions and the test split apart."""
    mapping, dataset, metric = key(record)
    n = (record.get("hyperparameters") or {}).get("n_rbf")
    if n is not None and record["dataset"] == "IMDB":
        mapping = f"{mapping}, N = {n}"
    if str(record.get("split", "")).startswith("test-"):
        dataset = f"{dataset} {record['split']}"
    return mapping, dataset, metric


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
def test_numbers_are_those_of_the_reading(name, read):
    page = ours(name)
    theirs = {
        read_key(r): float(r["value"]) for r in read if (r["paper"], r["table"]) == (page["paper"], page["table"])
    }
    mine = {key(r): float(r["value"]) for r in page["results"]}
    assert theirs, f"{READ.name} has no {page['paper']} {page['table']}"
    assert mine == theirs


@pytest.mark.parametrize("name", TABLES)
def test_scores_of_one_system_are_in_their_order(name):
    """ROUGE-1 > ROUGE-L > ROUGE-2; the accuracy of all questions lies between those of their types."""
    systems: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for mapping, dataset, metric in map(key, ours(name)["results"]):
        systems[mapping, dataset][metric] = pub.lookup(ours(name)["results"], mapping, dataset, metric).value
    for scores in systems.values():
        if "ROUGE-1" in scores:
            assert scores["ROUGE-1"] > scores["ROUGE-L"] > scores["ROUGE-2"]
        if "accuracy overall" in scores and len(scores) > 2:
            parts = [v for k, v in scores.items() if k != "accuracy overall"]
            assert min(parts) < scores["accuracy overall"] < max(parts)


@pytest.mark.parametrize("name", TABLES)
def test_every_number_is_there_once_with_its_decimals(name):
    records = ours(name)["results"]
    keys = [key(r) for r in records]
    assert len(keys) == len(set(keys))
    assert len({record["decimals"] for record in records}) == 1, "a table prints all its numbers alike"
    for record in records:
        shown = f"{record['value']:.{record['decimals']}f}"
        assert float(shown) == record["value"], (
            f"{key(record)}: {record['decimals']} decimals do not hold {record['value']}"
        )
        assert 0 < record["value"] < 100


@pytest.mark.parametrize("name", TABLES)
def test_ambiguous_readings_are_flagged(name, read):
    page = ours(name)
    of_table = [r for r in read if (r["paper"], r["table"]) == (page["paper"], page["table"])]
    doubtful = {read_key(r) for r in of_table if "ambiguous" in r.get("note", "")}
    flagged = {key(r) for r in page["results"] if r.get("ambiguous")}
    assert doubtful <= flagged


def shown_numbers(name: str) -> set[tuple[str, str, str]]:
    """The printed numbers that an experiment shows; each must exist. A row without `published` is not in the paper."""
    page = compose.page("experiment", name)
    records = compose.published(page["published"])
    used = set()
    printed = [row for row in page["rows"] if "published" in row]
    for column, row in itertools.product(page["columns"].values(), printed):
        for group, metric in ((g, m) for g in column.get("published", []) for m in g["metrics"]):
            found = pub.lookup(records, row["published"], group["dataset"], metric)
            assert found is not None, f"{row['label']}, {group['dataset']}, {metric}: no printed number"
            used.add((row["published"], group["dataset"], metric))
    return used


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_row_and_column_finds_its_printed_number(name):
    assert shown_numbers(name)


@pytest.mark.parametrize("name", TABLES)
def test_every_printed_number_has_a_place_in_the_table_of_its_name(name):
    assert shown_numbers(name) == {key(r) for r in ours(name)["results"]}


COMPARED = [name for name in EXPERIMENTS if name != "demo"]


@pytest.mark.parametrize("name", COMPARED)
def test_a_printed_number_is_held_against_the_score_that_it_is(name):
    """DUC is scored by recall at 75 bytes, in every column that shows its numbers."""
    page = compose.page("experiment", name)
    sets = ours(page["published"])["datasets"]
    for column in page["columns"].values():
        for group in column.get("published", ()):
            known = sets.get(group["dataset"]) or {}
            for metric, against in zip(group["metrics"], group["against"]):
                assert known.get(metric) in (None, against.partition("/")[2])
                assert known or sets == {}, f"{name}: what is {group['dataset']} by our names?"


@pytest.mark.parametrize("name", COMPARED)
def test_every_row_is_what_the_page_says(name):
    page = compose.page("experiment", name)
    rows = ours(page["published"])["rows"]
    for row in page["rows"]:
        if row.get("published"):
            said = rows[row["published"]]
            assert said["mapping"] == row["mapping"]
            stated = dict(o.split("=", 1) for o in row.get("overrides", ()))
            assert stated == {k: str(said[k]) for k in stated}
    assert {r["mapping"] for r in ours(page["published"])["results"]} == set(rows)


@pytest.mark.parametrize(
    ("origin", "printed"),
    [
        (("laha2018_table2", "sparsegen-lin lam=-1.0", "fren_demo"), {"test/multi_bleu": "37.27"}),
        (("laha2018_table2", "softmax + temperature gamma=0.5", "fren_demo"), {"test/multi_bleu": "36.63?"}),
        (("niculae2017_table1", "fusedmax", "demo"), {"test/accuracy": "82.41"}),
        (("martins2020_table1", "discrete softmax", "fren_demo"), {}),
        (("removed_table", "softmax", "demo"), {}),
    ],
)
def test_a_cell_of_a_paper_s_row_has_its_number_on_the_page_of_all_cells(tmp_path, monkeypatch, origin, printed):
    monkeypatch.setattr(
        compare, "read_config", lambda folder: {"origin": dict(zip(("experiment", "row", "column"), origin))}
    )
    config = {"data": {"name": "multi30k"}, "profile": {"name": "demo"}}
    assert compare.printed(SimpleNamespace(folder=tmp_path, config=config)) == printed
    own = SimpleNamespace(folder=tmp_path, config=config | {"data": {"name": "files"}})
    assert compare.printed(own) == {}, "your own data have no printed number"
