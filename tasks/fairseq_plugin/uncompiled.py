"""Plain Python for the two compiled parts of fairseq used in training and generation, so that no compiler is needed.

fairseq is installed without its C++ and Cython extensions. This module replaces two of them, with the same results: the
batching of a corpus (`fairseq.data.data_utils_fast`) and fairseq's own BLEU (`libbleu`, the default scorer of
`fairseq-generate`).
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
    """Install both replacements in fairseq. Idempotent."""
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
    """Split `indices`, in their order, into batches.

    A batch has at most `max_sentences` examples and at most `max_tokens` tokens, where its tokens are the number of
    examples times the longest length. A limit of 0 or less is ignored. The size of a batch is below `bsz_mult` or a
    multiple of it, if the limits allow.

    Args:
        indices, num_tokens_vec: `[N]` int64, examples and their lengths.
    Raises:
        AssertionError: a single example exceeds `max_tokens`.
    """
    lengths = num_tokens_vec.tolist()
    assert max_tokens <= 0 or max(lengths, default=0) <= max_tokens, (
        f"the longest example has {max(lengths)} tokens; max_tokens is {max_tokens}"
    )
    ends: list[int] = []
    # the open batch is start:end; later examples wait until the size of both together is allowed again
    start = end = longest = waiting = 0
    for stop, length in enumerate(lengths, 1):
        waiting = max(waiting, length)
        joined, count = max(longest, waiting), stop - start
        too_large = 0 < max_sentences < count or 0 < max_tokens < count * joined
        if too_large:
            if 0 < max_tokens < waiting * (stop - end):  # the waiting examples are too large: make them a batch
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
    """Like `batch_by_size_vec`, with a function that gives the length of an example from its index."""
    lengths = np.fromiter((num_tokens_fn(i) for i in indices), dtype=np.int64, count=len(indices))
    return batch_by_size_vec(indices, lengths, max_tokens, max_sentences, bsz_mult)


def batch_fixed_shapes(*_: object) -> list[np.ndarray]:
    """Not implemented: batches of fixed shapes are for TPUs, which this project does not use."""
    raise NotImplementedError("batches of fixed shapes (TPUs) need fairseq with its compiled extensions")


# ---- BLEU


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
