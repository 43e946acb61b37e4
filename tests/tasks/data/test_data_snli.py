"""SNLI's published formats on tiny files, the 20,000-pair subset and SNLI dev/test on the real ones."""

from __future__ import annotations

import json

import pytest

from tasks.data import NullProgress
from tasks.data.sets.snli import explained_words, leaves, read_highlights, read_published

PARSE = "(ROOT (S (NP (DT A) (NN man)) (VP (VBZ sleeps) (PRT (-LRB- -LRB-) (NN x) (-RRB- -RRB-))) (. .)))"
SLEEP, DOG = "(ROOT (NN Sleep))", '(ROOT (NP (`` ") (NN Dog)))'
ROWS = [
    {"gold_label": "entailment", "sentence1_parse": PARSE, "sentence2_parse": SLEEP, "pairID": "1"},
    {"gold_label": "-", "sentence1_parse": PARSE, "sentence2_parse": SLEEP, "pairID": "2"},
    {"gold_label": "contradiction", "sentence1_parse": PARSE, "sentence2_parse": DOG, "pairID": "3"},
]


@pytest.fixture
def folder(tmp_path):
    columns = list(ROWS[0])
    for split in ("train", "dev", "test"):
        (tmp_path / f"snli_1.0_{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ROWS))
        lines = ["\t".join(columns), *("\t".join(r[c] for c in columns) for r in ROWS)]
        (tmp_path / f"snli_1.0_{split}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_leaves_of_a_parse():
    assert leaves(PARSE) == "A man sleeps ( x ) ."
    assert leaves("(ROOT (NP (NNP Vo Tech)))") == ""  # a word cannot hold a space: nothing is made up


def test_both_formats_give_the_same_pairs(folder):
    one, two = (list(read_published(folder / f"snli_1.0_dev.{kind}")) for kind in ("jsonl", "txt"))
    assert one == two
    assert [(e.texts, e.label) for e in one] == [
        (("A man sleeps ( x ) .", "Sleep"), 0),
        (("A man sleeps ( x ) .", '" Dog'), 2),
    ]


def test_highlights_beside_the_files_are_marked(folder, opened):
    (folder / "esnli_test.csv").write_text(
        "pairID,gold_label,Sentence1_marked_1,Sentence2_marked_1,Sentence1_marked_2\n"
        '1,entailment,A *man* sleeps,*Sleep*,"A man, *sleeps.*"\n'
    )
    assert read_highlights(folder / "esnli_test.csv") == {"1": {"man", "sleeps"}}
    found = opened("snli", path=str(folder))
    splits = found.read(NullProgress())
    assert [e.marked for e in splits["test"]] == [{"man", "sleeps"}, frozenset()]
    assert not any(e.marked for e in splits["dev"])
    assert found.shortfalls[0] == "3 of 550,152 lines of snli_1.0_train.jsonl" and len(found.shortfalls) == 4
    (folder / "esnli_test.csv").unlink()
    plain = opened("snli", path=str(folder))
    assert {s for s in splits if plain.fingerprint[s] != found.fingerprint[s]} == {"test"}


def test_content_words_of_explanations():
    found = explained_words(["The two women are holding packages .", "a Woman's"])
    assert sorted(found) == ["holding", "packages", "s", "two", "woman", "women"]


def test_the_subset_of_a_mirror(mirror, read):
    splits = read("snli_20k", mirror=str(mirror))
    assert [len(splits[s]) for s in ("train", "dev", "test")] == [12, 6, 6]  # a pair of both training files counts once
    labels = {s: [e.label for e in splits[s]] for s in ("train", "dev")}
    assert labels == {"train": [1, 2, 0] * 4, "dev": [1, 2, 0] * 2}  # neutral, contradiction, entailment from 1 there
    first = splits["test"][0]
    assert first.texts[0].startswith("a man carries the old clock") and first.marked == {"man"}
