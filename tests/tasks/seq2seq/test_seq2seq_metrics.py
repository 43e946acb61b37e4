"""What is stored of a test set's outputs: metrics with their declarations, records, attention; trivial systems."""

from functools import cache

import numpy as np
import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer
from test_text_scores import texts

from repro.options import read
from repro.statistics import corpus_bleu, noise_of
from tasks.data import NullProgress
from tasks.data.symbols import EOS, FIRST, UNK
from tasks.seq2seq import baselines as module
from tasks.seq2seq import metrics
from tasks.seq2seq.baselines import baselines, most_central, nearest_neighbours
from tasks.seq2seq.encode import encode, encode_test, keep_encoding, open_encoded
from tasks.seq2seq.metrics import MEASURED, evaluation, score
from tasks.seq2seq.options import Encode
from tasks.seq2seq.search import Hypothesis

PAIRS = [("un chat noir dort ici", "a black cat sleeps here"), ("le chien", "the dog")]


@cache
def drawn_again(name):
    """A score of outputs with up to three references and few common words: of all, the rows of each sentence, of 30 samples."""
    rng, options = np.random.default_rng(1), read(Encode, {"tokenizer": "moses"}, "encode")
    words = np.array(["the", "a", "cat", "dogs", "sat", "running", "on", "mats", "police", "quickly", "red", "blue"])
    refs = [[" ".join(rng.choice(words, rng.integers(5, 9))) for _ in range(1 + i % 3)] for i in range(16)]
    hyps = [" ".join([*refs[i][-1].split()[: i % 4], *rng.choice(words, 14)]) for i in range(16)]
    samples = rng.integers(0, 16, (30, 16))
    values, signatures, sentences = score([name], hyps, refs, options, "en")
    assert signatures.keys() == values.keys() <= MEASURED.keys()
    again = [score([name], [hyps[i] for i in of], [refs[i] for i in of], options, "en")[0] for of in samples]
    return values, sentences, samples, again


@pytest.mark.parametrize("name", [name for name, (metric, _) in MEASURED.items() if metric.test])
def test_what_is_drawn_again_for_an_interval_is_the_printed_score(name):
    values, sentences, samples, again = drawn_again({"_f": "rouge_f1", "_r": "rouge_recall75"}.get(name[-2:], name))
    assert MEASURED[name][0].test == ("bleu" if name == "bleu" else "mean")
    rows = np.array(sentences["bleu_statistics" if name == "bleu" else name])
    expected = np.array([one[name] for one in again])
    ours = rows[samples].mean(1) if name != "bleu" else corpus_bleu(rows[samples].sum(1))
    np.testing.assert_allclose(ours, expected, rtol=1e-12)
    assert (corpus_bleu(rows.sum(0)) if name == "bleu" else rows.mean()) == pytest.approx(values[name], rel=1e-12)
    if name == "bleu":
        assert (rows[samples][..., 3].sum(1) == 0).mean() > 0.2, "samples without a hit of four words"
    assert noise_of(rows[None]).whole == pytest.approx(expected.std(), rel=0.45)


def test_scores_are_of_the_case_and_the_tokens_of_the_model():
    """Of a lower-cased model in lower case; of raw text cut as BLEU does."""
    cased, lower = (read(Encode, {"tokenizer": name}, "encode") for name in ("moses", "moses_lower"))
    names, text = ["bleu", "chrf", "multi_bleu"], "the cat sat on the mat today"
    scored = (score(names, [text], [[text.title()]], given, "en") for given in (lower, cased))
    (ours, signatures, _), (other, *_) = scored
    assert signatures.keys() == ours.keys() <= MEASURED.keys()
    for name in names:
        assert ours[name] == pytest.approx(100) and other[name] < 50
    raw = read(Encode, {"tokenizer": "raw", "subword": "sentencepiece"}, "encode")
    for text, how in (("今天天气很好。", "zh"), ("It's a well-known Cat.", "13a")):
        values, signatures, _ = score(["bleu", "multi_bleu", "meteor"], [text], [[text]], raw)
        assert values["multi_bleu"] == pytest.approx(100) and signatures["multi_bleu"] == f"multi-bleu|tok:{how}"
        assert values["meteor"] > 99 and signatures["meteor"].endswith(f"|tok:{how}")
        assert score(["multi_bleu"], [text.lower() + "!"], [[text]], raw)[0]["multi_bleu"] < 99


def test_an_evaluation_by_hand(encoded):
    _, further = encoded(PAIRS, PAIRS, PAIRS)
    words = {word: i + FIRST for i, word in enumerate(further.target_vocab)}
    attention = torch.tensor([[1.0, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0]]), torch.tensor([[0.5, 0.5], [0, 1.0]])
    the, unknown = [words["the"], EOS], [UNK, EOS]
    outputs = [Hypothesis(the, attention[0], -1.23456, 0, ["the"])]
    outputs += [Hypothesis(unknown, attention[1], -2.0, 1, ["chien"])]
    found = evaluation(further, outputs, ["bleu", "rouge_f1"], "further", keep_attention=1)
    assert found.metrics["further/attention_zeros"] == pytest.approx((7 + 1) / 14)
    assert found.metrics["further/attention_support"] == pytest.approx((1 + 2 + 2 + 1) / 4)
    assert found.metrics["further/unknown_share"] == 0.5  # "chien" was copied in its place
    assert found.metrics["further/rouge1_f"] == 0 and "nrefs:1" in found.signatures["further/bleu"]
    assert {name.removeprefix("further/") for name in found.metrics} <= set(MEASURED)
    first, second = found.predictions
    assert first["output"] == "the" and first["references"] == ["a black cat sleeps here"] and first["score"] == -1.2346
    assert first["source_tokens"] == ["un", "chat", "noir", "dort", "ici"] and first["output_tokens"] == ["the", "</s>"]
    assert set(first["sentence"]) == {"bleu_statistics", "rouge1_f", "rouge2_f", "rougeL_f"}
    assert len(first["sentence"]["bleu_statistics"]) == 10
    assert second["set"] == "further" and "source_tokens" not in second
    assert list(found.attention) == ["further/0"] and found.attention["further/0"] is outputs[0].attention


@pytest.mark.parametrize("world", [1, 2, 3])
def test_processes_that_share_dev_score_its_outputs_in_order(encoded, monkeypatch, world):
    texts = [f"dev sentence number {i} of seven in order" for i in range(7)]
    trained, _ = encoded(PAIRS, [("source", text) for text in texts], PAIRS)

    def decoded(*_, split, share, **__):
        assert split == "dev"
        return [[Hypothesis([], torch.zeros(0), 0.0, i, texts[i].split())] for i in range(7)[share]]

    monkeypatch.setattr(metrics, "decode", decoded)

    def gather(found, mine):
        found[:] = [texts[rank::world] for rank in range(world)]
        assert mine in found

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    for rank in range(world):
        found = metrics.dev_scores(None, trained, "bleu", rank, world)
        assert found["dev/bleu"] == 100 and found["dev/decode_seconds"] >= 0
    assert metrics.dev_scores(None, trained, "loss", 0, world) == {}


def test_numbers_are_restored_before_scoring(encoded):
    release = [("shares fell ## percent", "shares fall ## percent")] * 3
    _, test = encoded(release, release, [("shares fell 12 percent", "shares fall 12 percent")], digits="#")
    words = ["shares", "fall", "##", "percent"]
    ids = [test.ids("target")[word] for word in words]
    found = evaluation(test, [Hypothesis([*ids, EOS], torch.ones(5, 4) / 4, 0.0, 0, words)], ["rouge_recall75"])
    assert found.predictions[0]["output"] == "shares fall 12 percent"
    assert found.metrics["test/rouge2_r"] == pytest.approx(100)


@pytest.fixture
def encoded(dataset, tmp_path):
    """`encoded(train, dev, test, **options)`: training data and test set."""

    def encoded(train, dev, test, digits=None, **options):
        given, about = read(Encode, options, "encode"), {"digits": digits} if digits else {}
        trained = encode(dataset(train, dev, references=()), given, tmp_path, NullProgress())
        test = dataset(test=test, references=(), **about)
        return trained, encode_test(test, trained.folder, tmp_path, NullProgress())

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


def test_the_neighbour_of_a_training_source_is_its_own_target_in_words(encoded, monkeypatch, tmp_path):
    pairs = list(zip(texts(60, 3, 4), texts(60, 4, 4)))
    trained, test = encoded(pairs, pairs[:3], pairs, tokenizer="moses_lower", subword="bpe", vocab_size=80)
    found = baselines(trained, test, ["bleu"])["nearest neighbour"]
    assert found["test/bleu"] == pytest.approx(100) and found["test/similarity"] == 1
    monkeypatch.setattr(module, "NEIGHBOURS", 20)  # a large training set is searched in part
    assert 20 < baselines(trained, test, ["bleu", "chrf"])["nearest neighbour"]["test/bleu"] < 95
    keep_encoding(trained.folder, tmp_path / "kept")
    assert set(baselines(open_encoded(tmp_path / "kept"), test, ["bleu"])) == {"constant", "lead"}


def test_values_are_kept_beside_the_test_set_and_made_again_for_other_scores(encoded, monkeypatch):
    trained, test = encoded([("a b", "c")], [("a", "c")], [("a b c", "a b")])
    first = baselines(trained, test, ["bleu"])
    monkeypatch.setattr(module, "_compute", lambda *_: {"again": {}})
    assert baselines(trained, test, ["bleu"]) == first and baselines(trained, test, ["rouge_f1"]) == {"again": {}}
