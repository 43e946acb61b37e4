"""Data-parallel training: one process per GPU, or several CPU processes over gloo.

`train.processes` is part of a cell's identity: n processes see n batches per update. Tested with two CPU processes;
never run on several GPUs.
"""

from __future__ import annotations

import importlib
import queue
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from fairseq import tasks
from fairseq.distributed import utils as distributed

from tasks.fairseq_plugin import training
from tasks.fairseq_plugin.training import Monitor, Trained


def train(
    groups: Mapping[str, Any], processes: int, offer: str, offered: Mapping[str, Any], monitor: Monitor, **options: Any
) -> Trained:
    """Like `training.train`, in `processes` processes.

    Args:
        groups: nested dict of fairseq's groups.
        offer: "module:function" that makes the data available to the task in a process.
        offered: its argument.
        options: of `training.run`.
    """
    cuda = torch.cuda.is_available() and not groups["common"]["cpu"]
    if cuda and processes > torch.cuda.device_count():
        raise ValueError(f"train.processes={processes} but there are {torch.cuda.device_count()} GPUs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spread = dict(groups) | {
        "distributed_training": {
            "distributed_world_size": processes, "distributed_num_procs": processes, "nprocs_per_node": processes,
            "distributed_backend": "nccl" if cuda else "gloo", "distributed_init_method": f"tcp://127.0.0.1:{port}",
            "distributed_no_spawn": True, "ddp_backend": "pytorch_ddp" if cuda else "legacy_ddp",
        }
    }  # fmt: skip
    context = torch.multiprocessing.get_context("spawn")
    said = context.Queue()
    children = torch.multiprocessing.spawn(
        _worker,
        args=(spread, offer, dict(offered), said, torch.get_num_threads(), options),
        nprocs=processes,
        join=False,
    )
    while True:
        ended = children.join(timeout=0.1)  # raises with the child's traceback when one fails
        try:
            while True:
                kind, *arguments = said.get_nowait()
                getattr(monitor, kind)(*arguments)
        except queue.Empty:
            pass
        if ended:
            break
    config = training.fairseq_config(dict(groups))
    task = tasks.setup_task(config.task)
    folder = Path(config.checkpoint.save_dir)
    history = torch.load(folder / training.LAST, map_location="cpu", weights_only=True)["extra_state"]["history"]
    return training.finish(task, config, history, metric=options["metric"], maximize=options["maximize"])


class _Telling:
    """The monitor of rank 0: tells the parent."""

    def __init__(self, said: Any) -> None:
        self.said = said

    def updated(self, epoch: float, max_epoch: int, stats: dict[str, float]) -> None:
        self.said.put(("updated", epoch, max_epoch, stats))

    def epoch_done(self, history: list[dict[str, float]]) -> None:
        self.said.put(("epoch_done", history))

    def note(self, text: str) -> None:
        self.said.put(("note", text))


class _Silent:
    def updated(self, epoch: float, max_epoch: int, stats: dict[str, float]) -> None: ...
    def epoch_done(self, history: list[dict[str, float]]) -> None: ...
    def note(self, text: str) -> None: ...


def _worker(
    rank: int, groups: dict[str, Any], offer: str, offered: dict[str, Any], said: Any, threads: int, options: dict
) -> None:
    import tasks.fairseq_plugin  # noqa: F401  registers in this process

    torch.set_num_threads(threads)
    module, function = offer.split(":")
    getattr(importlib.import_module(module), function)(offered)
    config = training.fairseq_config(groups)
    config.distributed_training.distributed_rank = rank
    monitor: Monitor = _Telling(said) if rank == 0 else _Silent()
    distributed.distributed_main(rank, lambda cfg: training.run(cfg, monitor, **options), config, {})
    torch.distributed.destroy_process_group()
