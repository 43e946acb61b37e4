"""Words of texts in any script, and which texts have no spaces between words."""

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

# Scripts that are written without spaces between words.
UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Yi}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}\p{Javanese}"
)
# One such character with its marks; or letters, marks and digits of the others, with the joiners of Persian and Indic words.
WORD = rf"[{UNSPACED}]\p{{M}}*|(?:(?![{UNSPACED}])[\p{{L}}\p{{M}}\p{{N}}\u200c\u200d])+"
LETTERS = r"\p{L}\p{M}"


@lru_cache(maxsize=16)
def _compiled(pattern: str) -> Any:
    import regex  # only for scores, so that a model can be used without this package

    return regex.compile(pattern, regex.V1)


def words(text: str) -> list[str]:
    """The words of a text, composed (NFC) and case-folded; single characters in scripts without spaces.

    A text without words, such as an emoji, is split into its visible characters.
    """
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
    return _compiled(WORD).findall(text) or [c for c in text if not c.isspace()]


def share(characters: str, texts: Iterable[str]) -> float:
    """Share of the letters and marks of `texts` that are in a set of the module `regex`; 0 if there are no letters."""
    letters = found = 0
    for text in texts:
        letters += len(_compiled(f"[{LETTERS}]").findall(text))
        found += len(_compiled(f"[{characters}]").findall(text))
    return found / max(letters, 1)


def unspaced(texts: Iterable[str]) -> bool:
    """Whether most letters belong to scripts without spaces between words, as those of Chinese, Japanese and Thai."""
    return share(UNSPACED, texts) > 0.5
