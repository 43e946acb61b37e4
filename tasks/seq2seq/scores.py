"""Text metrics in percent: BLEU by sacrebleu, ROUGE by rouge-score, METEOR by nltk.

BLEU is computed on detokenised text, and also on tokenised text like multi-bleu.perl. ROUGE-1, -2 and -L are computed
as F1 of whole outputs, and as recall of outputs truncated to 75 bytes (DUC). Recall is implemented here, because
rouge-score supports neither the truncation nor the pooled references of ROUGE-1.5.5. Every corpus score comes with its
per-sentence values under "sentence", so that the difference between two systems can be tested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np

References = Sequence[Sequence[str]]  # [sentences][references of that sentence]


def bleu(hyps: Sequence[str], refs_list: References | Sequence[str], lowercase: bool = False) -> dict[str, Any]:
    """sacreBLEU corpus BLEU on detokenised text (Post 2018).

    Args:
        hyps: one output per sentence.
        refs_list: the references of each sentence (one or more).

    Returns:
        bleu, signature, and `sentence`: [n, 10] float64 sufficient statistics (4 n-gram hits, 4 n-gram totals,
        output length, reference length), whose sums give the BLEU of any subset.
    """
    from sacrebleu.metrics import BLEU

    references = reference_lists(hyps, refs_list)
    metric = BLEU(lowercase=lowercase)
    score = metric.corpus_score(list(hyps), _streams(references))
    single = BLEU(lowercase=lowercase, effective_order=True)
    rows = [single.sentence_score(hyp, list(refs)) for hyp, refs in zip(hyps, references, strict=True)]
    statistics = np.array([[*r.counts, *r.totals, r.sys_len, r.ref_len] for r in rows], dtype=np.float64)
    return {"bleu": score.score, "signature": metric.get_signature().format(), "sentence": statistics.reshape(-1, 10)}


def multi_bleu(hyps_tok: Sequence[str], refs_tok: References | Sequence[str]) -> float:
    """BLEU of tokenised text as multi-bleu.perl computes it: no tokenisation, no smoothing, closest reference length.

    Args:
        hyps_tok, refs_tok: words joined by spaces; the score depends on the tokeniser used.
    """
    from sacrebleu.metrics import BLEU

    references = reference_lists(hyps_tok, refs_tok)
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return metric.corpus_score(list(hyps_tok), _streams(references)).score


def reference_lists(hyps: Sequence[str], refs: References | Sequence[str]) -> list[tuple[str, ...]]:
    """The list of references for each sentence.

    Raises:
        ValueError: a sentence has no reference, or the numbers of outputs and sentences differ.
    """
    if len(hyps) != len(refs):
        raise ValueError(f"{len(hyps)} outputs and references for {len(refs)} sentences; the numbers must agree")
    lists = [(ref,) if isinstance(ref, str) else tuple(ref) for ref in refs]
    for i, options in enumerate(lists):
        if not options:
            raise ValueError(f"sentence {i} has no reference; each needs one or more")
    return lists


def _streams(references: list[tuple[str, ...]]) -> list[list[str | None]]:
    """Transpose [sentences][references] to sacrebleu's [references][sentences], filled up with None."""
    most = max(map(len, references), default=1)
    return [[options[k] if k < len(options) else None for options in references] for k in range(most)]


def rouge_f1(hyps: Sequence[str], refs: References | Sequence[str], stemmer: bool = True) -> dict[str, Any]:
    """ROUGE-1/2/L F1 of whole outputs by the rouge-score package, averaged over sentences.

    If there are several references, each measure uses the reference with the largest F1.

    Args:
        stemmer: use Porter stemming, like option `-m` of ROUGE-1.5.5, which the summarization papers use.

    Returns:
        rouge1_f, rouge2_f, rougeL_f, signature, and `sentence`: each measure's values [n].
    """
    from rouge_score.rouge_scorer import RougeScorer

    references = reference_lists(hyps, refs)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=stemmer, tokenizer=rouge_tokenizer(stemmer))
    values: dict[str, list[float]] = {"rouge1": [], "rouge2": [], "rougeL": []}
    for hyp, options in zip(hyps, references, strict=True):
        scores = [scorer.score(ref, hyp) for ref in options]
        for name, column in values.items():
            column.append(max(score[name].fmeasure for score in scores))
    sentence = {f"{name}_f": 100 * np.array(column) for name, column in values.items()}
    refs_mode = "" if max(map(len, references), default=1) == 1 else "|refs:best"
    signature = f"rouge-score:{version('rouge-score')}|F1|stem:{'porter' if stemmer else 'no'}{refs_mode}|n:{len(hyps)}"
    return _means(sentence) | {"signature": signature, "sentence": sentence}


def rouge_recall75(
    hyps: Sequence[str], refs: References | Sequence[str], limit_bytes: int | None = 75, stemmer: bool = True
) -> dict[str, Any]:
    """ROUGE recall of outputs truncated to 75 bytes, the rule of DUC 2004 task 1 (ROUGE-1.5.5 `-m -n 2 -w 1.2 -b 75`).

    In that command, `-m` selects the Porter stemmer. Several references are combined by the script's default (`-f A`,
    called "model average"): hits and reference n-grams are summed over the references before dividing, which is Eq. 1
    of Lin (2004). The jackknifing of that paper was removed in version 1.4, according to the release notes. Outputs are
    truncated in bytes of UTF-8; references are not truncated (those of DUC respect the limit).

    Args:
        hyps: one output per document.
        refs: the references of each document.
        limit_bytes: the limit; None means no truncation.

    Returns:
        rouge1_r, rouge2_r, rougeL_r, signature, and `sentence`: each measure's values [n].
    """
    references = reference_lists(hyps, refs)
    tokens = rouge_tokenizer(stemmer).tokenize
    values: dict[str, list[float]] = {"rouge1_r": [], "rouge2_r": [], "rougeL_r": []}
    for hyp, options in zip(hyps, references, strict=True):
        output = tokens(cut_bytes(hyp, limit_bytes))
        models = [tokens(ref) for ref in options]
        counts = {
            "rouge1_r": [_ngram_hits(output, model, 1) for model in models],
            "rouge2_r": [_ngram_hits(output, model, 2) for model in models],
            "rougeL_r": [(_lcs(output, model), len(model)) for model in models],
        }
        for name, pairs in counts.items():
            size = sum(total for _, total in pairs)
            values[name].append(sum(hits for hits, _ in pairs) / size if size else 0.0)
    sentence = {name: 100 * np.array(column) for name, column in values.items()}
    most = max(map(len, references), default=1)
    cut = "full" if limit_bytes is None else f"bytes:{limit_bytes}"
    stem = "porter" if stemmer else "no"
    signature = f"ROUGE-1.5.5-style recall|{cut}|stem:{stem}|refs:{most}:pooled|n:{len(hyps)}"
    return _means(sentence) | {"signature": signature, "sentence": sentence}


def cut_bytes(text: str, limit: int | None) -> str:
    """The first `limit` bytes of `text` in UTF-8 (all if None); a last character that is cut in two is dropped."""
    return text if limit is None else text.encode("utf-8")[:limit].decode("utf-8", "ignore")


@lru_cache(maxsize=2)
def rouge_tokenizer(stemmer: bool):
    from rouge_score.tokenizers import DefaultTokenizer

    return DefaultTokenizer(use_stemmer=stemmer)


def _ngram_hits(output: list[str], model: list[str], n: int) -> tuple[int, int]:
    """The number of clipped n-gram matches and the number of n-grams of the reference."""

    def grams(tokens: list[str]) -> Counter:
        return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))

    reference = grams(model)
    return (grams(output) & reference).total(), reference.total()


def _lcs(a: list[str], b: list[str]) -> int:
    """Length of the longest common subsequence."""
    previous = [0] * (len(b) + 1)
    for x in a:
        row = [0]
        for j, y in enumerate(b):
            row.append(previous[j] + 1 if x == y else max(row[j], previous[j + 1]))
        previous = row
    return previous[-1]


def _means(sentence: Mapping[str, np.ndarray]) -> dict[str, float]:
    return {name: float(values.mean()) if len(values) else float("nan") for name, values in sentence.items()}


class _NoSynonyms:
    """Replaces WordNet: no word has synonyms."""

    def synsets(self, word: str) -> list[Any]:
        return []


def meteor(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> np.ndarray:
    """METEOR of each sentence [n], in points, from lists of words; the best score over the sentence's references."""
    from nltk.translate.meteor_score import meteor_score

    none: Any = _NoSynonyms()
    return np.array(
        [100 * meteor_score(group, one, wordnet=none) for one, group in zip(hypotheses, references, strict=True)]
    )
