"""Measures repeated and dropped words in outputs (Malaviya et al. 2018), if task.scores contains `repetition`.

REP-score: sum over sentences of

    sum_{bigrams s, t(s) >= 2} max(0, t(s) - r(s)) + 2 sum_{words w} max(0, t(ww) - r(ww))

where t(s) and r(s) count how often s occurs in the output and in the reference. The sum is multiplied by 100 and
divided by the number of words of all references.

DROP-score: of the source words that are aligned to a word of the reference, the percentage that is not aligned to any
word of the output. The alignments come from `tasks.seq2seq.aligner`, trained on the training pairs.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tasks.seq2seq.aligner import Aligner
from tasks.seq2seq.encode import Encoded
from tasks.seq2seq.search import Hypothesis
from tasks.seq2seq.tokenize import join_subwords

LONGEST_LOOP = 4  # words


def rep_score(outputs: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
    """REP-score of rows of words, one row per sentence."""
    total = 0
    for said, wanted in zip(outputs, references, strict=True):
        t, r = (Counter(pairwise(row)) for row in (said, wanted))
        total += sum(max(0, n - r[s]) for s, n in t.items() if n >= 2)
        total += 2 * sum(max(0, n - r[s]) for s, n in t.items() if s[0] == s[1])
    return 100 * total / max(sum(map(len, references)), 1)


def drop_score(aligner: Aligner, source: Sequence, reference: Sequence, output: Sequence) -> float:
    """Of the source words aligned with the reference, the share (in %) not aligned with the output; 0 if there are none. Rows of ids."""
    wanted, found = (aligner.align(source, side) for side in (reference, output))
    due = [{s for s, _ in row} for row in wanted]
    dropped = sum(len(one - {s for s, _ in row}) for one, row in zip(due, found))
    return 100 * dropped / max(sum(map(len, due)), 1)


def loops(outputs: Sequence[Sequence[str]]) -> float:
    """Words, per thousand, that complete an immediate repetition of a sequence of 1 to LONGEST_LOOP words."""
    ends = sum(
        any(i >= 2 * n and list(row[i - n : i]) == list(row[i - 2 * n : i - n]) for n in range(1, LONGEST_LOOP + 1))
        for row in outputs
        for i in range(2, len(row) + 1)
    )
    return 1000 * ends / max(sum(map(len, outputs)), 1)


def repetition(test: Encoded, hypotheses: Sequence[Hypothesis], aligner: Aligner) -> dict[str, float]:
    """The metrics rep_score, drop_score, source_coverage and loops of a test set's outputs."""
    split, unit = test.splits["test"], test.options.subword
    said = [join_subwords(list(h.tokens), unit) for h in hypotheses]
    wanted = [join_subwords(split.target_tokens[h.index], unit) for h in hypotheses]
    ids = [np.array(h.ids[:-1], dtype=np.int64) for h in hypotheses]
    rows, references = ([side[h.index] for h in hypotheses] for side in (split.source, split.target))
    received = np.concatenate([h.attention.sum(0).clamp(max=1).numpy() for h in hypotheses])
    scores = {"rep_score": rep_score(said, wanted), "drop_score": drop_score(aligner, rows, references, ids)}
    return scores | {"source_coverage": float(received.mean()), "loops": loops(said)}
