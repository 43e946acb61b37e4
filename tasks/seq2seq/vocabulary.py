"""Subword units and vocabularies.

Units are byte-pair encoding (subword-nmt, Sennrich et al. 2016) or unigram pieces (sentencepiece). A vocabulary is words by frequency, in
files that fairseq reads as its dictionaries ("word count" on each line). Ids are fairseq's: the special symbols of `tasks.data.symbols`, then the
words. A text's own "<unk>" is the unknown word, as in OpenNMT; its other special symbols are unknown words too.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tasks.data.errors import DataError
from tasks.data.symbols import FIRST, SPECIAL

PIECE_SPACE = "\u2581"  # sentencepiece's mark of a word start


def learn_subwords(kind: str, files: list[Path], size: int, model: Path) -> Callable[[list[str]], list[str]]:
    """Learn about `size` units from files of space-separated words, save the model, return words -> units.

    Args:
        kind: "bpe" (units end in @@ inside a word) or "sentencepiece" (units start with a mark at a word start).
        files: training text, one sentence a line.
        size: symbols wanted, characters included; small corpora may yield fewer.
        model: where to save the model, without suffix.

    Raises:
        DataError: `size` is below the number of characters in the text.
    """
    return _learn_bpe(files, size, model) if kind == "bpe" else _learn_pieces(files, size, model)


def load_subwords(kind: str, model: Path) -> Callable[[list[str]], list[str]]:
    """Words -> units by the model that `learn_subwords` saved at `model`."""
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
    """Words of a list of units."""
    if kind == "bpe":
        # an output may end inside a word, which leaves a mark without a continuation
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

    # characters come in two forms, inside a word and at its end; the rest of `size` is merges
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
    with contextlib.redirect_stderr(io.StringIO()):  # it draws a bar of its own
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
    """(word, count) of the `size` (None: all) most frequent words, `min_count` times or more; ties by spelling."""
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
