"""How a text is cut into words."""

from __future__ import annotations

import re
from collections.abc import Callable

from tasks.classification.options import Encode

# NLTK's WordPunctTokenizer: runs of letters, digits and underscores, or runs of other visible characters.
_WORD_PUNCT = re.compile(r"\w+|[^\w\s]+")
_BREAK = re.compile(r"<\s*br\s*/?\s*>", re.I)


def wordpunct(text: str) -> list[str]:
    """Words and runs of punctuation, as NLTK's WordPunctTokenizer cuts them."""
    return _WORD_PUNCT.findall(text)


def wordpunct_br(text: str) -> list[str]:
    """`wordpunct` with HTML line breaks kept as one token `<br>`."""
    first, *rest = (wordpunct(part) for part in _BREAK.split(text))
    return first + [token for part in rest for token in ("<br>", *part)]


TOKENIZERS: dict[str, Callable[[str], list[str]]] = {
    "whitespace": str.split,
    "wordpunct": wordpunct,
    "wordpunct_br": wordpunct_br,
}


def cutter(options: Encode) -> Callable[[str], list[str]]:
    """text -> tokens as the options say; a text without any is one `<empty>`: there must be something to attend to."""
    tokenize, limit = TOKENIZERS[options.tokenizer], options.max_tokens

    def cut(text: str) -> list[str]:
        return tokenize(text.lower() if options.lowercase else text)[:limit] or ["<empty>"]

    return cut
