"""Train one cell with several tasks of a job, on one or more machines.

`srun` or `torchrun` starts train.processes tasks:

    torchrun --nnodes 2 --nproc-per-node 4 ... -m repro.launch.ranks outputs/cells/TASK/MAPPING/ID

The first task runs the cell: only this task holds the lock, writes and evaluates. The other tasks wait until the first
task calls them, train together with it, and end. They also end if the first task has nothing to train, or if it dies.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from repro import cell as cells
from repro import plugins, signals

PATIENCE = timedelta(days=30)  # how long a task waits to be called
FAREWELL_SECONDS = 30.0


@dataclass(frozen=True)
class Rank:
    """The rank of this process: task `number` of `world`, and task `local` of `here` on this machine.

    `host` and `port` are the address of the first task's store.
    """

    number: int
    world: int
    local: int
    here: int
    host: str
    port: int

    @property
    def method(self) -> str:
        """The address of torch's process group."""
        return f"tcp://{self.host}:{self.port + 1}"

    def call(self) -> None:
        """Call the other tasks to join the training; only the first task does this."""
        _state["store"].set("called", "train")


_state: dict[str, Any] = {}


def current() -> Rank | None:
    """The rank of this process inside `together`, or None if the process is the only task."""
    return _state.get("rank")


def read(environment: Mapping[str, str]) -> Rank | None:
    """Read the rank that Slurm or torchrun has set; returns None if this process is the only task of its job."""
    if int(environment.get("WORLD_SIZE", "1")) > 1:
        number, world, local, here = (
            int(environment[k]) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        )
        return Rank(number, world, local, here, environment["MASTER_ADDR"], int(environment["MASTER_PORT"]) + 1)
    if "SLURM_PROCID" not in environment or (world := int(environment.get("SLURM_NTASKS", "1"))) == 1:
        return None
    shown = ["scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]]
    hosts = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split()
    here = int(environment["SLURM_TASKS_PER_NODE"].split("(")[0].split(",")[0])
    # each job uses its own port, because two jobs may share a machine
    port = 10_000 + 2 * (int(environment["SLURM_JOB_ID"]) % 20_000)
    return Rank(int(environment["SLURM_PROCID"]), world, int(environment["SLURM_LOCALID"]), here, hosts[0], port)


@contextlib.contextmanager
def together(rank: Rank) -> Iterator[None]:
    """Share a torch store among the tasks while the block runs; then the first task tells the others to end."""
    import torch.distributed as dist

    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # use our own store, not torchrun's
    _state["store"] = dist.TCPStore(
        rank.host, rank.port, None, rank.number == 0, timeout=PATIENCE, wait_for_workers=False
    )
    _state["rank"] = rank
    try:
        yield
    finally:
        store = _state["store"]
        _state.clear()
        if rank.number:
            store.add("left", 1)
        else:
            store.set("called", "over")
            until = time.monotonic() + FAREWELL_SECONDS  # wait for the others, because the store ends with this process
            while store.add("left", 0) < rank.world - 1 and time.monotonic() < until:
                time.sleep(0.05)


def follow(folder: str | Path) -> None:
    """Wait for the first task's call, and join the training of the cell in `folder` if there is one."""
    _state["store"].wait(["called"])
    if _state["store"].get("called") != b"train":
        return
    cell = cells.from_folder(folder)
    plugins.load(cell.config.get("plugins") or [])
    with contextlib.suppress(signals.Stopped), signals.listening():
        cell.family.train(cell.config, cell.prepared, Path(folder), Quiet())


class Quiet:
    """A monitor that reports nothing."""

    def stage(self, name: str, fraction: float, **stats: float) -> None: ...
    def curve(self, rows: list[dict[str, float]]) -> None: ...
    def note(self, text: str) -> None: ...


def main(folder: str) -> int:
    """Run this task's part in the cell of a folder. Returns the exit status: 0, or 1 if the cell failed."""
    if (rank := read(os.environ)) is None:
        raise SystemExit("start this with torchrun or srun in several tasks; for one task use scripts/train.py")
    with together(rank):
        if rank.number:
            follow(folder)
            return 0
        outcome = cells.run_folder(folder)
    print(outcome.error or outcome.state)
    return int(outcome.state not in ("done", "skipped"))


if __name__ == "__main__":
    import repro.launch.ranks as ranks  # the training reads the state of this module, not of `__main__`

    sys.exit(ranks.main(*sys.argv[1:]))
