"""Generated pairs: reproducible, disjoint, and explained by their planted alignment; generated texts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tasks.data import DataError, NullProgress
from tasks.data.sets.toy import lexicon, translate


def test_toy_is_reproducible_and_its_splits_are_disjoint(read):
    sizes = {"train": 300, "dev": 40, "test": 50}
    one, two, other = (read("toy", limits=sizes, seed=seed) for seed in (3, 3, 4))
    assert one == two != other
    sources = [{pair.source for pair in one[s]} for s in ("train", "dev", "test")]
    assert [len(s) for s in sources] == [300, 40, 50] and not (sources[0] & sources[1] or sources[0] & sources[2])
    longer = read("toy", limits=sizes | {"test": 90}, seed=3)
    assert longer["train"] == one["train"] and longer["dev"] == one["dev"] and longer["test"][:50] == one["test"]


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
        swaps += sum(a > b for a, b in pairwise(order))
    assert min(swaps, doubles, silent) > 100


def test_translate_by_hand():
    by_kind = {}
    for word, (kind, target) in lexicon().items():
        by_kind.setdefault(kind, (word, target))
    noun, adjective, double, particle = (by_kind[k] for k in ("noun", "adjective", "double", "particle"))
    target, links = translate([particle[0], noun[0], adjective[0], double[0]])
    assert target == [*adjective[1], *noun[1], *double[1]]
    assert links == {(2, 0), (1, 1), (3, 2), (3, 3)}


def test_too_many_toy_sentences_end_in_an_error_not_a_loop(opened):
    found = opened("toy", limits={"train": 300, "dev": 1, "test": 1}, max_words=1, min_words=1)
    with pytest.raises(DataError, match="fewer than 302 different"):
        found.read(NullProgress())
    with pytest.raises(DataError, match="min_words=5 is above max_words=4"):
        opened("toy", min_words=5, max_words=4)


def test_generated_texts_have_the_answer_in_them(read):
    for example in read("toy_entailment", limits={"train": 200})["train"]:
        premise, hypothesis = example.texts
        thing, colour = hypothesis.split()[1], hypothesis.split()[-1]
        said = [part.split()[-1] for part in premise.split(" and ") if part.split()[1] == thing]
        assert example.label == (1 if not said else 0 if said == [colour] else 2) and example.marked == {thing}
    for example in read("toy_reviews", limits={"train": 200})["train"]:
        assert example.label == int(bool(example.marked & {"lovely", "superb", "brilliant"}))
        assert example.marked <= set(example.texts[0].split())
