"""The project's training one update at a time, for who times it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import tasks
from fairseq.data import iterators
from fairseq.logging import metrics
from torch import nn

from tasks.fairseq_plugin import compat, loop, trainer
from tasks.fairseq_plugin.groups import fairseq_config, groups_of


class Updates:
    """A training of translation; a call makes one update, on the batches in order, and logs every `read_every`-th time."""

    def __init__(self, config: dict[str, Any], encoded: Path, folder: Path, read_every: int) -> None:
        compat.detach_config_store()
        fairseq = fairseq_config(groups_of("seq2seq", config, encoded, folder))
        task = tasks.setup_task(fairseq.task)
        torch.manual_seed(1)
        model, criterion = task.build_model(fairseq.model), task.build_criterion(fairseq.criterion)
        self.trainer = trainer.Trainer(fairseq, task, model, criterion)
        self.batches = self.trainer.get_train_iterator(epoch=1)
        self.watch, self.samples, self.updates = loop.Watch(self.trainer, []), self._samples(), 0
        self.read_every = read_every

    def _samples(self) -> Iterator[list[Any]]:
        while True:
            yield from iterators.GroupedIterator(self.batches.next_epoch_itr(shuffle=False), 1)

    def __call__(self) -> None:
        with metrics.aggregate("train"), metrics.aggregate("train_inner"):
            self.watch.step(next(self.samples), 1)
            self.updates += 1
            if self.updates % self.read_every == 0:
                self.watch.read(1)

    @property
    def rows(self) -> Sequence[Sequence[int]]:
        """Places of the examples of each batch."""
        return self.batches.frozen_batches

    @property
    def net(self) -> nn.Module:
        return self.trainer.get_model().net
