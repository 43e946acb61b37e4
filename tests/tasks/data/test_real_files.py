"""Counts that others have published, of the real files: run by `make test-all` where there is a folder of real data."""

from collections import Counter

import pytest

from tasks.data.sets.pairs import read_pharaoh

pytestmark = pytest.mark.slow
# train, test, labels; labels per document
MULAN = {"birds": (179, 172, 19), "scene": (1211, 1196, 6), "emotions": (391, 202, 6), "yeast": (1500, 917, 14)}
CARDINALITY = {"scene": (1.062, 1.086), "emotions": (1.813, 1.975)}


def test_hansards(testdata):
    golds = read_pharaoh(testdata / "word_alignment" / "hansards_enfr" / "enfr.gold")
    assert len(golds) == 447  # Och & Ney 2003, Table 2: 4,038 sure and 13,400 possible
    assert sum(len(sure) for sure, _ in golds) == 4038
    assert sum(len(possible - sure) for sure, possible in golds) == 13400


@pytest.mark.parametrize("name", MULAN)
def test_mulan(name, testdata, opened, read):
    splits = read(name, mirror=str(testdata))
    labels = opened(name, mirror=str(testdata)).about["labels"]
    assert (len(splits["train"]), len(splits["test"]), len(labels)) == MULAN[name]
    for split, expected in zip(("train", "test"), CARDINALITY.get(name, ())):
        assert splits[split].labels.sum(1).mean() == pytest.approx(expected, abs=6e-4)


def test_snli(testdata, read):
    splits = read("snli_20k", mirror=str(testdata))
    assert len(splits["dev"]) == 9_842 and 19_900 < len(splits["train"]) <= 20_000
    # Bowman et al. 2015 and the set's page: the classes of the test set
    assert Counter(e.label for e in splits["test"]) == {0: 3_368, 1: 3_219, 2: 3_237}


def test_imdb(testdata, read):
    splits = read("imdb", mirror=str(testdata))
    both = Counter(e.label for s in ("train", "dev") for e in splits[s])
    assert both == Counter(e.label for e in splits["test"]) == {0: 12_500, 1: 12_500}
    words = sum(len(e.texts[0].split()) for e in splits["test"]) / 25_000
    assert 220 < words < 240  # the set's page gives 231 for the 25,000 test reviews by another count
