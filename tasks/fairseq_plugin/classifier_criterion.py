"""Cross-entropy of classes plus the model's own l2 term; reports accuracy (in %) and the sparsity of the attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics

from tasks.classification.encode import PAD

SUMMED = ("loss", "nsentences", "ncorrect", "attention_zeros", "attention_kept")


@register_criterion("sa_classes", dataclass=FairseqDataclass)
class ClassesCriterion(FairseqCriterion):
    """The gradient is that of the mean over examples, plus `model.penalty()` once per update."""

    def forward(self, model, sample, reduce: bool = True):
        logits, extra = model(**sample["net_input"])
        target, size = sample["target"], sample["nsentences"]
        logits = logits.float()
        loss = F.cross_entropy(logits, target, reduction="sum")
        with torch.no_grad():
            keep = sample["net_input"]["texts"][0].ne(PAD)
            attention = next(iter(extra["attention"].values()))
            log = {
                "loss": loss.detach(), "nsentences": size, "sample_size": size, "ntokens": sample["ntokens"],
                "ncorrect": logits.argmax(-1).eq(target).sum(),
                "attention_zeros": (attention.eq(0) & keep).sum(), "attention_kept": keep.sum(),
            }  # fmt: skip
        if model.training:
            loss = loss + size * model.penalty()  # the trainer divides by the sample size
        return loss, size, log

    @staticmethod
    def reduce_metrics(logging_outputs) -> None:
        total = {k: float(sum(log.get(k, 0) for log in logging_outputs)) for k in SUMMED}
        n = total["nsentences"]
        kept = max(total["attention_kept"], 1)
        metrics.log_scalar("loss", total["loss"] / n, n, round=4)
        metrics.log_scalar("accuracy", 100 * total["ncorrect"] / n, n, round=3)
        metrics.log_scalar("attention_zeros", total["attention_zeros"] / kept, n, round=4)
        metrics.log_scalar("attention_support", (kept - total["attention_zeros"]) / n, n, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
