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


class QuestionsModel(DataModel):
    def forward(self, tokens: Tensor, images: Tensor, image_of: Tensor, **_) -> tuple[Tensor, Any]:
        return self.net(tokens, images, image_of)


register("vqa", QuestionsModel)


class Questions(Examples):
    """The questions of a split.

    Batches consist of places, and are made once. Which question takes a place depends on (seed, epoch), so that every
    epoch has new batches, and a resumed epoch has the same batches as in an uninterrupted run. The epoch is stored in
    shared memory, because fairseq's data workers outlive an epoch.
    """

    def __init__(self, encoded: Encoded, split: Split, training: bool, by_image: bool, seed: int) -> None:
        longest = int(split.tokens.lengths.max(initial=1))  # any question may take a place
        super().__init__(split, np.full(len(split), longest), training)
        self.encoded, self.by_image, self.seed = encoded, by_image, seed
        self._epoch = torch.ones(1, dtype=torch.int64).share_memory_()
        self._order: tuple[int, np.ndarray] | None = None

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

    def collater(self, samples: list[int]) -> dict[str, Any]:
        """Make a batch from question indices: the inputs of `Model.forward`, and `target` [B, A], the soft scores."""
        if not samples:
            return {}
        inputs = inputs_of(self.encoded, self.split, samples)
        return {
            "id": torch.tensor(samples), "nsentences": len(samples), "ntokens": int(self.split.tokens.lengths[samples].sum()),
            "net_input": inputs, "target": targets_of(self.encoded, self.split, samples),
        }  # fmt: skip


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
        return Questions(self.encoded, part, training, self.cfg.by_image, self.cfg.seed)


@register_criterion("sa_soft_answers", dataclass=FairseqDataclass)
class SoftAnswers(SummedCriterion):
    """Binary cross-entropy with soft targets (Teney et al. 2018), summed over the answers.

    accuracy: VQA accuracy, in percent, of the answer with the highest logit.
    """

    SUMMED = ("loss", "nsentences", "sample_size", "ntokens", "right", "weights", "zeros")

    def forward(self, model: nn.Module, sample: dict[str, Any], reduce: bool = True):
        logits, reduced = model(**sample["net_input"])
        logits = widened(logits)
        target = sample["target"].to(logits.dtype)  # [B, A]
        loss = F.binary_cross_entropy_with_logits(logits, target, reduction="sum")
        with torch.no_grad():
            right = target.gather(1, logits.argmax(-1, keepdim=True)).sum()
            log = {
                "loss": loss.detach(), "nsentences": len(target), "ntokens": sample["ntokens"], "sample_size": len(target),
                "right": right, "weights": reduced.weights.numel(), "zeros": reduced.weights.eq(0).sum(),
            }  # fmt: skip
        return loss, len(target), log

    @staticmethod
    def measured(total):
        n, zeros = max(total["sample_size"], 1.0), total["zeros"] / max(total["weights"], 1.0)
        return {
            "loss": (total["loss"] / n, n),
            "accuracy": (100 * total["right"] / n, n),
            "attention_zeros": (zeros, n),
        }


def groups(config: Any, encoded: Path) -> dict[str, Any]:
    """fairseq's configuration groups `task` and `criterion`, made from our configuration."""
    return {
        "task": {
            "_name": "sa_questions",
            "data": str(encoded),
            "by_image": config["encode"]["by_image"],
            "seed": config["seed"],
        },
        "criterion": {"_name": "sa_soft_answers"},
    }
