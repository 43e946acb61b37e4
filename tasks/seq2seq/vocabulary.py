"""Subword units and vocabularies.

Units come from byte-pair encoding (subword-nmt, Sennrich et al. 2016) or are unigram pieces (sentencepiece). A
vocabulary lists words by frequency, in files that fairseq can read as dictionaries ("word count" on each line). Ids are
the same as in fairseq: first the special symbols of `tasks.data.symbols`, then the words. If a text contains "<unk>",
it is read as the unknown word, as in OpenNMT; other special symbols in a text are read as unknown words too.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from tasks.data.pieces import fitted, learn_pieces, opened, too_small
from tasks.data.symbols import SPECIAL
from tasks.seq2seq.options import Encode

SIDES = ("source", "target")
SUFFIX = {"bpe": "bpe", "sentencepiece": "spm"}  # suffix of a subword model's file
BYTE = re.compile("<0x([0-9A-F]{2})>")  # a unit of tokenizer=raw: a byte of a character that is not a unit itself
BYTES = 256
PIECE_SPACE = "\u2581"  # sentencepiece's mark for the start of a word
Segment = Callable[[list[str]], list[str]]


def lines(path: Path) -> Iterator[str]:
    """The lines of a file, without the line endings."""
    with open(path, encoding="utf-8", newline="\n") as stream:
        for line in stream:
            yield line[:-1]


def _models(options: Encode, folder: Path) -> dict[str, Path]:
    """For each side, the file of its subword model."""
    names = dict.fromkeys(SIDES, "joint") if options.joint else dict(zip(SIDES, SIDES))
    return {side: folder / f"subwords.{name}.{SUFFIX[options.subword]}" for side, name in names.items()}


def learn_subwords(options: Encode, words: Mapping[str, Path], folder: Path) -> None:
    """Learn the subword models that `options` ask for and save them in `folder`.

    In BPE, a unit that does not end its word ends in @@. A sentencepiece unit that starts a word starts with a mark.
    In raw text (`tokenizer=raw`), rare characters are split into bytes, so every text can be encoded.

    Args:
        options: `vocab_size` is the desired number of symbols, characters included; small corpora may yield fewer.
        words: side -> file of space-separated training words, one sentence per line.

    Raises:
        DataError: the size is too small for the number of characters in the text.
    """
    models = _models(options, folder)
    for model in dict.fromkeys(models.values()):
        files = [words[side] for side in SIDES if models[side] == model]

        def text(files: list[Path] = files) -> Iterator[str]:
            return chain.from_iterable(map(lines, files))

        if options.subword == "bpe":
            _learn_bpe(files, options.vocab_size or 0, model)
        elif options.tokenizer == "raw":
            learn_pieces(text(), *fitted(text(), options.vocab_size, BYTES), model, byte_fallback=True)
        else:
            learn_pieces(text(), options.vocab_size or 0, 1.0, model)


def _learn_bpe(files: list[Path], size: int, model: Path) -> None:
    from subword_nmt.learn_bpe import learn_bpe

    # each character has two forms, inside a word and at its end; the rest of `size` are merges
    inside: set[str] = set()
    final: set[str] = set()
    for line in chain.from_iterable(map(lines, files)):
        for word in line.split():
            inside.update(word[:-1])
            final.add(word[-1])
    merges = size - len(inside) - len(final)
    if merges < 1:
        raise too_small(size, f"BPE of a text with {len(inside) + len(final):,} forms of characters", size - merges + 1)
    codes = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):  # it draws its own progress bar
        learn_bpe(chain.from_iterable(map(lines, files)), codes, merges)
    model.write_text(codes.getvalue(), encoding="utf-8")


def subwords(options: Encode, folder: Path) -> dict[str, Segment]:
    """For each side, the function words -> tokens that applies the subword model in `folder`."""
    if options.subword == "none":
        return dict.fromkeys(SIDES, lambda words: words)
    return {side: _segment(options.subword, model) for side, model in _models(options, folder).items()}


def _segment(kind: str, model: Path) -> Segment:
    if kind == "bpe":
        from subword_nmt.apply_bpe import BPE

        with open(model, encoding="utf-8") as codes:
            return BPE(codes).segment_tokens
    processor = opened(model)
    return lambda tokens: processor.encode(" ".join(tokens), out_type=str)


def join_subwords(tokens: list[str], kind: str) -> list[str]:
    """Join a list of units into words."""
    if kind == "bpe":
        # an output may end inside a word, so that its last unit has a mark but no continuation
        return (" ".join(tokens) + " ").replace("@@ ", "").split()
    if kind == "sentencepiece":
        if any(map(BYTE.fullmatch, tokens)):
            parts = (
                bytes([int(m[1], 16)]) if (m := BYTE.fullmatch(t)) else t.encode("utf-8", "replace") for t in tokens
            )
            tokens = [b"".join(parts).decode("utf-8", "replace")]
        return "".join(tokens).replace(PIECE_SPACE, " ").split()
    return tokens


def unused(options: Encode, folder: Path, side: str, known: Iterable[str]) -> list[tuple[str, int]]:
    """(unit, 0) of the units of raw text that occur in no training text but may occur in others."""
    if options.tokenizer != "raw":
        return []
    model = opened(_models(options, folder)[side])
    pieces = (model.id_to_piece(i) for i in range(3, model.get_piece_size()))
    return [(piece, 0) for piece in sorted({*pieces} - {*known})]


def ranked(counts: Counter, size: int | None, min_count: int) -> list[tuple[str, int]]:
    """(word, count) of the `size` most frequent words (all if None) that occur at least `min_count` times.

    Ties are broken alphabetically.
    """
    words = [(word, count) for word, count in counts.items() if count >= min_count and word not in SPECIAL]
    return sorted(words, key=lambda item: (-item[1], item[0]))[:size]
