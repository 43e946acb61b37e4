"""Data-parallel training: one process per GPU, or several CPU processes over gloo.

`train.processes` is part of a cell's identity: n processes see n batches per update. Tested with two CPU processes;
never run on several GPUs.
"""

from __future__ import annotations

import queue
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import tasks
from fairseq.distributed import utils as distributed

from sparse_attention.repro import plugins as own_mappings
from tasks.fairseq_plugin import checkpoints
from tasks.fairseq_plugin.groups import fairseq_config
from tasks.fairseq_plugin.loop import Monitor, Selection, run


def spread(
    groups: Mapping[str, Any], processes: int, plugins: Sequence[str], monitor: Monitor, selection: Selection,
    save_minutes: float,
) -> tuple[Any, list[dict[str, float]]]:  # fmt: skip
    """`loop.run` in `processes` processes; each opens the data by their path.

    Args:
        groups: nested dict of fairseq's groups.
        plugins: files that register mappings.
    """
    cuda = torch.cuda.is_available() and not groups["common"]["cpu"]
    if cuda and processes > torch.cuda.device_count():
        raise ValueError(f"train.processes={processes} but there are {torch.cuda.device_count()} GPUs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    distributed_training = {
        "distributed_world_size": processes, "distributed_num_procs": processes, "nprocs_per_node": processes,
        "distributed_backend": "nccl" if cuda else "gloo", "distributed_init_method": f"tcp://127.0.0.1:{port}",
        "distributed_no_spawn": True, "ddp_backend": "pytorch_ddp" if cuda else "legacy_ddp",
    }  # fmt: skip
    said = torch.multiprocessing.get_context("spawn").Queue()
    children = torch.multiprocessing.spawn(
        _worker,
        args=(
            dict(groups) | {"distributed_training": distributed_training}, list(plugins), said, torch.get_num_threads(), selection,
            save_minutes,
        ),
        nprocs=processes,
        join=False,
    )  # fmt: skip
    ended = False
    while not ended:
        ended = children.join(timeout=0.1)  # raises with the child's traceback when one fails
        try:
            while True:
                kind, *arguments = said.get_nowait()
                getattr(monitor, kind)(*arguments)
        except queue.Empty:
            pass
    config = fairseq_config(groups)
    last = Path(config.checkpoint.save_dir) / checkpoints.LAST
    history = torch.load(last, map_location="cpu", weights_only=True)["extra_state"]["history"]
    return tasks.setup_task(config.task), history


class _Telling:
    """The monitor of a process: rank 0 tells the parent."""

    def __init__(self, said: Any, rank: int) -> None:
        self.said, self.rank = said, rank

    def _tell(self, *what: Any) -> None:
        if self.rank == 0:
            self.said.put(what)

    def updated(self, epoch: float, max_epoch: int, stats: dict[str, float]) -> None:
        self._tell("updated", epoch, max_epoch, stats)

    def epoch_done(self, history: list[dict[str, float]]) -> None:
        self._tell("epoch_done", history)

    def note(self, text: str) -> None:
        self._tell("note", text)


def _worker(
    rank: int,
    groups: dict[str, Any],
    plugins: list[str],
    said: Any,
    threads: int,
    selection: Selection,
    save_minutes: float,
) -> None:
    torch.set_num_threads(threads)
    own_mappings.load(plugins)
    config = fairseq_config(groups)
    config.distributed_training.distributed_rank = rank
    monitor = _Telling(said, rank)
    distributed.distributed_main(rank, lambda cfg: run(cfg, monitor, selection, save_minutes), config, {})
    torch.distributed.destroy_process_group()
