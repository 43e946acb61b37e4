"""Text classification through fairseq's interfaces: models, a task on encoded texts, and the criterion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from torch import Tensor, nn

from tasks.classification.encode import EncodedSplit, open_encoded
from tasks.classification.predict import collate
from tasks.data.symbols import PAD
from tasks.fairseq_plugin.architectures import DataModel, config_class, entry, register
from tasks.fairseq_plugin.bases import Examples, FolderTask, SummedCriterion
from tasks.layers import widened


class TextsModel(DataModel):
    def forward(self, texts: list[Tensor], lengths: list[Tensor], **_) -> tuple[Tensor, dict[str, Any]]:
        return self.net(texts, lengths)


register("classification", TextsModel)


class Texts(Examples):
    """The texts and labels of a split."""

    def collater(self, samples: list[int]) -> dict[str, Any]:
        """Make a batch. net_input: texts [fields][B, L], padded on the right, and lengths [fields][B]; target: [B]."""
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
        return Texts(part, part.fields[0].lengths, training)


@register_criterion("sa_classes", dataclass=FairseqDataclass)
class Classes(SummedCriterion):
    """Cross-entropy over the classes; reports accuracy (in %) and the sparsity of the model's first attention.

    The gradient is that of the mean loss over examples, plus, once per update, the model's `penalty()` if it has one.
    """

    SUMMED = ("loss", "nsentences", "sample_size", "ntokens", "ncorrect", "zeros", "kept")

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
    def measured(total):
        n, kept = total["nsentences"], max(total["kept"], 1)
        return {
            "loss": (total["loss"] / n, n), "accuracy": (100 * total["ncorrect"] / n, n), "attention_zeros": (total["zeros"] / kept, n),
            "attention_support": ((kept - total["zeros"]) / n, n),
        }  # fmt: skip


def groups(config: Any, encoded: Path) -> dict[str, Any]:
    """fairseq's configuration groups `task` and `criterion`, made from our configuration."""
    return {"task": {"_name": "sa_texts", "data": str(encoded)}, "criterion": {"_name": "sa_classes"}}
