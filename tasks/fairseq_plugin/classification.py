"""Classifiers of texts in fairseq's interfaces: models, a task over encoded texts, the criterion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.data import FairseqDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.tasks import register_task
from torch import Tensor, nn

from tasks.classification.encode import EncodedSplit, open_encoded
from tasks.classification.predict import collate
from tasks.data.symbols import PAD
from tasks.fairseq_plugin.architectures import DataModel, config_class, entry, register
from tasks.fairseq_plugin.folder import FolderTask
from tasks.layers import widened


class TextsModel(DataModel):
    def forward(self, texts: list[Tensor], lengths: list[Tensor], **_) -> tuple[Tensor, dict[str, Any]]:
        return self.net(texts, lengths)


register("classification", TextsModel)


class Texts(FairseqDataset):
    """Texts and labels of a split; batches hold texts of like length, so that little of them is padding."""

    def __init__(self, split: EncodedSplit, training: bool) -> None:
        self.split, self.training = split, training
        self.sizes = split.fields[0].lengths

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, i: int) -> int:
        return int(i)

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    size = num_tokens

    def ordered_indices(self) -> np.ndarray:
        """By length; texts of one length in random order when training (fairseq seeds numpy before the call)."""
        order = np.random.permutation(len(self)) if self.training else np.arange(len(self))
        return order[np.argsort(self.sizes[order], kind="stable")]

    def collater(self, samples: list[int]) -> dict[str, Any]:
        """net_input: texts [fields][B, L] padded on the right and lengths [fields][B]; target [B]."""
        if not samples:
            return {}
        texts, lengths = collate(self.split, samples)
        return {
            "id": torch.tensor(samples), "net_input": {"texts": texts, "lengths": lengths}, "ntokens": int(lengths[0].sum()),
            "target": torch.from_numpy(self.split.labels[samples]), "nsentences": len(samples),
        }  # fmt: skip


@register_task("sa_texts", dataclass=config_class("sa_texts", entry("data", str, "", "folder of encoded texts")))
class TextsTask(FolderTask):
    open = staticmethod(open_encoded)

    def dataset_of(self, part: EncodedSplit, training: bool) -> Texts:
        return Texts(part, training)


@register_criterion("sa_classes", dataclass=FairseqDataclass)
class Classes(FairseqCriterion):
    """Cross-entropy of the classes; reports accuracy (in %) and the sparsity of the first attention.

    The gradient is that of the mean over examples, plus the model's own `penalty()`, where it has one, once per update.
    """

    SUMMED = ("loss", "nsentences", "ncorrect", "zeros", "kept")

    def forward(self, model: nn.Module, sample: dict[str, Any], reduce: bool = True):
        logits, extra = model(**sample["net_input"])
        target, size = sample["target"], sample["nsentences"]
        logits = widened(logits)
        loss = F.cross_entropy(logits, target, reduction="sum")
        with torch.no_grad():
            keep = sample["net_input"]["texts"][0].ne(PAD)
            attention = next(iter(extra["attention"].values()))
            log = {
                "loss": loss.detach(), "nsentences": size, "sample_size": size, "ntokens": sample["ntokens"],
                "ncorrect": logits.argmax(-1).eq(target).sum(), "zeros": (attention.eq(0) & keep).sum(), "kept": keep.sum(),
            }  # fmt: skip
        if model.training and hasattr(model.net, "penalty"):
            loss = loss + size * model.net.penalty()  # the trainer divides by the sample size
        return loss, size, log

    @staticmethod
    def reduce_metrics(logging_outputs) -> None:
        total = {k: float(sum(log.get(k, 0) for log in logging_outputs)) for k in Classes.SUMMED}
        n, kept = total["nsentences"], max(total["kept"], 1)
        metrics.log_scalar("loss", total["loss"] / n, n, round=4)
        metrics.log_scalar("accuracy", 100 * total["ncorrect"] / n, n, round=3)
        metrics.log_scalar("attention_zeros", total["zeros"] / kept, n, round=4)
        metrics.log_scalar("attention_support", (kept - total["zeros"]) / n, n, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def groups(config: Any, encoded: Path) -> dict[str, Any]:
    """fairseq's groups `task` and `criterion` of our configuration."""
    return {"task": {"_name": "sa_texts", "data": str(encoded)}, "criterion": {"_name": "sa_classes"}}
