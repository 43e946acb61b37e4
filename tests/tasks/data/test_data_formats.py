"""Published formats of sentence pairs and alignments on small files and mirrors, and what is missing of a paper's data."""

import shutil

import pytest
from made_mirror import CAPTIONS

from tasks import data
from tasks.data import DataError, NullProgress
from tasks.data.records import Pair
from tasks.data.sets.pairs import read_pharaoh


def read(found):
    return found.read(NullProgress())


@pytest.mark.parametrize("layout", ["archive", "flat"])
def test_gigaword(tmp_path, opened, write, layout):
    train, test = (tmp_path / "train", tmp_path / "Giga") if layout == "archive" else (tmp_path, tmp_path)
    suffix = "" if layout == "archive" else ".filter"
    write(train, {f"train.article{suffix}.txt": ["a b c .", "d e\u2028f ."], f"train.title{suffix}.txt": ["a c", "d"]})
    write(train, {"valid.article.filter.txt": ["g h ."], "valid.title.filter.txt": ["g"]})
    write(test, {"input.txt": ["i j #### .", "k ."], "task1_ref0.txt": ["j", "k"]})
    whole = opened("gigaword", path=str(tmp_path))
    cut = opened("gigaword", path=str(tmp_path), limits={"train": 1, "test": 1})
    splits = read(cut)
    assert list(splits["train"]) == [Pair("a b c .", ("a c",))] and list(splits["dev"]) == [Pair("g h .", ("g",))]
    assert read(whole)["train"][1] == Pair("d e f .", ("d",)) and read(whole)["test"][-1] == Pair("k .", ("k",))
    assert not whole.demo and {s for s in splits if whole.fingerprint[s] != cut.fingerprint[s]} == {"train", "test"}
    sizes = ("1 of 3,803,957 training pairs", "1 of 189,651 dev pairs", "1 of 2,000 test pairs")
    assert cut.shortfalls == (*sizes, "content not verified: gigaword is known by its size only")
    write(test, {"input.txt": ["moved", "k ."]})
    moved = opened("gigaword", path=str(tmp_path))
    assert {s for s in splits if moved.fingerprint[s] != whole.fingerprint[s]} == {"test"}
    for path, fault in ((tmp_path / "none", "does not exist"), (test / "input.txt", "is not a folder")):
        with pytest.raises(DataError, match=fault):
            opened("gigaword", path=str(path))


def test_duc_keeps_every_reference_skips_missing_ones_and_says_what_its_digits_are(tmp_path, opened, write):
    refs = {f"task1_ref{k}.txt": [f"first {k}", "" if k == 2 else f"second {k}"] for k in range(4)}
    write(tmp_path / "DUC2004", {"input.txt": ["doc 1 .", "doc two ."]} | refs)
    found = opened("duc2004", path=str(tmp_path))
    splits = read(found)
    assert splits["test"][0] == Pair("doc 1 .", ("first 0", "first 1", "first 2", "first 3"))
    assert splits["test"][1].references == ("second 0", "second 1", "second 3")
    assert set(splits) == set(found.fingerprint) == {"test"} and found.about["digits"] == "#"
    assert found.shortfalls == ("2 of 500 test pairs", "content not verified: duc2004 is known by its size only")
    said = data.verify("duc2004", tmp_path / "cache", {"path": str(tmp_path)})
    assert said.startswith("duc2004: 2 test") and "short: 2 of 500 test pairs" in said and "sha256 of what test" in said


def test_iwslt(tmp_path, opened, write):
    tags = ["<url>http://x</url>", "<title>T</title>"]
    train = {"train.tags.de-en.de": [*tags, "Guten Tag & so.", " Zwei <br> drei."]}
    write(tmp_path / "de-en", train | {"train.tags.de-en.en": [*tags, "Good day & so.", " Two <br> three."]})
    for number, name in enumerate(("dev2010", "tst2010", "tst2011", "tst2012", "tst2013", "tst2014", "tst2015")):
        for lang in ("de", "en"):
            head = ["<?xml version='1.0'?>", '<doc docid="1">', f"<title>{lang}</title>"]
            texts = [f'<seg id="1"> {lang} {number} &amp; x </seg>', f'<seg id="2">{lang} b</seg>']
            write(tmp_path / "de-en", {f"IWSLT17.TED.{name}.de-en.{lang}.xml": [*head, *texts, "</doc>"]})
    found = opened("iwslt2017", path=str(tmp_path))
    splits = read(found)
    first = Pair("Guten Tag & so.", ("Good day & so.",))
    assert list(splits["train"]) == [first, Pair("Zwei <br> drei.", ("Two <br> three.",))]
    assert splits["dev"][0] == Pair("de 0 & x", ("en 0 & x",))
    assert len(splits["test"]) == 12 and splits["test"][2].source == "de 2 & x"
    assert "2 of 206,112 training pairs" in found.shortfalls
    assert found.about == {"source_lang": "de", "target_lang": "en"}
    short = opened("iwslt2017", path=str(tmp_path), max_words=3)
    assert [p.source for p in read(short)["test"]] == ["de b"] * 6 and "only pairs of" in short.shortfalls[-1]


def test_baseline_1m_in_both_directions(tmp_path, opened, write):
    for part, count in (("train", 3), ("valid", 1), ("test", 2)):
        files = {f"baseline-1M_{part}.{x}": [f"{x} {part} {i}" for i in range(count)] for x in ("en", "fr")}
        write(tmp_path / "baseline-1M-enfr", files)
    languages = ({"source_lang": "fr", "target_lang": "en"}, {"source_lang": "en", "target_lang": "fr"})
    french, english = (opened("baseline_1m_enfr", path=str(tmp_path), **both) for both in languages)
    assert read(french)["train"][2] == Pair("fr train 2", ("en train 2",))
    assert read(english)["dev"][0] == Pair("en valid 0", ("fr valid 0",))
    assert french.fingerprint["train"] != english.fingerprint["train"]
    assert any("which test file" in s for s in french.shortfalls)


def test_sure_and_possible_links(tmp_path):
    (tmp_path / "a").write_text("1-1 2?3 3p2\n\n2-1\n")
    got = read_pharaoh(tmp_path / "a")
    assert got[0] == (frozenset({(0, 0)}), frozenset({(0, 0), (1, 2), (2, 1)}))
    assert got[1] == (frozenset(), frozenset()) and got[2][0] == got[2][1] == {(1, 0)}


TEXTS = {"en": "my aunt paints the old clock on the wall behind us", "fr": "ma tante peint la vieille horloge"}
TEXTS |= {"de": "meine Tante malt die alte Uhr an der Wand"}


@pytest.mark.parametrize("source, target", [("fr", "en"), ("en", "fr"), ("de", "en")])
def test_multi30k(source, target, mirror, opened, read):
    node = {"source_lang": source, "target_lang": target, "mirror": str(mirror)}
    found = opened("multi30k", **node)
    splits = found.read(NullProgress())
    assert [len(splits[s]) for s in ("train", "dev", "test")] == [30, 8, 5]
    assert splits["test"][0] == Pair(TEXTS[source], (TEXTS[target],))
    other = opened("multi30k", **node, test_set="test_2018_flickr")
    assert len(other.read(NullProgress())["test"]) == 6
    assert {s for s in splits if found.fingerprint[s] != other.fingerprint[s]} == {"test"}
    short = read("multi30k", **node, max_words={"source": 5}, min_words=4)["train"]
    both = list(zip(CAPTIONS[source], CAPTIONS[target]))[:30]
    assert short == [Pair(s, (t,)) for s, t in both if 4 <= len(s.split()) <= 5 and len(t.split()) >= 4]
    assert 0 < len(short) < 30


def test_a_truncated_mirror_file_and_a_mirror_that_is_not_set_are_named(tmp_path, mirror, opened):
    name = "translation/multi30k/raw/val.fr.gz"
    shutil.copytree(mirror / "translation", tmp_path / "translation")
    whole = (mirror / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:90])
    with pytest.raises(DataError, match=r"val\.fr\.gz is truncated") as caught:
        opened("multi30k", mirror=str(tmp_path))
    assert f"expected {len(whole)} bytes, got 90" in caught.value.why
    with pytest.raises(DataError, match="mirror") as caught:
        opened("reuters21578")
    assert "data.mirror=FOLDER" in caught.value.next_step
