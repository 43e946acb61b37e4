"""One cell of a classification task: data, training, accuracy and attention of the test set. The tasks' modules bind it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sparse_attention.repro.protocol import Prepared, Result
from tasks.classification.check import problems as problems
from tasks.classification.corpus import open_source
from tasks.classification.encode import Encoded, encode, open_encoded
from tasks.classification.statistics import AttentionTally
from tasks.data.progress import NullProgress
from tasks.data.vectors import COUNTED
from tasks.fairseq_run import TRAINING_SHARE, fairseq_groups, fit, training_metrics, with_mapping

FIELDS = {"snli": 2, "imdb": 1}  # texts of an example
DEV_METRICS = ("accuracy", "loss")
PRELOAD = (
    "tasks.fairseq_plugin",
    "tasks.fairseq_plugin.training",
    "tasks.imdb.data",
    "tasks.snli.data",
    "torch._dynamo",
)
log = logging.getLogger(__name__)


def prepare(config: Mapping[str, Any], progress: Any) -> Prepared:
    """Acquire and encode the texts. Raises `tasks.data.errors.DataError` when they cannot be had."""
    task = config["task"]
    source = open_source(task["data"], progress)
    if len(source.fields) != FIELDS[task["name"]]:
        raise ValueError(
            f"task.data.name={source.name} has {len(source.fields)} text(s) an example, task={task['name']} reads {FIELDS[task['name']]}"
        )
    encoded = encode(source, task["encode"], task["data"]["root"], progress)
    vectors = _where_vectors_come_from(config, encoded)
    sizes = ", ".join(f"{n:,} {split}" for split, n in encoded.report["sizes"].items())
    counts = np.bincount(encoded.splits["train"].labels, minlength=len(encoded.classes))
    facts = {
        "name": source.name, "provenance": source.provenance, "demo": source.demo, "stands_for": source.stands_for,
        "notes": [*source.notes, f"examples: {sizes}; {vectors}; vocabulary of {len(encoded.vocab):,}"],
        "pairs": encoded.report["sizes"], "vocabulary": [len(encoded.vocab)], "unknown": encoded.report["unknown"],
        "sha256": encoded.sha256,
    }  # fmt: skip
    majority = int(counts.argmax())
    baselines = {}
    if len(encoded.splits["test"]):
        share = 100 * float((encoded.splits["test"].labels == majority).mean())
        baselines["majority"] = {"test/accuracy": share, "test/text": f"always {encoded.classes[majority]}"}
    return Prepared(encoded.sha256, facts, baselines, str(encoded.folder))


def _where_vectors_come_from(config: Mapping[str, Any], encoded: Encoded) -> str:
    if encoded.vectors is None:
        return "random word vectors"
    then = "fixed" if config["model"]["fixed_vectors"] else "trained further"
    if config["task"]["encode"]["vectors"] == COUNTED:
        return f"word vectors of {encoded.vectors.shape[1]} counted in the training texts (PPMI, SVD), {then}"
    return f"{len(encoded.vectors):,} pretrained word vectors, {then}"


def run(config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Any) -> Result:
    """Train (or resume), predict the test set, score it."""
    from tasks.fairseq_plugin import classifier_task

    task = config["task"]
    monitor.stage("data", 0.0)
    encoded = _encoded(task, prepared)
    groups = fairseq_groups(
        config,
        folder,
        task={"_name": "sa_encoded_texts", "encoded": classifier_task.offer(encoded)},
        model=with_mapping(config, {k: v for k, v in config["model"].items() if k != "name"}),
        criterion={"_name": "sa_classes"},
    )
    trained = fit(config, groups, "tasks.classification.run:offer", monitor)
    result = Result(training_metrics(trained, ("examples", len(encoded.splits["train"]))))
    _test(result, encoded, trained.model, task, config["train"]["batch_size_valid"], monitor)
    return result


def _encoded(task: Mapping[str, Any], prepared: Prepared) -> Encoded:
    try:
        encoded = open_encoded(prepared.handle)
        if encoded.sha256 == prepared.sha256:
            return encoded
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.info("the encoded data have to be made again (%s)", error)
    return encode(open_source(task["data"], NullProgress()), task["encode"], task["data"]["root"], NullProgress())


def offer(config: Mapping[str, Any]) -> str:
    """Make the encoded texts of a configuration available to the fairseq task in this process; returns their name."""
    from tasks.fairseq_plugin import classifier_task

    task = config["task"]
    source = open_source(task["data"], NullProgress())
    return classifier_task.offer(encode(source, task["encode"], task["data"]["root"], NullProgress()))


def _test(result: Result, encoded: Encoded, model: Any, task: Mapping[str, Any], batch_size: int, monitor: Any) -> None:
    import torch

    from tasks.fairseq_plugin import classifier_task

    split = encoded.splits["test"]
    if not len(split):
        return
    correct = np.zeros(len(split))
    tallies: dict[str, AttentionTally] = {}
    records: list[dict[str, Any] | None] = [None] * len(split)
    attention: dict[str, Any] = {}
    batches = classifier_task.predict(
        model, split, batch_size, lambda f: monitor.stage("testing", TRAINING_SHARE + (1 - TRAINING_SHARE) * f)
    )
    for batch in batches:
        guesses = batch.log_probs.argmax(-1)
        for name, p in batch.attention.items():
            marked = [split.marked[int(i)] for i in batch.index]
            tallies.setdefault(name, AttentionTally()).add(p, batch.mask, marked)
        for row, i in enumerate(batch.index.tolist()):
            guess, label = int(guesses[row]), int(split.labels[i])
            correct[i] = guess == label
            record = {
                "set": "test", "index": i, "label": encoded.classes[label], "output": encoded.classes[guess],
                "references": [encoded.classes[label]], "score": round(float(batch.log_probs[row, guess]), 4),
                "sentence": {"accuracy": 100.0 * correct[i]},
            }  # fmt: skip
            if i < task["keep_attention"]:
                tokens = split.tokens[0][i]
                record |= {"source": " ".join(tokens), "source_tokens": tokens, "output_tokens": list(batch.attention)}
                record["texts"] = [" ".join(lines[i]) for lines in split.tokens]
                steps = [p[row, : len(tokens)] for p in batch.attention.values()]
                attention[f"test/{i}"] = torch.stack(steps)
            records[i] = record
    result.metrics["test/accuracy"] = 100 * float(correct.mean())
    for name, tally in tallies.items():  # the first one under the plain name: what tables show
        prefix = "test/attention" if name == next(iter(tallies)) else f"test/{name}"
        result.metrics |= {f"{prefix}_{k}": v for k, v in tally.means().items()}
    result.signatures["test/accuracy"] = f"accuracy|n:{len(split)}|best epoch by dev accuracy"
    result.predictions = [r for r in records if r is not None]
    result.attention = attention
