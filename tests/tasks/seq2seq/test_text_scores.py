"""BLEU and ROUGE: against sacrebleu, nltk, rouge-score, an output of ROUGE-1.5.5, and sums worked by hand."""

import random

import numpy as np
import pytest
from nltk.translate.bleu_score import corpus_bleu as nltk_bleu
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

from tasks.data.words import words
from tasks.seq2seq import scores
from tasks.seq2seq.scores import bleu, bleu_tokenizer, chrf, cut_bytes, multi_bleu, rouge_f1, rouge_recall75

WORDS = ["the", "a", "cat", "dogs", "sat", "running", "on", "mats", "happily", ",", ".", "police", "U.S.", "don't"]


def texts(count, seed, low=1, high=9):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(low, high))) for _ in range(count)]


def _noisy(texts, seed):
    rng = random.Random(seed)
    return [" ".join(w if rng.random() < 0.8 else rng.choice(WORDS) for w in text.split()) for text in texts]


TEXTS = texts(60, 1, 4, 14)
HYPS = _noisy(TEXTS, 2)
REFS = [[ref] for ref in TEXTS]
KINDS = ("rouge1", "rouge2", "rougeL")
SCORER = RougeScorer(KINDS, use_stemmer=True)
MANY = [[ref, other] if i % 3 else [ref] for i, (ref, other) in enumerate(zip(TEXTS, _noisy(TEXTS, 3)))]


def test_bleu_is_sacrebleu_with_its_signature():
    got = bleu(HYPS, REFS)
    metric = BLEU()
    assert got["bleu"] == metric.corpus_score(HYPS, [TEXTS]).score and 0 < got["bleu"] < 100
    assert got["signature"] == metric.get_signature().format() and "tok:13a" in got["signature"]
    upper = [hyp.upper() for hyp in HYPS]
    assert bleu(upper, REFS, lowercase=True)["bleu"] == pytest.approx(bleu(HYPS, REFS, lowercase=True)["bleu"])
    assert bleu(upper, REFS)["bleu"] < got["bleu"] / 2


TOKENISERS = """zh zh 今天天气很好。; zh_TW zh hello; zho zh hello; kor char 한국어; yue zh 今天; en zh 今天天气很好。; ja char 今日は; en char 今日は天気がいい; ko char 한국어; en 13a 한국어; th char ภาษาไทย;
km char ភាសាខ្មែរ; lo char ພາສາລາວ; my char မြန်မာ; bo char བོད་ཡིག; hi 13a हिन्दी; fa 13a می‌بیند; de 13a hallo; en 13a ..."""


@pytest.mark.parametrize("case", TOKENISERS.split(";"))
def test_bleu_takes_the_tokeniser_of_the_language(case, monkeypatch):
    language, name, text = case.split()
    monkeypatch.setattr(scores, "find_spec", lambda module: None)
    assert bleu_tokenizer([[text]], language) == name
    found = bleu([f"{text} " * 4], [[f"{text} " * 4]], language=language)
    assert f"|tok:{name}|" in found["signature"] and found["bleu"] == pytest.approx(100)
    (total,) = found["sentence"]["bleu_statistics"].astype(int).tolist()
    words = len(BLEU(tokenize=name).tokenizer(f"{text} " * 4).split())
    assert total[8:] == [words, words] and total[:4] == total[4:8] == [words, words - 1, words - 2, words - 3]
    monkeypatch.setattr(scores, "find_spec", lambda module: module)
    assert bleu_tokenizer([["今日は"]], "ja") == bleu_tokenizer([["今日は"]], "en") == "ja-mecab"
    assert bleu_tokenizer([["한국어"]], "ko_KR") == "ko-mecab"


def test_chrf_is_sacrebleu_with_its_signature():
    got, metric = chrf(HYPS, MANY), CHRF()
    columns = [[options[min(i, len(options) - 1)] for options in MANY] for i in range(2)]
    assert got["chrf"] == pytest.approx(metric.corpus_score(HYPS, columns).score) and 0 < got["chrf"] < 100
    assert got["signature"].startswith("nrefs:var|case:mixed|") and "nc:6" in got["signature"]
    assert chrf(["今天"], [["今天"]])["chrf"] == chrf(["A B"], [["a b"]], lowercase=True)["chrf"] == 100


@pytest.mark.parametrize("refs", [REFS, MANY])
def test_multi_bleu_is_unsmoothed_bleu_of_the_tokens_as_they_are(refs):
    expected = nltk_bleu([[ref.split() for ref in options] for options in refs], [hyp.split() for hyp in HYPS])
    assert multi_bleu(HYPS, refs)["multi_bleu"] == pytest.approx(100 * expected)
    joined = [hyp.replace(" .", ".") for hyp in HYPS]  # another tokenisation is another number
    assert multi_bleu(joined, refs)["multi_bleu"] != pytest.approx(multi_bleu(HYPS, refs)["multi_bleu"])
    assert multi_bleu(["a cat sat"], [["a cat sat"]])["multi_bleu"] == 0.0  # without words in fours


def test_recall_is_that_of_rouge_1_5_5_of_rouge_score_and_by_hand():
    # printed by ROUGE-1.5.5.pl for this pair: R-1 .50000, R-2 .28571, R-L .50000
    got = rouge_recall75(["1 2 1 2"], [["1 2 3 4 5 1 2 6"]])
    np.testing.assert_allclose([got["rouge1_r"], got["rouge2_r"], got["rougeL_r"]], [50.0, 28.571, 50.0], atol=1e-3)
    got = rouge_recall75(HYPS, REFS)
    for name in KINDS:
        expected = [100 * SCORER.score(ref, cut_bytes(hyp, 75))[name].recall for hyp, ref in zip(HYPS, TEXTS)]
        np.testing.assert_allclose(got["sentence"][f"{name}_r"], expected)
        assert got[f"{name}_r"] == pytest.approx(np.mean(expected))
    # several references: hits 2 of 3, 1 of 1 and 0 of 4 unigrams
    got = rouge_recall75(["police killed gunman"], [["police killed him", "gunman", "nothing at all here"]])
    assert got["rouge1_r"] == pytest.approx(100 * (2 + 1 + 0) / (3 + 1 + 4)) and "refs:3:pooled" in got["signature"]


def test_outputs_are_cut_after_the_75th_byte_not_character():
    words = " ".join(f"wörd{i:02d}" for i in range(12))  # each 8 bytes with its space, 7 characters
    assert len(cut_bytes(words, 75).encode()) <= 75 and cut_bytes(words, 75) == words[: len(cut_bytes(words, 75))]
    assert cut_bytes("é", 1) == "" and cut_bytes("aé", 3) == "aé"
    plain = " ".join(f"word{i:03d}" for i in range(12))  # 8 bytes each: 9 whole words and 3 bytes of the tenth
    for text, reference, recall in (
        *(("a" * first + " end", None, recall) for first, recall in ((70, 100.0), (71, 100.0), (72, 50.0))),
        (plain, None, 100 * 9 / 12),
        (plain + " x" * 99, plain, 100 * 9 / 12),
    ):
        got = rouge_recall75([text], [[reference or text]])
        assert got["rouge1_r"] == pytest.approx(recall) and "bytes:75" in got["signature"]


def test_f1_is_that_of_rouge_score_and_best_is_its_score_multi():
    one, best = rouge_f1(HYPS, REFS), rouge_f1(HYPS, MANY)
    for name in KINDS:
        single = [100 * SCORER.score(r, h)[name].fmeasure for h, r in zip(HYPS, TEXTS)]
        np.testing.assert_allclose(one["sentence"][f"{name}_f"], single)
        multi = [100 * SCORER.score_multi(refs, h)[name].fmeasure for h, refs in zip(HYPS, MANY)]
        np.testing.assert_allclose(best["sentence"][f"{name}_f"], multi)
        assert best[f"{name}_f"] == pytest.approx(np.mean(multi))
    assert "refs:best" in best["signature"] and "refs" not in one["signature"]
    assert rouge_f1(["", "..."], [["a cat"], ["a cat"]])["rouge1_f"] == 0  # empty outputs
    assert rouge_recall75([""], [["a cat", ""]])["rouge1_r"] == 0 == rouge_recall75(["a"], [["", "..."]])["rouge2_r"]
    assert bleu(["", ""], [["a cat sat on mats"], ["b"]])["bleu"] == 0


OTHERS = """ru 3 кошка спит дома; hi 4 हिन्दी में लिखा है; fa 2 گربه‌ها می‌خوابند; zh 6 今天天气很好。; ja 9 ここでカツを食べる; th 10 ภาษาไทยง่าย; ko 2 한국어 텍스트;
de 2 die Häuser; el 2 η γάτα"""


@pytest.mark.parametrize("case", OTHERS.split(";"))
@pytest.mark.parametrize("said", [True, False])
def test_rouge_reads_words_of_any_script(case, said):
    language, count, text = case.split(maxsplit=2)
    for scorer, metric in ((rouge_f1, "rouge1_f"), (rouge_recall75, "rouge1_r")):
        found = scorer([text], [[text.upper()]], language if said else "en")
        assert found[metric] == 100 and "|tok:unicode|stem:no|" in found["signature"]
    tokens = words(text)
    assert len(tokens) == int(count) and "".join(tokens) == "".join(text.casefold().split()).rstrip("。")


def test_rouge_keeps_accents_and_joins_decomposed_ones():
    assert rouge_f1(["le né"], [["le nà"]], "fr")["rouge1_f"] == pytest.approx(50)
    assert rouge_f1(["le caf\u00e9"], [["le cafe\u0301"]], "fr")["rouge1_f"] == 100
    assert rouge_f1(["👍 👎"], [["👍"]], "fr")["rouge1_f"] == pytest.approx(100 * 2 / 3)
    assert "stem:porter" in rouge_f1(["la dogs"], [["la dog"]], "en_GB")["signature"]
    assert "tok:unicode" in rouge_f1(["los perros"], [["los perros"]], "es")["signature"]
    for accents, how in ((1, "stem:porter"), (2, "tok:unicode")):  # English may have one foreign letter in a hundred
        text = "a" * (100 - accents) + "é" * accents
        assert how in rouge_f1([text], [[text]])["signature"]
