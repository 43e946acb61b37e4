"""Published formats of pairs and texts on small files and mirrors, and what is missing of a paper's data; generated texts.

Counts that others have published, of the real files: run by `make test-all` where there is a folder of real data.
"""

import itertools
import json
import shutil
from collections import Counter

import pytest
from made_mirror import CAPTIONS
from packed import tar
from refusals import refused

from tasks import data
from tasks.data import DataError, DataUnavailable, NullProgress, load_manifest
from tasks.data.records import Pair
from tasks.data.sets.pairs import read_pharaoh
from tasks.data.sets.texts import explained_words, leaves, read_highlights, read_published
from tasks.data.sets.toy import lexicon, translate


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
    for path in (tmp_path / "none", test / "input.txt"):
        with pytest.raises(DataError, match="there is no folder"):
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
    short = opened("iwslt2017", path=str(tmp_path), max_words={"source": 3, "target": 3})
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
    short = read("multi30k", **node, max_words={"source": 5}, min_words={"source": 4, "target": 4})["train"]
    both = list(zip(CAPTIONS[source], CAPTIONS[target]))[:30]
    assert short == [Pair(s, (t,)) for s, t in both if 4 <= len(s.split()) <= 5 and len(t.split()) >= 4]
    assert 0 < len(short) < 30


def test_a_truncated_mirror_file_is_named(tmp_path, mirror, opened):
    name = "translation/multi30k/raw/val.fr.gz"
    shutil.copytree(mirror / "translation", tmp_path / "translation")
    whole = (mirror / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:90])
    with pytest.raises(DataError, match=r"val\.fr\.gz is truncated") as caught:
        opened("multi30k", mirror=str(tmp_path))
    assert f"expected {len(whole)} bytes, got 90" in caught.value.why


PARSE = "(ROOT (S (NP (DT A) (NN man)) (VP (VBZ sleeps) (PRT (-LRB- -LRB-) (NN x) (-RRB- -RRB-))) (. .)))"
SLEEP, DOG = "(ROOT (NN Sleep))", '(ROOT (NP (`` ") (NN Dog)))'
PAIRS = (("entailment", SLEEP, "1"), ("-", SLEEP, "2"), ("contradiction", DOG, "3"))
ROWS = [{"gold_label": g, "sentence1_parse": PARSE, "sentence2_parse": p, "pairID": i} for g, p, i in PAIRS]


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "dev", "test"):
        (tmp_path / f"snli_1.0_{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    return tmp_path


def test_pairs_are_of_leaves_of_parses(folder):
    one = list(read_published(folder / "snli_1.0_dev.jsonl"))
    premise = leaves(PARSE)
    assert premise == "A man sleeps ( x ) ."
    assert [(e.texts, e.label) for e in one] == [((premise, "Sleep"), 0), ((premise, '" Dog'), 2)]
    assert leaves("(ROOT (NP (NNP Vo Tech)))") == ""  # a word cannot hold a space: nothing is made up


def test_highlights_beside_the_files_are_marked(folder, opened):
    head = "pairID,gold_label,Sentence1_marked_1,Sentence2_marked_1,Sentence1_marked_2"
    row = '1,entailment,A *man* sleeps,*Sleep*,"A man, *sleeps.*"'
    (folder / "esnli_test.csv").write_text(f"{head}\n{row}\n")
    assert read_highlights(folder / "esnli_test.csv") == {"1": {"man", "sleeps"}}
    found = opened("snli", path=str(folder))
    splits = found.read(NullProgress())
    assert [e.marked for e in splits["test"]] == [{"man", "sleeps"}, frozenset()]
    assert not any(e.marked for e in splits["dev"])
    assert found.shortfalls[0] == "3 of 550,152 lines of snli_1.0_train.jsonl" and len(found.shortfalls) == 4
    (folder / "esnli_test.csv").unlink()
    plain = opened("snli", path=str(folder))
    assert {s for s in splits if plain.fingerprint[s] != found.fingerprint[s]} == {"test"}


def test_the_subset_of_a_mirror(mirror, read):
    splits = read("snli_20k", mirror=str(mirror))
    assert [len(splits[s]) for s in ("train", "dev", "test")] == [12, 6, 6]  # a pair of both training files counts once
    labels = {s: [e.label for e in splits[s]] for s in ("train", "dev")}
    assert labels == {"train": [1, 2, 0] * 4, "dev": [1, 2, 0] * 2}  # neutral, contradiction, entailment from 1 there
    first = splits["test"][0]
    assert first.texts[0].startswith("a man carries the old clock") and first.marked == {"man"}
    said = ["The two women are holding packages .", "a Woman's"]
    found = explained_words(said, load_manifest("snli_20k")["function_words"].split())  # content words
    assert sorted(found) == ["holding", "packages", "s", "two", "woman", "women"]


@pytest.fixture
def reviews(tmp_path):
    """The published archive, with ten reviews of each kind."""
    named = [(split, kind, i) for split in ("train", "test") for kind in ("pos", "neg") for i in range(10)]
    files = {f"aclImdb/{s}/{k}/{i}_{9 if k == 'pos' else 2}.txt": f"{s} {k} {i}<br />ü" for s, k, i in named}
    files |= {"aclImdb/train/unsup/0_0.txt": "no label", "aclImdb/README": ""}
    (path := tmp_path / "aclImdb_v1.tar.gz").write_bytes(tar(files, "w:gz"))
    return path


def test_an_archive_gives_its_examples(reviews, tmp_path, read, opened):
    splits = read("imdb", path=str(reviews))
    assert {s: len(e) for s, e in splits.items()} == {"train": 18, "dev": 2, "test": 20}
    for split, examples in splits.items():
        for example in examples:
            name, label, _ = example.texts[0].split(" ", 2)
            assert name == ("test" if split == "test" else "train") and example.label == int(label == "pos")
    assert len({e.texts for e in splits["train"]} | {e.texts for e in splits["dev"]}) == 20
    with refused(DataUnavailable):
        opened("imdb", path=str(tmp_path / "none.tar"))


def test_dev_is_a_seeded_share_of_train(reviews, read, opened):
    node = {"path": str(reviews), "dev_share": 0.3}
    source, other = opened("imdb", **node, split_seed=7), opened("imdb", **node)
    a, b = other.read(NullProgress()), source.read(NullProgress())
    assert len(a["dev"]) == len(b["dev"]) == 6 and a["dev"] != b["dev"] and set(a["test"]) == set(b["test"])
    assert source.fingerprint != other.fingerprint
    sizes = ("20 of 25,000 training examples", "20 of 25,000 test examples")
    assert source.shortfalls == (*sizes, "content not verified: imdb is known by its size only")
    assert list(read("imdb", **node, limits={"train": 4})["train"]) == a["train"][:4]


def test_the_archive_of_a_mirror(mirror, opened):
    source = opened("imdb", mirror=str(mirror))
    splits = source.read(NullProgress())
    assert not source.shortfalls  # its checksum says that it is whole
    cut = opened("imdb", mirror=str(mirror), limits={"test": 9})
    assert cut.shortfalls == ("9 of 25,000 test examples",)
    assert {s: len(rows) for s, rows in splits.items()} == {"train": 18, "dev": 2, "test": 10}
    assert Counter(e.label for s in ("train", "dev") for e in splits[s]) == {0: 10, 1: 10}
    for example in splits["test"]:
        assert example.texts[0].startswith(f"test {('neg', 'pos')[example.label]} ") and "<br />" in example.texts[0]


def test_toy_is_reproducible_and_its_splits_are_disjoint(read):
    sizes = {"train": 300, "dev": 40, "test": 50}
    one, two, other = (read("toy", limits=sizes, seed=seed) for seed in (3, 3, 4))
    assert one == two != other
    sources = [{pair.source for pair in one[s]} for s in ("train", "dev", "test")]
    assert [len(s) for s in sources] == [300, 40, 50] and not (sources[0] & sources[1] or sources[0] & sources[2])
    longer = read("toy", limits=sizes | {"test": 90}, seed=3)
    assert longer["train"] == one["train"] and longer["dev"] == one["dev"] and longer["test"][:50] == one["test"]
    with pytest.raises(DataError, match="fewer than 302 different"):  # not a loop
        read("toy", limits={"train": 300, "dev": 1, "test": 1}, max_words=1, min_words=1)
    with pytest.raises(DataError, match="min_words=5 is above max_words=4"):
        read("toy", min_words=5, max_words=4)


def test_the_planted_alignment_explains_every_target_word(read):
    table = lexicon()
    swaps = doubles = silent = 0
    for pair in read("toy", limits={"train": 400, "dev": 1, "test": 1})["train"]:
        source, target = pair.source.split(), pair.references[0].split()
        links = translate(source)[1]
        assert {j for _, j in links} == set(range(len(target)))
        for i, word in enumerate(source):
            kind, translation = table[word]
            produced = tuple(target[j] for k, j in sorted(links) if k == i)
            assert produced == translation
            doubles += kind == "double"
            silent += kind == "particle"
        order = [i for i, _ in sorted(links, key=lambda link: link[1])]
        swaps += sum(a > b for a, b in itertools.pairwise(order))
    assert min(swaps, doubles, silent) > 100


def test_generated_texts_have_the_answer_in_them(read):
    for example in read("toy_entailment", limits={"train": 200})["train"]:
        premise, hypothesis = example.texts
        thing, colour = hypothesis.split()[1], hypothesis.split()[-1]
        said = [part.split()[-1] for part in premise.split(" and ") if part.split()[1] == thing]
        assert example.label == (1 if not said else 0 if said == [colour] else 2) and example.marked == {thing}
    for example in read("toy_reviews", limits={"train": 200})["train"]:
        assert example.label == int(bool(example.marked & {"lovely", "superb", "brilliant"}))
        assert example.marked <= set(example.texts[0].split())


# train, test, labels; labels per document
MULAN = {"birds": (179, 172, 19), "scene": (1211, 1196, 6), "emotions": (391, 202, 6), "yeast": (1500, 917, 14)}
CARDINALITY = {"scene": (1.062, 1.086), "emotions": (1.813, 1.975)}


@pytest.mark.slow
def test_published_counts_of_hansards(testdata):
    golds = read_pharaoh(testdata / "word_alignment" / "hansards_enfr" / "enfr.gold")
    assert len(golds) == 447  # Och & Ney 2003, Table 2: 4,038 sure and 13,400 possible
    assert sum(len(sure) for sure, _ in golds) == 4038
    assert sum(len(possible - sure) for sure, possible in golds) == 13400


@pytest.mark.slow
@pytest.mark.parametrize("name", MULAN)
def test_published_counts_of_mulan(name, testdata, opened, read):
    splits = read(name, mirror=str(testdata))
    labels = opened(name, mirror=str(testdata)).about["labels"]
    assert (len(splits["train"]), len(splits["test"]), len(labels)) == MULAN[name]
    for split, expected in zip(("train", "test"), CARDINALITY.get(name, ())):
        assert splits[split].labels.sum(1).mean() == pytest.approx(expected, abs=6e-4)


@pytest.mark.slow
def test_published_counts_of_snli(testdata, read):
    splits = read("snli_20k", mirror=str(testdata))
    assert len(splits["dev"]) == 9_842 and 19_900 < len(splits["train"]) <= 20_000
    # Bowman et al. 2015 and the set's page: the classes of the test set
    assert Counter(e.label for e in splits["test"]) == {0: 3_368, 1: 3_219, 2: 3_237}


@pytest.mark.slow
def test_published_counts_of_imdb(testdata, read):
    splits = read("imdb", mirror=str(testdata))
    both = Counter(e.label for s in ("train", "dev") for e in splits[s])
    assert both == Counter(e.label for e in splits["test"]) == {0: 12_500, 1: 12_500}
    words = sum(len(e.texts[0].split()) for e in splits["test"]) / 25_000
    assert 220 < words < 240  # the set's page gives 231 for the 25,000 test reviews by another count
