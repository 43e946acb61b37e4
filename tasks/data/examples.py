"""Encoded examples, and batches of examples of similar length, for training in plain torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tasks.data.symbols import PAD


def padded(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Rows of ids -> ids [B, S], padded on the right, and lengths [B]."""
    tensors = [torch.from_numpy(np.asarray(row, dtype=np.int64)) for row in rows]
    lengths = torch.tensor([len(row) for row in tensors])
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=PAD), lengths


class Examples(Dataset):
    """The examples of a split, by index. A batch holds examples of similar length, so that it contains little padding."""

    def __init__(self, split: Any, training: bool) -> None:
        self.split, self.training = split, training
        self.lengths = self.measured()
        self.sizes = np.maximum.reduce(self.lengths)

    def measured(self) -> tuple[np.ndarray, ...]:
        """Lengths of the examples, [N]; if [parts, N], examples are sorted by the first part, then by the next."""
        raise NotImplementedError

    def batch(self, samples: list[int]) -> dict[str, Any]:
        """`net_input`, `target` and `ntokens` of the examples with these indices (at least one)."""
        raise NotImplementedError

    def collater(self, samples: list[int]) -> dict[str, Any]:
        """The batch of the examples with these indices; {} if there are none."""
        return {"id": torch.tensor(samples), "nsentences": len(samples)} | self.batch(samples) if samples else {}

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, i: int) -> int:
        return int(i)

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    size = num_tokens

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        return self.sizes[indices]

    def set_epoch(self, epoch: int) -> None:
        """Called before each epoch, for batches that differ between epochs."""

    def ordered_indices(self, random: Any = np.random) -> np.ndarray:
        """Indices sorted by length; when training, `random` (by default, numpy's own state) shuffles equal lengths."""
        order = random.permutation(len(self)) if self.training else np.arange(len(self))
        for lengths in reversed(self.lengths):
            order = order[np.argsort(lengths[order], kind="stable")]
        return order


def batch_by_size_vec(
    indices: np.ndarray, num_tokens_vec: np.ndarray, max_tokens: int, max_sentences: int, bsz_mult: int = 1
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
    most = max(lengths, default=0)
    assert max_tokens <= 0 or most <= max_tokens, f"the longest example has {most} tokens; max_tokens is {max_tokens}"
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
