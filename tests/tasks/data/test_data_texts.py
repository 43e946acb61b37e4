"""Texts with a class: SNLI's and IMDB's formats on tiny files; generated texts and pairs with their planted alignment."""

import itertools
import json
from collections import Counter

import pytest
from packed import tar
from refusals import refused

from tasks.data import DataError, DataUnavailable, NullProgress
from tasks.data.sets.texts import explained_words, leaves, read_highlights, read_published
from tasks.data.sets.toy import lexicon, translate

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
    found = explained_words(["The two women are holding packages .", "a Woman's"])  # content words
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
