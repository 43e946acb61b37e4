"""Tokenisers by name, and their inverse.

| name | what it does | used for |
|---|---|---|
| none | splits at white space | text tokenised as published (Gigaword release), toy |
| moses | Moses, dashes split, no escaping (`-a -no-escape`, the recipe of OpenNMT-py's README) | translation |
| moses_lower | the same on lower-cased text | small models |
| ptb_lower | Penn Treebank tokens, lower case, brackets as -lrb- and so on | summarization of raw text |
| ptb_gigaword | ptb_lower with every digit as `#`, as in the release of Rush et al. 2015 | Gigaword, DUC |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from tasks.data.errors import DataError

TOKENIZERS = ("none", "moses", "moses_lower", "ptb_lower", "ptb_gigaword")
BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
UNBRACKETS = {name: bracket for bracket, name in BRACKETS.items()}


def tokenizer(name: str, lang: str | None = None) -> Callable[[str], list[str]]:
    """The function text -> tokens called `name`; no token contains white space.

    Raises:
        DataError: unknown name, with the allowed ones.
    """
    check_name(name)
    if name == "none":
        return str.split
    if name.startswith("moses"):
        moses = _moses_tokenizer(lang or "en")
        lower = name == "moses_lower"

        def split_moses(text: str) -> list[str]:
            text = " ".join(text.split())
            tokens = moses.tokenize(text.lower() if lower else text, aggressive_dash_splits=True, escape=False)
            return " ".join(tokens).split()

        return split_moses
    return _ptb_gigaword if name == "ptb_gigaword" else _ptb_lower


def detokenizer(name: str, lang: str | None = None) -> Callable[[list[str]], str]:
    """The function tokens -> text that undoes tokeniser `name` as far as it can be undone.

    Moses is inverted by the Moses detokeniser; the Treebank forms stay tokenised, as their published references are.
    """
    check_name(name)
    if name.startswith("moses"):
        moses = _moses_detokenizer(lang or "en")
        return lambda tokens: moses.detokenize(list(tokens), unescape=False)
    return " ".join


def check_name(name: str) -> None:
    """Raise `DataError` unless `name` is a tokeniser."""
    if name not in TOKENIZERS:
        raise DataError(
            f"unknown tokenizer {name!r}", f"allowed: {', '.join(TOKENIZERS)}", "correct encoding.tokenizer"
        )


@lru_cache(maxsize=8)
def _moses_tokenizer(lang: str):
    from sacremoses import MosesTokenizer

    return MosesTokenizer(lang=lang)


@lru_cache(maxsize=8)
def _moses_detokenizer(lang: str):
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(lang=lang)


@lru_cache(maxsize=1)
def _treebank():
    from nltk.tokenize import TreebankWordTokenizer  # comes with rouge-score; needs no nltk data

    return TreebankWordTokenizer()


def _ptb_lower(text: str) -> list[str]:
    tokens = _treebank().tokenize(" ".join(text.split()))
    return [BRACKETS.get(token, token).lower() for token in tokens]


def _ptb_gigaword(text: str) -> list[str]:
    return [hide_digits(token) for token in _ptb_lower(text)]


def hide_digits(token: str) -> str:
    """Every decimal digit as `#`, as in the released Gigaword pairs."""
    return re.sub(r"\d", "#", token)


def restore_digits(tokens: list[str], source: str) -> list[str]:
    """Give `#` runs in an output their digits back, from the first source token of the same shape.

    Args:
        tokens: output tokens with `#` for digits.
        source: the raw source text, digits intact.

    Returns:
        the tokens; one without a counterpart in the source is kept as it is.
    """
    shapes: dict[str, str] = {}
    for token in _ptb_lower(source):
        shapes.setdefault(hide_digits(token), token)
    return [shapes.get(token, token) if "#" in token else token for token in tokens]
