"""One cell of visual question answering: data, training, answers, scores."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sparse_attention.repro.protocol import Prepared, Result
from tasks.data.progress import NullProgress
from tasks.fairseq_run import TRAINING_SHARE, fairseq_groups, fit, training_metrics, with_mapping
from tasks.vqa import metrics
from tasks.vqa.check import problems as problems
from tasks.vqa.corpus import load_corpus, load_images
from tasks.vqa.encode import Encoded, encode

PRELOAD = (
    "tasks.fairseq_plugin",
    "tasks.fairseq_plugin.training",
    "tasks.fairseq_plugin.vqa_task",
    "torch._dynamo",
    "PIL.Image",
)


def prepare(config: Mapping[str, Any], progress: Any) -> Prepared:
    """Acquire the questions, decode the images. Raises `tasks.data.errors.DataError` when they cannot be had."""
    encoded = load(config["task"], progress)
    corpus = encoded.corpus
    handled = {k: n for k, n in encoded.counts.items() if n}
    notes = [
        *corpus.notes,
        *(["Handled: " + "; ".join(f"{n:,} {k}" for k, n in handled.items()) + "."] if handled else []),
    ]
    facts = {
        "name": corpus.name, "provenance": corpus.provenance, "demo": corpus.demo, "stands_for": corpus.stands_for, "notes": notes,
        "pairs": {s: len(p.questions) for s, p in encoded.parts.items()}, "images": len(corpus.image_keys()),
        "vocabulary": [len(encoded.words), len(encoded.answers)], "counts": handled, "sha256": encoded.sha256,
    }  # fmt: skip
    test = metrics.baselines(encoded.parts["train"].questions, encoded.parts["test"].questions)
    return Prepared(encoded.sha256, facts, test)


def load(task: Mapping[str, Any], progress: Any) -> Encoded:
    """The encoded questions and images of a configuration's task node."""
    corpus = load_corpus(task["data"], progress)
    return encode(corpus, load_images(task["data"], corpus, progress), task["encode"])


def run(config: Mapping[str, Any], prepared: Prepared, folder: Path, monitor: Any) -> Result:
    """Train (or resume), answer the test questions, score the answers."""
    from tasks.fairseq_plugin import vqa_task

    monitor.stage("data", 0.0)
    task = config["task"]
    encoded = load(task, NullProgress())
    trained = fit(config, groups(config, encoded, folder), "tasks.vqa.experiment:offer", monitor)
    result = Result(training_metrics(trained, ("questions", len(encoded.parts["train"].questions))))

    def done(i: int, n: int) -> None:
        monitor.stage("answering", TRAINING_SHARE + (1 - TRAINING_SHARE) * i / n)

    answered = vqa_task.predict(trained.model, trained.task, "test", task["decode"]["batch_size"], done)
    _score(result, answered, encoded, trained.model.net, config, folder)
    return result


def offer(config: Mapping[str, Any]) -> str:
    """Make the encoded questions of a configuration available to the fairseq task in this process; returns their name."""
    from tasks.fairseq_plugin import vqa_task

    return vqa_task.offer(load(config["task"], NullProgress()))


def groups(config: Mapping[str, Any], encoded: Encoded, folder: Path) -> dict[str, Any]:
    """fairseq's configuration groups."""
    from tasks.fairseq_plugin import vqa_task

    model = {k: v for k, v in config["model"].items() if k != "name"}
    return fairseq_groups(
        config, folder,
        task={
            "_name": "sa_visual_questions", "encoded": vqa_task.offer(encoded), "by_image": config["task"]["encode"]["by_image"],
            "seed": config["seed"],
        },
        model=with_mapping(config, {"options": json.dumps(model)}),
        criterion={"_name": "sa_soft_answers"},
    )  # fmt: skip


def _score(result: Result, answered: Any, encoded: Encoded, net: Any, config: Mapping[str, Any], folder: Path) -> None:
    from tasks.vqa.regions import cell_weights

    part, shown = encoded.parts["test"], config["task"]["decode"]["keep_attention"]
    answers: list[str] = []
    confidence: list[float] = []
    zeros, cells = 0, 0
    kept: dict[str, torch.Tensor] = {}
    for numbers, logits, reduced in answered:
        best = logits.max(-1)
        answers += [encoded.answers[i] for i in best.indices.tolist()]
        confidence += best.values.sigmoid().tolist()
        weights = cell_weights(reduced, config["model"]["reduction"], net.grid)
        zeros, cells = zeros + int(weights.eq(0).sum()), cells + weights.numel()
        for row, number in enumerate(numbers[numbers < shown].tolist()):
            # steps are the grid's columns and "source tokens" its rows, so that the report draws the image upright
            kept[f"test/{number}"] = weights[row].unflatten(0, net.grid).T.contiguous()
            kept[f"discrete/{number}"] = reduced.weights[row].float().clone()
            if reduced.mu is not None and reduced.sigma is not None:
                kept[f"mu/{number}"], kept[f"sigma/{number}"] = (
                    reduced.mu[row].double().clone(),
                    reduced.sigma[row].double().clone(),
                )
            if reduced.pi is not None:
                kept[f"pi/{number}"] = reduced.pi[row].double().clone()
    values, signature, each = metrics.score(part.questions, answers)
    values["attention_zeros"] = zeros / cells
    result.metrics |= {f"test/{k}": float(v) for k, v in values.items()}
    result.signatures = {"test/accuracy": signature}
    result.attention = kept
    keys = {"yes/no": "accuracy_yes_no", "number": "accuracy_number", "other": "accuracy_other"}
    records = []
    for i, q in enumerate(part.questions):
        record: dict[str, Any] = {
            "set": "test", "index": i, "question_id": q.question_id, "image": q.image, "source": q.text,
            "references": [a for a, _ in Counter(q.answers).most_common()], "output": answers[i],
            "score": round(confidence[i], 4), "answer_type": q.answer_type,
            "sentence": {"accuracy": round(each[i], 4), keys[q.answer_type]: round(each[i], 4)},
        }  # fmt: skip
        if i < shown:
            rows, columns = net.grid
            record |= {
                "source_tokens": [f"row {r + 1}" for r in range(rows)],
                "output_tokens": [str(c + 1) for c in range(columns)],
            }
        records.append(record)
    result.predictions = records
    export = [{"question_id": q.question_id, "answer": a} for q, a in zip(part.questions, answers)]
    (folder / "vqa_results.json").write_text(json.dumps(export), encoding="utf-8")  # the challenge's submission format
