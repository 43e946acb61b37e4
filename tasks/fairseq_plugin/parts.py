"""What fairseq provides for a configuration: task, model, criterion, optimiser; and a finished model as its checkpoint."""

import importlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from fairseq import tasks
from fairseq.data.iterators import BufferedIterator
from fairseq.dataclass.configs import FairseqConfig
from fairseq.optim.adam import Adam
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from tasks.config import models
from tasks.fairseq_plugin import compat
from tasks.fairseq_plugin.architectures import model_group


@dataclass(frozen=True)
class Parts:
    """What `tasks.training` trains (`tasks.training.job.Parts`).

    Attributes:
        config: the resolved, checked configuration of the cell, as plain containers.
        encoded: folder of the encoded data.
    """

    family: str
    config: dict[str, Any]
    encoded: Path
    ahead = staticmethod(BufferedIterator)  # (size, loader): a thread collates that many batches in advance

    @cached_property
    def groups(self) -> DictConfig:
        """fairseq's groups `task`, `criterion` and `model`."""
        compat.detach_config_store()  # the next composition in this process may be Hydra's own, of a sweep by optuna
        plugin = importlib.import_module(f"tasks.fairseq_plugin.{self.family}")
        model = model_group(self.config, models.architecture(self.family, self.config["model"]["name"]).Options)
        made = plugin.groups(self.config)
        made["task"]["data"] = str(self.encoded)
        return OmegaConf.create({**made, "model": model})

    @cached_property
    def task(self) -> Any:
        return tasks.setup_task(self.groups.task)

    def model(self) -> Any:
        """A new model, initialised with torch's random generator; its `net` is the plain torch model."""
        return self.task.build_model(self.groups.model)

    def criterion(self) -> Any:
        return self.task.build_criterion(self.groups.criterion)

    def optimizer(self, parameters: list[Tensor], fused: bool) -> torch.optim.Optimizer:
        """torch's optimiser for SGD or if `fused` (on a GPU), otherwise fairseq's Adam.

        torch's fused Adam adds epsilon to the bias-corrected root of the second moment.
        """
        optim = self.config["optim"]
        if optim["name"] == "sgd":
            return torch.optim.SGD(parameters, optim["lr"], weight_decay=optim["weight_decay"], fused=fused or None)
        options = {k: optim[k] for k in ("lr", "eps", "weight_decay")} | {"betas": tuple(optim["betas"])}
        return torch.optim.AdamW(parameters, **options, fused=True) if fused else Adam(parameters, **options)

    def data(self, split: str) -> Any:
        """The examples of the split "train" or "dev"."""
        self.task.load_dataset(split)
        return self.task.dataset(split)

    def dev_scores(self, net: nn.Module, rank: int, world: int) -> dict[str, float]:
        """Dev scores that `train.best_metric` may name but the criterion does not measure."""
        return self.task.dev_scores(net, self.task.encoded, self.config["train"]["best_metric"], rank, world)

    def write(self, model: nn.Module, path: Path) -> None:
        """Write a plain torch model as a checkpoint that fairseq's own commands read (`fairseq-generate --path`).

        It contains no optimiser state, and not the path of the encoding: fairseq's commands are given one.
        """
        wrapped = self.model()
        wrapped.net.load_state_dict(model.state_dict())
        made = OmegaConf.merge(OmegaConf.structured(FairseqConfig), self.groups)
        told: Any = OmegaConf.to_container(made, resolve=True, enum_to_str=True)
        told["task"]["data"], told["checkpoint"]["save_dir"] = "data", "checkpoints"
        last = {"criterion_name": told["criterion"]["_name"], "optimizer_name": self.config["optim"]["name"]}
        state = {"args": None, "cfg": told, "model": wrapped.state_dict(), "task_state": {}}
        history = [last | {"lr_scheduler_state": {}, "num_updates": 0}]
        state |= {"extra_state": {"train_iterator": None}, "optimizer_history": history, "last_optimizer_state": None}
        with open(path, "wb") as file:  # a full disk is then an OSError; torch would name positions
            torch.save(state, file)
