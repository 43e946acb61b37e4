"""The fertility tagger through fairseq's interfaces: the model, a task on aligned pairs, and the criterion."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from torch import Tensor, nn

from tasks.data.symbols import PAD
from tasks.fairseq_plugin.architectures import DataModel, config_class, entry, register
from tasks.fairseq_plugin.bases import Examples, FolderTask, SummedCriterion
from tasks.layers import widened
from tasks.seq2seq.decode import padded
from tasks.seq2seq.encode import Split, open_encoded
from tasks.seq2seq.fertility import stored
from tasks.seq2seq.tagger import MOST


class TaggerModel(DataModel):
    def forward(self, src_tokens: Tensor, src_lengths: Tensor, **_) -> Tensor:
        return self.net(src_tokens, src_lengths)


register("fertility", TaggerModel)


class Sources(Examples):
    """The sources of a split and their fertilities."""

    def __init__(self, split: Split, training: bool) -> None:
        super().__init__(split, split.source.lengths, training)
        self.fertility = stored(split)

    def collater(self, samples: list[int]) -> dict[str, Any]:
        """Make a batch. net_input: src_tokens [B, S] and src_lengths [B]; target: [B, S], clipped at MOST."""
        if not samples:
            return {}
        tokens, lengths = padded([self.split.source[i] for i in samples])
        target, _ = padded([self.fertility[i] for i in samples])
        return {
            "id": torch.tensor(samples), "net_input": {"src_tokens": tokens, "src_lengths": lengths}, "nsentences": len(samples),
            "ntokens": int(lengths.sum()), "target": target.clamp(max=MOST),
        }  # fmt: skip


@register_task(
    "sa_fertility", dataclass=config_class("sa_fertility", entry("data", str, "", "folder of aligned pairs"))
)
class FertilityTask(FolderTask):
    open = staticmethod(open_encoded)

    def dataset_of(self, part: Split, training: bool) -> Sources:
        return Sources(part, training)


@register_criterion("sa_tags", dataclass=FairseqDataclass)
class Tags(SummedCriterion):
    """Cross-entropy of the fertilities, averaged over all words; reports accuracy (in %)."""

    SUMMED = ("loss", "nsentences", "sample_size", "ntokens", "ncorrect")

    def forward(self, model: nn.Module, sample: dict[str, Any], reduce: bool = True):
        real = sample["net_input"]["src_tokens"].ne(PAD)
        logits, target = widened(model(**sample["net_input"])[real]), sample["target"][real]
        loss, size = F.cross_entropy(logits, target, reduction="sum"), sample["ntokens"]
        log = {
            "loss": loss.detach(), "ntokens": size, "nsentences": sample["nsentences"], "sample_size": size,
            "ncorrect": logits.argmax(-1).eq(target).sum(),
        }  # fmt: skip
        return loss, size, log

    @staticmethod
    def measured(total):
        n = total["ntokens"]
        return {"loss": (total["loss"] / n / math.log(2), n), "accuracy": (100 * total["ncorrect"] / n, n)}


def groups(config: Any, encoded: Path) -> dict[str, Any]:
    """fairseq's configuration groups `task` and `criterion`, made from our configuration."""
    return {"task": {"_name": "sa_fertility", "data": str(encoded)}, "criterion": {"_name": "sa_tags"}}
