"""Metrics of translation and summarization, and the evaluation of a test set's outputs."""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import nn

from repro.protocol import Evaluation, Metric, Scores, scored
from sparse_attention.quality import attention_statistics
from tasks.data.records import Pair
from tasks.data.symbols import EOS, SPECIAL, UNK
from tasks.seq2seq.encode import Encoded
from tasks.seq2seq.fertility import stored
from tasks.seq2seq.options import LOOKS, SELECTING, Decode, Encode
from tasks.seq2seq.scores import References, bleu, bleu_words, chrf, meteor, multi_bleu, rouge_f1, rouge_recall75
from tasks.seq2seq.search import Hypothesis, decode
from tasks.seq2seq.tokenize import output_text, reference_text, tokenizer

# from `attention_statistics`, if task.scores contains `attention`
SHAPES = (
    ("groups", "groups", 2, "runs of equal weight among neighbouring words"),
    ("clusters", "share", 3, "distinct weights, of the words with attention"),
    ("segments", "runs", 2, "runs of neighbouring words with attention"),
    ("contiguity", "share", 3, "1 - (runs - 1) / (words with attention - 1)"),
    ("entropy", "nats", 2, "entropy of the attention"),
    ("max_weight", "share", 3, "largest weight"),
)


ROUGE = {"f": ("F1 of whole outputs", "sentences"), "r": ("recall of the first 75 bytes", "documents")}
FORCED = "the reference forced as output; a word is linked to the source word with the largest weight"


def _metrics() -> Iterator[Metric]:
    yield Metric("bleu", "BLEU points", 1, 2, 1.0, "sacreBLEU of detokenised text", "bleu")
    yield Metric("chrf", "chrF points", 1, 2, None, "sacreBLEU's chrF2 of detokenised text")
    yield Metric("multi_bleu", "BLEU points", 1, 2, 1.0, "BLEU of tokenised text, as multi-bleu.perl")
    yield Metric("meteor", "METEOR points", 1, 2, None, "nltk's, by words and stems; mean over sentences", "mean")
    for n in "12L":
        for kind, (of, rows) in ROUGE.items():
            yield Metric(f"rouge{n}_{kind}", "ROUGE points", 1, 2, 0.7, f"ROUGE-{n} {of}, mean over {rows}", "mean")
    zeros = "source words of weight exactly 0, of all words at all steps"
    yield Metric("attention_zeros", "share", 0, 2, None, zeros)
    yield Metric("attention_support", "words", 0, 1, None, "source words with attention, mean over steps")
    for name, unit, decimals, signature in SHAPES:
        yield Metric(f"attention_{name}", unit, 0, decimals, None, f"{signature}, mean over steps")
    error = f"alignment error rate against people's links (Och & Ney 2003); {FORCED}"
    yield Metric("aer", "error rate (0-1)", -1, 3, None, error)
    yield Metric("alignment_precision", "share", 1, 3, None, "links that are possible")
    yield Metric("alignment_recall", "share", 1, 3, None, "sure links that are found")
    mass = f"weight on linked words, mean over target words with a link; {FORCED}"
    yield Metric("alignment_mass", "share", 1, 3, None, mass)
    yield Metric("diagonal_aer", "error rate (0-1)", -1, 3, None, "alignment error rate of links by relative position")
    yield Metric("alignment_left_out", "pairs", 0, 0, None, "pairs whose tokens do not spell their words")
    yield Metric("rep_score", "per 100 words", -1, 2, None, "REP-score of words, n = 2, weights 1 and 2")
    dropped = "DROP-score of tokens, aligned by fast_align's model, grow-diag-final-and"
    yield Metric("drop_score", "%", -1, 2, None, dropped)
    covered = "min(attention over all steps, 1), mean over source tokens"
    yield Metric("source_coverage", "share", 1, 3, None, covered)
    ends = "output words that end a repetition of the 1 to 4 words before"
    yield Metric("loops", "per 1000 words", -1, 2, None, ends)
    yield Metric("unknown_share", "share", 0, 2, None, "outputs with an unknown word, replaced or not")
    yield Metric("accuracy", "%", 1, 1, None, "target tokens predicted right given the true history")
    yield Metric("loss", "bits per token", -1, 3, None, "cross-entropy given the true history")
    yield Metric("ppl", "", -1, 2, None, "perplexity given the true history: 2 ** loss")


TOKENIZED = {"multi_bleu": multi_bleu, "meteor": meteor}  # scores of tokenised text
LOSS = 0.5  # points that a score may lose when the references are encoded and decoded before the footer warns
# Add (metric, function) here for a metric of your own; the function takes the output texts and, for each, the list of
# its reference texts. None: `score` computes it, if task.scores lists it.
MEASURED: Scores = {metric.name: (metric, None) for metric in _metrics()}


def score(
    names: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    options: Encode,
    language: str | None = None,
) -> tuple[dict[str, float], dict[str, str], dict[str, np.ndarray]]:
    """Compute scores by name (`tasks.seq2seq.options.SCORES`).

    Args:
        hypotheses: one output text per sentence. references: the reference texts of each sentence.
        options: how the model's text is encoded; a model of lower-cased text is evaluated on lower-cased text.
        language: language of the outputs.

    Returns:
        metric -> value; score -> signature; metric -> per-sentence values [n] (for BLEU, statistics [n, 10]).
    """
    values = scored(MEASURED, hypotheses, references)
    signatures: dict[str, str] = {}
    sentences: dict[str, np.ndarray] = {}
    for name in (name for name in names if name not in LOOKS):
        lower = options.tokenizer.endswith("lower")
        if name == "bleu":
            found = bleu(hypotheses, references, lower, language)
        elif name == "chrf":
            found = chrf(hypotheses, references, lower)
        elif name in TOKENIZED:
            how, words = options.tokenizer, tokenizer(options.tokenizer, language)
            cut = lambda text, words=words: " ".join(words(text))  # noqa: E731
            if how == "raw":
                how, cut = bleu_words(references, language)
            words, *of = (list(map(cut, group)) for group in (hypotheses, *references))
            found = TOKENIZED[name](words, of)
            found["signature"] += f"|tok:{how}"
        else:
            found = {"rouge_f1": rouge_f1, "rouge_recall75": rouge_recall75}[name](hypotheses, references, language)
        signature = found.pop("signature")
        sentences |= found.pop("sentence")
        signatures |= dict.fromkeys(found, signature)
        values |= found
    return values, signatures, sentences


def references(data: Encoded, split: str = "test") -> list[list[str]]:
    """The references of each sentence of a split, in the form used for evaluation."""
    pairs = data.splits[split].pairs
    return [[reference_text(r, data.options, digits=data.digits) for r in pair.references] for pair in pairs]


def _texts(data: Encoded, tokens: Iterable[Sequence[str]], pairs: Sequence[Pair]) -> list[str]:
    """The texts of output tokens, one row for each pair."""
    how = {"options": data.options, "language": data.languages["target"], "digits": data.digits}
    return [output_text(row, source=pair.source, **how) for row, pair in zip(tokens, pairs, strict=True)]


def dev_outputs(model: nn.Module, data: Encoded, share: slice = slice(None)) -> list[str]:
    """The texts of greedy outputs for the dev sources (or a share of them), which select the epoch of a training.

    The options `decode` are not part of a training's identity, so they are not used: an output has at most as many
    tokens as the longest dev reference, and unknown words are copied from the source.
    """
    split = data.splits["dev"]
    longest, fertility = max(1, *map(int, split.target.lengths)), stored(split)
    rest: dict[str, Any] = {"length": "none", "len_penalty": 1.0, "coverage_penalty": 0.0, "stop": "best"}
    greedy = Decode(beam=1, max_len_a=0.0, max_len_b=longest, replace_unk=True, batch_size=100, **rest)
    inputs = None if fertility is None else {"fertility": fertility}
    found = decode(model, data, greedy, inputs=inputs, split="dev", share=share)
    return _texts(data, [best.tokens for (best,) in found], split.pairs[share])


def dev_scores(net: nn.Module, data: Encoded, metric: str, rank: int, world: int) -> dict[str, float]:
    """BLEU or chrF of `dev_outputs`, and the seconds it took; {} for other metrics. Each process decodes its share."""
    if metric not in SELECTING:
        return {}
    started, shares = time.monotonic(), [dev_outputs(net, data, slice(rank, None, world))]
    if world > 1:
        shares, mine = [[]] * world, shares[0]
        torch.distributed.all_gather_object(shares, mine)
    texts = [text for several in zip_longest(*shares) for text in several if text is not None]
    value = score([metric], texts, references(data, "dev"), data.options, data.languages["target"])[0][metric]
    return {f"dev/{metric}": round(value, 4), "dev/decode_seconds": time.monotonic() - started}


def ceiling(test: Encoded, scores: Sequence[str]) -> str:
    """A sentence about how well the test references score after they are encoded and decoded, as no output can do better.

    It warns if encoding and decoding cost a score more than half a point. Short texts do not count: for them, the
    references themselves, not encoded, score below 100 too.
    """
    split, symbols, language = test.splits["test"], [*SPECIAL, *test.target_vocab], test.languages["target"]
    texts = _texts(test, ([symbols[j] for j in row] for row in split.target), split.pairs)
    names = [name for name in scores if name not in (*LOOKS, *TOKENIZED, "rouge_recall75")]
    wanted = [refs[:1] for refs in references(test)]
    found = score(names, texts, wanted, test.options, language)[0]
    if not found:
        return ""
    same = score(names, [refs[0] for refs in wanted], wanted, test.options, language)[0]
    said = ", ".join(f"{name} {value:.1f}" for name, value in found.items())
    if all(found[name] >= same[name] - LOSS for name in found):
        short = ", ".join(name for name, value in same.items() if value < 100 - LOSS)
        why = f" ({short}: texts with fewer words than n-grams, 4 for BLEU, 2 for ROUGE-2, count 0)" if short else ""
        return f"Ceiling (the references, encoded and decoded): {said}{why}."
    changed = next(f"{text[:60]!r} for {refs[0][:60]!r}" for text, refs in zip(texts, wanted) if text != refs[0])
    remedy = f"one is {changed}; encode.tokenizer=raw encode.subword=sentencepiece encode.vocab_size=null keeps texts as they are"
    return f"WARNING: the references themselves, encoded and decoded, score only {said}; {remedy}."


def evaluation(
    test: Encoded, hypotheses: Sequence[Hypothesis], scores: Sequence[str], name: str = "test", keep_attention: int = 0
) -> Evaluation:
    """Metrics, a record of each sentence, and the attention of the first `keep_attention` sentences.

    Args:
        test: an encoding with the split "test".
        hypotheses: the outputs for that split, in order (`tasks.seq2seq.search.decode`).
        name: name of the test set, used as the prefix of the metrics.
    """
    split, found = test.splits["test"], []
    texts = _texts(test, [h.tokens for h in hypotheses], split.pairs)
    values, signatures, sentences = score(scores, texts, references(test), test.options, test.languages["target"])
    metrics = values | attention_metrics(hypotheses, "attention" in scores)
    for row, (h, text) in enumerate(zip(hypotheses, texts)):
        pair = split.pairs[h.index]
        record = {"set": name, "index": h.index, "source": pair.source, "references": list(pair.references)}
        record |= {"output": text, "score": round(h.score, 4)}
        record["sentence"] = {k: np.round(v[row], 4).tolist() for k, v in sentences.items()}
        if row < keep_attention:
            record |= {"source_tokens": split.source_tokens[h.index], "output_tokens": [*h.tokens, SPECIAL[EOS]]}
        found.append(record)
    return Evaluation(
        metrics={f"{name}/{k}": float(v) for k, v in metrics.items()},
        signatures={f"{name}/{k}": v for k, v in signatures.items()},
        predictions=found,
        attention={f"{name}/{h.index}": h.attention for h in hypotheses[:keep_attention]},
    )


def attention_metrics(hypotheses: Sequence[Hypothesis], shape: bool) -> dict[str, float]:
    """Share of zeros and mean support of the attention over all steps; share of outputs with an unknown word.

    With `shape`, also the statistics named in SHAPES, as means over all steps of all outputs.
    """
    places, steps = sum(h.attention.numel() for h in hypotheses), sum(len(h.attention) for h in hypotheses)
    zeros = sum(int(h.attention.eq(0).sum()) for h in hypotheses)
    found = {"attention_zeros": zeros / places, "attention_support": (places - zeros) / steps}
    found["unknown_share"] = sum(UNK in h.ids for h in hypotheses) / len(hypotheses)
    told = [attention_statistics(h.attention) for h in hypotheses] if shape else []
    rows = sum(one["rows"] for one in told)
    return found | {f"attention_{n}": sum(one[n] * one["rows"] for one in told) / rows for n, *_ in SHAPES if told}
