"""Base classes for fairseq's interfaces: tasks on encoded folders, data sets sorted by length, criterions that sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from fairseq.criterions import FairseqCriterion
from fairseq.data import FairseqDataset
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask

SPLITS = {"valid": "dev"}  # fairseq's name and ours
DIGITS = {"loss": 4, "ppl": 2, "accuracy": 3, "attention_zeros": 4, "attention_support": 3, "gnorm": 3}


class FolderTask(FairseqTask):
    """A task whose `cfg.data` is a folder that `open` reads; `dataset_of` turns a split into a fairseq data set."""

    open: Callable[[str], Any]
    source_dictionary = target_dictionary = None

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.encoded = type(self).open(cfg.data)

    @classmethod
    def setup_task(cls, cfg: Any, **_) -> Any:
        return cls(cfg)

    def dataset_of(self, part: Any, training: bool) -> Any:
        raise NotImplementedError

    def load_dataset(self, split: str, **_) -> None:
        if split not in self.datasets:
            self.datasets[split] = self.dataset_of(self.encoded.splits[SPLITS.get(split, split)], split == "train")


class Examples(FairseqDataset):
    """The examples of a split, by index. A batch holds examples of similar length, so that it contains little padding.

    Args:
        sizes: lengths of the examples [N].
    """

    def __init__(self, split: Any, sizes: np.ndarray, training: bool) -> None:
        self.split, self.sizes, self.training = split, sizes, training

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, i: int) -> int:
        return int(i)

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    size = num_tokens

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        return self.sizes[indices]

    def ordered_indices(self) -> np.ndarray:
        """Indices sorted by length; when training, examples of equal length are shuffled (the caller seeds numpy)."""
        order = np.random.permutation(len(self)) if self.training else np.arange(len(self))
        return order[np.argsort(self.sizes[order], kind="stable")]


class SummedCriterion(FairseqCriterion):
    """A criterion whose logs are sums over examples.

    Attributes:
        SUMMED: names of the values that `forward` logs. fairseq requires `ntokens`, `nsentences` and `sample_size`.
        PERPLEXITY: whether the loss is in bits per word, so that it has a perplexity.
    """

    SUMMED: tuple[str, ...]
    PERPLEXITY = False

    @staticmethod
    def measured(total: Mapping[str, float]) -> dict[str, tuple[float, float]]:
        """From the sums `total`, compute name -> (mean, weight of this mean when averaging over batches)."""
        raise NotImplementedError

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


class Means(dict[str, list[float]]):
    """Accumulates weighted means: name -> [weighted sum, sum of the weights]."""

    def add(self, measured: Mapping[str, tuple[float, float]]) -> None:
        for name, (value, weight) in measured.items():
            if weight > 0:
                kept = self.setdefault(name, [0.0, 0.0])
                kept[0], kept[1] = kept[0] + value * weight, kept[1] + weight

    def values_of(self, criterion: SummedCriterion, split: str) -> dict[str, float]:
        """The rounded means, named `<split>/<name>`, with the perplexity if the criterion has one."""
        means = {name: total / weight for name, (total, weight) in self.items()}
        found = {name: round(value, DIGITS[name]) for name, value in means.items()}
        if criterion.PERPLEXITY and "loss" in means:
            found["ppl"] = perplexity(means["loss"])
        return {f"{split}/{name}": found[name] for name in DIGITS if name in found}
