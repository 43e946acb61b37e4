"""The package rouge-score, imported without scikit-learn and scipy.stats, which its dependency nltk imports.

Its default tokeniser deletes every character but a-z and 0-9, and stems by the rules of English. Texts in other languages are
scored with words of our own, passed as rouge-score's `tokenizer=`.
"""

from collections.abc import Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any

from tasks.data.words import LETTERS, share, words
from tasks.later import later

with later("sklearn", "sklearn.feature_extraction", "sklearn.preprocessing", "scipy.stats"):
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

__all__ = ["RougeScorer", "rouge_tokenizer"]
FOREIGN = 0.01  # largest share of letters other than A to Z in English; French has about .04


def rouge_tokenizer(references: Sequence[Sequence[str]], language: str | None) -> tuple[Any, str]:
    """The tokeniser for texts in the language of `references`, and its entry in the signature.

    It is rouge-score's own with Porter's stemmer, which ROUGE-1.5.5 uses too (`-m`), for English: the language is "en"
    or unknown, and 99 % of the letters are from A to Z. Otherwise words of any script are not stemmed, and scripts
    without spaces give single characters (`tasks.data.words`).
    """
    english = (language or "en").lower()[:2] == "en"
    if english and share(f"[{LETTERS}]--[A-Za-z]", chain.from_iterable(references)) <= FOREIGN:
        return DefaultTokenizer(use_stemmer=True), "stem:porter"
    return SimpleNamespace(tokenize=words), "tok:unicode|stem:no"
