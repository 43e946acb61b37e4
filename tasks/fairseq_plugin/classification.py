"""Text classification through fairseq's interfaces: models, a task on encoded texts, and the criterion."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.data import FairseqDataset
from fairseq.tasks import register_task
from torch import Tensor, nn

from tasks.classification import predict
from tasks.classification.encode import open_encoded
from tasks.classification.metrics import dev_scores
from tasks.data.symbols import PAD
from tasks.fairseq_plugin.architectures import DataModel, config_class, entry, register
from tasks.fairseq_plugin.bases import FOLDER, FolderTask, SummedCriterion
from tasks.layers.lstm import widened

register("classification", DataModel)


class Texts(predict.Texts, FairseqDataset):
    """Texts as fairseq's data set."""


@register_task("sa_texts", dataclass=FOLDER)
class TextsTask(FolderTask):
    open, examples, dev_scores = staticmethod(open_encoded), Texts, staticmethod(dev_scores)


WEIGHTS = entry("class_weights", str, "", "balanced: n / (classes * examples of the class)")


@register_criterion("sa_classes", dataclass=config_class("sa_classes", WEIGHTS))
class Classes(SummedCriterion):
    """Cross-entropy over the classes; reports accuracy (in %) and the sparsity of the model's first attention.

    The gradient is that of the mean loss over examples, plus, once per update, the model's `penalty()` if it has one. In
    training, balanced weights make the loss of every class count the same; the losses on dev and test have no weights.
    """

    SUMMED = (*SummedCriterion.SUMMED, "zeros", "kept", "steps")

    def __init__(self, task: TextsTask, class_weights: str = "") -> None:
        super().__init__(task)
        weights = None
        if class_weights:
            counts = np.bincount(task.encoded.splits["train"].labels, minlength=len(task.encoded.classes))
            weights = torch.from_numpy(counts.sum() / (len(counts) * np.maximum(counts, 1))).float()
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, model: nn.Module, sample: dict[str, Any], reduce: bool = True):
        loss, size, log = super().forward(model, sample)
        if model.training and hasattr(model.net, "penalty"):
            loss = loss + size * model.net.penalty()  # the trainer divides by the sample size
        return loss, size, log

    def summed(self, model: nn.Module, sample: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        logits, extra = model(**sample["net_input"])
        target, logits = sample["target"], widened(logits)
        with torch.no_grad():
            keep = sample["net_input"]["texts"][0].ne(PAD)
            attention = next(iter(extra["attention"].values()))
            log = {"ncorrect": logits.argmax(-1).eq(target).sum(), "zeros": (attention.eq(0) & keep).sum()}
            log |= {"kept": keep.sum(), "steps": len(target)}
        weights = self.weights.to(logits) if self.weights is not None and model.training else None  # [classes]
        return F.cross_entropy(logits, target, weights, reduction="sum"), log


def groups(config: Any) -> dict[str, Any]:
    """fairseq's configuration groups `task`, without its folder, and `criterion`, made from our configuration."""
    criterion = {"_name": "sa_classes", "class_weights": config["train"].get("class_weights") or ""}
    return {"task": {"_name": "sa_texts"}, "criterion": criterion}
