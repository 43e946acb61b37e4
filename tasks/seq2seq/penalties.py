"""Scores of outputs that have ended, after Wu et al. 2016 (GNMT): score = log p / lp + coverage_penalty * cp.

    lp = ((5 + T) / 6) ** len_penalty          with decode.length=wu; T tokens, end of sentence included
    cp = sum_i log min(max(sum_t p_ti, .1), 1)    over source words; .1 as in the code of Malaviya et al. 2018

As in OpenNMT, the search itself goes by log p; what has ended is ranked by these scores. A penalty has the more to choose from
the more outputs end: decode.stop=all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tasks.seq2seq.options import Decode
from tasks.seq2seq.search import Hypothesis

LEAST = 0.1  # attention of a source word that counts at least


def ranks_again(options: Decode) -> bool:
    """Whether outputs are ranked by other scores than the search's."""
    return options.length == "wu" or options.coverage_penalty != 0


def ranked(results: Sequence[Hypothesis], options: Decode) -> list[Hypothesis]:
    """The results of a source with the scores above, best first; as they are where no penalty is asked for."""
    if not ranks_again(options):
        return list(results)
    return sorted((replace(h, score=score(h, options)) for h in results), key=lambda h: -h.score)


def score(h: Hypothesis, options: Decode) -> float:
    """Of an output whose `score` is the search's."""
    divisor = ((5 + len(h.ids)) / 6) ** options.len_penalty if options.length == "wu" else 1.0
    coverage = float(h.attention.sum(0).clamp(LEAST, 1.0).log().sum())
    return h.score / divisor + options.coverage_penalty * coverage
