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
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from tasks.data.errors import DataError
from tasks.data.symbols import SPECIAL
from tasks.seq2seq.options import Encode

SIDES = ("source", "target")
SUFFIX = {"bpe": "bpe", "sentencepiece": "spm"}  # of a subword model's file
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

    Args:
        options: `vocab_size` is the desired number of symbols, characters included; small corpora may yield fewer.
        words: side -> file of space-separated training words, one sentence per line.

    Raises:
        DataError: the size is below the number of characters in the text.
    """
    models = _models(options, folder)
    for model in dict.fromkeys(models.values()):
        files = [words[side] for side in SIDES if models[side] == model]
        (_learn_bpe if options.subword == "bpe" else _learn_pieces)(files, options.vocab_size or 0, model)


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
        raise DataError(
            f"vocab_size={size} is too small for BPE", f"{len(inside) + len(final)} characters in the text", "raise it"
        )
    codes = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):  # it draws its own progress bar
        learn_bpe(chain.from_iterable(map(lines, files)), codes, merges)
    model.write_text(codes.getvalue(), encoding="utf-8")


def _learn_pieces(files: list[Path], size: int, model: Path) -> None:
    import sentencepiece

    stored = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=chain.from_iterable(map(lines, files)),
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
    model.write_bytes(stored.getvalue())


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
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model.read_bytes())
    return lambda tokens: processor.encode(" ".join(tokens), out_type=str)


def join_subwords(tokens: list[str], kind: str) -> list[str]:
    """Join a list of units into words."""
    if kind == "bpe":
        # an output may end inside a word, so that its last unit has a mark but no continuation
        return (" ".join(tokens) + " ").replace("@@ ", "").split()
    if kind == "sentencepiece":
        return "".join(tokens).replace(PIECE_SPACE, " ").split()
    return tokens


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
