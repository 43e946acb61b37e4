"""Answers as the VQA challenge treats them: normalised, soft targets of ten annotators, a vocabulary of frequent answers.

Antol et al. 2015 and the challenge's evaluation: an answer is fully right when at least three annotators gave it. The
official accuracy averages over the ten ways to leave one annotator out,

    acc(a) = mean_i min(#{j != i : answer_j = a} / 3, 1)      0, .3, .6, .9, 1 for 0, 1, 2, 3, 4 or more of ten,

and the same values are the training targets.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS = {w: str(i) for i, w in enumerate(_DIGITS)} | {"none": "0"}
_ARTICLES = {"a", "an", "the"}
# Written without the apostrophe by annotators. "its", "were", "well", "hell", "shell", "ill", "id", "wed" stay: also words.
_SHORT = """
ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd he's how'd
how'll how's I'm I've isn't it'd it'll ma'am might've mightn't must've mustn't needn't o'clock
shan't she's should've shouldn't somebody's someone's something's that'd that's there'd there're there's they'd they'll
they're they've wasn't we've weren't what'll what're what's what've when's where'd where's where've who'd
who'll who's who've why'll why're why's won't would've wouldn't y'all you'd you'll you're you've
"""
_CONTRACTIONS = {word.replace("'", ""): word for word in _SHORT.split()}
_PUNCTUATION = ';/[]"{}()=+\\_-<>@`,?!'
_DECIMAL_POINT = re.compile(r"(?<!\d)\.(?!\d)")
_COMMA_IN_NUMBER = re.compile(r"\d,\d")


@lru_cache(maxsize=1 << 16)
def normalized(answer: str) -> str:
    """Lower case; no punctuation, articles; number words as digits; apostrophes put back ("dont" -> "don't").

    The challenge's rule: a punctuation mark is deleted where it touches a space (or the answer has a comma inside a number)
    and becomes a space between letters ("t-shirt" -> "t shirt").
    """
    text = answer.replace("\n", " ").replace("\t", " ").strip()
    in_number = _COMMA_IN_NUMBER.search(text) is not None
    original = text
    for mark in _PUNCTUATION:
        if mark in original:
            loose = f"{mark} " in original or f" {mark}" in original or in_number
            text = text.replace(mark, "" if loose else " ")
    text = _DECIMAL_POINT.sub("", text)
    words = [_NUMBERS.get(w, w) for w in text.lower().split()]
    return " ".join(_CONTRACTIONS.get(w, w) for w in words if w not in _ARTICLES)


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


def answer_type(answer: str) -> str:
    """ "yes/no", "number" or "other", for sets that do not say it."""
    if answer in ("yes", "no", "true", "false"):
        return "yes/no"
    return "number" if answer.replace(".", "", 1).isdigit() else "other"
