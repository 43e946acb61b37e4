"""The printed numbers that tables compare with, against the independent reading of the papers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sparse_attention.repro import published as pub
from tasks import compose

FOLDER = compose.CONFIGS / "published"
TABLES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
EXPERIMENTS = sorted(
    path.stem for path in (compose.CONFIGS / "experiment").glob("*.yaml") if "\npublished:" in path.read_text()
)
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
def test_numbers_are_those_of_the_paper(name, read):
    page = ours(name)
    theirs = {
        read_key(r): float(r["value"]) for r in read if (r["paper"], r["table"]) == (page["paper"], page["table"])
    }
    mine = {key(r): float(r["value"]) for r in page["results"]}
    assert theirs, f"{READ.name} has no {page['paper']} {page['table']}"
    assert mine == theirs


@pytest.mark.parametrize("name", TABLES)
def test_every_number_is_there_once_with_its_decimals(name):
    records = ours(name)["results"]
    keys = [key(r) for r in records]
    assert len(keys) == len(set(keys))
    for record in records:
        shown = f"{record['value']:.{record['decimals']}f}"
        assert float(shown) == record["value"], (
            f"{key(record)}: {record['decimals']} decimals do not hold {record['value']}"
        )
        assert 0 < record["value"] < 100
        assert record["decimals"] == 2, "both papers print two decimals here"


@pytest.mark.parametrize("name", TABLES)
def test_ambiguous_readings_are_flagged(name, read):
    page = ours(name)
    of_table = [r for r in read if (r["paper"], r["table"]) == (page["paper"], page["table"])]
    doubtful = {read_key(r) for r in of_table if "ambiguous" in r.get("note", "")}
    flagged = {key(r) for r in page["results"] if r.get("ambiguous")}
    assert doubtful <= flagged


def shown_numbers(name: str) -> set[tuple[str, str, str]]:
    """The printed numbers that an experiment shows; each must exist."""
    page = yaml.safe_load((compose.CONFIGS / "experiment" / f"{name}.yaml").read_text(encoding="utf-8"))
    records = compose.published(page["published"])
    used = set()
    for column in page["columns"].values():
        for group in column.get("published", []):
            assert len(group["metrics"]) == len(group["against"]) == len(group.get("labels", group["metrics"]))
            shown = {s["metric"] for s in column["show"]}
            assert {a for a in group["against"] if a != "none"} <= shown, (
                f"{column['label']}: held against a number not shown"
            )
            for row in page["rows"]:
                for metric in group["metrics"]:
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
