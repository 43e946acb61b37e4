"""Decoding by beam search in batches of similar length; unknown words are replaced by the most attended source word."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from tasks.data.examples import padded
from tasks.data.symbols import FIRST, SPECIAL, UNK
from tasks.seq2seq.encode import Encoded
from tasks.seq2seq.options import Decode
from tasks.seq2seq.search import Hypothesis, beam_search, ranked, ranks_again


def decode(
    model: nn.Module,
    encoded: Encoded,
    options: Decode,
    done: Callable[[int, int], None] = lambda i, n: None,
    inputs: Mapping[str, Sequence[np.ndarray]] | None = None,
    most: int = 1,
    split: str = "test",
    share: slice = slice(None),
) -> list[list[Hypothesis]]:
    """Up to `most` outputs for each source of a split, best first, in the order of the sources.

    Args:
        model: a `tasks.seq2seq.search.Searchable`; it is put into evaluation mode.
        encoded: an encoding with the split.
        done: called with the number of sentences decoded so far and the total number.
        inputs: further inputs of the model's `encode`: name -> one row of numbers per source.
        share: the sources to decode; by default all.
    """
    part, device = encoded.splits[split], next(model.parameters()).device
    rows, chosen = part.source, range(len(part.source))[share]
    model.eval()
    found: dict[int, list[Hypothesis]] = {}
    order = sorted(chosen, key=lambda i: -len(rows[i]))
    for start in range(0, len(order), options.batch_size):
        batch = order[start : start + options.batch_size]
        src_tokens, src_lengths = padded([rows[i] for i in batch])
        given = {name: padded([side[i] for i in batch])[0].to(device) for name, side in (inputs or {}).items()}
        enough = None if ranks_again(options) else most
        found_here = beam_search(model, src_tokens.to(device), src_lengths, options, enough, **given)
        for i, results in zip(batch, found_here):
            copied = part.source_tokens(i) if options.replace_unk else None
            best = ranked(results, options)[:most]
            found[i] = [replace(h, index=i, tokens=surface(h, encoded.target_vocab, copied)) for h in best]
        done(start + len(batch), len(order))
    return [found[i] for i in chosen]


def surface(hypothesis: Hypothesis, vocabulary: Sequence[str], source: Sequence[str] | None) -> list[str]:
    """Tokens of an output, without the end of sentence.

    If `source` is given, an unknown word is replaced by the source token with the largest attention.
    """
    tokens = []
    for i, weights in zip(hypothesis.ids[:-1], hypothesis.attention):
        if i == UNK and source is not None:
            tokens.append(source[int(weights.argmax())])
        else:
            tokens.append(vocabulary[i - FIRST] if i >= FIRST else SPECIAL[i])
    return tokens
