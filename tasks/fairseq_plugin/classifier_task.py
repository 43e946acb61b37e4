"""Labelled texts that we encoded ourselves, as a fairseq task, and the prediction of a split with its attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset, data_utils
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from torch import Tensor

from tasks.classification.encode import PAD, Encoded, EncodedSplit
from tasks.fairseq_plugin import offered
from tasks.fairseq_plugin.offered import SPLITS, OfferedTask


def offer(encoded: Encoded) -> str:
    """Make an encoded data set available to the task in this process; returns the name to put into its configuration."""
    return offered.offer(str(encoded.folder), encoded)


class TextsDataset(FairseqDataset):
    """Texts and labels of a split; batches hold texts of like length, so that little of them is padding."""

    def __init__(self, split: EncodedSplit, shuffle: bool) -> None:
        self.split, self.shuffle = split, shuffle
        self.sizes = split.fields[0].lengths

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, i: int) -> dict[str, Any]:
        texts = [torch.from_numpy(rows[i].astype(np.int64)) for rows in self.split.fields]
        return {"id": i, "texts": texts, "label": int(self.split.labels[i])}

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    def size(self, index: int) -> int:
        return int(self.sizes[index])

    def ordered_indices(self) -> np.ndarray:
        """By length; texts of one length in random order when training (fairseq seeds numpy before the call)."""
        order = np.random.permutation(len(self)) if self.shuffle else np.arange(len(self))
        return order[np.argsort(self.sizes[order], kind="stable")]

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """Texts padded on the right: net_input texts [fields][B, L] and lengths [fields][B]; target [B]."""
        if not samples:
            return {}
        fields = range(len(samples[0]["texts"]))
        texts = [data_utils.collate_tokens([s["texts"][f] for s in samples], PAD) for f in fields]
        lengths = [torch.tensor([len(s["texts"][f]) for s in samples]) for f in fields]
        return {
            "id": torch.tensor([s["id"] for s in samples]), "net_input": {"texts": texts, "lengths": lengths},
            "target": torch.tensor([s["label"] for s in samples]), "nsentences": len(samples), "ntokens": int(lengths[0].sum()),
        }  # fmt: skip


@dataclass
class EncodedTextsConfig(FairseqDataclass):
    encoded: str = field(default="", metadata={"help": "name given by `offer` to an encoded data set"})


@register_task("sa_encoded_texts", dataclass=EncodedTextsConfig)
class EncodedTextsTask(OfferedTask):
    def load_dataset(self, split: str, **_) -> None:
        if split not in self.datasets:
            self.datasets[split] = TextsDataset(self.encoded.splits[SPLITS.get(split, split)], shuffle=split == "train")


@dataclass
class Batch:
    """Predictions of some examples: index [B], log_probs [B, C], attention {name: [B, L]}, mask [B, L] of the first text."""

    index: Tensor
    log_probs: Tensor
    attention: dict[str, Tensor]
    mask: Tensor


@torch.no_grad()
def predict(
    model: torch.nn.Module, split: EncodedSplit, batch_size: int = 128, done: Callable[[float], None] | None = None
) -> Iterator[Batch]:
    """Log-probabilities and attention of every example, on the model's device, results on the CPU."""
    model.eval()
    device = next(model.parameters()).device
    dataset = TextsDataset(split, shuffle=False)
    order = dataset.ordered_indices()
    for start in range(0, len(order), batch_size):
        sample = dataset.collater([dataset[int(i)] for i in order[start : start + batch_size]])
        texts = [text.to(device) for text in sample["net_input"]["texts"]]
        logits, extra = model(texts, sample["net_input"]["lengths"])
        attention = {name: p.float().cpu() for name, p in extra["attention"].items()}
        yield Batch(sample["id"], logits.float().log_softmax(-1).cpu(), attention, texts[0].ne(PAD).cpu())
        if done is not None:
            done(min(1.0, (start + batch_size) / len(order)))
