"""Tokenisers by name, and their inverses.

| name | what it does | used for |
|---|---|---|
| none | splits at white space | text tokenised as published (Gigaword release), toy |
| raw | as none; with sentencepiece, no character is unknown, so outputs can be any text | your own data |
| moses | Moses, dashes split, no escaping (`-a -no-escape`, the recipe of OpenNMT-py's README) | translation |
| moses_lower | moses on lower-cased text | small models |
| ptb_lower | Penn Treebank tokens, lower case, brackets as -lrb- and so on | summarization of raw text |
| ptb_gigaword | ptb_lower with every digit as `#`, as in the release of Rush et al. 2015 | Gigaword, DUC |

Some models read every digit of the source as `#` (option `digits`, used for DUC after training on Gigaword). Numbers in
their outputs are then restored from the source before evaluation, and the references keep their numbers, as in the
authors' evaluation (NAMAS).
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from tasks.seq2seq.options import Encode

BYTE = re.compile("<0x([0-9A-F]{2})>")  # a unit of tokenizer=raw: a byte of a character that is not a unit itself
PIECE_SPACE = "\u2581"  # sentencepiece's mark for the start of a word
BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}


@lru_cache(maxsize=8)
def tokenizer(name: str, lang: str | None = None) -> Callable[[str], list[str]]:
    """The tokeniser named `name`, a function text -> tokens; no token contains white space."""
    if name in ("none", "raw"):
        return str.split
    if name.startswith("moses"):
        from sacremoses import MosesTokenizer

        moses = MosesTokenizer(lang=lang or "en")

        def split_moses(text: str) -> list[str]:
            text = " ".join(text.split())
            text = text.lower() if name == "moses_lower" else text
            return " ".join(moses.tokenize(text, aggressive_dash_splits=True, escape=False)).split()

        return split_moses
    from nltk.tokenize import TreebankWordTokenizer  # nltk comes with rouge-score; this needs no nltk data

    treebank = TreebankWordTokenizer()

    def split_ptb(text: str) -> list[str]:
        tokens = [BRACKETS.get(token, token).lower() for token in treebank.tokenize(" ".join(text.split()))]
        return list(map(hide_digits, tokens)) if name == "ptb_gigaword" else tokens

    return split_ptb


@lru_cache(maxsize=8)
def detokenizer(name: str, lang: str | None = None) -> Callable[[list[str]], str]:
    """The function tokens -> text that inverts the tokeniser `name` as far as possible.

    Moses is inverted by the Moses detokeniser; Treebank text stays tokenised, like its published references.
    """
    if not name.startswith("moses"):
        return " ".join
    from sacremoses import MosesDetokenizer

    moses = MosesDetokenizer(lang=lang or "en")
    return lambda tokens: moses.detokenize(list(tokens), unescape=False)


def hide_digits(token: str) -> str:
    """Replace every decimal digit by `#`, as in the released Gigaword pairs."""
    return re.sub(r"\d", "#", token)


def restore_digits(tokens: list[str], source: list[str]) -> list[str]:
    """Replace each output word that begins with `#` by the last number of the source that has the same length.

    This is the rule of the authors' DUC evaluation (NAMAS, DUC/make_rouge.py). Words without a matching number stay
    unchanged.

    Args:
        tokens: output words with `#` for digits.
        source: words of the source, with their digits.
    """
    numbers = {len(word): word for word in source if word[0].isdigit()}
    return [numbers.get(len(token), token) if token[0] == "#" else token for token in tokens]


def join_subwords(tokens: list[str], kind: str) -> list[str]:
    """Join a list of units into words."""
    if kind == "bpe":
        # an output may end inside a word, so that its last unit has a mark but no continuation
        return (" ".join(tokens) + " ").replace("@@ ", "").split()
    if kind == "sentencepiece":
        if any(map(BYTE.fullmatch, tokens)):
            coded = ((t, BYTE.fullmatch(t)) for t in tokens)
            parts = (bytes([int(m[1], 16)]) if m else t.encode("utf-8", "replace") for t, m in coded)
            tokens = [b"".join(parts).decode("utf-8", "replace")]
        return "".join(tokens).replace(PIECE_SPACE, " ").split()
    return tokens


def output_text(
    tokens: Sequence[str], options: Encode, language: str | None = None, *, source: str = "", digits: str | None = None
) -> str:
    """Turn output tokens into text: join subwords, restore numbers, detokenise.

    Args:
        tokens: tokens without special symbols.
        language: language of the text, for the rules of Moses.
        source: the raw source text, from which numbers are restored.
        digits: the character that replaces digits in the output, or None.
    """
    words = join_subwords(list(tokens), options.subword)
    if digits:
        words = restore_digits(words, tokenizer(_keeping_digits(options), language)(source))
    return detokenizer(options.tokenizer, language)(words)


def reference_text(text: str, options: Encode, *, digits: str | None = None) -> str:
    """The text that outputs are compared with: the published reference, tokenised if outputs stay tokenised."""
    name = _keeping_digits(options) if digits else options.tokenizer
    return " ".join(tokenizer(name)(text)) if name.startswith("ptb") else text


def _keeping_digits(options: Encode) -> str:
    return "ptb_lower" if options.tokenizer == "ptb_gigaword" else options.tokenizer
