"""Sources of manifests, against a server on the loopback, which is a stand-in of the hub too: faults, and what is kept."""

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_stand_in import COMMIT, PATHS, SIZES, parquet, serving
from packed import tar, zipped
from refusals import refused

from tasks import data
from tasks.data import DataError, DataUnavailable, NullProgress, access, manifests
from tasks.data.acquire import sources
from tasks.data.acquire.download import download, nothing_fetched
from tasks.data.read import own
from tasks.data.records import Example, Pair

ROW = {"gold_label": "neutral", "sentence1_parse": "(R (N dog))", "sentence2_parse": "(R (N cat))", "pairID": "1"}
LINES = {"train": 5, "dev": 2, "test": 3}
SNLI = zipped({f"snli_1.0/snli_1.0_{s}.jsonl": (json.dumps(ROW) + "\n") * n for s, n in LINES.items()})
FOLDERS = [(s, c) for s in ("train", "test") for c in ("pos", "neg")]
IMDB = tar({f"aclImdb/{s}/{c}/{i}_1.txt": f"{s} {c} {i}" for s, c in FOLDERS for i in range(9)}, "w:gz")
SIDES = [(p, x) for p in ("train", "valid", "test") for x in ("en", "fr")]
BASELINE = tar({f"baseline-1M-enfr/baseline-1M_{p}.{x}": f"{p} {x}\n" * 3 for p, x in SIDES}, "w:gz")
ARCHIVES = {"snli_1.0.zip": SNLI, "aclImdb_v1.tar.gz": IMDB, "baseline-1M-enfr.tgz": BASELINE}
ARCHIVES["glove.840B.300d.zip"] = zipped({"glove.840B.300d.txt": "the 1 2\ndog 3 4\n"})


@pytest.fixture
def server(monkeypatch):
    """Web addresses of manifests lead to the server, with the sha256 of what it serves."""
    known = manifests.load_manifest
    with serving() as server:
        server.files = dict(ARCHIVES)

        def load_manifest(name):
            page = known(name)
            for source in page.get("sources", ()):
                for entry in source["files"] if source["kind"] == "url" and "files" in source else ():
                    file = entry["url"].rsplit("/", 1)[1]
                    entry["url"] = f"{server.url}/files/{file}"
                    entry.pop("bytes", None)
                    if "sha256" in entry and file in ARCHIVES:
                        entry["sha256"] = hashlib.sha256(ARCHIVES[file]).hexdigest()
            return page

        for module in (access, manifests):
            monkeypatch.setattr(module, "load_manifest", load_manifest)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield server


COUNTS = [("snli", "5 train, 2 dev, 3 test"), ("imdb", "16 train, 2 dev, 18 test")]
COUNTS += [("baseline_1m_enfr", "3 train, 3 dev, 3 test")]


@pytest.mark.parametrize("name, counts", COUNTS)
def test_a_set_is_fetched_once(server, tmp_path, name, counts):
    with pytest.raises(DataUnavailable):
        data.open_data({"name": name}, tmp_path)  # experiments do not fetch gigabytes by themselves
    progress = NullProgress()
    said = data.fetch(name, tmp_path, progress=progress)
    assert said.startswith(f"{name}: {counts}")
    told = "\n".join(progress.lines)
    assert ("no sha256 of baseline-1M-enfr.tgz is known" in told) == (name == "baseline_1m_enfr")
    asked = len(server.asked)
    assert data.fetch(name, tmp_path).startswith(f"{name}: {counts}") and counts in data.verify(name, tmp_path)
    assert len(server.asked) == asked
    assert not list(tmp_path.rglob("*.zip")) and not list(tmp_path.rglob("*.tgz"))  # unpacked, then removed
    short = " ".join(data.open_data({"name": name}, tmp_path).shortfalls)
    assert ("content not verified" in short) == (name == "baseline_1m_enfr")


def test_what_was_damaged_since_or_on_its_way_is_named(server, tmp_path):
    data.fetch("snli", tmp_path)
    path = tmp_path / "snli/snli_1.0/snli_1.0/snli_1.0_dev.jsonl"
    path.write_text(path.read_text().replace("cat", "cot"))
    with pytest.raises(DataError, match=r"snli: snli_1\.0 is damaged") as caught:
        data.verify("snli", tmp_path)
    assert "fetch it again" in caught.value.next_step
    server.flip = True
    with pytest.raises(DataError, match=r"snli: snli_1\.0\.zip is damaged"):  # not the known one
        data.fetch("snli", tmp_path / "other")
    assert not (tmp_path / "other" / "snli/snli_1.0").exists()


def test_word_vectors_are_fetched_and_say_how_to_use_them(server, tmp_path):
    with pytest.raises(DataUnavailable, match="glove_840b was not fetched"):
        data.verify("glove_840b", tmp_path)
    file = tmp_path / "glove_840b/glove.840B.300d/glove.840B.300d.txt"
    said = data.fetch("glove_840b", tmp_path)
    assert f"encode.vectors={file}" in said and file.read_text() == "the 1 2\ndog 3 4\n"
    assert data.verify("glove_840b", tmp_path) == said


def test_when_its_source_has_it_not_the_next_step_is_another(server, tmp_path):
    server.files.clear()
    with pytest.raises(DataUnavailable, match=r"imdb: aclImdb_v1") as caught:
        data.fetch("imdb", tmp_path)
    assert "HTTP 404" in caught.value.why and "moved or was withdrawn" in caught.value.next_step
    assert "make data-imdb" not in caught.value.next_step  # the command that failed


def test_a_file_without_a_known_sha256_begins_again(server, tmp_path):
    """The rest of another version would be appended."""
    server.cut = 40
    with pytest.raises(DataError, match="truncated"):
        download(f"{server.url}/files/snli_1.0.zip", tmp_path / "a.zip", NullProgress())
    server.cut = None
    path = download(f"{server.url}/files/snli_1.0.zip", tmp_path / "a.zip", NullProgress())
    assert "Range" not in server.asked[-1][1] and path.read_bytes() == SNLI
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []


def test_data_of_a_paper_are_known_by_their_content(tmp_path):
    """50,000 invented reviews have the right number, and so have 500 invented documents."""
    archive = tmp_path / "a.tar"
    archive.write_bytes(b"reviews")
    digest = hashlib.sha256(b"reviews").hexdigest()
    known = {"name": "x", "kind": "mirror", "tables": ["t"], "files": [{"path": "a.tar", "sha256": digest}]}
    why = "content not verified: x is known by its size only"
    for node, more, said in (
        ({"path": str(archive)}, {}, None),
        ({"path": str(tmp_path)}, {}, why),
        ({"path": str(archive)}, {"files": [{"path": "a.tar", "sha256": "0" * 64}]}, why),
        ({"path": "p"}, {"tables": []}, None),
        ({"path": "p"}, {"kind": "generated"}, None),
        ({"mirror": "m"}, {}, None),
        ({"mirror": "m"}, {"files": [{"path": "a.tar"}]}, why),
        ({}, {}, why),
        ({}, {"sources": [{"kind": "hub", "files": {}}]}, why),
    ):
        manifest = known | more
        assert sources.unverified(manifest, node, tmp_path) == said, (node, manifest)
    for name in ("imdb", "duc2004", "duc2003", "gigaword", "snli"):
        assert sources.unverified(manifests.load_manifest(name), {"path": str(tmp_path)}, tmp_path), name


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
