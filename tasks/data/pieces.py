"""Pieces of sentencepiece: how many fit a text, and learning them."""

import io
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.errors import DataError

COVERED = 0.9995  # share of the characters that are pieces, if the vocabulary is large enough
LEAST_COVERED = 0.98  # sentencepiece's minimum
RESERVED = 3  # its special symbols
FEWEST, MOST, PER_PIECE = 2_000, 32_000, 500  # pieces that `fitted` chooses, and characters of the text per piece


def too_small(size: int, what: str, least: int) -> DataError:
    """The error for a vocabulary of `size` units that is too small for the characters of the text."""
    step = f"set encode.vocab_size={least} or more"
    return DataError(f"encode.vocab_size={size} is too small", what, step)


def fitted(text: Iterable[str], size: int | None, others: int = 0) -> tuple[int, float]:
    """The number of pieces for a text (None: chosen), and the share of its characters that are pieces.

    At most 3/4 of the pieces are single characters; `others` more are not characters of the text. Raises DataError if `size`
    leaves room for less than 98 % of the characters.
    """
    counts, others = Counter[str](), others + RESERVED
    for line in text:
        counts.update(line)
    shares = np.cumsum(sorted(counts.values(), reverse=True)) / max(counts.total(), 1)  # by frequency
    wanted, least = (int(np.searchsorted(shares, share)) + 1 for share in (COVERED, LEAST_COVERED))
    if size is None:
        size = max(min(max(counts.total() // PER_PIECE, FEWEST), MOST), others + wanted * 4 // 3 + 1)
    room = (size - others) * 3 // 4
    if room < least:
        what = f"{least:,} characters make up {LEAST_COVERED:.0%} of the text"
        raise too_small(size, what, others + least * 4 // 3 + 1)
    reached = float(shares[min(room, len(shares)) - 1]) if len(shares) else 1.0
    return size, max(LEAST_COVERED, min(COVERED, reached))


def learn_pieces(
    text: Iterable[str], size: int, coverage: float, model: Path, model_type: str = "unigram", **options: Any
) -> None:
    """Learn at most `size` pieces from lines of text and write the model; `options` are sentencepiece's.

    Raises DataError if `size` is below the number of characters in the text.
    """
    import sentencepiece

    stored = io.BytesIO()
    try:
        options |= {"vocab_size": size, "character_coverage": coverage, "hard_vocab_limit": False}
        options |= {"model_type": model_type, "normalization_rule_name": "identity", "num_threads": 1, "minloglevel": 2}
        options |= {"input_sentence_size": 1_000_000, "shuffle_input_sentence": True}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text), model_writer=stored, **options)
    except RuntimeError as error:
        raise DataError(f"sentencepiece cannot learn {size} units", str(error), "change encode.vocab_size") from error
    model.write_bytes(stored.getvalue())


def opened(model: Path) -> Any:
    """The sentencepiece processor of a model's file."""
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_proto=model.read_bytes())
