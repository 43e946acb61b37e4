"""One cell of translation or summarization: data, training, beam search, scores. The tasks' modules bind it to their names."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparse_attention.repro.protocol import Prepared, Result
from tasks.data.progress import NullProgress
from tasks.fairseq_run import TRAINING_SHARE, fairseq_groups, fit, training_metrics, with_mapping
from tasks.seq2seq import metrics
from tasks.seq2seq.corpus import load_corpus
from tasks.seq2seq.encode import Encoded, decode_text, encode, tokenized_text

# Imported once for all cells of a run; the last ones are what torch's optimisers and the scores import when first used.
PRELOAD = (
    "tasks.fairseq_plugin", "tasks.fairseq_plugin.training", "tasks.fairseq_plugin.generation", "tasks.fairseq_plugin.processes",
    "tasks.translation.data",
    "tasks.summarization.data", "torch._dynamo", "sacrebleu.metrics", "rouge_score.rouge_scorer", "sacremoses",
)  # fmt: skip
SCORES = ("bleu", "multi_bleu", "rouge_f1", "rouge_recall75")
DEV_METRICS = ("accuracy", "loss", "ppl")
log = logging.getLogger(__name__)


def prepare(config: Mapping[str, Any], progress: Any) -> Prepared:
    """Acquire and encode the corpus. Raises `tasks.data.errors.DataError` when it cannot be had and no fallback is set."""
    task = config["task"]
    encoded = _encoded(task, progress)
    corpus = encoded.corpus
    facts = {
        "name": corpus.name, "provenance": corpus.provenance, "demo": corpus.demo, "stands_for": corpus.stands_for,
        "notes": list(corpus.notes), "pairs": {s: len(p) for s, p in encoded.splits.items()},
        "vocabulary": [len(encoded.source_vocab), len(encoded.target_vocab)],
        "unknown": {k: round(v, 4) for k, v in encoded.report["unknown"].items()}, "sha256": encoded.sha256,
    }  # fmt: skip
    return Prepared(encoded.sha256, facts, _baselines(encoded, task))


def run(config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Any) -> Result:
    """Train (or resume), decode the test sets, score them."""
    from tasks.fairseq_plugin import generation, seq2seq_task

    task = config["task"]
    monitor.stage("data", 0.0)
    encoded = _encoded(task, NullProgress())
    groups = fairseq_groups(
        config,
        folder,
        task={"_name": "sa_encoded_pairs", "encoded": seq2seq_task.offer(encoded)},
        model=with_mapping(config, {k: v for k, v in config["model"].items() if k != "name"}),
        criterion={"_name": "sa_cross_entropy", "label_smoothing": config["optim"]["label_smoothing"]},
    )
    trained = fit(config, groups, "tasks.seq2seq.run:offer", monitor)
    result = Result(training_metrics(trained, ("tokens", len(encoded.splits["train"].target.flat))))
    decode_options = dict(task["decode"])
    shown = decode_options.pop("keep_attention")
    for test, name in [(encoded, "test"), *_extra_tests(task, encoded)]:
        trained.task.encoded = test
        trained.task.datasets.pop("test", None)
        hypotheses = sorted(
            generation.decode(
                trained.model, trained.task, "test", **decode_options,
                done=lambda i, n: monitor.stage("decoding", TRAINING_SHARE + (1 - TRAINING_SHARE) * i / n),
            ),
            key=lambda h: h.index,
        )  # fmt: skip
        _score(result, name, test, hypotheses, task, shown if name == "test" else 0)
    return result


def _encoded(task: Mapping[str, Any], progress: Any) -> Encoded:
    data = dict(task["data"])
    corpus = load_corpus(data, progress)
    options = dict(task["encode"]) | {"source_lang": data.get("source_lang"), "target_lang": data.get("target_lang")}
    if corpus.name == "toy":  # also as a fallback: generated words need no tokeniser and no subwords
        options |= {"tokenizer": "none", "subword": "none", "vocab_size": None, "min_count": 1}
    return encode(corpus, options, data["root"], progress)


def _extra_tests(task: Mapping[str, Any], trained: Encoded) -> list[tuple[Encoded, str]]:
    """Further test sets (DUC beside Gigaword), in the vocabulary of the training corpus; those that are missing are left out."""
    from tasks.data.errors import DataError

    found = []
    for extra in task.get("extra_tests") or []:
        try:
            corpus = load_corpus(dict(extra["data"]) | {"root": task["data"]["root"]}, NullProgress())
        except DataError as error:
            log.warning("test set %s left out: %s", extra["name"], error)
            continue
        found.append((encode(corpus, trained.options, task["data"]["root"], like=trained), extra["name"]))
    return found


def offer(config: Mapping[str, Any]) -> str:
    """Make the encoded corpus of a configuration available to the fairseq task in this process; returns its name."""
    from tasks.fairseq_plugin import seq2seq_task

    return seq2seq_task.offer(_encoded(config["task"], NullProgress()))


def score_texts(
    names: Sequence[str], hypotheses: Sequence[str], references: Sequence[Sequence[str]], task: Mapping[str, Any]
):
    """Corpus scores, signatures and per-sentence values of the score families `names`."""
    lowercase = str(task["encode"]["tokenizer"]).endswith("lower")
    language = task["data"].get("target_lang")
    values: dict[str, float] = {}
    signatures: dict[str, str] = {}
    sentences: dict[str, Any] = {}
    for name in names:
        if name == "bleu":
            found = metrics.bleu(hypotheses, references, lowercase=lowercase)
            signatures["bleu"], sentences["bleu_statistics"] = found["signature"], found["sentence"]
            values["bleu"] = found["bleu"]
        elif name == "multi_bleu":
            refs = [[tokenized_text(r, task["encode"], language) for r in group] for group in references]
            values["multi_bleu"] = metrics.multi_bleu(
                [tokenized_text(h, task["encode"], language) for h in hypotheses], refs
            )
            signatures["multi_bleu"] = f"multi-bleu|tok:{task['encode']['tokenizer']}"
        elif name in ("rouge_f1", "rouge_recall75"):
            found = getattr(metrics, name)(hypotheses, references)
            signatures[name] = found["signature"]
            values |= {k: v for k, v in found.items() if k.startswith("rouge")}
            sentences |= found["sentence"]
        else:
            raise ValueError(f"task.scores names {name!r}; allowed: {', '.join(SCORES)}")
    return values, signatures, sentences


def _score(
    result: Result, name: str, encoded: Encoded, hypotheses: Sequence[Any], task: Mapping[str, Any], shown: int
) -> None:
    language = task["data"].get("target_lang")
    part = encoded.splits["test"]
    texts = [decode_text(h.tokens, encoded.options, language) for h in hypotheses]
    references = [_references(part.pairs[h.index].references, encoded) for h in hypotheses]
    values, signatures, sentences = score_texts(task["scores"], texts, references, task)
    places = sum(h.attention.numel() for h in hypotheses)
    zeros = sum(int((h.attention == 0).sum()) for h in hypotheses)
    steps = sum(h.attention.size(0) for h in hypotheses)
    values |= {"attention_zeros": zeros / places, "attention_support": (places - zeros) / steps}
    values["unknown_share"] = sum("<unk>" in h.tokens for h in hypotheses) / len(hypotheses)
    result.metrics |= {f"{name}/{k}": float(v) for k, v in values.items()}
    result.signatures |= {f"{name}/{k}": v for k, v in signatures.items()}
    records = []
    for row, (h, text) in enumerate(zip(hypotheses, texts)):
        record = {
            "set": name, "index": h.index, "source": part.pairs[h.index].source,
            "references": list(part.pairs[h.index].references), "output": text, "score": round(h.score, 4),
            "sentence": {k: np.round(np.asarray(v[row], dtype=float), 4).tolist() for k, v in sentences.items()},
        }  # fmt: skip
        if row < shown:
            record |= {"source_tokens": part.source_tokens(h.index), "output_tokens": [*h.tokens, "</s>"]}
            result.attention = dict(result.attention) | {f"{name}/{h.index}": h.attention}
        records.append(record)
    result.predictions = [*result.predictions, *records]


def _references(references: Sequence[str], encoded: Encoded) -> list[str]:
    """What the output is compared with: the published text, or its tokenised form where outputs stay tokenised."""
    if str(encoded.options["tokenizer"]).startswith("ptb"):
        return [tokenized_text(r, encoded.options) for r in references]
    return list(references)


def _baselines(encoded: Encoded, task: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Constant output and lead, scored as a model's outputs are; cached beside the encoded corpus."""
    cache = encoded.folder.parent / f"{encoded.folder.name}.baselines.json"
    key = json.dumps([list(task["scores"]), metrics.__name__, 1])
    try:
        stored = json.loads(cache.read_text(encoding="utf-8"))
        if stored["key"] == key:
            return stored["values"]
    except (OSError, ValueError, KeyError):
        pass

    def score(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
        return score_texts(task["scores"], outputs, references, task)[0]

    def transform(text: str) -> str:
        return _references([text], encoded)[0]

    found = metrics.baselines(encoded.corpus, score, transform)
    values = {system: {f"test/{k}": v for k, v in row.items()} for system, row in found.items()}
    temporary = cache.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps({"key": key, "values": values}), encoding="utf-8")
    temporary.replace(cache)
    return values
