"""Subword units and vocabularies, and how they are learned from the training pairs.

Units come from byte-pair encoding (subword-nmt, Sennrich et al. 2016) or are pieces of sentencepiece. A
vocabulary lists words by frequency, in files that fairseq can read as dictionaries ("word count" on each line). Ids are
the same as in fairseq: first the special symbols of `tasks.data.symbols`, then the words. If a text contains "<unk>",
it is read as the unknown word, as in OpenNMT; other special symbols in a text are read as unknown words too.
"""

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from tasks.data import DataError, Progress
from tasks.data.pieces import fitted, learn_pieces, opened, too_small
from tasks.data.records import Pair
from tasks.data.symbols import SPECIAL, frequent
from tasks.seq2seq.options import Encode
from tasks.seq2seq.tokenize import tokenizer

SIDES = ("source", "target")
SUFFIX = {"bpe": "bpe", "sentencepiece": "spm"}  # suffix of a subword model's file
BYTES = 256
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
            size, coverage = fitted(text(), options.vocab_size, BYTES)
            # unigram pieces are strings that several words share: of few words, they are hardly more than characters
            kind = "bpe" if len({word for line in text() for word in line.split()}) < size / 2 else "unigram"
            learn_pieces(text(), size, coverage, model, byte_fallback=True, model_type=kind)
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


def unused(options: Encode, folder: Path, side: str, known: Iterable[str]) -> list[tuple[str, int]]:
    """(unit, 0) of the units of raw text that occur in no training text but may occur in others."""
    if options.tokenizer != "raw":
        return []
    model = opened(_models(options, folder)[side])
    pieces = (model.id_to_piece(i) for i in range(3, model.get_piece_size()))
    return [(piece, 0) for piece in sorted({*pieces} - {*known})]


def learn(
    pairs: Sequence[Pair],
    options: Encode,
    languages: Mapping[str, str | None],
    folder: Path,
    work: Path,
    progress: Progress,
) -> tuple[int, dict[str, Path], dict[str, list[tuple[str, int]]]]:
    """Save the subword models in `folder`, and the tokens of all pairs within the length limits in `work`.

    Returns:
        the number of pairs within the limits; side -> file of their tokens, one pair per line; side -> (token, count)
        sorted by frequency.

    Raises:
        DataError: no pair is within the limits, or the subwords cannot be learned.
    """
    words, units = ({side: work / f"{side}.{what}" for side in SIDES} for what in ("words", "units"))
    split = [tokenizer(options.tokenizer, languages[side]) for side in SIDES]
    texts = ((p.source, p.references[0]) for p in progress.over(pairs, "tokenising train"))
    _write(words, ([" ".join(cut(text)) for cut, text in zip(split, row)] for row in texts))
    if options.subword != "none":
        size = f"{options.vocab_size:,} " if options.vocab_size else ""
        progress.step(f"learning {size}{options.subword} units")
        learn_subwords(options, words, folder)
    segment, counts = list(subwords(options, folder).values()), [Counter[str]() for _ in SIDES]

    def segmented() -> Iterator[list[str]]:
        read = zip(*(lines(words[side]) for side in SIDES), strict=True)
        for row in progress.over(read, "segmenting train"):
            tokens = [cut(line.split()) for cut, line in zip(segment, row)]
            if fits(tokens, options):
                made = list(map(" ".join, tokens))
                for count, line in zip(counts, made):
                    count.update(line.split())
                yield made

    kept = _write(units, segmented())
    if not kept:
        limits = f"max_source_tokens={options.max_source_tokens}, max_target_tokens={options.max_target_tokens}"
        raise DataError("no training pair is short enough", limits, "raise these limits")
    if options.joint:
        counts = [counts[0] + counts[1]] * 2
    counted = [{word: n for word, n in count.items() if word not in SPECIAL} for count in counts]
    # a subword model already fixes the number of units; truncating the list again would lose characters
    size = options.vocab_size if options.subword == "none" else None
    ranked = [[(word, count[word]) for word in frequent(count, options.min_count, size)] for count in counted]
    return kept, units, {k: own + unused(options, folder, k, dict(own)) for k, own in zip(SIDES, ranked)}


def fits(tokens: Sequence[Sequence[str]], options: Encode) -> bool:
    """Whether each side has at least one token and no more tokens than the options allow."""
    limits = options.max_source_tokens, options.max_target_tokens
    return all(side and len(side) <= (limit or len(side)) for side, limit in zip(tokens, limits))


def _write(files: Mapping[str, Path], rows: Iterable[Sequence[str]]) -> int:
    """Write each side of the rows to its file, one line per row; returns the number of rows."""
    n = 0
    with ExitStack() as stack:
        how = {"encoding": "utf-8", "errors": "replace", "newline": "\n"}
        streams = [stack.enter_context(open(files[side], "w", **how)) for side in SIDES]
        for row in rows:
            n += 1
            for stream, line in zip(streams, row):
                stream.write(line + "\n")
    return n
