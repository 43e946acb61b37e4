"""Trains in this process, or data-parallel: one process per GPU, or several CPU processes over gloo, all on one machine.

Each process computes its share of every update (`tasks.config.nodes.shares`), so that an update has as many examples as
the configuration specifies. The number of processes is still part of a cell's identity, because it changes the order of
summation and the units that dropout selects. Tested with CPU processes; docs/start/cluster.md lists what was run on GPUs.
"""

import os
import queue
import signal
import socket
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from repro import plugins as own_mappings
from repro import signals
from repro.protocol import Monitor
from tasks.config.nodes import shares
from tasks.training import checkpoints
from tasks.training.job import Job, set_tf32
from tasks.training.loop import Training


def train(job: Job, monitor: Monitor) -> tuple[nn.Module, list[dict[str, float]], dict[str, float]]:
    """Train as configured, in one or several processes; resumes from the job's folder.

    Returns:
        the plain torch model of the best epoch (by the dev metric; with `train.average`, the last one, whose row is of the
        mean), on the CPU; one row per epoch; the best epoch's row.

    Raises:
        FloatingPointError: a loss is not finite or has exploded.
        ValueError: an example is longer than a batch may be, or a checkpoint was damaged after it was written.
    """
    with signals.deferred():
        spread(job, monitor) if job.config["train"]["processes"] > 1 else Training(job, monitor).run()
    last = checkpoints.read(job.checkpoints / checkpoints.LAST)
    model = job.parts.model()
    model.load_state_dict(last["best"])
    history, averaged = last["history"], job.config["train"].get("average")
    return model.net.eval(), history, history[-1] if averaged else max(history, key=job.value)


def spread(job: Job, monitor: Monitor) -> None:
    """Train in `train.processes` processes and wait for them; if one fails, all are terminated.

    Raises:
        ValueError: there are fewer GPUs than processes.
        Stopped: the training was asked to stop and has saved everything.
    """
    train = job.config["train"]
    processes, (batch_size, max_tokens, every) = train["processes"], shares(train)
    size, unit = (batch_size, "examples") if batch_size else (max_tokens, "tokens")
    whole = processes * every * size
    monitor.note(f"{processes} processes x {every} batches x {size} {unit} make an update of {whole}")
    if job.cuda and processes > torch.cuda.device_count():
        has = f"this machine has {torch.cuda.device_count()}"
        raise ValueError(f"train.processes={processes} needs {processes} GPUs; {has}")
    said = torch.multiprocessing.get_context("spawn").Queue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        method = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    named = own_mappings.pinned(job.config.get("plugins"))
    arguments = (job, said, torch.get_num_threads(), method, named)
    children = torch.multiprocessing.spawn(_worker, args=arguments, nprocs=processes, join=False)
    ended, why = False, ""
    while not ended:
        try:
            ended = children.join(timeout=0.1)  # if a child fails, raises with its traceback
        except torch.multiprocessing.ProcessExitedException:
            signals.obey()
            raise
        if signals.asked() and not why:
            why = signals.asked()
            for pid in children.pids():
                os.kill(pid, signal.SIGTERM)
        try:
            while True:
                kind, given, stats = said.get(timeout=0.5 if ended else 0)
                if kind == "stopped":
                    why = why or given[0]
                else:
                    getattr(monitor, kind)(*given, **stats)
        except queue.Empty:
            pass
    if why:
        raise signals.Stopped(why)


class Telling:
    """The monitor of a process: the first process passes its calls to `put`; the others report nothing."""

    def __init__(self, put: Callable[[tuple[Any, ...]], None] = lambda what: None) -> None:
        self.put = put

    def __getattr__(self, kind: str) -> Callable[..., None]:
        return lambda *arguments, **stats: self.put((kind, arguments, stats))


def _worker(rank: int, job: Job, reports: Any, threads: int, method: str, named: dict[str, str]) -> None:
    torch.set_num_threads(threads)
    set_tf32(job.config)
    own_mappings.load(named)
    world = job.config["train"]["processes"]
    try:
        with signals.listening():
            if job.cuda:
                torch.cuda.set_device(rank)
            torch.distributed.init_process_group("nccl" if job.cuda else "gloo", method, world_size=world, rank=rank)
            with signals.deferred():
                Training(job, Telling(reports.put) if rank == 0 else Telling(), rank, world).run()
            torch.distributed.destroy_process_group()
    except signals.Stopped as stop:
        reports.put(("stopped", (str(stop),), {}))
