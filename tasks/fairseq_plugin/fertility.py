"""The fertility tagger through fairseq's interfaces: the model, a task on aligned pairs, and the criterion."""

from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.data import FairseqDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from torch import Tensor, nn

from tasks.data.symbols import PAD
from tasks.fairseq_plugin.architectures import DataModel, register
from tasks.fairseq_plugin.bases import FOLDER, FolderTask, SummedCriterion
from tasks.layers.lstm import widened
from tasks.seq2seq import batches
from tasks.seq2seq.encode import open_encoded

register("fertility", DataModel)
OF_ONE = 0.5  # weight of fertility 1
NONE = -100  # target of padding


class Sources(batches.Sources, FairseqDataset):
    """Sources as fairseq's data set."""


@register_task("sa_fertility", dataclass=FOLDER)
class FertilityTask(FolderTask):
    open, examples = staticmethod(open_encoded), Sources


@register_criterion("sa_tags", dataclass=FairseqDataclass)
class Tags(SummedCriterion):
    """Cross-entropy of the fertilities, averaged over all words; reports accuracy (in %).

    In training, if the tagger has no fertility 0, a word with fertility 1 has half the weight in loss and average, as in
    the authors' code (torch's NLLLoss with `weight`); the losses on dev have no weights.
    """

    UNIT, BITS = "ntokens", True

    def forward(self, model: nn.Module, sample: dict[str, Any], reduce: bool = True):
        loss, size, log = super().forward(model, sample)
        if model.training and model.net.least:
            size = size - (1 - OF_ONE) * log["ones"]
        return loss, size, log | {"sample_size": size}

    def summed(self, model: nn.Module, sample: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        padding = sample["net_input"]["src_tokens"].eq(PAD)
        logits = widened(model(**sample["net_input"]).flatten(0, 1))
        target = sample["target"].masked_fill(padding, NONE).flatten()
        log = {"ncorrect": logits.argmax(-1).eq(target).sum(), "ones": target.eq(1).sum()}
        weights = None
        if model.training and model.net.least:
            weights = torch.ones_like(logits[0])
            weights[1] = OF_ONE
        return F.cross_entropy(logits, target, weights, ignore_index=NONE, reduction="sum"), log


def groups(config: Any) -> dict[str, Any]:
    """fairseq's configuration groups `task`, without its folder, and `criterion`, made from our configuration."""
    return {"task": {"_name": "sa_fertility"}, "criterion": {"_name": "sa_tags"}}
