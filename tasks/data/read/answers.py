"""Normalisation of answers to visual questions, as in the challenge's evaluation code before answers are compared."""

from __future__ import annotations

import re
from functools import lru_cache

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS = {w: str(i) for i, w in enumerate(_DIGITS)} | {"none": "0"}
_ARTICLES = {"a", "an", "the"}
# Annotators omit these apostrophes. As in the challenge's list, none is a word without its apostrophe ("its", "well").
_SHORT = """
ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd he's how'd how'll how's isn't it'd it'll
ma'am might've mightn't must've mustn't needn't not've o'clock oughtn't shan't should've shouldn't somebody'll somebody's
someone'd someone'll someone's something'd something'll that's there'd there're there's they'd they'll they're they've 'twas
wasn't we've weren't what'll what're what's what've when's where'd where's where've who'd who'll who's who've why'll why're why's
won't would've wouldn't y'all you'd you'll you're you've
"""
_TWICE_SHORT = """
couldn't've hadn't've he'd've it'd've mightn't've she'd've shouldn't've somebody'd've someone'd've something'd've there'd've
they'd've we'd've who'd've wouldn't've y'all'll y'all'd've you'd've
"""


_CONTRACTIONS = {
    word[:i] + word[i + 1 :]: word
    for word in (_SHORT + _TWICE_SHORT).split()
    for i, sign in enumerate(word)
    if sign == "'"
}
_PUNCTUATION = ';/[]"{}()=+\\_-<>@`,?!'
_FULL_STOP = re.compile(r"\.(?!\d)")  # as in the challenge, also matches after a digit
_COMMA_IN_NUMBER = re.compile(r"\d,\d")


@lru_cache(maxsize=1 << 16)
def normalized(answer: str) -> str:
    """Lower-case an answer, remove punctuation and articles, turn number words into digits, and restore apostrophes.

    For example, "dont" -> "don't". The challenge's rule for punctuation: a mark is deleted if it touches a space (or if
    the answer has a comma inside a number) and becomes a space between letters ("t-shirt" -> "t shirt").
    """
    text = answer.replace("\n", " ").replace("\t", " ").strip()
    in_number = _COMMA_IN_NUMBER.search(text) is not None
    original = text
    for mark in _PUNCTUATION:
        if mark in original:
            loose = f"{mark} " in original or f" {mark}" in original or in_number
            text = text.replace(mark, "" if loose else " ")
    text = _FULL_STOP.sub("", text)
    words = [_NUMBERS.get(w, w) for w in text.lower().split()]
    return " ".join(_CONTRACTIONS.get(w, w) for w in words if w not in _ARTICLES)


def answer_type(answer: str) -> str:
    """The type "yes/no", "number" or "other", for data sets that do not provide it."""
    if answer in ("yes", "no", "true", "false"):
        return "yes/no"
    return "number" if answer.replace(".", "", 1).isdigit() else "other"
