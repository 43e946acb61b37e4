"""Visual question answering through fairseq's interfaces: models, a task on encoded questions, and the criterion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import II
from torch import Tensor, nn

from tasks.fairseq_plugin.architectures import DataModel, config_class, entry, register
from tasks.fairseq_plugin.bases import Examples, FolderTask, SummedCriterion
from tasks.layers import widened
from tasks.vqa.encode import Encoded, Split, open_encoded
from tasks.vqa.predict import inputs_of, order, targets_of

register("vqa", DataModel)


class Questions(Examples):
    """The questions of a split.

    Batches consist of places, and are made once. Which question takes a place depends on (seed, epoch), so that every
    epoch has new batches, and a resumed epoch has the same batches as in an uninterrupted run. The epoch is stored in
    shared memory, because fairseq's data workers outlive an epoch.
    """

    def __init__(self, split: Split, training: bool, encoded: Encoded, by_image: bool, seed: int) -> None:
        super().__init__(split, training)
        self.encoded, self.by_image, self.seed = encoded, by_image, seed
        self._epoch = torch.ones(1, dtype=torch.int64).share_memory_()
        self._order: tuple[int, np.ndarray] | None = None

    def lengths(self) -> np.ndarray:
        return np.full(len(self), int(self.split.tokens.lengths.max(initial=1)))  # any question may take a place

    def __getitem__(self, place: int) -> int:
        """Index of the question at a place in the current epoch."""
        if not self.training:
            return place
        epoch = int(self._epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, order(self.split.image, self.seed, epoch, self.by_image)
        return int(self._order[1][place])

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def ordered_indices(self) -> np.ndarray:
        return np.arange(len(self))

    def batch(self, samples: list[int]) -> dict[str, Any]:
        """net_input: the inputs of `Model.forward`; target [B, A]: the soft scores."""
        inputs, target = (of(self.encoded, self.split, samples) for of in (inputs_of, targets_of))
        return {"net_input": inputs, "target": target, "ntokens": int(self.split.tokens.lengths[samples].sum())}


@register_task(
    "sa_questions",
    dataclass=config_class(
        "sa_questions",
        entry("data", str, "", "folder of encoded questions"),
        entry("by_image", bool, False, "keep the questions of an image together in a batch"),
        entry("seed", int, II("common.seed")),
    ),
)
class QuestionsTask(FolderTask):
    open = staticmethod(open_encoded)

    def dataset_of(self, part: Split, training: bool) -> Questions:
        return Questions(part, training, self.encoded, self.cfg.by_image, self.cfg.seed)


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


def groups(config: Any, encoded: Path) -> dict[str, Any]:
    """fairseq's configuration groups `task` and `criterion`, made from our configuration."""
    ordered = {"by_image": config["encode"]["by_image"], "seed": config["seed"]}
    task = {"_name": "sa_questions", "data": str(encoded)} | ordered
    return {"task": task, "criterion": {"_name": "sa_soft_answers"}}
