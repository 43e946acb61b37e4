"""SNLI's published formats on tiny files, the 20,000-pair subset and SNLI dev/test on the real ones."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tasks.data import DataError, DataUnavailable, NullProgress
from tasks.data.sets.snli import leaves, read_highlights, read_published
from tasks.data.sets.snli_20k import explained_words

PARSE = "(ROOT (S (NP (DT A) (NN man)) (VP (VBZ sleeps) (PRT (-LRB- -LRB-) (NN x) (-RRB- -RRB-))) (. .)))"
ROWS = [
    {"gold_label": "entailment", "sentence1_parse": PARSE, "sentence2_parse": "(ROOT (NN Sleep))", "pairID": "1"},
    {"gold_label": "-", "sentence1_parse": PARSE, "sentence2_parse": "(ROOT (NN Sleep))", "pairID": "2"},
    {"gold_label": "contradiction", "sentence1_parse": PARSE, "sentence2_parse": '(ROOT (NP (`` ") (NN Dog)))', "pairID": "3"},
]  # fmt: skip


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
    assert [e.marked for e in splits["test"]] == [{"man", "sleeps"}, frozenset()] and not any(
        e.marked for e in splits["dev"]
    )
    assert found.shortfalls[0] == "3 of 550,152 lines of snli_1.0_train.jsonl" and len(found.shortfalls) == 4
    (folder / "esnli_test.csv").unlink()
    plain = opened("snli", path=str(folder))
    assert {s for s in splits if plain.fingerprint[s] != found.fingerprint[s]} == {"test"}


def test_what_is_not_snli_is_an_error(folder, tmp_path_factory, opened):
    (folder / "snli_1.0_dev.jsonl").write_text(
        '{"gold_label": "maybe", "sentence1_parse": "", "sentence2_parse": "", "pairID": "1"}\n'
    )
    with pytest.raises(DataError, match="line 1: gold_label is 'maybe'"):
        opened("snli", path=str(folder)).read(NullProgress())
    with pytest.raises(DataError, match="no train split"):
        opened("snli", path=str(tmp_path_factory.mktemp("empty")))
    with pytest.raises(DataUnavailable, match="mirror"):
        opened("snli_20k")


def test_content_words_of_explanations():
    assert explained_words(["The two women are holding packages .", "a Woman's"]) == {
        "two",
        "women",
        "holding",
        "packages",
        "woman",
        "s",
    }


def test_the_real_subset(testdata, read):
    splits = read("snli_20k", mirror=str(testdata))
    assert len(splits["dev"]) == 9_842 and len(splits["test"]) == 9_824 and 19_900 < len(splits["train"]) <= 20_000
    # Bowman et al. 2015 and the set's page: the classes of the test set
    assert Counter(e.label for e in splits["test"]) == {0: 3_368, 1: 3_219, 2: 3_237}
    shares = Counter(e.label for e in splits["train"])
    assert all(0.3 < n / len(splits["train"]) < 0.37 for n in shares.values())
    assert sum(bool(e.marked) for e in splits["test"]) > 9_700
    outside = next(e for e in splits["train"] if e.texts[1] == "People are getting married")
    assert outside.label == 0 and outside.texts[0].startswith("A traditional ethnic wedding")
