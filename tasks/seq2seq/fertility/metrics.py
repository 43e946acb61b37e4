"""Metrics of tagged fertilities."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from repro.protocol import Evaluation, Metric, Scores, scored
from tasks.data.examples import padded
from tasks.data.ragged import Ragged
from tasks.data.symbols import PAD
from tasks.layers.lstm import MOST
from tasks.seq2seq.encode import Split

# Scorers take flat arrays of tagged and true fertilities, both clipped to MOST.
_RIGHT = Metric("accuracy", "%", 1, 1, None, "source words whose fertility is tagged as aligned")
_OFF = Metric("fertility_error", "words", -1, 3, None, "difference from the aligned fertility, mean over source words")
MEASURED: Scores = {
    "accuracy": (_RIGHT, lambda tagged, true: 100 * (tagged == true).mean()),
    "fertility_error": (_OFF, lambda tagged, true: np.abs(tagged - true).mean()),
    "loss": (Metric("loss", "bits per word", -1, 3, None, "cross-entropy"), None),
}


@torch.no_grad()
def tagged(model: nn.Module, split: Split, batch_size: int) -> Iterable[np.ndarray]:
    """The most likely fertilities of the words of each source, in order."""
    device = next(model.parameters()).device
    for start in range(0, len(split), batch_size):
        tokens, lengths = padded([split.source[i] for i in range(start, min(start + batch_size, len(split)))])
        best = model(tokens.to(device), lengths.to(device)).argmax(-1).cpu().masked_fill(tokens.eq(PAD), 0)
        yield from (row[:n].numpy() for row, n in zip(best, lengths.tolist()))


def scores(tagged: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """The metrics of `MEASURED` for flat arrays of fertilities, both clipped to MOST."""
    tagged, true = (np.minimum(x.astype(np.int64), MOST) for x in (tagged, true))
    return scored(MEASURED, tagged, true)


def evaluation(model: nn.Module, split: Split, true: Ragged, name: str, batch_size: int) -> Evaluation:
    """The scores of a test set and its tagged fertilities."""
    rows = list(tagged(model, split, batch_size))
    values = scores(np.concatenate(rows), true.flat)
    records = []
    for i, row in enumerate(rows):
        record = {"set": name, "index": i, "source": split.source_tokens[i]}
        records.append(record | {"fertility": row.tolist(), "aligned": true[i].tolist()})
    return Evaluation({f"{name}/{k}": v for k, v in values.items()}, predictions=records)
