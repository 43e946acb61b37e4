"""Binary cross-entropy over the answers with soft targets (Teney et al. 2018), summed; and VQA's training schedule."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II


@dataclass
class SoftAnswersConfig(FairseqDataclass):
    pass


@register_criterion("sa_soft_answers", dataclass=SoftAnswersConfig)
class SoftAnswers(FairseqCriterion):
    """Loss per question: the sum over answers of BCE(logit, soft score). accuracy: VQA accuracy of the highest logit, percent."""

    def __init__(self, cfg: SoftAnswersConfig, task) -> None:
        super().__init__(task)

    def forward(self, model, sample, reduce: bool = True):
        logits, reduced = model(**sample["net_input"])
        target = sample["target"].float()  # [B, A]
        loss = F.binary_cross_entropy_with_logits(logits.float(), target, reduction="sum")
        with torch.no_grad():
            right = target.gather(1, logits.argmax(-1, keepdim=True)).sum()
            log = {
                "loss": loss.detach(), "nsentences": len(target), "ntokens": sample["ntokens"], "sample_size": len(target),
                "right": right, "weights": reduced.weights.numel(), "zeros": reduced.weights.eq(0).sum(),
            }  # fmt: skip
        return loss, len(target), log

    @staticmethod
    def reduce_metrics(logging_outputs) -> None:
        def total(key: str) -> float:
            return float(sum(log.get(key, 0) for log in logging_outputs))

        n = max(total("sample_size"), 1.0)
        metrics.log_scalar("loss", total("loss") / n, n, round=4)
        metrics.log_scalar("accuracy", 100 * total("right") / n, n, round=3)
        metrics.log_scalar("attention_zeros", total("zeros") / max(total("weights"), 1.0), n, round=4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


@dataclass
class McanStepsConfig(FairseqDataclass):
    lr: list[float] = II("optimization.lr")
    warmup_epochs: int = field(
        default=3, metadata={"help": "epoch e of these trains at e / (warmup_epochs + 1) of the rate"}
    )
    decay_epochs: list[int] = field(
        default_factory=lambda: [10, 12], metadata={"help": "epochs after which the rate is multiplied"}
    )
    decay: float = field(default=0.2, metadata={"help": "by this"})


@register_lr_scheduler("mcan_steps", dataclass=McanStepsConfig)
class McanSteps(FairseqLRScheduler):
    """1/4, 1/2, 3/4 of the rate in epochs 1 to 3, then the rate, times .2 after epochs 10 and 12 (Yu et al. 2019).

    A function of the epoch alone, so a resumed run needs no state.
    """

    def __init__(self, cfg: McanStepsConfig, optimizer):
        super().__init__(cfg, optimizer)
        self.step_begin_epoch(1)

    def rate(self, epoch: int) -> float:
        """The learning rate of epoch 1, 2, ..."""
        warm = min(epoch / (self.cfg.warmup_epochs + 1), 1.0)
        return self.cfg.lr[0] * warm * self.cfg.decay ** sum(epoch > e for e in self.cfg.decay_epochs)

    def step_begin_epoch(self, epoch: int) -> float:
        self.optimizer.set_lr(self.rate(epoch))
        return self.optimizer.get_lr()

    def step_update(self, num_updates: int) -> float:
        return self.optimizer.get_lr()
