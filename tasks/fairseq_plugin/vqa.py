"""Visual question answering through fairseq's interfaces: models, a task on encoded questions, and the criterion."""

from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.data import FairseqDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II
from torch import Tensor, nn

from tasks.fairseq_plugin.architectures import DataModel, config_class, entry, register
from tasks.fairseq_plugin.bases import FolderTask, SummedCriterion
from tasks.layers.lstm import widened
from tasks.vqa import predict
from tasks.vqa.encode import Split, open_encoded

register("vqa", DataModel)


class Questions(predict.Questions, FairseqDataset):
    """Questions as fairseq's data set."""


@register_task(
    "sa_questions",
    dataclass=config_class(
        "sa_questions",
        entry("data", str, "", "folder of encoded questions"),
        entry("seed", int, II("common.seed")),
    ),
)
class QuestionsTask(FolderTask):
    open = staticmethod(open_encoded)

    def examples(self, part: Split, training: bool) -> Questions:
        return Questions(part, training, self.encoded, self.cfg.seed)


@register_criterion("sa_soft_answers", dataclass=FairseqDataclass)
class SoftAnswers(SummedCriterion):
    """Binary cross-entropy with soft targets (Teney et al. 2018), summed over the answers.

    accuracy: VQA accuracy, in percent, of the answer with the highest logit.
    """

    SUMMED = (*SummedCriterion.SUMMED, "zeros", "kept")

    def summed(self, model: nn.Module, sample: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        logits, reduced = model(**sample["net_input"])
        logits = widened(logits)
        target = sample["target"].to(logits.dtype)  # [B, A]
        with torch.no_grad():
            right = target.gather(1, logits.argmax(-1, keepdim=True)).sum()
            log = {"ncorrect": right, "kept": reduced.weights.numel(), "zeros": reduced.weights.eq(0).sum()}
        return F.binary_cross_entropy_with_logits(logits, target, reduction="sum"), log


def groups(config: Any) -> dict[str, Any]:
    """fairseq's configuration groups `task`, without its folder, and `criterion`, made from our configuration."""
    return {"task": {"_name": "sa_questions", "seed": config["seed"]}, "criterion": {"_name": "sa_soft_answers"}}
