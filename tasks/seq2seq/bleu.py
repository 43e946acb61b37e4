"""BLEU by sacrebleu: of detokenised text, and of tokenised text as multi-bleu.perl computes it. In per cent.

Every corpus score comes with its per-sentence values under "sentence": the difference of two systems can be tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

References = Sequence[Sequence[str]]  # [sentences][references of that sentence]


def bleu(hyps: Sequence[str], refs_list: References | Sequence[str], lowercase: bool = False) -> dict[str, Any]:
    """sacreBLEU corpus BLEU on detokenised text (Post 2018).

    Args:
        hyps: one output per sentence.
        refs_list: the references of each sentence (one or more).

    Returns:
        bleu, signature, and `sentence`: [n, 10] float64 sufficient statistics (4 n-gram hits, 4 n-gram totals,
        output length, reference length), whose sums give the BLEU of any subset.
    """
    from sacrebleu.metrics import BLEU

    references = reference_lists(hyps, refs_list)
    metric = BLEU(lowercase=lowercase)
    score = metric.corpus_score(list(hyps), _streams(references))
    single = BLEU(lowercase=lowercase, effective_order=True)
    rows = [single.sentence_score(hyp, list(refs)) for hyp, refs in zip(hyps, references, strict=True)]
    statistics = np.array([[*r.counts, *r.totals, r.sys_len, r.ref_len] for r in rows], dtype=np.float64)
    return {"bleu": score.score, "signature": metric.get_signature().format(), "sentence": statistics.reshape(-1, 10)}


def multi_bleu(hyps_tok: Sequence[str], refs_tok: References | Sequence[str]) -> float:
    """BLEU of tokenised text as multi-bleu.perl computes it: no tokenisation, no smoothing, closest reference length.

    Args:
        hyps_tok, refs_tok: words joined by spaces; the number depends on the tokeniser that made them.
    """
    from sacrebleu.metrics import BLEU

    references = reference_lists(hyps_tok, refs_tok)
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return metric.corpus_score(list(hyps_tok), _streams(references)).score


def reference_lists(hyps: Sequence[str], refs: References | Sequence[str]) -> list[tuple[str, ...]]:
    """The references of each sentence. Raises ValueError when one has none, or outputs are missing."""
    if len(hyps) != len(refs):
        raise ValueError(f"{len(hyps)} outputs and references for {len(refs)} sentences; the numbers must agree")
    lists = [(ref,) if isinstance(ref, str) else tuple(ref) for ref in refs]
    for i, options in enumerate(lists):
        if not options:
            raise ValueError(f"sentence {i} has no reference; each needs one or more")
    return lists


def _streams(references: list[tuple[str, ...]]) -> list[list[str | None]]:
    """Sentences x references turned into sacrebleu's references x sentences; None where a sentence has fewer."""
    most = max(map(len, references), default=1)
    return [[options[k] if k < len(options) else None for options in references] for k in range(most)]
