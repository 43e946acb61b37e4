"""VQA accuracy in percent, overall and by answer type, and the stored results of an evaluation."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from repro.protocol import Evaluation, Metric, Scorer, Scores, scored
from tasks.data.records import Question
from tasks.vqa.encode import accuracy
from tasks.vqa.predict import Answers

KEYS = {"yes/no": "accuracy_yes_no", "number": "accuracy_number", "other": "accuracy_other"}
SIGNATURE = "VQA accuracy|leave-one-out over annotators"


def _of_type(kind: str | None) -> Scorer:
    """A scorer for the accuracy on questions of this answer type, or on all questions if None."""

    def score(questions: Sequence[Question], answers: Sequence[str], each: Sequence[float]) -> float | None:
        values = [value for q, value in zip(questions, each) if kind in (None, q.answer_type)]
        return 100 * sum(values) / len(values) if values else None

    return score


# Scorers take the questions, the answers, and the accuracy of each answer from 0 to 1.
MEASURED: Scores = {
    name: (Metric(name, "%", 1, 2, 1.0, SIGNATURE, "mean"), _of_type(kind))
    for kind, name in ((None, "accuracy"), *KEYS.items())
}
MEASURED["loss"] = (
    Metric(
        "loss", "nats per question", -1, 3, None, "binary cross-entropy with soft targets, summed over answers", None
    ),
    None,
)
MEASURED["attention_zeros"] = (
    Metric(
        "attention_zeros",
        "share",
        0,
        2,
        None,
        "cells of weight exactly 0; of a density: centres outside its support",
        None,
    ),
    None,
)


def score(questions: Sequence[Question], answers: Sequence[str]) -> tuple[dict[str, float], str, list[float]]:
    """Evaluate predicted `answers`.

    Returns:
        the metrics accuracy, accuracy_yes_no, accuracy_number, accuracy_other (percent; types without questions are
        omitted), the signature, and the accuracy of each question from 0 to 1.
    """
    if len(questions) != len(answers) or not questions:
        raise ValueError(
            f"{len(answers)} predictions for {len(questions)} questions: there must be one for each, and some"
        )
    each = [accuracy(a, q.answers) for q, a in zip(questions, answers)]
    values = scored(MEASURED, questions, answers, each)
    sizes = ",".join(f"{kind}={n}" for kind, n in sorted(Counter(q.answer_type for q in questions).items()))
    return values, f"{SIGNATURE}|n:{len(each)}|types:{sizes}", each


def baselines(train: Sequence[Question], test: Sequence[Question], name: str = "test") -> dict[str, dict[str, float]]:
    """Baselines that see no image: the most frequent training answer, overall and for exactly the same question."""

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
    """Scores, records and files of the test set named `name`."""
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
