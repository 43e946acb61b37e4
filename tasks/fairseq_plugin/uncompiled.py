"""Plain Python for the two compiled parts of fairseq used in training and generation, so that no compiler is needed.

fairseq is installed without its C++ and Cython extensions. This module replaces two of them, with the same results: the
batching of a corpus (`fairseq.data.data_utils_fast`) and fairseq's own BLEU (`libbleu`, the default scorer of
`fairseq-generate`).
"""

import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType

import numpy as np
import torch

from tasks.data.examples import batch_by_size_vec

BATCHES = "fairseq.data.data_utils_fast"


def install() -> None:
    """Install both replacements in fairseq. Idempotent."""
    from fairseq.scoring import bleu

    fast = ModuleType(BATCHES, __doc__)
    fast.batch_by_size_vec, fast.batch_by_size_fn = batch_by_size_vec, batch_by_size_fn  # type: ignore[attr-defined]
    fast.batch_fixed_shapes_fast = None  # type: ignore[attr-defined]  # for TPUs
    sys.modules[BATCHES] = fast
    bleu.Scorer.__init__, bleu.Scorer.reset, bleu.Scorer.add = _bleu_init, _bleu_reset, _bleu_add


def batch_by_size_fn(
    indices: np.ndarray, num_tokens_fn: Callable[[int], int], max_tokens: int, max_sentences: int, bsz_mult: int
) -> list[np.ndarray]:
    """Like `batch_by_size_vec`, with a function that gives the length of an example from its index."""
    lengths = np.fromiter((num_tokens_fn(i) for i in indices), dtype=np.int64, count=len(indices))
    return batch_by_size_vec(indices, lengths, max_tokens, max_sentences, bsz_mult)


def _bleu_init(self, cfg) -> None:
    from fairseq.scoring.bleu import BleuStat

    self.stat = BleuStat()
    self.pad, self.eos, self.unk = cfg.pad, cfg.eos, cfg.unk


def _bleu_reset(self, one_init: bool = False) -> None:
    """Reset all counts to 0; with `one_init`, those of orders 2 to 4 to 1 (smoothing)."""
    self.stat = type(self.stat)(*([0, 0] + [0, 0] + [int(one_init)] * 6))


def _bleu_add(self, ref: torch.Tensor, pred: torch.Tensor) -> None:
    """Add the counts of a sentence pair, `[n]` int32 each; an unknown word in the reference matches nothing."""
    for name, ids in (("ref", ref), ("pred", pred)):
        if not isinstance(ids, torch.IntTensor):
            raise TypeError(f"{name} must be a torch.IntTensor (got {type(ids)})")
    wanted, given = (_trim(ids.reshape(-1).tolist(), self.pad, self.eos) for ids in (ref, pred))
    wanted = [-999 if i == self.unk else i for i in wanted]
    self.stat.reflen += len(wanted)
    self.stat.predlen += len(given)
    for n in range(1, 5):
        there, here = _ngrams(wanted, n), _ngrams(given, n)
        for name, count in ((f"count{n}", here.total()), (f"match{n}", (there & here).total())):
            setattr(self.stat, name, getattr(self.stat, name) + count)


def _trim(ids: list[int], pad: int, eos: int) -> list[int]:
    """Strip leading padding, and trailing padding and end symbols; the first remaining symbol is always kept."""
    start = next((i for i, symbol in enumerate(ids) if symbol != pad), len(ids))
    ids = ids[start:]
    while len(ids) > 1 and ids[-1] in (pad, eos):
        ids.pop()
    return ids


def _ngrams(ids: list[int], n: int) -> Counter[tuple[int, ...]]:
    return Counter(tuple(ids[i : i + n]) for i in range(len(ids) - n + 1))
