"""Trivial systems: against rouge-score, and by hand."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from repro.files import sealed
from tasks.config.options import read
from tasks.data import NullProgress
from tasks.seq2seq import baselines as module
from tasks.seq2seq.baselines import baselines, most_central, nearest_neighbours
from tasks.seq2seq.encode import encode, encode_test, keep_encoding, open_encoded
from tasks.seq2seq.options import Encode

WORDS = ["the", "a", "cat", "dogs", "sat", "running", "on", "mats", "happily", ",", "police", "U.S.", "don't"]


def texts(count, seed, low=1, high=9):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(low, high))) for _ in range(count)]


@pytest.fixture
def encoded(dataset, tmp_path):
    """`encoded(train, dev, test, **options)`: training data and test set."""

    def encoded(train, dev, test, references=(), **options):
        given = read(Encode, options, "encode")
        trained = encode(dataset(train, dev, references=references), given, tmp_path, NullProgress())
        return trained, encode_test(dataset(test=test, references=references), trained.folder, tmp_path, NullProgress())

    return encoded


def test_the_central_target_has_the_largest_mean_f1_by_rouge_score():
    candidates, dev = texts(25, 5), texts(30, 6, 2)
    scorer = RougeScorer(["rouge1"], use_stemmer=True)
    means = [np.mean([scorer.score(d, c)["rouge1"].fmeasure for d in dev]) for c in candidates]
    assert most_central(candidates, dev) == candidates[int(np.argmax(means))]
    assert most_central(["дом", "кот спит"], ["кот спит", "кот"], "ru") == "кот спит"


def test_neighbours_by_hand():
    """Of 3 texts, `a` is in 2 and `b` and `c` are in 1: they weigh log(4 / 3) + 1 and log(4 / 2) + 1."""
    common, rare = np.log(4 / 3) + 1, np.log(2) + 1
    texts = [["a", "a", "b"], ["a"], ["c"]]
    best, similarity = nearest_neighbours(texts, [["b", "unknown"], ["a", "c"], ["unknown"], []])
    assert best.tolist() == [0, 2, 0, 0]
    expected = [rare / np.hypot(2 * common, rare), rare / np.hypot(common, rare), 0, 0]
    np.testing.assert_allclose(similarity, expected, rtol=1e-12)
    copies = [["c", "d"], ["a", "b"], ["b", "a"]]
    assert nearest_neighbours(copies, [["a", "b"]])[0].tolist() == [1]  # of equal texts the first
    many = [[str(i)] for i in range(200)]
    assert nearest_neighbours(many, many)[0].tolist() == list(range(200))  # more queries than one block


def test_baselines_by_hand(encoded):
    train = [("a b c d e", "x y"), ("f g h", "x y"), ("i j", "z z z z z")]
    trained, test = encoded(train, [("p", "x y")], [("x q r s t", "x q r"), ("i j k", "z w z z z")])
    got = baselines(trained, test, ["rouge_f1"], "further")
    assert got["constant"]["further/text"] == "x y" and got["lead"]["further/words"] == 3
    assert got["constant"]["further/rouge1_f"] == pytest.approx(100 * (2 / 5 + 0) / 2)
    assert got["lead"]["further/rouge1_f"] == pytest.approx(100 * (1 + 0) / 2)
    # the first source shares no word with training and gets the first pair's target; the second is the third's
    assert got["nearest neighbour"]["further/rouge1_f"] == pytest.approx(100 * (2 / 5 + 4 / 5) / 2)


def test_the_neighbour_of_a_training_source_is_its_own_target_in_words(encoded):
    pairs = [(s, t) for s, t in zip(texts(40, 3, 4), texts(40, 4, 4))]
    trained, test = encoded(pairs, pairs[:3], pairs[5:9], tokenizer="moses_lower", subword="bpe", vocab_size=80)
    assert baselines(trained, test, ["bleu"])["nearest neighbour"]["test/bleu"] == pytest.approx(100)
    assert baselines(trained, test, ["bleu"])["nearest neighbour"]["test/similarity"] == 1


def test_a_large_training_set_is_searched_in_part(encoded, monkeypatch):
    pairs = [(s, t) for s, t in zip(texts(60, 3, 4), texts(60, 4, 4))]
    trained, test = encoded(pairs, pairs[:3], pairs)
    monkeypatch.setattr(module, "NEIGHBOURS", 20)
    assert 20 < baselines(trained, test, ["bleu"])["nearest neighbour"]["test/bleu"] < 95


def test_without_training_pairs_there_is_no_neighbour(encoded, tmp_path):
    trained, test = encoded([("a b", "c")], [("a", "c")], [("a b c", "a b"), ("d e", "a b")])
    keep_encoding(trained.folder, tmp_path / "kept")
    got = baselines(open_encoded(tmp_path / "kept"), test, ["rouge_recall75"])
    assert set(got) == {"constant", "lead"} and got["lead"]["test/rouge1_r"] == pytest.approx(50)


def test_values_are_kept_beside_the_test_set_and_made_again_for_other_scores(encoded):
    trained, test = encoded([("a b", "c")], [("a", "c")], [("a b c", "a b")])
    first = baselines(trained, test, ["bleu"])
    (kept,) = test.folder.parent.glob("*.baselines.json")
    key, _ = stored = json.loads(kept.read_text())
    stored[key]["lead"]["bleu"] = -1.0
    kept.write_text(json.dumps(stored))
    assert baselines(trained, test, ["bleu"]) == first  # its checksum differs
    kept.write_text(json.dumps(sealed(stored)))
    assert baselines(trained, test, ["bleu"])["lead"]["test/bleu"] == -1.0  # nothing is computed
    assert baselines(trained, test, ["rouge_f1"])["lead"].keys() != first["lead"].keys()
    kept.write_text("{")
    assert baselines(trained, test, ["bleu"]) == first
