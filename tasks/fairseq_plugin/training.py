"""Train the model of a configuration on a folder of encoded data: what a cell asks of fairseq."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq import tasks

from tasks.fairseq_plugin import checkpoints, compat
from tasks.fairseq_plugin.folder import SPLITS
from tasks.fairseq_plugin.groups import fairseq_config, groups_of
from tasks.fairseq_plugin.loop import Monitor, Selection, run
from tasks.fairseq_plugin.processes import spread


@dataclass
class Trained:
    """The outcome: the plain torch model of the best epoch (by the dev metric), on the CPU; one row an epoch; the best row."""

    model: torch.nn.Module
    history: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, float] = field(default_factory=dict)


def train(
    family: str, config: Mapping[str, Any], encoded: Path, folder: Path, monitor: Monitor, better: int
) -> Trained:
    """Train as the configuration says, in one process or several; resumes from `folder`.

    Args:
        config: resolved and checked, as plain containers.
        encoded: folder of the encoded data.
        folder: the cell's; checkpoints go below it.
        better: direction of `train.best_metric`.

    Raises:
        FloatingPointError: a loss is not finite, or has exploded. RuntimeError: best.pt has been damaged since it was written.
        ValueError: no such dev metric, no epoch to train, or an example that is longer than a batch may be.
    """
    compat.detach_config_store()
    groups, selection = groups_of(family, config, encoded, folder), Selection(config["train"]["best_metric"], better)
    if config["train"]["max_tokens"]:
        _refuse_longer(groups, config["train"])
    minutes, processes = config["runtime"]["save_minutes"], config["train"]["processes"]
    if processes > 1:
        task, history = spread(groups, processes, config.get("plugins") or [], monitor, selection, minutes)
    else:
        task, history = run(fairseq_config(groups), monitor, selection, minutes)
    best = max(history, key=selection.value)
    state = checkpoints.best(folder / "checkpoints", best["epoch"])
    model = task.build_model(fairseq_config(groups).model)
    model.load_state_dict(state["model"], strict=True)
    return Trained(model.net.eval(), history, best)


def _refuse_longer(groups: Mapping[str, Any], train: Mapping[str, Any]) -> None:
    """Raise ValueError for an example of more tokens than a batch may have: fairseq would leave it out."""
    task, most = tasks.setup_task(fairseq_config(groups).task), groups["dataset"]["max_tokens"]
    for split in ("train", "valid"):
        task.load_dataset(split)
        lengths = [task.dataset(split).num_tokens(i) for i in range(len(task.dataset(split)))]
        if (longest := max(lengths, default=0)) > most:
            parts = train["max_tokens"] // most
            raise ValueError(
                f"train.max_tokens={train['max_tokens']} is too small: example {lengths.index(longest) + 1:,} of {SPLITS.get(split, split)}, "
                f"the longest, has {longest:,} tokens; set train.max_tokens to at least {longest * parts:,}"
                + (f", for train.processes={train['processes']} share it" if parts > 1 else "")
            )
