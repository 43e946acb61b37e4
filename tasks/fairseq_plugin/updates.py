"""Runs the project's training one update at a time, for benchmarks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from tasks.fairseq_plugin.job import Job
from tasks.fairseq_plugin.loop import Training
from tasks.fairseq_plugin.processes import Telling


class Updates:
    """A training run of a translation model; each call makes one update.

    The updates cycle through the batches of the first epoch. Every `read_every`-th call also reads the logged values.
    """

    def __init__(self, config: dict[str, Any], encoded: Path, folder: Path, read_every: int) -> None:
        self.training = Training(Job("seq2seq", config, encoded, folder, 1), Telling())
        self.samples = itertools.chain.from_iterable(self.training.train.updates() for _ in itertools.count())
        self.updates, self.read_every = 0, read_every

    def __call__(self) -> None:
        self.training.update(next(self.samples))
        self.updates += 1
        if self.updates % self.read_every == 0:
            self.training.read()

    @property
    def rows(self) -> Sequence[Sequence[int]]:
        """The example indices of each batch."""
        return self.training.train.order(1)

    @property
    def net(self) -> nn.Module:
        return self.training.trainer.model.net
