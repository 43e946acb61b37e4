"""The fertility tagger through fairseq's interfaces: the model, a task on aligned pairs, and the criterion."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.data import FairseqDataset
from fairseq.tasks import register_task
from torch import Tensor, nn

from tasks.data.symbols import PAD
from tasks.fairseq_plugin.architectures import DataModel, config_class, entry, register
from tasks.fairseq_plugin.bases import FOLDER, FolderTask, SummedCriterion
from tasks.layers.lstm import widened
from tasks.seq2seq import batches
from tasks.seq2seq.encode import open_encoded

register("fertility", DataModel)
HALF = 0.5  # weight of fertility 1


class Sources(batches.Sources, FairseqDataset):
    """Sources as fairseq's data set."""


@register_task("sa_fertility", dataclass=FOLDER)
class FertilityTask(FolderTask):
    open, examples = staticmethod(open_encoded), Sources


LEAST = entry("least", int, 1, "smallest fertility; 1: its loss counts half in training, as in the authors' code")


@register_criterion("sa_tags", dataclass=config_class("sa_tags", LEAST))
class Tags(SummedCriterion):
    """Cross-entropy of the fertilities, averaged over all words; reports accuracy (in %).

    In training with `least` 1, the loss of fertility 1 has half the weight, and the average is over weights, as in torch's
    cross-entropy with `weight`; the losses on dev have no weights.
    """

    UNIT, BITS = "ntokens", True

    def __init__(self, task: FertilityTask, least: int = 1) -> None:
        super().__init__(task)
        self.least = least

    def forward(self, model: nn.Module, sample: dict[str, Any], reduce: bool = True):
        loss, size, log = super().forward(model, sample)
        if model.training and self.least:
            size = size - HALF * log["ones"]
            log["sample_size"] = size
        return loss, size, log

    def summed(self, model: nn.Module, sample: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        real = sample["net_input"]["src_tokens"].ne(PAD)
        logits = widened(model(**sample["net_input"])[real])  # [words, classes]
        target = sample["target"][real].clamp(min=self.least) - self.least
        log = {"ncorrect": logits.argmax(-1).eq(target).sum(), "ones": target.eq(0).sum()}
        weights = None
        if model.training and self.least:
            weights = torch.ones_like(logits[0])
            weights[0] = HALF
        return F.cross_entropy(logits, target, weights, reduction="sum"), log


def groups(config: Any, encoded: Path) -> dict[str, Any]:
    """fairseq's configuration groups `task` and `criterion`, made from our configuration."""
    criterion = {"_name": "sa_tags", "least": int(config["model"]["forward_links"])}
    return {"task": {"_name": "sa_fertility", "data": str(encoded)}, "criterion": criterion}
