"""Answers to the questions of a split, and where the model looked for them; plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tasks.vqa.batches import inputs_of
from tasks.vqa.encode import Encoded, Split
from tasks.vqa.models._image import Reduced


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
