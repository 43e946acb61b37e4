"""The hub against a stand-in of it on the loopback: its set, its faults, and the cache without a network."""

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_stand_in import COMMIT, PATHS, SIZES, parquet, serving
from refusals import refused

from tasks import data
from tasks.data import DataError, DataUnavailable, NullProgress
from tasks.data.acquire.download import nothing_fetched
from tasks.data.read import own
from tasks.data.records import Example, Pair

pytest.importorskip("datasets", reason="the hub needs the package datasets (the extra `repro`)")
FETCH = "python scripts/data.py fetch gigaword"


@pytest.fixture(scope="module")
def repos(tmp_path_factory):
    return {repo: parquet(repo, tmp_path_factory.mktemp("parquet")) for repo in PATHS}


@pytest.fixture
def hub(repos, monkeypatch):
    """The stand-in, asked in place of the hub."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.repos = {name: dict(files) for name, files in repos.items()}
        yield server


def test_a_set_is_read_and_then_needs_no_network(hub, opened, monkeypatch, tmp_path):
    first = opened("gigaword")
    splits = {s: list(records) for s, records in first.read(NullProgress()).items()}
    assert len(splits["train"]) == SIZES["train"] and first.shortfalls[0] == "24 of 3,803,957 training pairs"
    assert not list(tmp_path.rglob("*.parquet"))  # the rows are kept, the files are not
    (kept,) = (tmp_path / "cache" / "encoded").glob("gigaword-hub-*/meta.json")
    assert json.loads(kept.read_text())["commit"] == COMMIT
    of_api = [path for path, _ in hub.asked if path.startswith("/api")]
    assert of_api == ["/api/datasets/Harvard/gigaword/revision/refs/convert/parquet"]
    asked = len(hub.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    again = opened("gigaword")
    assert {s: list(records) for s, records in again.read(NullProgress()).items()} == splits
    assert again.fingerprint == first.fingerprint and len(hub.asked) == asked


@pytest.mark.parametrize("fault, told", [("flip", "sha256"), ("longer", "bytes")])
def test_a_corrupted_file_is_refused_and_removed_and_then_fetched(hub, opened, tmp_path, monkeypatch, fault, told):
    """From where the set has moved to, with a token for the hub alone."""
    setattr(hub, fault, 1)
    with refused(DataError, key="0000.parquet") as caught:
        opened("gigaword")
    assert told in caught.value.why and not isinstance(caught.value, DataUnavailable)
    assert not list(tmp_path.rglob("*.parquet")) and not list(tmp_path.rglob("*.part"))
    setattr(hub, fault, 0)
    hub.asked.clear()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.moved["Harvard/gigaword"] = "NYU/gigaword"  # and is followed
    hub.repos["NYU/gigaword"] = hub.repos["Harvard/gigaword"]
    assert len(opened("gigaword").read(NullProgress())["train"]) == SIZES["train"]
    told = {path.split("/")[1]: headers.get("Authorization") for path, headers in hub.asked}
    assert told == {"api": "Bearer hf_secret", "datasets": "Bearer hf_secret", "storage": None}


def test_faults_of_the_hub_name_the_set_the_cause_and_the_next_step(hub, opened, monkeypatch):
    def told(value, cause, step):
        with refused(DataUnavailable, key="gigaword", value=value) as caught:
            opened("gigaword")
        assert cause in caught.value.why and step in caught.value.next_step and "data.path" in caught.value.next_step

    hub.gated.add("Harvard/gigaword")
    told(403, "/datasets/Harvard/gigaword", "HF_TOKEN")
    hub.gated.clear()
    files = hub.repos.pop("Harvard/gigaword")
    told(404, "Harvard/gigaword", "see ")
    hub.repos["Harvard/gigaword"] = files
    hub.broken = True
    told(500, "", "HF_ENDPOINT")
    hub.broken = False
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    told("HF_HUB_OFFLINE", "", FETCH)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with nothing_fetched():
        told(None, "", FETCH)
    with monkeypatch.context() as patch:
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        told(None, "127.0.0.1:9", "check the network")


def test_a_split_or_a_field_that_is_not_there(hub, opened, tmp_path):
    del hub.repos["Harvard/gigaword"]["default/test/0000.parquet"]
    with refused(DataError, key="gigaword", value=["test (default/test/*.parquet)"]) as caught:
        opened("gigaword")
    assert "default/train/0000.parquet" in caught.value.why and not isinstance(caught.value, DataUnavailable)
    wrong = {"text": "a", "summary": "b"}, {"document": "a", "summary": None}
    for row, what in zip(wrong, ("has no document", "summary")):
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "bad.parquet")
        hub.repos["Harvard/gigaword"] |= {"default/test/0000.parquet": (tmp_path / "bad.parquet").read_bytes()}
        with refused(DataError, key="0000.parquet", says=what):
            opened("gigaword")
        next(tmp_path.rglob("test/0000.parquet")).unlink()
    hub.repos["Harvard/gigaword"] |= {"default/test/0000.parquet": b"PAR1 is no file"}
    with refused(DataError, key="0000.parquet", says="cannot be read"):
        opened("gigaword")


def test_memory_does_not_grow_with_the_set(tmp_path):
    """Of a file of 40 row groups no more than a few are held at a time."""
    table = pa.table({"document": [f"{i} " + "word " * 20 for i in range(20_000)], "summary": ["s"] * 20_000})
    pq.write_table(table, tmp_path / "large.parquet", row_group_size=500)
    size = table.nbytes
    del table
    before, most, n = pa.total_allocated_bytes(), 0, 0
    for n, _ in enumerate(own.objects(tmp_path / "large.parquet", {"document": (str,)}), 1):
        if n % 100 == 0:
            most = max(most, pa.total_allocated_bytes() - before)
    assert n == 20_000 and most < size / 4, (most, size)


def test_verify_reads_what_is_there_and_fetches_nothing(hub, tmp_path):
    with refused(DataUnavailable, key="gigaword"):
        data.verify("gigaword", tmp_path)
    assert data.fetch("gigaword", tmp_path).startswith("gigaword: 24 train, 8 dev, 8 test; Gigaword")
    asked = len(hub.asked)
    said = data.verify("gigaword", tmp_path)
    assert "short: 24 of 3,803,957 training pairs" in said and len(hub.asked) == asked
    (file,) = tmp_path.glob("encoded/gigaword-hub-*/train.jsonl")
    file.write_text(file.read_text().replace("worst", "wurst"))
    with refused(DataUnavailable, key="gigaword"):  # damaged, and may not be fetched again
        data.verify("gigaword", tmp_path)
    before = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""
    data.fetch("gigaword", tmp_path)
    assert hashlib.sha256(file.read_bytes()).hexdigest() != before


def test_a_set_that_a_manifest_alone_describes(hub, opened, tmp_path, monkeypatch):
    """Texts with a class by name, and pairs; a class that the manifest does not name is refused."""
    from datasets import ClassLabel, Dataset, Features, Value

    rows = {"train": [("a fine film", 1), ("a dull film", 0)], "test": [("so so", 1), ("no", 0)]}
    kinds = Features(sentence=Value("string"), label=ClassLabel(names=["bad", "good"]))
    for split, of in rows.items():
        Dataset.from_list([dict(zip(kinds, row)) for row in of], features=kinds).to_parquet(tmp_path / split)
    hub.repos["me/films"] = {f"{split}.parquet": (tmp_path / split).read_bytes() for split in rows}
    files = {split: f"{split}.parquet" for split in rows}
    source = {"kind": "hub", "repo": "me/films", "revision": "main", "files": files}
    page = {"name": "films", "title": "Films", "kind": "http", "get": "nothing", "loader": "plain", "holds": "texts"}
    page |= {"columns": {"texts": ["sentence"], "label": "label"}, "classes": {"good": "fresh", "bad": "rotten"}}
    page |= {"sources": [source | {"fields": {"sentence": "str", "label": "str"}}]}
    monkeypatch.setattr("tasks.data.manifests.FOLDER", tmp_path)
    monkeypatch.setattr("tasks.config.files.CONFIGS", tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "films.yaml").write_text("{name: films, limits: {train: null, dev: null, test: null}}")

    def write(**changes):
        (tmp_path / "films.yaml").write_text(json.dumps(page | changes), encoding="utf-8")

    write()
    found = opened("films", limits={"train": 1})
    splits = {s: list(records) for s, records in found.read(NullProgress()).items()}
    assert found.kind == "texts" and found.about == {"classes": ["fresh", "rotten"], "fields": ["sentence"]}
    assert splits == {"train": [Example(("a fine film",), 0)], "test": [Example(("so so",), 0), Example(("no",), 1)]}
    write(classes={"good": "fresh"})
    with refused(DataError, says="films: label is 'bad'"):
        list(opened("films").read(NullProgress())["train"])
    write(holds="pairs", columns={"texts": ["label", "sentence"]}, languages={"source_lang": "de", "target_lang": "en"})
    pairs = opened("films")
    assert list(pairs.read(NullProgress())["test"]) == [Pair("good", ("so so",)), Pair("bad", ("no",))]
    assert pairs.about == {"source_lang": "de", "target_lang": "en"}
