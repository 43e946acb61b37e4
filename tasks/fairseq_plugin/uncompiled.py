"""Plain Python for the two compiled parts of fairseq that training and generating use, so that no compiler is needed.

fairseq is installed without its C++ and Cython extensions. Cutting a corpus into batches (`fairseq.data.data_utils_fast`) and
fairseq's own BLEU (`libbleu`, the default scorer of `fairseq-generate`) are done here instead, with the same results.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType

import numpy as np
import torch

BATCHES = "fairseq.data.data_utils_fast"


def install() -> None:
    """Put both in fairseq's place. Idempotent."""
    from fairseq.scoring import bleu

    fast = ModuleType(BATCHES, __doc__)
    fast.batch_by_size_vec, fast.batch_by_size_fn = batch_by_size_vec, batch_by_size_fn  # type: ignore[attr-defined]
    fast.batch_fixed_shapes_fast = batch_fixed_shapes  # type: ignore[attr-defined]
    sys.modules[BATCHES] = fast
    bleu.Scorer.__init__, bleu.Scorer.reset, bleu.Scorer.add = _bleu_init, _bleu_reset, _bleu_add


# ---- batches


def batch_by_size_vec(
    indices: np.ndarray, num_tokens_vec: np.ndarray, max_tokens: int, max_sentences: int, bsz_mult: int
) -> list[np.ndarray]:
    """Cut `indices`, in their order, into batches.

    A batch has at most `max_sentences` examples and `max_tokens` tokens, counted as examples times the longest one (a bound of 0
    or less does not bind); its size is below `bsz_mult` or a multiple of it, where the bounds allow.

    Args:
        indices, num_tokens_vec: `[N]` int64, examples and their lengths.
    Raises:
        AssertionError: an example alone exceeds `max_tokens`.
    """
    lengths = num_tokens_vec.tolist()
    assert max_tokens <= 0 or max(lengths, default=0) <= max_tokens, (
        f"the longest example has {max(lengths)} tokens; max_tokens is {max_tokens}"
    )
    ends: list[int] = []
    # the open batch is start:end; what follows it waits until the size of both together is allowed again
    start = end = longest = waiting = 0
    for stop, length in enumerate(lengths, 1):
        waiting = max(waiting, length)
        joined, count = max(longest, waiting), stop - start
        too_large = 0 < max_sentences < count or 0 < max_tokens < count * joined
        if too_large:
            if 0 < max_tokens < waiting * (stop - end):  # what waits is too large by itself: it becomes a batch too
                ends.append(end)
                end, waiting = stop - 1, length
            ends.append(end)
            start, joined = end, waiting
        if too_large or count < bsz_mult or count % bsz_mult == 0:
            end, longest, waiting = stop, joined, 0
    if lengths and end != len(lengths):
        ends.append(end)
    return np.split(indices, ends) if lengths else []


def batch_by_size_fn(
    indices: np.ndarray, num_tokens_fn: Callable[[int], int], max_tokens: int, max_sentences: int, bsz_mult: int
) -> list[np.ndarray]:
    """As `batch_by_size_vec`, with the length of an example by its index."""
    lengths = np.fromiter((num_tokens_fn(i) for i in indices), dtype=np.int64, count=len(indices))
    return batch_by_size_vec(indices, lengths, max_tokens, max_sentences, bsz_mult)


def batch_fixed_shapes(*_: object) -> list[np.ndarray]:
    """Batches of given shapes are for TPUs, which nothing here runs on."""
    raise NotImplementedError("batches of fixed shapes (TPUs) need fairseq with its compiled extensions")


# ---- BLEU


def _bleu_init(self, cfg) -> None:
    from fairseq.scoring.bleu import BleuStat

    self.stat = BleuStat()
    self.pad, self.eos, self.unk = cfg.pad, cfg.eos, cfg.unk


def _bleu_reset(self, one_init: bool = False) -> None:
    """Counts of 0; with `one_init` 1 for the orders 2 to 4 (smoothing)."""
    self.stat = type(self.stat)(*([0, 0] + [0, 0] + [int(one_init)] * 6))


def _bleu_add(self, ref: torch.Tensor, pred: torch.Tensor) -> None:
    """Add a pair of sentences, `[n]` int32 each; an unknown word of the reference matches nothing."""
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
    """Without padding before, and without padding and end symbols after (the first word stays, whatever it is)."""
    start = next((i for i, symbol in enumerate(ids) if symbol != pad), len(ids))
    ids = ids[start:]
    while len(ids) > 1 and ids[-1] in (pad, eos):
        ids.pop()
    return ids


def _ngrams(ids: list[int], n: int) -> Counter[tuple[int, ...]]:
    return Counter(tuple(ids[i : i + n]) for i in range(len(ids) - n + 1))
