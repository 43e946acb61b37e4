"""VQA accuracy overall and by type of answer, in percent."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from tasks.vqa.answers import accuracy
from tasks.vqa.questions import Question

SIGNATURE = "VQA accuracy|leave-one-out over annotators|n:{n}|types:{types}"
KEYS = {"yes/no": "yes_no", "number": "number", "other": "other"}


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
    values |= {f"accuracy_{KEYS[kind]}": 100 * sum(v) / len(v) for kind, v in sorted(by_type.items())}
    sizes = ",".join(f"{KEYS[kind]}={len(v)}" for kind, v in sorted(by_type.items()))
    return values, SIGNATURE.format(n=len(each), types=sizes), each


def baselines(train: Sequence[Question], test: Sequence[Question]) -> dict[str, dict[str, float]]:
    """Systems that see no image: the most frequent answer of the type, and of the question's very words."""

    def most_frequent(key: Callable[[Question], str]) -> Callable[[Question], str]:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        overall: Counter[str] = Counter()
        for q in train:
            counts[key(q)][q.answer] += 1
            overall[q.answer] += 1
        top = {k: c.most_common(1)[0][0] for k, c in counts.items()}
        fallback = overall.most_common(1)[0][0]
        return lambda q: top.get(key(q), fallback)

    systems = {
        "most frequent answer": most_frequent(lambda q: ""),
        "question only (its most frequent answer)": most_frequent(lambda q: q.text.lower()),
    }
    return {
        name: {f"test/{k}": v for k, v in score(test, [system(q) for q in test])[0].items()}
        for name, system in systems.items()
    }
