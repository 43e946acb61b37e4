"""Answers as the VQA challenge scores them: soft targets of ten annotators; a vocabulary of frequent answers.

Antol et al. 2015 and the challenge's evaluation: an answer is fully right when at least three annotators gave it. The
official accuracy averages over the ten ways to leave one annotator out,

    acc(a) = mean_i min(#{j != i : answer_j = a} / 3, 1)      0, .3, .6, .9, 1 for 0, 1, 2, 3, 4 or more of ten,

and the same values are the training targets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


def soft_scores(answers: Sequence[str]) -> dict[str, float]:
    """Each different answer with its accuracy, see the module; a single answer (one gold label) counts fully."""
    if len(answers) == 1:
        return {answers[0]: 1.0}
    n = len(answers)
    scores = {}
    for answer, count in Counter(answers).items():
        without = count * min((count - 1) / 3, 1.0) + (n - count) * min(count / 3, 1.0)
        scores[answer] = without / n
    return scores


def accuracy(answer: str, answers: Sequence[str]) -> float:
    """Accuracy in 0 .. 1 of `answer` against the annotators' (all normalised)."""
    return soft_scores(answers).get(answer, 0.0)


def vocabulary(most_given: Iterable[str], min_count: int) -> list[str]:
    """Answers given at least `min_count` times, the most frequent first, ties by name."""
    counts = Counter(most_given)
    return sorted((a for a, n in counts.items() if n >= min_count), key=lambda a: (-counts[a], a))
