"""METEOR (Banerjee & Lavie 2005) as nltk computes it, by exact words and Porter stems; synonyms would need WordNet's files.

Not METEOR 1.5 of the papers, a Java program with paraphrase tables: the numbers are lower and not comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class _NoSynonyms:
    """In place of WordNet."""

    def synsets(self, word: str) -> list[Any]:
        return []


def meteor(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> np.ndarray:
    """[n] in points; of words, the best over the references of each sentence."""
    from nltk.translate.meteor_score import meteor_score

    none: Any = _NoSynonyms()
    return np.array(
        [100 * meteor_score(group, one, wordnet=none) for one, group in zip(hypotheses, references, strict=True)]
    )
