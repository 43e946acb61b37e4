"""From output tokens to the texts that are scored, and references in the same form.

Where a model reads every digit of its source as `#` (`digits`: DUC after a training on Gigaword), its outputs get their
numbers back from the source before they are scored, and the references keep theirs: the authors' evaluation (NAMAS).
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.seq2seq.options import Encode
from tasks.seq2seq.subwords import join_subwords
from tasks.seq2seq.tokenize import detokenizer, restore_digits, tokenizer


def output_text(
    tokens: Sequence[str], options: Encode, language: str | None = None, *, source: str = "", digits: str | None = None
) -> str:
    """Text of output tokens: subwords joined, numbers restored, words detokenised.

    Args:
        tokens: without special symbols.
        language: of the text, for the rules of Moses.
        source: the raw source text, where numbers come from.
        digits: the sign that stands for digits in the output, or None.
    """
    words = join_subwords(list(tokens), options.subword)
    if digits:
        words = restore_digits(words, tokenizer(_keeping_digits(options), language)(source))
    return detokenizer(options.tokenizer, language)(words)


def reference_text(text: str, options: Encode, *, digits: str | None = None) -> str:
    """What an output is compared with: the published text, or its tokenised form where outputs stay tokenised."""
    name = _keeping_digits(options) if digits else options.tokenizer
    return " ".join(tokenizer(name)(text)) if name.startswith("ptb") else text


def tokenized(text: str, options: Encode, language: str | None = None) -> str:
    """`text` as words joined by spaces, for scores of tokenised text."""
    return " ".join(tokenizer(options.tokenizer, language)(text))


def _keeping_digits(options: Encode) -> str:
    return "ptb_lower" if options.tokenizer == "ptb_gigaword" else options.tokenizer
