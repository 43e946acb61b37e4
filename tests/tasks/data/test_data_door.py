"""The front door: what is refused before any data are read, fallback, fingerprints, shortfalls, fetch."""

import dataclasses
import importlib
import os
import sys

import pytest
from omegaconf import OmegaConf

from repro.options import plain, read
from tasks import data
from tasks.data import DataError, DataUnavailable, NullProgress, content_sha256
from tasks.data.dataset import SPLITS
from tasks.data.manifests import load_manifest
from tasks.data.records import KINDS, Example, Pair

SETS = data.set_names()


def test_every_set_has_its_page_its_manifest_and_its_options(root, subtests, monkeypatch):
    for variable in [v for v in os.environ if v.startswith("SPARSE_ATTENTION_")]:
        monkeypatch.delenv(variable)
    for name in SETS:
        with subtests.test(name):
            module, manifest = data.set_module(name), load_manifest(name)
            assert manifest["name"] == name and all(manifest[k] for k in ("title", "kind", "source", "licence", "get"))
            page = OmegaConf.load(root / "configs" / "data" / f"{name}.yaml")
            whole = OmegaConf.merge({"seed": 1, "data": page}, {"data": {}})
            options = OmegaConf.to_container(whole, resolve=True)["data"]
            assert options.pop("name") == name and set(options) == {
                f.name for f in dataclasses.fields(data.set_options(name))
            }
            assert plain(read(data.set_options(name), {}, "data")) == options, "the defaults are those of the page"
            assert ("mirror" in options) == (manifest["kind"] == "mirror")
            assert not data.problems({"name": name}, module.KIND)
    assert {name for name in data.manifest_names() if load_manifest(name)["kind"] == "vectors"} == {"glove_840b"}
    assert set(data.manifest_names()) == {*SETS, "glove_840b"}


def test_every_set_of_the_papers_says_where_it_is_from_what_it_holds_and_whom_to_cite():
    paper = [name for name in data.manifest_names() if load_manifest(name).get("tables")]
    assert {"gigaword", "duc2003", "duc2004", "imdb", "snli", "vqa2", "baseline_1m_enfr", "birds"} <= set(paper)
    for name in [*paper, "glove_840b", "iwslt2017", "multi30k"]:
        page = load_manifest(name)
        assert all(page[key] for key in ("citation", "schema", "licence", "source")), name
        kinds = [source["kind"] for source in page.get("sources", ())]
        assert kinds or page["kind"] in ("files", "generated"), name
        for source in page.get("sources", ()):
            entries = source.get("files", ()) if source["kind"] == "url" else ()
            assert all(entry["url"].startswith("http") for entry in entries)
            assert all(len(entry.get("sha256", "0" * 64)) == 64 for entry in entries)
            assert source["kind"] != "hub" or set(source["fields"].values()) == {"str"}


def test_all_mistakes_are_told_at_once_and_each_names_what_is_possible():
    wrong = {"limit": 3, "test_set": "test_2019", "limits": {"valid": 3, "train": -1}, "max_words": 0}
    found = data.problems({"name": "multi30k"} | wrong)
    parts = ["data.limit is unknown (did you mean 'limits'?)", "'test_2019' is invalid", "data.max_words=0 must be"]
    parts += ["data.limits.train=-1 must be a whole number of at least 1", "data.limits.valid is unknown"]
    for part in parts:
        assert any(part in p for p in found), (part, found)
    assert "(did you mean 'multi30k'?)" in data.problems({"name": "multi30"})[0]
    assert "two different languages" in data.problems({"name": "multi30k", "source_lang": "en", "target_lang": "en"})[0]
    assert "'xx' is invalid" in data.problems({"name": "libreoffice_help", "source_lang": "xx"})[0]
    (kind,) = data.problems({"name": "imdb"}, "pairs")
    assert "holds texts with a class" in kind and "gigaword" in kind and "snli" not in kind.partition(": ")[2]


LOADER = """
from repro.options import integer
from tasks.data.dataset import Loader, make
from tasks.data.records import Example
KIND = "texts"
def load(manifest, options, root, progress):
    return make(manifest, KIND, lambda _: {"train": [Example(("a " * options.words,), 0)]}, "mine", sources={"train": 1})
SETS = {"mine": Loader(KIND, load, {"words": integer()})}
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """`mine(old, new)`: the loader of a data set of your own, with `old` replaced, and its manifest."""
    monkeypatch.setattr("tasks.data.manifests.FOLDER", tmp_path)
    monkeypatch.setattr("tasks.data.sets.__path__", [str(tmp_path)])
    monkeypatch.setattr("tasks.config.files.CONFIGS", tmp_path)
    (tmp_path / "mine.yaml").write_text("{name: mine, kind: generated}", encoding="utf-8")
    (tmp_path / "data").mkdir()
    limits = "{train: null, dev: null, test: null}"
    (tmp_path / "data" / "mine.yaml").write_text(f"{{name: mine, words: 3, limits: {limits}}}", encoding="utf-8")

    def written(old="", new=""):
        sys.modules.pop("tasks.data.sets.mine", None)
        importlib.invalidate_caches()
        (tmp_path / "mine.py").write_text(LOADER.replace(old, new), encoding="utf-8")

    yield written
    sys.modules.pop("tasks.data.sets.mine", None)


def test_an_incomplete_set_is_refused_with_its_files(mine):
    for old, new in (("", ""), ("SETS", "SET"), ('"texts"', '"text"')):
        if old:
            mine(old, new)
        must = f"must have SETS = {{'mine': Loader(KIND, load)}}, where KIND is {' or '.join(KINDS)}"
        told = f"data.name=mine: tasks/data/sets/mine.py {must}; see docs/extending.md"
        assert data.problems({"name": "mine"}, "pairs") == [told]
    mine('{"words": integer()}', "{}")
    assert "configs/data/mine.yaml: words is an option of no data set" in data.problems({"name": "mine"})[0]


def test_a_generated_set_is_encoded_again_for_other_options_and_another_loader(mine, opened):
    """Whatever its `sources` say: a loader's first author forgets the options there."""

    def of(dev=2, **options):
        return opened("mine", limits={"dev": dev}, **options).fingerprint["train"]

    mine()
    assert of() == of(dev=1) != of(words=4)
    before = of()
    mine('"a "', '"b "')
    assert before != of()


def test_generated_pairs_come_only_where_the_page_says_so_and_are_marked(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)  # no apt-get
    node = {"name": "libreoffice_help", "limits": {"train": 50, "dev": 5, "test": 7}}
    with pytest.raises(DataUnavailable, match="apt-get"):
        data.open_data(node | {"fallback": None}, tmp_path)
    with pytest.raises(DataUnavailable, match="apt-get"):
        data.fetch("libreoffice_help", tmp_path)
    progress = NullProgress()
    found = data.open_data(node, tmp_path, progress)
    assert found.name == "toy" and found.demo and found.stands_for == "libreoffice_help"
    assert found.shortfalls[0] == "generated text instead of libreoffice_help" and "GENERATED TEXT" in found.notes[0]
    assert [len(found.read(progress)[s]) for s in SPLITS] == [50, 5, 7]
    assert "generated pairs take its place" in progress.lines[0]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    named = [name for name in SETS if load_manifest(name)["kind"] in ("mirror", "files", "http")]
    assert len(named) > 12
    for name in named:  # that cannot be had: never replaced
        with pytest.raises(DataUnavailable):
            data.open_data({"name": name}, tmp_path)
    replaced = [n for n in SETS if "fallback" in [f.name for f in dataclasses.fields(data.set_options(n))]]
    assert replaced == ["debian_descriptions", "libreoffice_help"]


def test_training_does_not_depend_on_the_test_set(opened):
    for name in ("toy", "toy_reviews", "toy_entailment", "shapes"):
        one, two = opened(name), opened(name, limits={"test": 3})
        assert {s for s in SPLITS if one.fingerprint[s] != two.fingerprint[s]} == {"test"}
        assert opened(name, seed=2).fingerprint["train"] != one.fingerprint["train"]
    first, second = opened("synthetic"), opened("synthetic", sizes={"test": 5})
    assert {s for s in SPLITS if first.fingerprint[s] != second.fingerprint[s]} == {"test"}


def test_fetch_says_what_it_brought_and_refuses_what_it_does_not_read(tmp_path, mirror):
    assert data.fetch("toy", tmp_path).startswith("toy: 12,000 train, 500 dev, 500 test; generated pairs")
    said = data.fetch("birds", tmp_path, {"mirror": str(mirror), "path": None})
    assert said.startswith("birds: 11 train, 8 test") and str(mirror) in said
    for key in ("path", "mirror"):
        with pytest.raises(DataError, match=rf"data\.{key} is unknown"):
            data.fetch("toy", tmp_path, {key: "x"})
        for name in ("libreoffice_help", "rotten_tomatoes", "toy", "easy_vqa", "synthetic"):
            with pytest.raises(DataError, match=rf"data\.{key} is unknown"):
                data.open_data({"name": name, key: "x"}, tmp_path)


def test_the_hash_of_records_sees_every_field():
    pair = Pair("a", ("b",))
    hashes = {content_sha256(r) for r in ([], [pair], [pair, pair], [Pair("a", ("b", "c"))], [Pair("b", ("a",))])}
    assert len(hashes) == 5
    marked = Example(("a",), 1, frozenset({"x", "y"}))
    assert content_sha256([marked]) == content_sha256([Example(("a",), 1, frozenset({"y", "x"}))])
    assert len({content_sha256([e]) for e in (marked, Example(("a",), 1), Example(("a",), 0))}) == 3
