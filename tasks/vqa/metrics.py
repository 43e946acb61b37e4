"""VQA accuracy in percent, overall and by answer type, and the evaluation of a model on a test set."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from repro.protocol import Evaluation, Metric, Scores, scored
from tasks.data.progress import Done, untold
from tasks.data.records import Question
from tasks.vqa.encode import Encoded, accuracy
from tasks.vqa.predict import predict

KEYS = {"yes/no": "accuracy_yes_no", "number": "accuracy_number", "other": "accuracy_other"}
SIGNATURE = "VQA accuracy|leave-one-out over annotators"


def _of_type(kind: str | None, questions: Sequence[Question], each: Sequence[float]) -> float | None:
    """The accuracy on questions of this answer type, or on all questions if None."""
    values = [value for q, value in zip(questions, each) if kind in (None, q.answer_type)]
    return 100 * sum(values) / len(values) if values else None


# Scorers take the questions, and the accuracy of each answer from 0 to 1.
MEASURED: Scores = {
    name: (Metric(name, "%", 1, 2, 1.0, SIGNATURE, "mean"), partial(_of_type, kind))
    for kind, name in ((None, "accuracy"), *KEYS.items())
}
_LOSS = "binary cross-entropy with soft targets, summed over answers"
_ZEROS = "cells of weight exactly 0; of a density: centres outside its support"
MEASURED["loss"] = (Metric("loss", "nats per question", -1, 3, None, _LOSS), None)
MEASURED["attention_zeros"] = (Metric("attention_zeros", "share", 0, 2, None, _ZEROS), None)


def score(questions: Sequence[Question], answers: Sequence[str]) -> dict[str, float]:
    """The metrics accuracy, accuracy_yes_no, accuracy_number, accuracy_other (percent) of predicted `answers`.

    Types without questions are omitted. Raises ValueError if there is not one answer for each question.
    """
    each = [accuracy(a, q.answers) for q, a in zip(questions, answers, strict=True)]
    return scored(MEASURED, questions, each)


def baselines(train: Sequence[Question], test: Sequence[Question], name: str = "test") -> dict[str, dict[str, float]]:
    """Baselines that see no image: the most frequent training answer, overall and for exactly the same question."""
    given: dict[str, Counter[str]] = defaultdict(Counter)
    for q in train:
        given[q.text.lower()][q.answer] += 1
    top = {question: answers.most_common(1)[0][0] for question, answers in given.items()}
    fallback = Counter(q.answer for q in train).most_common(1)[0][0]
    systems = {
        "most frequent answer": [fallback for _ in test],
        "question only (its most frequent answer)": [top.get(q.text.lower(), fallback) for q in test],
    }
    return {label: {f"{name}/{k}": v for k, v in score(test, answers).items()} for label, answers in systems.items()}


def evaluation(
    model: nn.Module, test: Encoded, batch_size: int, name: str = "test", keep: int = 0, done: Done = untold
) -> Evaluation:
    """Answer every question of the split "test" with the answer of the highest logit, and score the answers.

    Args:
        name: name of the test set, used as the prefix of the metrics.
        keep: number of the first questions whose attention is kept: "<name>/<number>" [columns, rows], weights
            per image region; "discrete/<number>" [L]; for a density, also "mu/..." and "sigma/..."; for a mixture,
            also "pi/...".
        done: called with the share of questions answered.
    """
    questions = test.splits["test"].questions
    rows, columns = model.grid
    records: list[dict[str, Any]] = []
    attention: dict[str, Tensor] = {}
    zeros = cells = 0
    for numbers, logits, weights, reduced in predict(model, test, test.splits["test"], batch_size, done):
        zeros, cells = zeros + int(weights.eq(0).sum()), cells + weights.numel()
        for row, (i, best) in enumerate(zip(numbers.tolist(), logits.argmax(-1).tolist())):
            q, output = questions[i], test.answers[best]
            right = round(accuracy(output, q.answers), 4)
            record = {"set": name, "index": i, "question_id": q.question_id, "image": q.image, "source": q.text}
            record |= {"references": [a for a, _ in Counter(q.answers).most_common()], "output": output}
            record |= {"score": round(logits[row, best].sigmoid().item(), 4), "answer_type": q.answer_type}
            records.append(record | {"sentence": {"accuracy": right, KEYS[q.answer_type]: right}})
            if i >= keep:
                continue
            records[-1]["source_tokens"] = [f"row {r + 1}" for r in range(rows)]
            records[-1]["output_tokens"] = [str(c + 1) for c in range(columns)]
            # the report draws [steps, source tokens]; with columns as steps and rows as tokens, the image is upright
            attention[f"{name}/{i}"] = weights[row].unflatten(0, model.grid).T.contiguous()
            attention[f"discrete/{i}"] = reduced.weights[row].float().clone()
            for part in ("mu", "sigma", "pi"):
                if (found := getattr(reduced, part)) is not None:
                    attention[f"{part}/{i}"] = found[row].double().clone()
    values = score(questions, [r["output"] for r in records])
    sizes = ",".join(f"{kind}={n}" for kind, n in sorted(Counter(q.answer_type for q in questions).items()))
    signature = f"{SIGNATURE}|n:{len(questions)}|types:{sizes}"
    export = [{"question_id": r["question_id"], "answer": r["output"]} for r in records]
    return Evaluation(
        metrics={f"{name}/{k}": v for k, v in values.items()} | {f"{name}/attention_zeros": zeros / cells},
        signatures={f"{name}/{k}": signature for k in values},
        predictions=records,
        attention=attention,
        files={"vqa_results.json": json.dumps(export).encode()},  # the challenge's submission format
    )
