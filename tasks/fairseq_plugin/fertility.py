"""The fertility tagger through fairseq's interfaces: the model, a task on aligned pairs, and the criterion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from torch import Tensor, nn

from tasks.data.symbols import PAD
from tasks.fairseq_plugin.architectures import DataModel, register
from tasks.fairseq_plugin.bases import FOLDER, Examples, FolderTask, SummedCriterion
from tasks.layers import widened
from tasks.seq2seq.decode import padded
from tasks.seq2seq.encode import open_encoded
from tasks.seq2seq.fertility import stored
from tasks.seq2seq.tagger import MOST

register("fertility", DataModel)


class Sources(Examples):
    """The sources of a split and their fertilities."""

    def lengths(self) -> np.ndarray:
        self.fertility = stored(self.split)
        return self.split.source.lengths

    def batch(self, samples: list[int]) -> dict[str, Any]:
        """net_input: src_tokens [B, S] and src_lengths [B]; target: [B, S], clipped at MOST."""
        tokens, lengths = padded([self.split.source[i] for i in samples])
        target = padded([self.fertility[i] for i in samples])[0].clamp(max=MOST)
        inputs = {"src_tokens": tokens, "src_lengths": lengths}
        return {"net_input": inputs, "target": target, "ntokens": int(lengths.sum())}


@register_task("sa_fertility", dataclass=FOLDER)
class FertilityTask(FolderTask):
    open, examples = staticmethod(open_encoded), Sources


@register_criterion("sa_tags", dataclass=FairseqDataclass)
class Tags(SummedCriterion):
    """Cross-entropy of the fertilities, averaged over all words; reports accuracy (in %)."""

    UNIT, BITS = "ntokens", True

    def summed(self, model: nn.Module, sample: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        real = sample["net_input"]["src_tokens"].ne(PAD)
        logits, target = widened(model(**sample["net_input"])[real]), sample["target"][real]
        log = {"ncorrect": logits.argmax(-1).eq(target).sum()}
        return F.cross_entropy(logits, target, reduction="sum"), log


def groups(config: Any, encoded: Path) -> dict[str, Any]:
    """fairseq's configuration groups `task` and `criterion`, made from our configuration."""
    return {"task": {"_name": "sa_fertility", "data": str(encoded)}, "criterion": {"_name": "sa_tags"}}
