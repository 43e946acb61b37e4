"""Base classes for fairseq's interfaces: tasks on encoded folders, criterions that sum."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from fairseq.criterions import FairseqCriterion
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from tasks.data.examples import Examples
from tasks.fairseq_plugin.architectures import config_class, entry

SPLITS = {"valid": "dev"}  # fairseq's name and ours
DIGITS = {"loss": 4, "ppl": 2, "accuracy": 3, "attention_zeros": 4, "attention_support": 3, "gnorm": 3}
FOLDER = config_class("sa_folder", entry("data", str, "", "folder of encoded data"))


class FolderTask(FairseqTask):
    """A task whose `cfg.data` is a folder that `open` reads; `examples` makes those of a split."""

    open: Callable[[str], Any]
    examples: Callable[[Any, bool], Examples]
    source_dictionary = target_dictionary = None
    dev_scores: Callable[..., dict[str, float]] = staticmethod(lambda *_: {})  # see `tasks.seq2seq.metrics.dev_scores`

    def __init__(self, cfg: Any, **_) -> None:
        super().__init__(cfg)
        self.encoded = type(self).open(cfg.data)

    def load_dataset(self, split: str, **_) -> None:
        if split not in self.datasets:
            self.datasets[split] = self.examples(self.encoded.splits[SPLITS.get(split, split)], split == "train")


class SummedCriterion(FairseqCriterion):
    """A criterion whose logs are sums over examples.

    Attributes:
        SUMMED: names of the values that are logged, those of `summed` included.
        UNIT: what the logged means are taken over, "nsentences" or "ntokens".
        BITS: whether the loss is logged in bits, not nats. PERPLEXITY: whether its perplexity is logged too.
    """

    SUMMED: tuple[str, ...] = ("loss", "ntokens", "nsentences", "sample_size", "ncorrect")
    UNIT = "nsentences"
    BITS = PERPLEXITY = False

    def summed(self, model: nn.Module, sample: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """The summed loss of a batch, and the sums to log.

        These are ncorrect and, for models with attention, kept and zeros (weights outside padding, and those of them
        that are zero) and steps (rows of weights).
        """
        raise NotImplementedError

    def size(self, sample: dict[str, Any]) -> int:
        """What the gradient of a batch is divided by."""
        return sample[self.UNIT]

    def forward(self, model: nn.Module, sample: dict[str, Any], reduce: bool = True):
        (loss, log), size = self.summed(model, sample), self.size(sample)
        sizes = {"ntokens": sample["ntokens"], "nsentences": sample["nsentences"], "sample_size": size}
        return loss, size, {"loss": loss.detach()} | sizes | log

    @classmethod
    def measured(cls, total: Mapping[str, float]) -> dict[str, tuple[float, float]]:
        """From the sums `total`, compute name -> (mean, weight of this mean when averaging over batches)."""
        n = total[cls.UNIT]
        loss = total["loss"] / n
        found = {"loss": loss / math.log(2) if cls.BITS else loss, "accuracy": 100 * total["ncorrect"] / n}
        if "kept" in total:
            found["attention_zeros"] = total["zeros"] / max(total["kept"], 1)
        if "steps" in total:
            found["attention_support"] = (total["kept"] - total["zeros"]) / max(total["steps"], 1)
        return {name: (value, n) for name, value in found.items()}

    @classmethod
    def rounded(cls, means: Mapping[str, float]) -> dict[str, float]:
        """The means, rounded, in the order of DIGITS, with the perplexity if the criterion has one."""
        found = {name: round(value, DIGITS[name]) for name, value in means.items()}
        if cls.PERPLEXITY and "loss" in means:
            found["ppl"] = perplexity(means["loss"])
        return {name: found[name] for name in DIGITS if name in found}

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[Mapping[str, Any]]) -> None:
        total = {name: float(sum(log.get(name, 0) for log in logging_outputs)) for name in cls.SUMMED}
        for name, (value, weight) in cls.measured(total).items():
            metrics.log_scalar(name, value, weight, round=DIGITS[name])
        if cls.PERPLEXITY:
            metrics.log_derived("ppl", lambda meters: perplexity(meters["loss"].avg))

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def perplexity(bits: float) -> float:
    """Perplexity of a loss in bits per word; at most 2^60."""
    return round(2 ** min(bits, 60.0), DIGITS["ppl"])
