"""Visual questions as a fairseq task: batches of questions with each image once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.data import FairseqDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from torch import Tensor

from tasks.fairseq_plugin import offered
from tasks.fairseq_plugin.offered import SPLITS, OfferedTask
from tasks.vqa.encode import Encoded, Part
from tasks.vqa.mcan import ImageSpec, Reduced


def offer(encoded: Encoded) -> str:
    """Make encoded questions available to the task in this process; returns the name to put into its configuration."""
    return offered.offer(encoded.sha256, encoded)


class VisualQuestions(FairseqDataset):
    """Questions of a split.

    With `by_image` the order is shuffled by image and an image's questions stay together: a batch then holds few images,
    and the CNN of the demo reads each once. Otherwise questions are shuffled one by one, as the authors do.

    fairseq composes batches of places once; which question stands at a place depends on (seed, epoch), so that every epoch
    has new batches and a resumed one has those of an uninterrupted run. The epoch lies in shared memory, for data workers
    that outlive an epoch.
    """

    def __init__(self, part: Part, encoded: Encoded, *, shuffle: bool, by_image: bool, seed: int) -> None:
        self.part, self.images, self.answer_count = part, encoded.images, len(encoded.answers)
        self.shuffle, self.by_image, self.seed = shuffle, by_image, seed
        self._epoch = torch.ones(1, dtype=torch.int64).share_memory_()
        self._order: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.part.questions)

    def __getitem__(self, place: int) -> int:
        """Number of the question at a place of this epoch."""
        epoch = int(self._epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, self.order(epoch)
        return int(self._order[1][place])

    def order(self, epoch: int) -> np.ndarray:
        """int64 [N]: question numbers in the order of an epoch."""
        if not self.shuffle:
            return np.arange(len(self))
        rng = np.random.default_rng([self.seed, epoch])
        if not self.by_image:
            return rng.permutation(len(self))
        numbers, owner = np.unique(self.part.image, return_inverse=True)
        return np.argsort(rng.permutation(len(numbers))[owner], kind="stable")

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def ordered_indices(self) -> np.ndarray:
        return np.arange(len(self))

    def num_tokens(self, index: int) -> int:
        return self.part.tokens.shape[1]  # of any question that may stand there

    size = num_tokens

    def collater(self, samples: list[int]) -> dict[str, Any]:
        """Tensors of a batch of question numbers: see `Mcan.forward`; `target` [B, A] soft scores."""
        if not samples:
            return {}
        index = np.asarray(samples)
        lengths = self.part.lengths[index]
        tokens = torch.from_numpy(self.part.tokens[index, : lengths.max()].astype(np.int64))
        numbers, owner = np.unique(self.part.image[index], return_inverse=True)
        pixels = self.images.rows(np.maximum(numbers, 0))
        if len(numbers) and numbers[0] < 0:  # an image that cannot be read
            pixels = pixels.copy()
            pixels[0] = 0
        target = torch.zeros(len(index), self.answer_count)
        for row, i in enumerate(index):
            target[row, self.part.answers[i]] = torch.from_numpy(self.part.scores[i])
        return {
            "id": torch.from_numpy(index), "nsentences": len(index), "ntokens": int(lengths.sum()), "target": target,
            "net_input": {"tokens": tokens, "images": torch.from_numpy(np.ascontiguousarray(pixels)), "image_of": torch.from_numpy(owner)},
        }  # fmt: skip


@dataclass
class VisualQuestionsConfig(FairseqDataclass):
    encoded: str = field(default="", metadata={"help": "name given by `offer` to encoded questions"})
    by_image: bool = field(default=False, metadata={"help": "keep the questions of an image together in a batch"})
    seed: int = field(default=1, metadata={"help": "of the order"})


@register_task("sa_visual_questions", dataclass=VisualQuestionsConfig)
class VisualQuestionsTask(OfferedTask):
    @property
    def image_spec(self) -> ImageSpec:
        images = self.encoded.images
        return ImageSpec(images.kind, (int(images.grid[0]), int(images.grid[1])), images.channels)

    def load_dataset(self, split: str, **_) -> None:
        if split in self.datasets:
            return
        training = split == "train"
        self.datasets[split] = VisualQuestions(
            self.encoded.parts[SPLITS[split]],
            self.encoded,
            shuffle=training,
            by_image=training and self.cfg.by_image,
            seed=self.cfg.seed,
        )


def predict(
    model: torch.nn.Module,
    task: VisualQuestionsTask,
    split: str,
    batch_size: int,
    done: Callable[[int, int], None] = lambda i, n: None,
) -> Iterator[tuple[np.ndarray, Tensor, Reduced]]:
    """Answer every question of a split, in order.

    Yields (question numbers [B], logits float32 [B, A], where the image was attended to), all on the CPU.
    """
    task.load_dataset(split)
    data = task.datasets[split]
    model.eval()
    parameter = next(model.parameters())
    with torch.no_grad():
        for start in range(0, len(data), batch_size):
            sample = data.collater(list(range(start, min(start + batch_size, len(data)))))
            inputs = utils.move_to_cuda(sample["net_input"]) if parameter.is_cuda else sample["net_input"]
            logits, reduced = model(**inputs)
            cpu = Reduced(*(None if t is None else t.detach().cpu() for t in reduced))
            yield sample["id"].numpy(), logits.float().cpu(), cpu
            done(min(start + batch_size, len(data)), len(data))
