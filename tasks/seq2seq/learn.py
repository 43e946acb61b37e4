"""Learns an encoding from the training pairs: subwords, then a vocabulary of the resulting tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tasks.data.errors import DataError
from tasks.data.parallel import batches, mapped, ranges
from tasks.data.progress import Progress
from tasks.data.records import Pair
from tasks.seq2seq.options import Encode
from tasks.seq2seq.tokenize import tokenizer
from tasks.seq2seq.vocabulary import SIDES, learn_subwords, lines, ranked, subwords, unused

Rows = list[tuple[str, ...]]  # for some pairs, the tokens of both sides joined by spaces


def learn(
    pairs: Sequence[Pair],
    options: Encode,
    languages: Mapping[str, str | None],
    folder: Path,
    work: Path,
    progress: Progress,
    workers: int = 1,
) -> tuple[int, dict[str, Path], dict[str, list[tuple[str, int]]]]:
    """Save the subword models in `folder`, and the tokens of all pairs within the length limits in `work`.

    Args:
        workers: number of processes.

    Returns:
        the number of pairs within the limits; side -> file of their tokens, one pair per line; side -> (token, count)
        sorted by frequency.

    Raises:
        DataError: no pair is within the limits, or the subwords cannot be learned.
    """
    words, units = ({side: work / f"{side}.{what}" for side in SIDES} for what in ("words", "units"))
    split = [tokenizer(options.tokenizer, languages[side]) for side in SIDES]

    def tokenized(part: range) -> Rows:
        return [
            (" ".join(split[0](p.source)), " ".join(split[1](p.references[0]))) for p in pairs[part.start : part.stop]
        ]

    with progress.bar(len(pairs), "tokenising train") as bar:
        for rows in _written(words, mapped(tokenized, ranges(len(pairs)), workers)):
            bar.advance(len(rows))
    if options.subword != "none":
        progress.say(
            f"learning {format(options.vocab_size, ',') + ' ' if options.vocab_size else ''}{options.subword} units"
        )
        learn_subwords(options, words, folder)
    cut = list(subwords(options, folder).values())

    def segmented(batch: list[tuple[str, ...]]) -> Rows:
        rows = ([unit(line.split()) for unit, line in zip(cut, row)] for row in batch)
        return [tuple(map(" ".join, row)) for row in rows if fits(row, options)]

    kept, counts = 0, [Counter[str]() for _ in SIDES]
    with progress.bar(None, "segmenting train") as bar:
        read = zip(*(lines(words[side]) for side in SIDES), strict=True)
        for rows in _written(units, mapped(segmented, batches(read), workers)):
            bar.advance(len(rows))
            kept += len(rows)
            for count, side in zip(counts, zip(*rows)):
                for line in side:
                    count.update(line.split())
    if not kept:
        limits = f"max_source_tokens={options.max_source_tokens}, max_target_tokens={options.max_target_tokens}"
        raise DataError("no training pair is short enough", limits, "raise these limits")
    if options.joint:
        counts = [counts[0] + counts[1]] * 2
    # a subword model already fixes the number of units; truncating the list again would lose characters
    size = options.vocab_size if options.subword == "none" else None
    found = {side: ranked(count, size, options.min_count) for side, count in zip(SIDES, counts)}
    return kept, units, {side: own + unused(options, folder, side, dict(own)) for side, own in found.items()}


def fits(tokens: Sequence[Sequence[str]], options: Encode) -> bool:
    """Whether each side has at least one token and no more tokens than the options allow."""
    limits = options.max_source_tokens, options.max_target_tokens
    return all(side and len(side) <= (limit or len(side)) for side, limit in zip(tokens, limits))


def _written(files: Mapping[str, Path], batches: Iterable[Rows]) -> Iterator[Rows]:
    """Write each side of the rows to its file, one line per row, and pass the rows on."""
    with ExitStack() as stack:
        streams = [
            stack.enter_context(open(files[side], "w", encoding="utf-8", errors="replace", newline="\n"))
            for side in SIDES
        ]
        for rows in batches:
            for stream, side in zip(streams, zip(*rows)):
                stream.writelines(line + "\n" for line in side)
            yield rows
