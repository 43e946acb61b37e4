"""Batches of questions with each image once, and the order in which training reads them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tasks.data.symbols import PAD
from tasks.vqa.encode import Encoded, Split


def inputs_of(encoded: Encoded, split: Split, numbers: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
    """What `Model.forward` takes, for the questions of these numbers: tokens [B, T], images [U, ...], image_of [B].

    An image that cannot be read is zero.
    """
    rows = [split.tokens[int(i)] for i in numbers]
    tokens = torch.full((len(rows), max(map(len, rows))), PAD)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = torch.from_numpy(row.astype(np.int64))
    images, owner = np.unique(split.image[np.asarray(numbers)], return_inverse=True)
    cells = np.array(encoded.images.rows(np.maximum(images, 0)))
    cells[images < 0] = 0
    return {"tokens": tokens, "images": torch.from_numpy(cells), "image_of": torch.from_numpy(owner)}


def targets_of(encoded: Encoded, split: Split, numbers: Sequence[int] | np.ndarray) -> Tensor:
    """Soft scores float32 [B, A]: the accuracy that each answer of the vocabulary would get."""
    target = torch.zeros(len(numbers), encoded.answer_count, dtype=torch.float32)
    for place, i in enumerate(numbers):
        answers = torch.from_numpy(split.answers[int(i)].astype(np.int64))
        target[place, answers] = torch.from_numpy(np.array(split.scores[int(i)]))
    return target


def order(image: np.ndarray, seed: int, epoch: int, by_image: bool) -> np.ndarray:
    """int64 [N]: the numbers of all questions in the order of an epoch; resuming repeats it.

    With `by_image` images are shuffled and an image's questions stay together: a batch then holds few images, and a CNN
    reads each once. Otherwise questions are shuffled one by one, as the authors do.

    Args:
        image: int64 [N], the image of each question.
    """
    rng = np.random.default_rng([seed, epoch])
    if not by_image:
        return rng.permutation(len(image))
    numbers, owner = np.unique(image, return_inverse=True)
    return np.argsort(rng.permutation(len(numbers))[owner], kind="stable")
