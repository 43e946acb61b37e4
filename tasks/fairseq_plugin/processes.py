"""Data-parallel training: one process per GPU, or several CPU processes over gloo, on one machine or several.

On one machine a cell starts its processes itself; on several, a scheduler has (`repro.launch.ranks`). Each
has its share of every update (`tasks.config.nodes.shares`), so that an update has the examples that the configuration says. The
number of processes is part of a cell's identity all the same: sums are taken in another order, and dropout draws other units.
Tested with CPU processes; see docs/cluster.md for what was run on GPUs.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import tasks
from fairseq.distributed import utils as distributed

from repro import plugins as own_mappings
from repro import signals
from repro.launch import ranks
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

    Raises:
        ValueError: not as many GPUs, or tasks of the job, as processes. Stopped: asked to stop, and all is saved; or this
            process was one of the others, and its share is done.
    """
    every, data = groups["optimization"]["update_freq"][0], groups["dataset"]
    size, unit = (data["batch_size"], "examples") if data["batch_size"] else (data["max_tokens"], "tokens")
    whole = processes * every * size
    monitor.note(f"{processes} processes x {every} batches x {size} {unit} make an update of {whole}")
    cuda = torch.cuda.is_available() and not groups["common"]["cpu"]
    rank = ranks.current()
    here = processes if rank is None else rank.here
    if cuda and here > torch.cuda.device_count():
        raise ValueError(
            f"train.processes={processes}: {here} on this machine, but there are {torch.cuda.device_count()} GPUs"
        )
    if rank is not None and rank.world != processes:
        raise ValueError(
            f"train.processes={processes}, but the job was started with {rank.world} tasks; make them the same"
        )
    distributed_training = {
        "distributed_world_size": processes, "distributed_num_procs": here, "nprocs_per_node": here,
        "distributed_backend": "nccl" if cuda else "gloo",
        "distributed_init_method": rank.method if rank else f"tcp://127.0.0.1:{_free_port()}",
        "distributed_no_spawn": True, "ddp_backend": "pytorch_ddp" if cuda else "legacy_ddp",
    }  # fmt: skip
    # every process reads the checkpoint: what fairseq would broadcast of it, torch refuses to unpickle
    checkpoint = {**groups["checkpoint"], "load_checkpoint_on_all_dp_ranks": True}
    groups = dict(groups) | {"distributed_training": distributed_training, "checkpoint": checkpoint}
    if rank is None:
        _start(groups, processes, plugins, monitor, selection, save_minutes)
    else:
        _join(rank, groups, monitor, selection, save_minutes)
    config = fairseq_config(groups)
    last = Path(config.checkpoint.save_dir) / checkpoints.LAST
    history = torch.load(last, map_location="cpu", weights_only=True)["extra_state"]["history"]
    return tasks.setup_task(config.task), history


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _join(
    rank: ranks.Rank, groups: dict[str, Any], monitor: Monitor, selection: Selection, save_minutes: float
) -> None:
    """Take part as the process that a scheduler has started."""
    if rank.number == 0:
        rank.call()
    _share(rank.number, rank.local, groups, monitor if rank.number == 0 else _Silent(), selection, save_minutes)
    if rank.number != 0:
        raise signals.Stopped("its share of the training is done")


def _start(
    groups: dict[str, Any],
    processes: int,
    plugins: Sequence[str],
    monitor: Monitor,
    selection: Selection,
    minutes: float,
) -> None:
    """All processes, here; a child's end is ours."""
    said = torch.multiprocessing.get_context("spawn").Queue()
    tf32 = torch.backends.cuda.matmul.allow_tf32
    arguments = (groups, list(plugins), said, torch.get_num_threads(), tf32, selection, minutes)
    with signals.deferred():
        children = torch.multiprocessing.spawn(_worker, args=arguments, nprocs=processes, join=False)
        told, ended, why = False, False, None
        while not ended:
            try:
                ended = children.join(timeout=0.1)  # raises with the child's traceback when one fails
            except torch.multiprocessing.ProcessExitedException:
                signals.obey()
                raise
            if (asked := signals.asked()) and not told:
                told, why = True, asked.why
                for pid in children.pids():
                    os.kill(pid, signal.SIGTERM if asked.save else signal.SIGKILL)
            try:
                while True:
                    kind, *arguments = said.get(timeout=0.5 if ended else 0)
                    if kind == "stopped":
                        why = why or arguments[0]
                    else:
                        getattr(monitor, kind)(*arguments)
            except queue.Empty:
                pass
    if why:
        raise signals.Stopped(why)


class _Silent:
    """The monitor of a process that has nothing to tell."""

    def updated(self, epoch: float, max_epoch: int, stats: dict[str, float]) -> None: ...
    def epoch_done(self, history: list[dict[str, float]]) -> None: ...
    def note(self, text: str) -> None: ...


class _Telling:
    """The monitor of the first process: it tells the parent."""

    def __init__(self, said: Any) -> None:
        self.said = said

    def updated(self, epoch: float, max_epoch: int, stats: dict[str, float]) -> None:
        self.said.put(("updated", epoch, max_epoch, stats))

    def epoch_done(self, history: list[dict[str, float]]) -> None:
        self.said.put(("epoch_done", history))

    def note(self, text: str) -> None:
        self.said.put(("note", text))


def _worker(
    rank: int,
    groups: dict[str, Any],
    plugins: list[str],
    said: Any,
    threads: int,
    tf32: bool,
    selection: Selection,
    save_minutes: float,
) -> None:
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    own_mappings.load(plugins)
    try:
        with signals.listening():
            _share(rank, rank, groups, _Telling(said) if rank == 0 else _Silent(), selection, save_minutes)
    except signals.Stopped as stop:
        said.put(("stopped", str(stop)))


def _share(
    rank: int, local: int, groups: dict[str, Any], monitor: Monitor, selection: Selection, save_minutes: float
) -> None:
    """One process's part. rank: among all; local: among those of this machine."""
    config = fairseq_config(groups)
    config.distributed_training.distributed_rank = rank
    distributed.distributed_main(local, lambda cfg: run(cfg, monitor, selection, save_minutes), config, {})
    torch.distributed.destroy_process_group()
