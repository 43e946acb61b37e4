"""A training job: what is trained, on which batches, and where its checkpoints go."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.config.nodes import shares
from tasks.data.examples import batch_by_size_vec

AHEAD = 10  # batches that a thread collates while an update is computed


def set_tf32(config: Mapping[str, Any]) -> None:
    """Switch TF32 on or off, as `runtime.tf32` says, for fp32 matrix products and recurrences on a GPU.

    torch's own default is TF32 for recurrences only.
    """
    wanted = bool(config["runtime"].get("tf32"))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = wanted


@dataclass(frozen=True)
class Job:
    """A training job. It can be pickled, so that it can be sent to the other training processes.

    Attributes:
        parts: what fairseq provides, a `tasks.fairseq_plugin.parts.Parts`, which this package does not import.
        folder: the cell's folder.
        better: 1 if a higher `train.best_metric` is better, -1 if a lower one is.
    """

    parts: Any
    folder: Path
    better: int

    @property
    def config(self) -> dict[str, Any]:
        return self.parts.config

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def cuda(self) -> bool:
        """Whether the job trains on GPUs."""
        return torch.cuda.is_available() and self.config["runtime"]["device"] != "cpu"

    def value(self, row: Mapping[str, float]) -> float:
        """How good an epoch is, from its row of the history; larger is better."""
        return self.better * row[f"dev/{self.config['train']['best_metric']}"]


class Batches:
    """The batches of "train" or "dev". Each of `world` processes gets every world-th batch, or {} if none is left.

    Raises:
        ValueError: an example has more tokens than are allowed in a batch.
    """

    def __init__(self, job: Job, split: str, rank: int, world: int) -> None:
        self.job, self.training, self.rank, self.world = job, split == "train", rank, world
        self.data, self.seed, train = job.parts.data(split), job.config["seed"], job.config["train"]
        batch_size, max_tokens, every = shares(train)
        if max_tokens and (longest := self.data.sizes.max(initial=0)) > max_tokens:
            parts, number = train["max_tokens"] // max_tokens, self.data.sizes.argmax() + 1
            raise ValueError(
                f"train.max_tokens={train['max_tokens']} is too small: example {number:,} of {split}, the longest, has {longest:,} tokens; "
                f"set train.max_tokens to at least {longest * parts:,}"
                + (f", for train.processes={train['processes']} share it" if parts > 1 else "")
            )
        most, self.every = (batch_size, every) if self.training else (train["batch_size_valid"], 1)
        order = self.data.ordered_indices(np.random.RandomState(self.seed + 1))
        self.rows = batch_by_size_vec(order, self.data.num_tokens_vec(order), max_tokens or 0, most or 0)

    def __len__(self) -> int:
        """Number of updates per epoch."""
        return math.ceil(math.ceil(len(self.rows) / self.world) / self.every)

    def order(self, epoch: int) -> list[Any]:
        """The examples of each batch that this process computes in the given epoch."""
        rows = list(self.rows)
        if self.training:
            np.random.RandomState(self.seed + epoch).shuffle(rows)
        rows += [[]] * (-len(rows) % self.world)
        return rows[self.rank :: self.world]

    def updates(self, epoch: int = 1, done: int = 0) -> Iterator[list[Any]]:
        """For each remaining update of an epoch, its batches; the first `done` updates are skipped."""
        self.data.set_epoch(epoch)
        left, workers = self.order(epoch)[done * self.every :], self.job.config["runtime"]["data_workers"]
        given = {"collate_fn": self.data.collater, "num_workers": workers, "pin_memory": self.job.cuda}
        loader = torch.utils.data.DataLoader(self.data, batch_sampler=left, **given)
        batches = self.job.parts.ahead(AHEAD, loader)
        for _ in range(done, len(self)):
            yield list(itertools.islice(batches, self.every))
