"""Token cross-entropy that also reports token accuracy and the sparsity of the attention.

Normalised by tokens, or by sentences as OpenNMT-py does (`optimization.sentence_avg=true`: summed NLL / batch size).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from omegaconf import II

SUMMED = (
    "loss",
    "ntokens",
    "nsentences",
    "sample_size",
    "ncorrect",
    "attention_zeros",
    "attention_kept",
    "attention_steps",
)


@dataclass
class TokenCrossEntropyConfig(FairseqDataclass):
    label_smoothing: float = field(default=0.0, metadata={"help": "mass given to the uniform distribution"})
    sentence_avg: bool = II("optimization.sentence_avg")


@register_criterion("sa_cross_entropy", dataclass=TokenCrossEntropyConfig)
class TokenCrossEntropy(FairseqCriterion):
    def __init__(self, cfg: TokenCrossEntropyConfig, task) -> None:
        super().__init__(task)
        self.sentence_avg, self.label_smoothing = cfg.sentence_avg, cfg.label_smoothing

    def forward(self, model, sample, reduce: bool = True):
        logits, extra = model(**sample["net_input"])
        target = sample["target"]
        logits, gold = logits.flatten(0, 1).float(), target.flatten()
        loss = F.cross_entropy(
            logits, gold, ignore_index=self.padding_idx, reduction="sum", label_smoothing=self.label_smoothing
        )
        size = target.size(0) if self.sentence_avg else sample["ntokens"]
        with torch.no_grad():
            real = gold.ne(self.padding_idx)
            correct = (logits.argmax(-1).eq(gold) & real).sum()
            attention = extra["attn"][0]
            steps = target.ne(self.padding_idx).unsqueeze(-1)
            keep = sample["net_input"]["src_tokens"].ne(self.padding_idx).unsqueeze(1) & steps
            zeros = (attention.eq(0) & keep).sum()
            log = {
                "loss": loss.detach(), "ntokens": sample["ntokens"], "nsentences": target.size(0), "sample_size": size,
                "ncorrect": correct, "attention_zeros": zeros, "attention_kept": keep.sum(), "attention_steps": steps.sum(),
            }  # fmt: skip
        return loss, size, log

    @staticmethod
    def reduce_metrics(logging_outputs) -> None:
        total = {k: float(sum(log.get(k, 0) for log in logging_outputs)) for k in SUMMED}
        tokens = total["ntokens"]
        metrics.log_scalar("loss", total["loss"] / tokens / math.log(2), tokens, round=4)
        metrics.log_derived("ppl", lambda meters: round(2 ** min(meters["loss"].avg, 60.0), 2))
        metrics.log_scalar("accuracy", 100 * total["ncorrect"] / tokens, tokens, round=3)
        metrics.log_scalar(
            "attention_zeros", total["attention_zeros"] / max(total["attention_kept"], 1), tokens, round=4
        )
        support = (total["attention_kept"] - total["attention_zeros"]) / max(total["attention_steps"], 1)
        metrics.log_scalar("attention_support", support, tokens, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
