"""Scores of output text: BLEU, ROUGE, token accuracy, and two baselines to read them against.

Every corpus score comes with its per-sentence values under `"sentence"`, so that differences between two systems can be
tested by resampling sentences. All scores are in per cent (x 100).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np

from tasks.data.errors import DataError
from tasks.seq2seq.corpus import Corpus

References = Sequence[Sequence[str]]  # [sentences][references of that sentence]; a plain str counts as one reference


def bleu(
    hyps: Sequence[str],
    refs_list: References | Sequence[str],
    lowercase: bool = False,
    tokenize: str = "13a",
) -> dict[str, Any]:
    """sacreBLEU corpus BLEU on detokenised text (Post 2018).

    Args:
        hyps: one output per sentence.
        refs_list: the references of each sentence (one or more).
        tokenize: sacrebleu's tokeniser.

    Returns:
        bleu, signature, and `sentence`: [n, 10] float64 sufficient statistics (4 n-gram hits, 4 n-gram totals,
        output length, reference length), from which `bleu_from_statistics` gives the BLEU of any subset.
    """
    from sacrebleu.metrics import BLEU

    references = _references(hyps, refs_list)
    metric = BLEU(lowercase=lowercase, tokenize=tokenize)
    score = metric.corpus_score(list(hyps), _streams(references))
    single = BLEU(lowercase=lowercase, tokenize=tokenize, effective_order=True)
    rows = [single.sentence_score(hyp, list(refs)) for hyp, refs in zip(hyps, references, strict=True)]
    statistics = np.array([[*r.counts, *r.totals, r.sys_len, r.ref_len] for r in rows], dtype=np.float64)
    return {"bleu": score.score, "signature": metric.get_signature().format(), "sentence": statistics.reshape(-1, 10)}


def bleu_from_statistics(statistics: np.ndarray) -> float:
    """BLEU (exp smoothing, as `bleu`) of sentences given by rows [n, 10] of `bleu(...)["sentence"]`."""
    from sacrebleu.metrics import BLEU

    total = statistics.sum(axis=0).astype(int).tolist()
    score = BLEU.compute_bleu(
        correct=total[:4], total=total[4:8], sys_len=total[8], ref_len=total[9], smooth_method="exp", max_ngram_order=4
    )
    return score.score


def multi_bleu(hyps_tok: Sequence[str], refs_tok: References | Sequence[str]) -> float:
    """BLEU of tokenised text as multi-bleu.perl computes it: no tokenisation, no smoothing, closest reference length.

    Args:
        hyps_tok, refs_tok: words joined by spaces; the number depends on the tokeniser that made them.
    """
    from sacrebleu.metrics import BLEU

    references = _references(hyps_tok, refs_tok)
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return metric.corpus_score(list(hyps_tok), _streams(references)).score


def rouge_f1(
    hyps: Sequence[str], refs: References | Sequence[str], stemmer: bool = True, combine: str = "best"
) -> dict[str, Any]:
    """ROUGE-1/2/L F1 of whole outputs by the rouge-score package, averaged over sentences.

    Args:
        stemmer: Porter stemming, the `-m` of ROUGE-1.5.5 that the summarization papers set.
        combine: with several references, "best" takes the reference with the largest F1 for each measure, "average"
            the mean over references.

    Returns:
        rouge1_f, rouge2_f, rougeL_f, signature, and `sentence`: each measure's values [n].
    """
    if combine not in ("best", "average"):
        raise ValueError(f"combine is {combine!r}, allowed are 'best' and 'average'")
    from rouge_score.rouge_scorer import RougeScorer

    references = _references(hyps, refs)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=stemmer, tokenizer=_rouge_tokenizer(stemmer))
    values: dict[str, list[float]] = {"rouge1": [], "rouge2": [], "rougeL": []}
    for hyp, options in zip(hyps, references, strict=True):
        scores = [scorer.score(ref, hyp) for ref in options]
        for name, column in values.items():
            all_f = [score[name].fmeasure for score in scores]
            column.append(max(all_f) if combine == "best" else sum(all_f) / len(all_f))
    sentence = {f"{name}_f": 100 * np.array(column) for name, column in values.items()}
    refs_mode = "" if max(map(len, references), default=1) == 1 else f"|refs:{combine}"
    signature = f"rouge-score:{version('rouge-score')}|F1|stem:{'porter' if stemmer else 'no'}{refs_mode}|n:{len(hyps)}"
    return _means(sentence) | {"signature": signature, "sentence": sentence}


def rouge_recall75(
    hyps: Sequence[str],
    refs: References | Sequence[str],
    limit_bytes: int | None = 75,
    stemmer: bool = True,
    combine: str = "pooled",
) -> dict[str, Any]:
    """ROUGE recall of outputs cut at 75 bytes, the DUC 2004 task 1 rule (ROUGE-1.5.5 `-m -n 2 -w 1.2 -b 75`).

    In that command `-m` is the Porter stemmer. Several references are combined by the script's default (`-f A`, its
    "model average"): hits and reference n-grams are summed over the references before dividing, which is Eq. 1 of Lin
    (2004). Its release notes say that the jackknifing described in the same paper was removed in version 1.4, so
    "pooled" is the default here. "best" is the script's `-f B`; "jackknife" is the procedure of the paper: the mean,
    over leaving out each reference in turn, of the best remaining one. Outputs are cut in bytes of UTF-8, references
    are not (those of DUC keep to the limit).

    Args:
        hyps: one output per document.
        refs: the references of each document.
        limit_bytes: where to cut outputs; None: not at all.

    Returns:
        rouge1_r, rouge2_r, rougeL_r, signature, and `sentence`: each measure's values [n].
    """
    if combine not in ("pooled", "best", "jackknife"):
        raise ValueError(f"combine is {combine!r}, allowed are 'pooled', 'best' and 'jackknife'")
    references = _references(hyps, refs)
    tokens = _rouge_tokenizer(stemmer).tokenize
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
            values[name].append(_combine(pairs, combine))
    sentence = {name: 100 * np.array(column) for name, column in values.items()}
    most = max(map(len, references), default=1)
    cut = "full" if limit_bytes is None else f"bytes:{limit_bytes}"
    stem = "porter" if stemmer else "no"
    signature = f"ROUGE-1.5.5-style recall|{cut}|stem:{stem}|refs:{most}:{combine}|n:{len(hyps)}"
    return _means(sentence) | {"signature": signature, "sentence": sentence}


def cut_bytes(text: str, limit: int | None) -> str:
    """The first `limit` bytes of `text` in UTF-8, without a broken last character (None: all of it)."""
    return text if limit is None else text.encode("utf-8")[:limit].decode("utf-8", "ignore")


def token_accuracy(predicted: np.ndarray, target: np.ndarray, mask: np.ndarray | None = None) -> float:
    """Share of target tokens predicted right, given the true history: OpenNMT's validation accuracy, in per cent.

    Args:
        predicted, target: ids, same shape.
        mask: same shape, True = counts (leave padding out); default all.
    """
    predicted, target = np.asarray(predicted), np.asarray(target)
    if predicted.shape != target.shape:
        raise ValueError(f"predicted has shape {predicted.shape} and target {target.shape}; they must agree")
    right = predicted == target
    right = right.ravel() if mask is None else right[np.asarray(mask, dtype=bool)]
    return 100.0 * float(right.mean()) if right.size else float("nan")


Score = Callable[[Sequence[str], References], Mapping[str, Any]]


def baselines(
    corpus: Corpus,
    score: Score | None = None,
    transform: Callable[[str], str] | None = None,
    split: str = "test",
) -> dict[str, dict[str, Any]]:
    """Two systems that learn nothing, scored as a model would be.

    constant: one training target for every input, the one closest (mean ROUGE-1 F1) to the targets of dev.
    lead: the first k words of the source, k the mean number of words of the training targets (or dev's without any).

    Args:
        score: outputs, references -> dict of scores; default `rouge_f1` and `bleu` together.
        transform: applied to outputs and references first, e.g. the tokenisation that a model's output has.

    Returns:
        "constant" and "lead" -> the scores without per-sentence values, with `text` or `words`.
    """
    score = score or _rouge_and_bleu
    transform = transform or (lambda text: text)
    pairs = corpus.splits[split]
    if len(pairs) == 0:
        raise DataError(f"{corpus.name} has no pairs in {split}", corpus.provenance, "choose another split")
    refs = [[transform(ref) for ref in pair.references] for pair in pairs]
    # a data set of test pairs only (DUC) has neither: its own targets must do, and the result is flattering
    train = corpus.splits["train"] if len(corpus.splits["train"]) else pairs
    dev = corpus.splits["dev"] if len(corpus.splits["dev"]) else train
    constant = most_central_target(
        [train[i].references[0] for i in _spread(len(train), 1000)],
        [dev[i].references[0] for i in _spread(len(dev), 400)],
    )
    lengths = [len(train[i].references[0].split()) for i in _spread(len(train), 5000)]
    words = max(1, round(float(np.mean(lengths))))
    outputs = {
        "constant": ([transform(constant)] * len(pairs), {"text": constant}),
        "lead": ([transform(" ".join(pair.source.split()[:words])) for pair in pairs], {"words": words}),
    }
    return {
        name: {key: value for key, value in score(hyps, refs).items() if key != "sentence"} | extra
        for name, (hyps, extra) in outputs.items()
    }


def most_central_target(candidates: Sequence[str], dev: Sequence[str]) -> str:
    """The candidate with the largest mean ROUGE-1 F1 (stemmed) to the texts of `dev`; the first one on a tie."""
    tokens = _rouge_tokenizer(True).tokenize
    vocabulary: dict[str, int] = {}
    bags = [
        [Counter(vocabulary.setdefault(t, len(vocabulary)) for t in tokens(s)) for s in group]
        for group in (candidates, dev)
    ]
    dense = np.zeros((len(dev), max(1, len(vocabulary))), dtype=np.int16)
    for row, bag in enumerate(bags[1]):
        dense[row, list(bag)] = list(bag.values())
    lengths = dense.sum(axis=1)
    best, best_mean = 0, -1.0
    for i, bag in enumerate(bags[0]):
        if not bag:
            continue
        hits = np.minimum(dense[:, list(bag)], np.array(list(bag.values()), dtype=np.int16)).sum(axis=1)
        mean = float((2 * hits / (lengths + bag.total())).mean())
        if mean > best_mean:
            best, best_mean = i, mean
    return candidates[best]


def _rouge_and_bleu(hyps: Sequence[str], refs: References) -> dict[str, Any]:
    rouge, sacre = rouge_f1(hyps, refs), bleu(hyps, refs)
    return {k: v for k, v in rouge.items() if k.startswith("rouge")} | {"bleu": sacre["bleu"]}


def _spread(size: int, count: int) -> list[int]:
    """At most `count` indices spread evenly over range(size)."""
    return np.unique(np.linspace(0, size - 1, min(size, count)).astype(int)).tolist() if size else []


def _references(hyps: Sequence[str], refs: References | Sequence[str]) -> list[tuple[str, ...]]:
    if len(hyps) != len(refs):
        raise ValueError(f"{len(hyps)} outputs and references for {len(refs)} sentences; the numbers must agree")
    lists = [(ref,) if isinstance(ref, str) else tuple(ref) for ref in refs]
    for i, options in enumerate(lists):
        if not options:
            raise ValueError(f"sentence {i} has no reference; each needs one or more")
    return lists


def _streams(references: list[tuple[str, ...]]) -> list[list[str | None]]:
    """Sentences x references turned into sacrebleu's references x sentences; None where a sentence has fewer."""
    most = max(map(len, references), default=1)
    return [[options[k] if k < len(options) else None for options in references] for k in range(most)]


@lru_cache(maxsize=2)
def _rouge_tokenizer(stemmer: bool):
    from rouge_score.tokenizers import DefaultTokenizer

    return DefaultTokenizer(use_stemmer=stemmer)


def _ngram_hits(output: list[str], model: list[str], n: int) -> tuple[int, int]:
    """(clipped n-gram matches, n-grams of the reference)."""

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


def _combine(pairs: list[tuple[int, int]], how: str) -> float:
    """One recall from (hits, size) per reference."""
    if how == "pooled":
        size = sum(total for _, total in pairs)
        return sum(hits for hits, _ in pairs) / size if size else 0.0
    recalls = [hits / total if total else 0.0 for hits, total in pairs]
    if how == "best" or len(recalls) == 1:
        return max(recalls)
    left_out = [max(recalls[:k] + recalls[k + 1 :]) for k in range(len(recalls))]
    return sum(left_out) / len(left_out)


def _means(sentence: Mapping[str, np.ndarray]) -> dict[str, float]:
    return {name: float(values.mean()) if len(values) else float("nan") for name, values in sentence.items()}
