"""Sources of manifests, against a server on the loopback; what was fetched is verified and used."""

import hashlib
import json

import pytest
from hub_stand_in import serving
from packed import tar, zipped

from tasks import data
from tasks.data import DataError, DataUnavailable, NullProgress, access, manifests
from tasks.data.acquire import sources
from tasks.data.acquire.download import download

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
        data.fetch_vectors("glove_840b", tmp_path, NullProgress(), fetching=False)
    file = tmp_path / "glove_840b/glove.840B.300d/glove.840B.300d.txt"
    said = data.fetch_vectors("glove_840b", tmp_path, NullProgress())
    assert f"encode.vectors={file}" in said and file.read_text() == "the 1 2\ndog 3 4\n"
    assert data.fetch_vectors("glove_840b", tmp_path, NullProgress(), fetching=False) == said


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
