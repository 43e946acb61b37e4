"""A training job: a configuration and its encoded data, with fairseq's task, model and criterion for them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from fairseq import tasks
from fairseq.data.data_utils import numpy_seed
from omegaconf import DictConfig, OmegaConf

from tasks.config import models
from tasks.config.nodes import shares
from tasks.fairseq_plugin import compat
from tasks.fairseq_plugin.architectures import model_group
from tasks.fairseq_plugin.bases import SPLITS


@dataclass(frozen=True)
class Job:
    """A training job. It can be pickled, so that it can be sent to the other training processes.

    Attributes:
        config: the resolved, checked configuration of the cell, as plain containers.
        encoded: folder of the encoded data.
        folder: the cell's folder.
        better: 1 if a higher `train.best_metric` is better, -1 if a lower one is.
    """

    family: str
    config: dict[str, Any]
    encoded: Path
    folder: Path
    better: int

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def cuda(self) -> bool:
        """Whether the job trains on GPUs."""
        return torch.cuda.is_available() and self.config["runtime"]["device"] != "cpu"

    @cached_property
    def groups(self) -> DictConfig:
        """fairseq's groups `task`, `criterion` and `model`."""
        compat.detach_config_store()
        plugin = importlib.import_module(f"tasks.fairseq_plugin.{self.family}")
        model = model_group(self.config, models.architecture(self.family, self.config["model"]["name"]).Options)
        return OmegaConf.create({**plugin.groups(self.config, self.encoded), "model": model})

    @cached_property
    def task(self) -> Any:
        return tasks.setup_task(self.groups.task)

    def model(self) -> Any:
        """A new model, initialised with torch's random generator."""
        return self.task.build_model(self.groups.model)

    def criterion(self) -> Any:
        return self.task.build_criterion(self.groups.criterion)

    def batches(self, split: str) -> tuple[Any, list[Any]]:
        """fairseq's data set for the split "train" or "valid", and for each of its batches the indices of the examples.

        Raises:
            ValueError: an example has more tokens than are allowed in a batch.
        """
        train, seed = self.config["train"], self.config["seed"]
        batch_size, max_tokens, _ = shares(train)
        self.task.load_dataset(split)
        data = self.task.dataset(split)
        if max_tokens:
            self._refuse_longer(split, [data.num_tokens(i) for i in range(len(data))], max_tokens)
        most = batch_size if split == "train" else train["batch_size_valid"]
        with numpy_seed(seed + 1):
            order = data.ordered_indices()
        return data, list(data.batch_by_size(order, max_tokens=max_tokens, max_sentences=most))

    def _refuse_longer(self, split: str, lengths: list[int], max_tokens: int) -> None:
        if (longest := max(lengths, default=0)) > max_tokens:
            train = self.config["train"]
            parts = train["max_tokens"] // max_tokens
            raise ValueError(
                f"train.max_tokens={train['max_tokens']} is too small: example {lengths.index(longest) + 1:,} of {SPLITS.get(split, split)}, "
                f"the longest, has {longest:,} tokens; set train.max_tokens to at least {longest * parts:,}"
                + (f", for train.processes={train['processes']} share it" if parts > 1 else "")
            )

    def value(self, row: Mapping[str, float]) -> float:
        """How good an epoch is, from its row of the history; larger is better.

        Raises:
            ValueError: `train.best_metric` is not among the dev metrics.
        """
        metric = self.config["train"]["best_metric"]
        if f"dev/{metric}" not in row:
            known = ", ".join(name.removeprefix("dev/") for name in row if name.startswith("dev/"))
            raise ValueError(f"train.best_metric={metric!r} is not measured on dev; there are: {known}")
        return self.better * row[f"dev/{metric}"]
