"""The package rouge-score, imported without scikit-learn and scipy.stats, which its dependency nltk imports.

Its default tokeniser deletes every character but a-z and 0-9, and stems by the rules of English. Texts in other languages are
scored with `UnicodeTokenizer`, passed as rouge-score's `tokenizer=`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import chain

import regex

from tasks.later import later

with later("sklearn", "sklearn.feature_extraction", "sklearn.preprocessing", "scipy.stats"):
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer, Tokenizer

__all__ = ["RougeScorer", "rouge_tokenizer"]
# Scripts that are written without spaces between words.
UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Yi}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}\p{Javanese}"
)
# One such character with its marks; or letters, marks and digits of the others, with the joiners of Persian and Indic words.
WORD = regex.compile(rf"[{UNSPACED}]\p{{M}}*|(?:(?![{UNSPACED}])[\p{{L}}\p{{M}}\p{{N}}\u200c\u200d])+")
LETTER, ENGLISH = regex.compile(r"[\p{L}\p{M}]"), regex.compile("[A-Za-z]")
MOSTLY = 0.99  # share of letters from A to Z in English text; French has about .96


class UnicodeTokenizer(Tokenizer):
    """Words of any script: composed (NFC), case-folded, not stemmed; single characters in scripts without spaces.

    A text without words, such as an emoji, is split into its visible characters.
    """

    def tokenize(self, text: str) -> list[str]:
        text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
        return WORD.findall(text) or [c for c in text if not c.isspace()]


def rouge_tokenizer(references: Sequence[Sequence[str]], language: str | None) -> tuple[Tokenizer, str]:
    """The tokeniser for texts in the language of `references`, and its part of the signature.

    It is rouge-score's own with Porter's stemmer, which ROUGE-1.5.5 uses too (`-m`), for English: the language is "en"
    or unknown, and 99 % of the letters are from A to Z.
    """
    letters = english = 0
    for text in chain.from_iterable(references):
        letters += len(LETTER.findall(text))
        english += len(ENGLISH.findall(text))
    if (language or "en").lower()[:2] == "en" and english >= MOSTLY * letters:
        return DefaultTokenizer(use_stemmer=True), "stem:porter"
    return UnicodeTokenizer(), "tok:unicode|stem:no"
