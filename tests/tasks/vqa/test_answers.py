"""Normalisation, soft scores and the accuracy, against the challenge's definition written out."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.data.read.answers import normalized
from tasks.data.records import Question
from tasks.vqa import metrics
from tasks.vqa.encode import accuracy, soft_scores, vocabulary


def by_definition(answer: str, answers: list[str]) -> float:
    """Antol et al. 2015: mean over all subsets of nine annotators of min(agreeing / 3, 1)."""
    subsets = list(combinations(range(len(answers)), len(answers) - 1))
    return sum(min(sum(answers[i] == answer for i in s) / 3, 1) for s in subsets) / len(subsets)


@settings(deadline=None)
@given(st.lists(st.sampled_from("abcd"), min_size=10, max_size=10), st.sampled_from("abcde"))
def test_accuracy_is_the_definition(answers, answer):
    assert accuracy(answer, answers) == pytest.approx(by_definition(answer, answers))


def test_ten_annotators_give_the_five_values_of_the_targets():
    found = [accuracy("x", ["x"] * n + ["y"] * (10 - n)) for n in (0, 1, 2, 3, 4, 10)]
    assert found == pytest.approx([0, 0.3, 0.6, 0.9, 1, 1], abs=1e-9)
    assert soft_scores(["red"]) == {"red": 1.0}


NORMALISED = [("The Dog.", "dog"), ("two", "2"), ("Dont know", "don't know"), ("t-shirt", "t shirt")]
NORMALISED += [("1,000", "1000"), ("3.5", "3.5"), ("yes!", "yes"), ("  A\nred car ", "red car"), ("it's", "it's")]
NORMALISED += [("none", "0"), ("its", "its"), ("5.", "5"), ("couldnt've", "couldn't've"), ("shes", "shes")]
NORMALISED += [("twas", "'twas")]


@pytest.mark.parametrize(("raw", "expected"), NORMALISED)
def test_normalisation(raw, expected):
    assert normalized(raw) == expected
    assert normalized(expected) == expected


def test_vocabulary_by_count_then_name():
    assert vocabulary({"b": 2, "a": 2, "c": 1}, 2) == ["a", "b"]


def question(answer: str, kind: str, text: str = "q") -> Question:
    return Question(0, "i", text, (answer,), answer, kind)


def test_scores_by_type_and_in_all():
    questions = [question("yes", "yes/no"), question("no", "yes/no"), question("3", "number"), question("dog", "other")]
    values = metrics.score(questions, ["yes", "yes", "3", "cat"])
    assert values == {"accuracy": 50.0, "accuracy_yes_no": 50.0, "accuracy_number": 100.0, "accuracy_other": 0.0}
    with pytest.raises(ValueError, match="zip"):
        metrics.score(questions, ["a"] * 3)


def test_baselines_know_the_question_only():
    train = [question("no", "yes/no", "Is it red?")] * 3 + [question("red", "other", "Colour?")] * 2
    test = [question("no", "yes/no", "is it red?"), question("red", "other", "colour?")]
    found = metrics.baselines(train, test)
    assert found["most frequent answer"]["test/accuracy"] == 50.0
    assert found["question only (its most frequent answer)"]["test/accuracy"] == 100.0
