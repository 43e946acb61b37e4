"""Subword units and vocabularies.

Units come from byte-pair encoding (subword-nmt, Sennrich et al. 2016) or are unigram pieces (sentencepiece). A
vocabulary lists words by frequency, in files that fairseq can read as dictionaries ("word count" on each line). Ids are
the same as in fairseq: first the special symbols of `tasks.data.symbols`, then the words. If a text contains "<unk>",
it is read as the unknown word, as in OpenNMT; other special symbols in a text are read as unknown words too.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tasks.data.errors import DataError
from tasks.data.symbols import FIRST, SPECIAL

PIECE_SPACE = "\u2581"  # sentencepiece's mark for the start of a word


def learn_subwords(kind: str, files: list[Path], size: int, model: Path) -> Callable[[list[str]], list[str]]:
    """Learn about `size` units from files of space-separated words and save the model.

    Args:
        kind: "bpe" (a unit that does not end its word ends in @@) or "sentencepiece" (a unit that starts a word starts
            with a mark).
        files: training text, one sentence per line.
        size: desired number of symbols, characters included; small corpora may yield fewer.
        model: path of the saved model, without suffix.

    Returns:
        the function words -> units.

    Raises:
        DataError: `size` is below the number of characters in the text.
    """
    return _learn_bpe(files, size, model) if kind == "bpe" else _learn_pieces(files, size, model)


def load_subwords(kind: str, model: Path) -> Callable[[list[str]], list[str]]:
    """The function words -> units of the model that `learn_subwords` saved at `model`."""
    if kind == "bpe":
        from subword_nmt.apply_bpe import BPE

        with open(_bpe_file(model), encoding="utf-8") as codes:
            return BPE(codes).segment_tokens
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=_piece_file(model).read_bytes())
    return lambda tokens: processor.encode(" ".join(tokens), out_type=str)


def _bpe_file(model: Path) -> Path:
    return model.with_name(model.name + ".bpe")


def _piece_file(model: Path) -> Path:
    return model.with_name(model.name + ".spm")


def join_subwords(tokens: list[str], kind: str) -> list[str]:
    """Join a list of units into words."""
    if kind == "bpe":
        # an output may end inside a word, so that its last unit has a mark but no continuation
        return (" ".join(tokens) + " ").replace("@@ ", "").split()
    if kind == "sentencepiece":
        return "".join(tokens).replace(PIECE_SPACE, " ").split()
    return tokens


def _text(files: list[Path]) -> Iterator[str]:
    for path in files:
        with open(path, encoding="utf-8", newline="\n") as stream:
            yield from stream


def _learn_bpe(files: list[Path], size: int, model: Path) -> Callable[[list[str]], list[str]]:
    from subword_nmt.learn_bpe import learn_bpe

    # each character has two forms, inside a word and at its end; the rest of `size` are merges
    inside: set[str] = set()
    final: set[str] = set()
    for line in _text(files):
        for word in line.split():
            inside.update(word[:-1])
            final.add(word[-1])
    merges = size - len(inside) - len(final)
    if merges < 1:
        raise DataError(
            f"vocab_size={size} is too small for BPE", f"{len(inside) + len(final)} characters in the text", "raise it"
        )
    codes = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):  # it draws its own progress bar
        learn_bpe(_text(files), codes, merges)
    _bpe_file(model).write_text(codes.getvalue(), encoding="utf-8")
    return load_subwords("bpe", model)


def _learn_pieces(files: list[Path], size: int, model: Path) -> Callable[[list[str]], list[str]]:
    import sentencepiece

    stored = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line.rstrip("\n") for line in _text(files)),
            model_writer=stored,
            vocab_size=size,
            model_type="unigram",
            character_coverage=1.0,
            hard_vocab_limit=False,
            normalization_rule_name="identity",
            input_sentence_size=1_000_000,
            shuffle_input_sentence=True,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise DataError(f"sentencepiece cannot learn {size} units", str(error), "change vocab_size") from error
    _piece_file(model).write_bytes(stored.getvalue())
    return load_subwords("sentencepiece", model)


SIDES = ("source", "target")


def ranked(counts: Counter, size: int | None, min_count: int) -> list[tuple[str, int]]:
    """(word, count) of the `size` most frequent words (all if None) that occur at least `min_count` times.

    Ties are broken alphabetically.
    """
    words = [(word, count) for word, count in counts.items() if count >= min_count and word not in SPECIAL]
    return sorted(words, key=lambda item: (-item[1], item[0]))[:size]


def write_dictionary(path: Path, words: list[tuple[str, int]]) -> None:
    """Write a dict.txt."""
    path.write_text("".join(f"{word} {count}\n" for word, count in words), encoding="utf-8", newline="\n")


def read_dictionary(path: Path) -> list[str]:
    """The words of a dict.txt; the first has id 4."""
    return [line.rsplit(" ", 1)[0] for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def ids(words: list[str]) -> dict[str, int]:
    """Word -> id."""
    return {word: i for i, word in enumerate(words, FIRST)}
