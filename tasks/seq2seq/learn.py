"""Learns an encoding from the training pairs: subwords, then a vocabulary of the resulting tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tasks.data.errors import DataError
from tasks.data.parallel import batches, chosen, mapped, ranges
from tasks.data.progress import Progress
from tasks.data.records import Pair
from tasks.seq2seq.options import Encode
from tasks.seq2seq.tokenize import tokenizer
from tasks.seq2seq.vocabulary import SIDES, learn_subwords, load_subwords, ranked

Segment = Callable[[list[str]], list[str]]


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
    _tokenize(pairs, options, languages, words, progress, workers)
    _learn_subwords(options, words, folder, progress)
    kept, counts = _segment(options, words, subwords(options, folder), units, progress, workers)
    if not kept:
        limits = f"max_source_tokens={options.max_source_tokens}, max_target_tokens={options.max_target_tokens}"
        raise DataError("no training pair is short enough", limits, "raise these limits")
    if options.joint:
        counts = dict.fromkeys(SIDES, counts["source"] + counts["target"])
    # a subword model already fixes the number of units; truncating the list again would lose characters
    size = options.vocab_size if options.subword == "none" else None
    return kept, units, {side: ranked(counts[side], size, options.min_count) for side in SIDES}


def subwords(options: Encode, folder: Path) -> dict[str, Segment]:
    """For each side, the function words -> tokens that applies the subword model in `folder`."""
    if options.subword == "none":
        return dict.fromkeys(SIDES, lambda words: words)
    return {side: load_subwords(options.subword, model) for side, model in _models(options, folder).items()}


def fits(tokens: Mapping[str, Sequence[str]], options: Encode) -> bool:
    """Whether each side has at least one token and no more tokens than the options allow."""
    limits = {"source": options.max_source_tokens, "target": options.max_target_tokens}
    return all(tokens[side] and len(tokens[side]) <= (limits[side] or len(tokens[side])) for side in SIDES)


def lines(path: Path) -> Iterator[str]:
    """The lines of a file, without the line endings."""
    with open(path, encoding="utf-8", newline="\n") as stream:
        for line in stream:
            yield line[:-1]


def _tokenize(
    pairs: Sequence[Pair],
    options: Encode,
    languages: Mapping[str, str | None],
    words: Mapping[str, Path],
    progress: Progress,
    workers: int,
) -> None:
    """Write the words of the training pairs, one line per pair."""
    cut = {side: tokenizer(options.tokenizer, languages[side]) for side in SIDES}

    def tokenized(part: range) -> tuple[str, str]:
        found = [(cut["source"](p.source), cut["target"](p.references[0])) for p in chosen(pairs, part)]
        source, target = ("".join(" ".join(row[side]) + "\n" for row in found) for side in (0, 1))
        return source, target

    with (
        open(words["source"], "w", encoding="utf-8", errors="replace", newline="\n") as source,
        open(words["target"], "w", encoding="utf-8", errors="replace", newline="\n") as target,
        progress.bar(len(pairs), "tokenising train") as bar,
    ):
        for texts in mapped(tokenized, ranges(len(pairs)), workers):
            source.write(texts[0])
            target.write(texts[1])
            bar.advance(texts[0].count("\n"))


def _models(options: Encode, folder: Path) -> dict[str, Path]:
    """For each side, the path of its subword model, without suffix."""
    return {side: folder / f"subwords.{'joint' if options.joint else side}" for side in SIDES}


def _learn_subwords(options: Encode, words: Mapping[str, Path], folder: Path, progress: Progress) -> None:
    """Learn the subword models from the training words and save them."""
    if options.subword == "none":
        return
    progress.say(f"learning {options.vocab_size:,} {options.subword} units")
    models = _models(options, folder)
    for model in dict.fromkeys(models.values()):
        files = [words[side] for side in SIDES if models[side] == model]
        learn_subwords(options.subword, files, options.vocab_size, model)


def _segment(
    options: Encode,
    words: Mapping[str, Path],
    subwords: Mapping[str, Callable],
    units: Mapping[str, Path],
    progress: Progress,
    workers: int,
) -> tuple[int, dict[str, Counter]]:
    """Write the tokens of the training pairs within the limits; returns the number of pairs and the token counts."""
    kept, counts = 0, {side: Counter() for side in SIDES}

    def segmented(batch: list[tuple[str, ...]]) -> tuple[int, int, dict[str, str], dict[str, Counter]]:
        cut = ({side: subwords[side](line.split()) for side, line in zip(SIDES, row)} for row in batch)
        fitting = [tokens for tokens in cut if fits(tokens, options)]
        texts = {side: "".join(" ".join(tokens[side]) + "\n" for tokens in fitting) for side in SIDES}
        found = {side: Counter(token for tokens in fitting for token in tokens[side]) for side in SIDES}
        return len(batch), len(fitting), texts, found

    with (
        open(units["source"], "w", encoding="utf-8", newline="\n") as source,
        open(units["target"], "w", encoding="utf-8", newline="\n") as target,
        progress.bar(None, "segmenting train") as bar,
    ):
        out = {"source": source, "target": target}
        rows = zip(*(lines(words[side]) for side in SIDES), strict=True)
        for read, fitting, texts, found in mapped(segmented, batches(rows), workers):
            bar.advance(read)
            kept += fitting
            for side in SIDES:
                counts[side].update(found[side])
                out[side].write(texts[side])
    return kept, counts
