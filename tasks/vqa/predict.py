"""Answers to the questions of a split, and where the model looked for them; plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tasks.data.symbols import PAD
from tasks.vqa.encode import Encoded, Split
from tasks.vqa.models._image import Reduced


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


class Batch(NamedTuple):
    """Question numbers [B], logits float32 [B, A], attention per cell [B, L] and what it comes from; all on the CPU."""

    numbers: np.ndarray
    logits: Tensor
    weights: Tensor
    reduced: Reduced


@dataclass
class Answers:
    """Answers of a split.

    Attributes:
        texts, confidence: of each question; the probability that the model gives its answer.
        zeros: share of cells whose weight is exactly zero.
        grid: (rows, columns) of the cells.
        attention: arrays of the first questions: "cells/<number>" [columns, rows], the attention as seen;
            "discrete/<number>" [L]; of a density "mu/", "sigma/" and, of a mixture, "pi/".
    """

    texts: list[str]
    confidence: list[float]
    zeros: float
    grid: tuple[int, int]
    attention: dict[str, Tensor] = field(default_factory=dict)


@torch.no_grad()
def predict(
    model: nn.Module,
    encoded: Encoded,
    split: Split,
    batch_size: int,
    done: Callable[[float], None] = lambda share: None,
) -> Iterator[Batch]:
    """Every question of a split, in order, on the model's device. `done` hears the share that is answered."""
    model.eval()
    device = next(model.parameters()).device
    for start in range(0, len(split), batch_size):
        numbers = np.arange(start, min(start + batch_size, len(split)))
        logits, reduced = model(**{k: v.to(device) for k, v in inputs_of(encoded, split, numbers).items()})
        on_cpu = Reduced(*(None if t is None else t.cpu() for t in reduced))
        yield Batch(numbers, logits.float().cpu(), model.cell_weights(on_cpu), on_cpu)
        done((numbers[-1] + 1) / len(split))


def answer(
    model: nn.Module, encoded: Encoded, split: Split, batch_size: int, keep: int,
    done: Callable[[float], None] = lambda share: None,
) -> Answers:  # fmt: skip
    """The answer with the highest logit to every question; the attention of the first `keep` questions is kept."""
    texts: list[str] = []
    confidence: list[float] = []
    kept: dict[str, Tensor] = {}
    zeros = cells = 0
    for numbers, logits, weights, reduced in predict(model, encoded, split, batch_size, done):
        best = logits.max(-1)
        texts += [encoded.answers[i] for i in best.indices.tolist()]
        confidence += best.values.sigmoid().tolist()
        zeros, cells = zeros + int(weights.eq(0).sum()), cells + weights.numel()
        for row, number in enumerate(numbers[numbers < keep].tolist()):
            # steps are the grid's columns and "source tokens" its rows, so that the report draws the image upright
            kept[f"cells/{number}"] = weights[row].unflatten(0, model.grid).T.contiguous()
            kept[f"discrete/{number}"] = reduced.weights[row].float().clone()
            for name in ("mu", "sigma", "pi"):
                if (found := getattr(reduced, name)) is not None:
                    kept[f"{name}/{number}"] = found[row].double().clone()
    return Answers(texts, confidence, zeros / cells, model.grid, kept)
