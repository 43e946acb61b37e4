"""Predictions and attention for a split, in plain torch with batches of texts of similar length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tasks.classification.encode import EncodedSplit
from tasks.data import examples
from tasks.data.progress import Done, untold
from tasks.data.symbols import PAD


@dataclass
class Batch:
    """Predictions for some examples: index [B], log_probs [B, C], attention {name: [B, L]}, first text's mask [B, L].
    measures: statistics that the model itself computes for each example, {name: [B]}.
    """

    index: Tensor
    log_probs: Tensor
    attention: dict[str, Tensor]
    mask: Tensor
    measures: dict[str, Tensor] = field(default_factory=dict)


def collate(split: EncodedSplit, rows: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Texts [fields][B, L], padded on the right, and their lengths [fields][B], for the examples `rows`."""
    return padded([[part[int(i)] for i in rows] for part in split.fields])


class Texts(examples.Examples):
    """The texts and labels of a split."""

    def measured(self) -> tuple[np.ndarray]:
        return (self.split.fields[0].lengths,)

    def batch(self, samples: list[int]) -> dict[str, Any]:
        """net_input: texts [fields][B, L], padded on the right, and lengths [fields][B]; target: [B]."""
        texts, lengths = collate(self.split, samples)
        target = torch.from_numpy(self.split.labels[samples])
        return {"net_input": {"texts": texts, "lengths": lengths}, "target": target, "ntokens": int(lengths[0].sum())}


def padded(fields: Sequence[Sequence[np.ndarray]]) -> tuple[list[Tensor], list[Tensor]]:
    """Rows of ids [fields][B][length] as texts [fields][B, L], padded on the right, and their lengths [fields][B]."""
    texts, lengths = zip(*map(examples.padded, fields))
    return list(texts), list(lengths)


@torch.no_grad()
def predict(model: torch.nn.Module, split: EncodedSplit, batch_size: int = 128, done: Done = untold) -> Iterator[Batch]:
    """Log-probabilities and attention of every example, computed on the model's device and returned on the CPU."""
    model.eval()
    device = next(model.parameters()).device
    order = np.argsort(split.fields[0].lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        texts, lengths = collate(split, rows)
        logits, extra = model([text.to(device) for text in texts], lengths)
        attention = {name: p.float().cpu() for name, p in extra["attention"].items()}
        measures = {name: value.cpu() for name, value in extra.get("measures", {}).items()}
        log_probs = logits.float().log_softmax(-1).cpu()
        yield Batch(torch.from_numpy(rows), log_probs, attention, texts[0].ne(PAD), measures)
        done(min(1.0, (start + batch_size) / len(order)))
