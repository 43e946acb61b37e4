"""The pairs of the entailment demo need the attention: the demo's model learns them, and with uniform attention it does not."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import sparse_attention as sa
from tasks.classification.models.snli_attentive import Model, Options
from tasks.config.options import read
from tasks.data import DataError, NullProgress
from tasks.data.symbols import FIRST, PAD, SPECIAL, UNK

EPOCHS, BATCH, RATE = 4, 32, 0.003


class Uniform(nn.Module):
    """Every word has the same weight, whatever its score."""

    def forward(self, scores, mask=None, dim=-1):
        return mask / mask.sum(dim, keepdim=True)


def accuracy_after_training(splits, mapping) -> float:
    """Dev accuracy in percent of a plain training: Adam, linear decay, no penalty."""
    torch.manual_seed(1)
    words = [[text.lower().split() for text in e.texts] for e in splits["train"]]
    known = {
        w for w, n in zip(*np.unique([w for texts in words for t in texts for w in t], return_counts=True)) if n > 8
    }
    index = {word: i for i, word in enumerate(sorted(known), FIRST)}
    sizes = SimpleNamespace(size=len(SPECIAL) + len(index), classes=range(3), vectors=None, vector_rows=None)
    options = {"embed_dim": 64, "embed_range": 0.1, "hidden_dim": 64, "dropout": 0.3, "l2": 0.0}
    model = Model(read(Options, options, "model"), sizes, {"attention": mapping})
    optimiser = torch.optim.Adam(model.parameters(), RATE)

    def batch(examples):
        ids = [
            [torch.tensor([index.get(w, UNK) for w in e.texts[k].lower().split()]) for e in examples] for k in (0, 1)
        ]
        padded = [nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD) for rows in ids]
        return (
            padded,
            [torch.tensor([len(row) for row in rows]) for rows in ids],
            torch.tensor([e.label for e in examples]),
        )

    train, rng = list(splits["train"]), random.Random(1)
    steps, done = EPOCHS * math.ceil(len(train) / BATCH), 0
    for _ in range(EPOCHS):
        rng.shuffle(train)
        for start in range(0, len(train), BATCH):
            optimiser.param_groups[0]["lr"] = RATE * min(1, (done + 1) / 200) * (1 - done / steps)
            texts, lengths, labels = batch(train[start : start + BATCH])
            loss = nn.functional.cross_entropy(model(texts, lengths)[0], labels)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            done += 1
    model.eval()
    with torch.no_grad():
        texts, lengths, labels = batch(splits["dev"])
        return 100 * float((model(texts, lengths)[0].argmax(-1) == labels).float().mean())


@pytest.mark.network
@pytest.mark.slow
def test_uniform_attention_loses_at_least_five_points(opened):
    try:
        splits = opened("debian_pairs").read(NullProgress())
    except DataError as error:
        pytest.skip(f"the package lists cannot be had here: {error.what}")
    attentive, uniform = (accuracy_after_training(splits, m) for m in (sa.make("softmax"), Uniform()))
    print(f"dev accuracy: softmax {attentive:.1f}, uniform {uniform:.1f}")
    assert uniform > 40, "the task is learnable at all"
    assert attentive >= uniform + 5
