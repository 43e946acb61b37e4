"""VQA accuracy overall and by type of answer, in percent; what is stored of an evaluation."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from sparse_attention.repro.protocol import Evaluation, Metric
from tasks.data.records import Question
from tasks.vqa.answers import accuracy
from tasks.vqa.predict import Answers

KEYS = {"yes/no": "accuracy_yes_no", "number": "accuracy_number", "other": "accuracy_other"}
SIGNATURE = "VQA accuracy|leave-one-out over annotators"
METRICS = {
    m.name: m
    for m in (
        *(Metric(name, "%", 1, 2, 1.0, SIGNATURE, "mean") for name in ("accuracy", *KEYS.values())),
        Metric(
            "loss",
            "nats per question",
            -1,
            3,
            None,
            "binary cross-entropy with soft targets, summed over answers",
            None,
        ),
        Metric(
            "attention_zeros",
            "share",
            0,
            2,
            None,
            "cells of weight exactly 0; of a density: centres outside its support",
            None,
        ),
    )
}


def score(questions: Sequence[Question], answers: Sequence[str]) -> tuple[dict[str, float], str, list[float]]:
    """Metrics of predicted `answers`.

    Returns:
        accuracy, accuracy_yes_no, accuracy_number, accuracy_other (percent; a type without questions is left out), the
        signature, and the accuracy of each question in 0 .. 1.
    """
    if len(questions) != len(answers) or not questions:
        raise ValueError(
            f"{len(answers)} predictions for {len(questions)} questions: there must be one for each, and some"
        )
    each = [accuracy(a, q.answers) for q, a in zip(questions, answers)]
    by_type: dict[str, list[float]] = defaultdict(list)
    for question, value in zip(questions, each):
        by_type[question.answer_type].append(value)
    values = {"accuracy": 100 * sum(each) / len(each)}
    values |= {KEYS[kind]: 100 * sum(v) / len(v) for kind, v in sorted(by_type.items())}
    sizes = ",".join(f"{kind}={len(v)}" for kind, v in sorted(by_type.items()))
    return values, f"{SIGNATURE}|n:{len(each)}|types:{sizes}", each


def baselines(train: Sequence[Question], test: Sequence[Question], name: str = "test") -> dict[str, dict[str, float]]:
    """Systems that see no image: the most frequent training answer, overall and to the very same words."""

    def most_frequent(key: Callable[[Question], str]) -> Callable[[Question], str]:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for q in train:
            counts[key(q)][q.answer] += 1
        fallback = Counter(q.answer for q in train).most_common(1)[0][0]
        top = {k: c.most_common(1)[0][0] for k, c in counts.items()}
        return lambda q: top.get(key(q), fallback)

    systems = {
        "most frequent answer": most_frequent(lambda q: ""),
        "question only (its most frequent answer)": most_frequent(lambda q: q.text.lower()),
    }
    return {
        label: {f"{name}/{k}": v for k, v in score(test, [system(q) for q in test])[0].items()}
        for label, system in systems.items()
    }


def evaluation(questions: Sequence[Question], answers: Answers, name: str = "test") -> Evaluation:
    """Scores, records and files of a test set called `name`."""
    values, signature, each = score(questions, answers.texts)
    values["attention_zeros"] = answers.zeros
    export = [{"question_id": q.question_id, "answer": a} for q, a in zip(questions, answers.texts)]
    return Evaluation(
        metrics={f"{name}/{k}": float(v) for k, v in values.items()},
        signatures={f"{name}/{k}": signature for k in values if k in ("accuracy", *KEYS.values())},
        predictions=[_record(i, q, answers, each[i], name) for i, q in enumerate(questions)],
        attention={k.replace("cells/", f"{name}/"): v for k, v in answers.attention.items()},
        files={"vqa_results.json": json.dumps(export).encode()},  # the challenge's submission format
    )


def _record(i: int, q: Question, answers: Answers, right: float, name: str) -> dict[str, Any]:
    record: dict[str, Any] = {
        "set": name, "index": i, "question_id": q.question_id, "image": q.image, "source": q.text,
        "references": [a for a, _ in Counter(q.answers).most_common()], "output": answers.texts[i],
        "score": round(answers.confidence[i], 4), "answer_type": q.answer_type,
        "sentence": {"accuracy": round(right, 4), KEYS[q.answer_type]: round(right, 4)},
    }  # fmt: skip
    if f"cells/{i}" in answers.attention:
        rows, columns = answers.grid
        record["source_tokens"] = [f"row {r + 1}" for r in range(rows)]
        record["output_tokens"] = [str(c + 1) for c in range(columns)]
    return record
